// Package form is how a Thrift value of any type stands in distributed memory: one string
// of bytes, of which single elements, entries and fields can be read without the rest.
// docs/by-reference.md describes it ("The form of values"). The package is pure: whoever
// reads in place brings the function that reads bytes.
//
//	header 8   value: scalars as they are, least byte first
//	┌────────┬──────────────────────────────────┬─────────────┬──────────┐
//	│ B1 F0  │ elements, entries or fields, one │ index: where│ footer 8 │
//	│ 1 type │ after the other, each a value    │ each ends   │ n, types │
//	└────────┴──────────────────────────────────┴─────────────┴──────────┘
//
// A container ends with its index, so that it can be written as its elements come.
package form

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/apache/thrift/lib/go/thrift"
)

var (
	// ErrMalformed is in the error for content that is not of this form.
	ErrMalformed = errors.New("malformed value")
	// ErrNewer is in the error for content of a newer version of the form.
	ErrNewer = errors.New("the value has a newer form than this program knows")
	// ErrNested is in the error for values deeper within each other than MaxDepth.
	ErrNested = errors.New("values are too deep within each other")
	// ErrRange is in the error for an index that a list does not have.
	ErrRange = errors.New("index out of range")
)

const (
	// Version is that of the form.
	Version = 1
	// MaxDepth is how many containers and structs may stand within each other.
	MaxDepth = 128
	// MaxSize is how long content may be, in bytes.
	MaxSize = 1 << 30

	headerSize = 8
	footerSize = 8
	fieldSize  = 8  // of a field in a struct's index
	entrySize  = 16 // of an entry in a map's index
)

var order = binary.LittleEndian

// header opens content.
func header(kind thrift.TType) []byte { return []byte{0xB1, 0xF0, Version, byte(kind), 0, 0, 0, 0} }

// checkHeader refuses what is not content of a type.
func checkHeader(b []byte, kind thrift.TType) error {
	switch {
	case len(b) < headerSize || b[0] != 0xB1 || b[1] != 0xF0 || b[2] == 0:
		return malformed("no header")
	case b[2] > Version:
		return fmt.Errorf("%w: version %d, known is %d", ErrNewer, b[2], Version)
	case thrift.TType(b[3]) != kind:
		return malformed("a value of type %d instead of %d", b[3], kind)
	}
	return nil
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}

// sizeOf is the size of a type's values in bytes, 0 if they vary. ok is false for what is no
// type of a value.
func sizeOf(t thrift.TType) (size int, ok bool) {
	switch t {
	case thrift.BOOL, thrift.BYTE:
		return 1, true
	case thrift.I16:
		return 2, true
	case thrift.I32:
		return 4, true
	case thrift.I64, thrift.DOUBLE:
		return 8, true
	case thrift.UUID:
		return 16, true
	case thrift.STRING, thrift.STRUCT, thrift.MAP, thrift.SET, thrift.LIST:
		return 0, true
	}
	return 0, false
}

// shape is what a container's or struct's footer says, and where its parts are.
type shape struct {
	kind      thrift.TType // LIST, MAP or STRUCT; a set is a list
	n         int
	key, elem thrift.TType // of a map; of a list
	size      int          // of each element of a list, 0 if they vary
	body      int64        // bytes of the elements; the index follows
	width     int          // of one element's place in the index
}

// shapeOf reads a footer; length is that of the whole value.
func shapeOf(kind thrift.TType, footer []byte, length int64) (s shape, err error) {
	if len(footer) != footerSize || length < footerSize {
		return s, malformed("%d bytes have no footer", length)
	}
	n := int64(order.Uint32(footer))
	s = shape{kind: kind, n: int(n), key: thrift.TType(footer[4]), elem: thrift.TType(footer[5])}
	room, ok := length-footerSize, true
	switch kind {
	case thrift.STRUCT:
		s.width = fieldSize
	case thrift.MAP:
		_, keyOK := sizeOf(s.key)
		_, ok = sizeOf(s.elem)
		ok = ok && keyOK
		s.width = entrySize
	default:
		if s.kind, s.width = thrift.LIST, 4; n > 0 || footer[5] != 0 {
			if s.size, ok = sizeOf(s.elem); s.size > 0 {
				s.width = 0
			}
		}
	}
	s.body = room - n*int64(s.width)
	switch {
	case !ok && n > 0:
		return s, malformed("unknown types %d and %d", s.key, s.elem)
	case s.body < 0, s.size > 0 && s.body != n*int64(s.size):
		return s, malformed("%d elements in %d bytes", n, length)
	}
	return s, nil
}

// index is where the place of element i stands, from the beginning of the value.
func (s shape) index(i int) int64 { return s.body + int64(i)*int64(s.width) }

// entry is one place of a map's index.
type entry struct{ sum, begin, mid, end uint32 }

func (s shape) entry(b []byte) (e entry, err error) {
	e = entry{order.Uint32(b), order.Uint32(b[4:]), order.Uint32(b[8:]), order.Uint32(b[12:])}
	if e.begin > e.mid || e.mid > e.end || int64(e.end) > s.body {
		return e, malformed("an entry at %d, %d, %d of %d bytes", e.begin, e.mid, e.end, s.body)
	}
	return e, nil
}

// span checks where an element of a list or struct begins and ends.
func (s shape) span(begin, end uint32) error {
	if begin > end || int64(end) > s.body {
		return malformed("an element from %d to %d of %d bytes", begin, end, s.body)
	}
	return nil
}
