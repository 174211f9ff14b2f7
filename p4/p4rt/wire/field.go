package wire

import "google.golang.org/protobuf/encoding/protowire"

// field is one field of a message as it is on the wire: a number or bytes, which
// share the message's memory.
type field struct {
	id     protowire.Number
	typ    protowire.Type
	number uint64
	bytes  []byte
}

func (f *field) is(id protowire.Number, typ protowire.Type) bool { return f.id == id && f.typ == typ }

// each calls do for the fields of a message, in order. It is false, at once, if do
// is, or for what is malformed or of another type.
func each(b []byte, do func(field) bool) bool {
	for len(b) > 0 {
		f, n := next(b)
		if n < 0 || !do(f) {
			return false
		}
		b = b[n:]
	}
	return true
}

// next takes the first field of a message, n bytes of it; n is negative if it is
// malformed or of another type.
func next(b []byte) (f field, n int) {
	var tag int
	if f.id, f.typ, tag = protowire.ConsumeTag(b); tag < 0 {
		return f, tag
	}
	switch f.typ {
	case protowire.VarintType:
		f.number, n = protowire.ConsumeVarint(b[tag:])
	case protowire.BytesType:
		f.bytes, n = protowire.ConsumeBytes(b[tag:])
		f.bytes = f.bytes[:len(f.bytes):len(f.bytes)]
	default:
		return f, -1
	}
	if n < 0 {
		return f, n
	}
	return f, tag + n
}

// count is how many fields of a message have an id, up to where it is malformed.
func count(b []byte, id protowire.Number) (n int) {
	each(b, func(f field) bool {
		if f.id == id {
			n++
		}
		return true
	})
	return n
}
