// Package wirefmt describes fixed packet headers as data. Each header of
// Bifröst is defined once, as a Layout beside its Go codec; the P4 program and
// the documentation are checked against (or generated from) these layouts.
package wirefmt

import (
	"errors"
	"fmt"
)

// ErrFormat is what every error about the form of a packet wraps: a truncated
// header, a wrong magic or version, a length that does not fit the datagram.
var ErrFormat = errors.New("malformed packet")

// Errorf returns an error that wraps ErrFormat and says what and where.
func Errorf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrFormat, fmt.Sprintf(format, args...))
}

// Field is one header field. Offset and Size are in bytes; all fields are
// byte-aligned and in network byte order.
type Field struct {
	Name   string
	Offset int
	Size   int
	Doc    string
}

// Layout is a header's fields in wire order.
type Layout struct {
	Name   string
	Fields []Field
}

// Size is the header's length in bytes.
func (l Layout) Size() int {
	if len(l.Fields) == 0 {
		return 0
	}
	last := l.Fields[len(l.Fields)-1]
	return last.Offset + last.Size
}

// Check reports a gap, an overlap or a duplicate name in the layout.
func (l Layout) Check() error {
	next, seen := 0, map[string]bool{}
	for _, f := range l.Fields {
		if f.Offset != next {
			return fmt.Errorf("%s.%s: offset %d, want %d", l.Name, f.Name, f.Offset, next)
		}
		if seen[f.Name] {
			return fmt.Errorf("%s.%s: duplicate field", l.Name, f.Name)
		}
		seen[f.Name] = true
		next += f.Size
	}
	return nil
}
