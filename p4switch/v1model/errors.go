package v1model

import (
	"errors"
	"fmt"
)

// Why Load refuses a program; every error it returns matches one of these with
// errors.Is.
var (
	// ErrMalformed: the JSON is not what the format says.
	ErrMalformed = errors.New("malformed program")
	// ErrUnsupported: the program is well formed but uses a feature that is not
	// implemented; the error names it.
	ErrUnsupported = errors.New("unsupported feature")
)

// Error says what is wrong with a program and where.
type Error struct {
	// Place is a path into the program, outermost first, as in
	// `action "ingress.set": statement 2 (assign)`.
	Place string
	// Reason is ErrMalformed or ErrUnsupported.
	Reason error
	// What is the fault, or the feature's name.
	What string
}

// Error implements error.
func (e *Error) Error() string {
	if e.Place == "" {
		return fmt.Sprintf("%v: %s", e.Reason, e.What)
	}
	return fmt.Sprintf("%s: %v: %s", e.Place, e.Reason, e.What)
}

// Unwrap makes errors.Is(err, ErrUnsupported) work.
func (e *Error) Unwrap() error { return e.Reason }

func malformed(format string, args ...any) error {
	return &Error{Reason: ErrMalformed, What: fmt.Sprintf(format, args...)}
}

func unsupported(format string, args ...any) error {
	return &Error{Reason: ErrUnsupported, What: fmt.Sprintf(format, args...)}
}

// at puts a place in front of an error on its way out.
func at(err error, format string, args ...any) error {
	place := fmt.Sprintf(format, args...)
	var e *Error
	if !errors.As(err, &e) {
		return &Error{Place: place, Reason: ErrMalformed, What: err.Error()}
	}
	if e.Place != "" {
		place += ": " + e.Place
	}
	return &Error{Place: place, Reason: e.Reason, What: e.What}
}
