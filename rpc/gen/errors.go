package gen

import (
	"errors"
	"fmt"
	"slices"
)

// Error is a mistake in IDL: where it is, what is wrong and what to do about it.
type Error struct {
	File   string
	Line   int // from 1; 0 if the whole file is meant
	Msg    string
	Remedy string
}

// Error implements error.
func (e *Error) Error() string {
	at := e.File
	if e.Line > 0 {
		at = fmt.Sprintf("%s:%d", e.File, e.Line)
	}
	if e.Remedy == "" {
		return at + ": " + e.Msg
	}
	return at + ": " + e.Msg + "; " + e.Remedy
}

// problems collects mistakes, so that all are told at once.
type problems []*Error

func (p *problems) add(file string, line int, remedy, format string, args ...any) {
	*p = append(*p, &Error{File: file, Line: line, Msg: fmt.Sprintf(format, args...), Remedy: remedy})
}

// err returns the mistakes in the order of their places.
func (p problems) err() error {
	slices.SortStableFunc(p, func(a, b *Error) int {
		if a.File != b.File {
			return 0
		}
		return a.Line - b.Line
	})
	errs := make([]error, len(p))
	for i, e := range p {
		errs[i] = e
	}
	return errors.Join(errs...)
}
