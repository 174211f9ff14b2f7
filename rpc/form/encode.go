package form

import (
	"cmp"
	"context"
	"fmt"
	"hash/crc32"
	"math"
	"slices"

	"github.com/apache/thrift/lib/go/thrift"
)

// encoder is the writing half of a Thrift protocol, so that generated code writes its
// structs into it. Scalars go into the bytes at once; a container's index is kept until
// its end.
type encoder struct {
	thrift.TProtocol // nil: nothing is read
	b                []byte
	flushed          int64 // bytes that were in b and are elsewhere
	open             []frame
}

// frame is a container or struct that is being written.
type frame struct {
	kind      thrift.TType
	begin     int64
	key, elem thrift.TType
	announced int     // elements; -1 for a struct, and for what is written as it comes
	n         int     // so far
	index     []byte  // of a list or a struct
	entries   []entry // of a map
	now       entry   // that is being written: begin, and mid behind its key
	value     bool    // the entry's key is written
	id        int16   // of the field that is being written
}

func (e *encoder) at() int64 { return e.flushed + int64(len(e.b)) }

func (e *encoder) begin(f frame) error {
	if len(e.open) >= MaxDepth {
		return fmt.Errorf("%w: more than %d", ErrNested, MaxDepth)
	}
	f.begin = e.at()
	e.open = append(e.open, f)
	return nil
}

// end writes a container's index and footer.
func (e *encoder) end() error {
	f := &e.open[len(e.open)-1]
	if f.announced >= 0 && f.n != f.announced || f.value {
		return fmt.Errorf("%d elements were announced, and %d written", f.announced, f.n)
	}
	slices.SortFunc(f.entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.sum, b.sum), cmp.Compare(a.begin, b.begin))
	})
	e.b = append(e.b, f.index...)
	for _, x := range f.entries {
		for _, v := range []uint32{x.sum, x.begin, x.mid, x.end} {
			e.b = order.AppendUint32(e.b, v)
		}
	}
	e.b = order.AppendUint32(e.b, uint32(f.n))
	e.b = append(e.b, byte(f.key), byte(f.elem), 0, 0)
	e.open = e.open[:len(e.open)-1]
	return e.wrote()
}

// wrote notes that a value is complete.
func (e *encoder) wrote() error {
	if e.at() > MaxSize {
		return fmt.Errorf("a value of more than %d bytes", MaxSize)
	}
	if len(e.open) == 0 {
		return nil
	}
	f := &e.open[len(e.open)-1]
	end := uint32(e.at() - f.begin)
	switch {
	case f.kind == thrift.STRUCT:
		f.index = order.AppendUint32(f.index, end)
		f.index = order.AppendUint16(f.index, uint16(f.id))
		f.index = append(f.index, byte(f.elem), 0)
	case f.kind == thrift.MAP && !f.value:
		key := e.b[f.begin+int64(f.now.begin)-e.flushed:]
		f.now.sum, f.now.mid, f.value = crc32.ChecksumIEEE(key), end, true
		return nil
	case f.kind == thrift.MAP:
		f.now.end, f.value = end, false
		f.entries, f.now = append(f.entries, f.now), entry{begin: end}
	default:
		if size, _ := sizeOf(f.elem); size == 0 {
			f.index = order.AppendUint32(f.index, end)
		}
	}
	f.n++
	return nil
}

func (e *encoder) append(b ...byte) error {
	e.b = append(e.b, b...)
	return e.wrote()
}

func (e *encoder) WriteStructBegin(context.Context, string) error {
	return e.begin(frame{kind: thrift.STRUCT, announced: -1})
}

func (e *encoder) WriteStructEnd(context.Context) error {
	f := &e.open[len(e.open)-1]
	f.elem = 0 // it was the last field's
	return e.end()
}

func (e *encoder) WriteFieldBegin(_ context.Context, _ string, t thrift.TType, id int16) error {
	f := &e.open[len(e.open)-1]
	f.elem, f.id = t, id
	return nil
}
func (e *encoder) WriteFieldEnd(context.Context) error  { return nil }
func (e *encoder) WriteFieldStop(context.Context) error { return nil }

func (e *encoder) WriteMapBegin(_ context.Context, k, v thrift.TType, n int) error {
	return e.begin(frame{kind: thrift.MAP, key: k, elem: v, announced: n})
}
func (e *encoder) WriteMapEnd(context.Context) error { return e.end() }
func (e *encoder) WriteListBegin(_ context.Context, t thrift.TType, n int) error {
	return e.begin(frame{kind: thrift.LIST, elem: t, announced: n})
}
func (e *encoder) WriteListEnd(context.Context) error { return e.end() }
func (e *encoder) WriteSetBegin(ctx context.Context, t thrift.TType, n int) error {
	return e.WriteListBegin(ctx, t, n)
}
func (e *encoder) WriteSetEnd(context.Context) error { return e.end() }

func (e *encoder) WriteBool(_ context.Context, v bool) error {
	if v {
		return e.append(1)
	}
	return e.append(0)
}
func (e *encoder) WriteByte(_ context.Context, v int8) error { return e.append(byte(v)) } //nolint:govet // Thrift's method
func (e *encoder) WriteI16(_ context.Context, v int16) error {
	e.b = order.AppendUint16(e.b, uint16(v))
	return e.wrote()
}

func (e *encoder) WriteI32(_ context.Context, v int32) error {
	e.b = order.AppendUint32(e.b, uint32(v))
	return e.wrote()
}

func (e *encoder) WriteI64(_ context.Context, v int64) error {
	e.b = order.AppendUint64(e.b, uint64(v))
	return e.wrote()
}

func (e *encoder) WriteDouble(ctx context.Context, v float64) error {
	return e.WriteI64(ctx, int64(math.Float64bits(v)))
}

func (e *encoder) WriteString(_ context.Context, v string) error {
	e.b = append(e.b, v...)
	return e.wrote()
}
func (e *encoder) WriteBinary(_ context.Context, v []byte) error     { return e.append(v...) }
func (e *encoder) WriteUUID(_ context.Context, v thrift.Tuuid) error { return e.append(v[:]...) }
