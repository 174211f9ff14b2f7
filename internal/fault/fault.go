// Package fault holds the one coded error type of Bifröst. Applications know
// it as rpc.Error and dsm.Error.
package fault

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Code says what went wrong. Codes travel in packets, so their numbers are
// fixed; 0 means no error.
type Code uint8

// The codes. The comment says what a caller can do.
const (
	OK               Code = iota
	PermissionDenied      // the node holds neither control nor lease for this operation
	NoSuchMethod          // no node exports the method: check the name, deploy the service
	Deadline              // the context's deadline passed; the outcome may be unknown
	Canceled              // the context was cancelled
	Overloaded            // the callee's queue is full: retry later
	Unavailable           // a blade or node is gone or unreachable
	BadRequest            // malformed, wrong version, out of bounds: fix the caller
	NotFound              // the region does not exist (any more)
	NoSpace               // no memory blade has room for the allocation
	Nondeterminism        // a replay diverged from what is logged
	Deadlock              // the call would wait for itself
	Stale                 // sent by an incarnation or controller that has been replaced
	Internal              // a bug in the called program, such as a handler that panics, or in Bifröst; the message helps to report it
	Application           // the handler returned an error that its IDL does not declare
	Unsupported           // the other side speaks, but cannot do this
	Declared              // the handler returned an exception that its IDL declares: an answer, and no failure
	codeCount
)

// Codes is how many codes there are.
const Codes = int(codeCount)

var names = [codeCount]string{
	"ok", "permission denied", "no such method", "deadline exceeded", "canceled", "overloaded", "unavailable",
	"bad request", "not found", "no space", "nondeterminism", "deadlock", "stale", "internal", "application", "unsupported", "declared",
}

// String returns the code's name in plain words.
func (c Code) String() string {
	if int(c) < len(names) {
		return names[c]
	}
	return fmt.Sprintf("code %d", uint8(c))
}

// Names are the names of all codes, in their order.
func Names() []string { return slices.Clone(names[:]) }

// Failure reports whether a call that ends with the code has failed. An exception that the IDL declares is an answer.
func (c Code) Failure() bool { return c != OK && c != Declared }

// Known reports whether the code is one of those above.
func (c Code) Known() bool { return c < codeCount }

// Error is what every call and every memory operation fails with.
type Error struct {
	Code Code
	// Op is what was being done, e.g. "read", "call Arrays.add".
	Op string
	// Msg says what exactly, for people.
	Msg string
	// Remote is true when the other side (switch, Gatekeeper, callee, memory
	// blade) reported it, false when it arose in this process.
	Remote bool
	// NeverBegan: what was asked for certainly did not begin to run, and will not.
	NeverBegan bool
	// Err is the cause, if there is one.
	Err error
}

// Error implements error.
func (e *Error) Error() string {
	s := e.Code.String()
	if e.Op != "" {
		s = e.Op + ": " + s
	}
	if e.Msg != "" {
		s += ": " + e.Msg
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	if e.Remote {
		s += " (remote)"
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is makes errors.Is(err, &Error{Code: c}) match by code, and lets the
// context's sentinel errors match their codes.
func (e *Error) Is(target error) bool {
	switch target {
	case context.DeadlineExceeded:
		return e.Code == Deadline
	case context.Canceled:
		return e.Code == Canceled
	}
	t, ok := target.(*Error)
	return ok && t.Op == "" && t.Msg == "" && t.Err == nil && t.Code == e.Code
}

// New returns a local error.
func New(code Code, op, format string, args ...any) *Error {
	return &Error{Code: code, Op: op, Msg: fmt.Sprintf(format, args...)}
}

// Remote returns an error that the other side reported.
func Remote(code Code, op, format string, args ...any) *Error {
	return &Error{Code: code, Op: op, Msg: fmt.Sprintf(format, args...), Remote: true}
}

// FromContext turns a context's error into a coded one.
func FromContext(op string, err error) *Error {
	code := Canceled
	if errors.Is(err, context.DeadlineExceeded) {
		code = Deadline
	}
	return &Error{Code: code, Op: op, Err: err}
}

// CodeOf returns the code of err: OK for nil, Internal for foreign errors.
func CodeOf(err error) Code {
	if err == nil {
		return OK
	}
	var e *Error
	switch {
	case errors.As(err, &e):
		return e.Code
	case errors.Is(err, context.DeadlineExceeded):
		return Deadline
	case errors.Is(err, context.Canceled):
		return Canceled
	}
	return Internal
}
