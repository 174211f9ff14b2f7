package form

import (
	"context"
	"fmt"

	"github.com/apache/thrift/lib/go/thrift"
)

// Type is how the values of a Go type stand in memory. Types are made of each other:
//
//	form.List[[]*Post](form.Struct(NewPost))
//	form.Map[map[string][]int64](form.String[string](), form.List[[]int64](form.I64[int64]()))
type Type[T any] struct {
	kind   thrift.TType
	encode func(*encoder, T) error
	decode func(*decoder) (T, error)
	parts  [2]any // the Types of a map's keys and values, or of a list's elements
}

// background is for Thrift's code, which takes a context and does no I/O here.
var background = context.Background()

// Marshal returns a value's content.
func (t Type[T]) Marshal(v T) ([]byte, error) {
	e := &encoder{b: header(t.kind), flushed: -headerSize}
	if err := t.encode(e, v); err != nil {
		return nil, err
	}
	return e.b, nil
}

// Unmarshal returns the value that content is of. It may be part of the content.
func (t Type[T]) Unmarshal(content []byte) (v T, err error) {
	if err := checkHeader(content, t.kind); err != nil {
		return v, err
	}
	return t.read(content[headerSize:])
}

func (t Type[T]) read(b []byte) (T, error) { return t.decode(&decoder{next: b}) }

// Bool is IDL's bool.
func Bool[T ~bool]() Type[T] {
	return scalar(thrift.BOOL, func(e *encoder, v T) error { return e.WriteBool(background, bool(v)) },
		func(d *decoder) (T, error) { v, err := d.ReadBool(background); return T(v), err })
}

// I8 is IDL's i8 and byte.
func I8[T ~int8]() Type[T] {
	return scalar(thrift.BYTE, func(e *encoder, v T) error { return e.WriteByte(background, int8(v)) },
		func(d *decoder) (T, error) { v, err := d.ReadByte(background); return T(v), err })
}

// I16 is IDL's i16.
func I16[T ~int16]() Type[T] {
	return scalar(thrift.I16, func(e *encoder, v T) error { return e.WriteI16(background, int16(v)) },
		func(d *decoder) (T, error) { v, err := d.ReadI16(background); return T(v), err })
}

// I32 is IDL's i32, and an enum, whose Go type is an int64.
func I32[T ~int32 | ~int64]() Type[T] {
	return scalar(thrift.I32, func(e *encoder, v T) error { return e.WriteI32(background, int32(v)) },
		func(d *decoder) (T, error) { v, err := d.ReadI32(background); return T(v), err })
}

// I64 is IDL's i64.
func I64[T ~int64]() Type[T] {
	return scalar(thrift.I64, func(e *encoder, v T) error { return e.WriteI64(background, int64(v)) },
		func(d *decoder) (T, error) { v, err := d.ReadI64(background); return T(v), err })
}

// Double is IDL's double.
func Double[T ~float64]() Type[T] {
	return scalar(thrift.DOUBLE, func(e *encoder, v T) error { return e.WriteDouble(background, float64(v)) },
		func(d *decoder) (T, error) { v, err := d.ReadDouble(background); return T(v), err })
}

// UUID is IDL's uuid.
func UUID[T ~[16]byte]() Type[T] {
	return scalar(thrift.UUID, func(e *encoder, v T) error { return e.WriteUUID(background, thrift.Tuuid(v)) },
		func(d *decoder) (T, error) { v, err := d.ReadUUID(background); return T(v), err })
}

// String is IDL's string, and binary as the key of a map.
func String[T ~string]() Type[T] {
	return scalar(thrift.STRING, func(e *encoder, v T) error { return e.WriteString(background, string(v)) },
		func(d *decoder) (T, error) { v, err := d.ReadString(background); return T(v), err })
}

// Binary is IDL's binary.
func Binary[T ~[]byte]() Type[T] {
	return scalar(thrift.STRING, func(e *encoder, v T) error { return e.WriteBinary(background, v) },
		func(d *decoder) (T, error) { v, err := d.ReadBinary(background); return T(v), err })
}

func scalar[T any](kind thrift.TType, encode func(*encoder, T) error, decode func(*decoder) (T, error)) Type[T] {
	return Type[T]{kind: kind, encode: encode, decode: decode}
}

// Struct is a struct or union that construct makes with the IDL's defaults: its New
// function, as Thrift generates it.
func Struct[T interface {
	comparable
	thrift.TStruct
}](construct func() T) Type[T] {
	return scalar(thrift.STRUCT, func(e *encoder, v T) error {
		var none T
		if v == none {
			return fmt.Errorf("a nil %T cannot be passed", v)
		}
		return v.Write(background, e)
	}, func(d *decoder) (T, error) {
		v := construct()
		return v, v.Read(background, d)
	})
}

// List is a list of an element's type.
func List[L ~[]E, E any](elem Type[E]) Type[L] { return sequence[L](thrift.LIST, elem) }

// Set is a set of an element's type, for which Thrift's Go has a slice.
func Set[L ~[]E, E any](elem Type[E]) Type[L] { return sequence[L](thrift.SET, elem) }

func sequence[L ~[]E, E any](kind thrift.TType, elem Type[E]) Type[L] {
	t := scalar(kind, func(e *encoder, list L) error {
		if err := e.WriteListBegin(background, elem.kind, len(list)); err != nil {
			return err
		}
		for _, v := range list {
			if err := elem.encode(e, v); err != nil {
				return err
			}
		}
		return e.end()
	}, func(d *decoder) (L, error) {
		p, err := d.begin(thrift.LIST)
		if err != nil {
			return nil, err
		}
		n := p.n
		if err := fits(elem.kind, p.elem, n); err != nil {
			return nil, err
		}
		list := make(L, n)
		for i := range n {
			if list[i], err = elem.decode(d); err != nil {
				return nil, err
			}
		}
		return list, d.end()
	})
	t.parts[0] = elem
	return t
}

// Map is a map of the types of its keys and values.
func Map[M ~map[K]V, K comparable, V any](key Type[K], value Type[V]) Type[M] {
	t := scalar(thrift.MAP, func(e *encoder, m M) error {
		if err := e.WriteMapBegin(background, key.kind, value.kind, len(m)); err != nil {
			return err
		}
		for k, v := range m {
			if err := key.encode(e, k); err != nil {
				return err
			}
			if err := value.encode(e, v); err != nil {
				return err
			}
		}
		return e.end()
	}, func(d *decoder) (M, error) {
		p, err := d.begin(thrift.MAP)
		if err != nil {
			return nil, err
		}
		n := p.n
		if err := fits(key.kind, p.key, n); err != nil {
			return nil, err
		}
		if err := fits(value.kind, p.elem, n); err != nil {
			return nil, err
		}
		m := make(M, n)
		for range n {
			k, err := key.decode(d)
			if err != nil {
				return nil, err
			}
			if m[k], err = value.decode(d); err != nil {
				return nil, err
			}
		}
		return m, d.end()
	})
	t.parts = [2]any{key, value}
	return t
}

// fits refuses elements of another type than the one that is read. Nothing of none fits.
func fits(want, have thrift.TType, n int) error {
	if n > 0 && want != have {
		return malformed("elements of type %d instead of %d", have, want)
	}
	return nil
}
