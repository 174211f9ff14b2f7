package record

import (
	"encoding/binary"

	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Field describes one field of a record, for the documentation.
type Field struct {
	Name, Type, Doc string
}

// number is what is written as an unsigned varint.
type number interface {
	~uint8 | ~uint32 | ~uint64
}

// coder visits the fields of a record. What it does with them is up to its mode: it
// appends them to b, takes them from b, lists them in fields, or draws them.
type coder struct {
	mode   mode
	b      []byte
	err    error
	fields []Field
	draw   func(limit uint64) uint64 // a number up to, and with, limit
}

type mode uint8

const (
	writing mode = iota
	reading
	describing
	drawing
)

// fail notes the first reason why b cannot be read.
func (c *coder) fail(format string, args ...any) {
	if c.err == nil {
		c.err = wirefmt.Errorf(format, args...)
		c.b = nil
	}
}

func (c *coder) describe(name, kind, doc string) {
	c.fields = append(c.fields, Field{Name: name, Type: kind, Doc: doc})
}

// uvarint reads a number.
func (c *coder) uvarint(name string, most uint64) uint64 {
	if c.err != nil {
		return 0
	}
	v, n := binary.Uvarint(c.b)
	if n <= 0 || v > most || n > 1 && c.b[n-1] == 0 {
		c.fail("ledger record: %s is no number up to %d", name, most)
		return 0
	}
	c.b = c.b[n:]
	return v
}

// num visits a number.
func num[T number](c *coder, name string, v *T, doc string) {
	most := uint64(^T(0))
	switch c.mode {
	case writing:
		c.b = binary.AppendUvarint(c.b, uint64(*v))
	case reading:
		*v = T(c.uvarint(name, most))
	case describing:
		c.describe(name, "number", doc)
	case drawing:
		*v = T(c.draw(most))
	}
}

// flag visits a truth value: 0 or 1.
func flag(c *coder, name string, v *bool, doc string) {
	n := uint8(0)
	if *v {
		n = 1
	}
	switch c.mode {
	case describing:
		c.describe(name, "0 or 1", doc)
		return
	case reading:
		*v = c.uvarint(name, 1) == 1
		return
	case drawing:
		*v = c.draw(1) == 1
		return
	default: // writing, below
	}
	num(c, name, &n, doc)
}

// array visits 16 bytes: an id, or an address.
func array[T ~[16]byte](c *coder, name string, v *T, doc string) {
	a := [16]byte(*v)
	switch c.mode {
	case writing:
		c.b = append(c.b, a[:]...)
	case reading:
		if c.err == nil && len(c.b) < len(a) {
			c.fail("ledger record: %s has 16 bytes, %d are left", name, len(c.b))
		}
		if c.err == nil {
			c.b = c.b[copy(a[:], c.b):]
		}
	case describing:
		c.describe(name, "16 bytes", doc)
	case drawing:
		for i := range a {
			a[i] = byte(c.draw(255))
		}
	}
	*v = T(a)
}

// blob visits bytes with their length in front. What is read aliases the record.
func blob(c *coder, name string, v *[]byte, doc string) {
	switch c.mode {
	case writing:
		c.b = append(binary.AppendUvarint(c.b, uint64(len(*v))), *v...)
	case reading:
		n := c.uvarint("the length of "+name, uint64(len(c.b)))
		if n > uint64(len(c.b)) {
			c.fail("ledger record: %s has %d bytes, %d are left", name, n, len(c.b))
		}
		*v = nil
		if c.err == nil && n > 0 {
			*v, c.b = c.b[:n:n], c.b[n:]
		}
	case describing:
		c.describe(name, "bytes", doc)
	case drawing:
		*v = nil
		for range c.draw(5) {
			*v = append(*v, byte(c.draw(255)))
		}
	}
}

// list visits a list, whose elements each visits.
func list[T any](c *coder, name string, v *[]T, doc string, each func(*coder, *T)) {
	var n uint64
	switch c.mode {
	case writing:
		c.b = binary.AppendUvarint(c.b, uint64(len(*v)))
		for i := range *v {
			each(c, &(*v)[i])
		}
		return
	case describing:
		c.describe(name, "list", doc)
		at := len(c.fields)
		each(c, new(T))
		for i := range c.fields[at:] {
			c.fields[at+i].Name = name + "." + c.fields[at+i].Name
		}
		return
	case drawing:
		n = c.draw(3)
	case reading:
		// Each element has a byte at least, so a number beyond that is a lie.
		n = c.uvarint("the length of "+name, uint64(len(c.b)))
	}
	*v = nil
	for range n {
		if c.err != nil {
			return
		}
		var t T
		each(c, &t)
		*v = append(*v, t)
	}
}

// ids visits a list of ids.
func ids(c *coder, name string, v *[]rpcpacket.ID, doc string) {
	list(c, name, v, doc, func(c *coder, id *rpcpacket.ID) { array(c, "id", id, "call id") })
}
