package form

import (
	"context"
	"fmt"
	"math"

	"github.com/apache/thrift/lib/go/thrift"
)

// decoder is the reading half of a Thrift protocol, so that generated code reads its
// structs from it. What it returns is part of the content that it was given, unless it is
// a string.
type decoder struct {
	thrift.TProtocol // nil: nothing is written
	next             []byte
	open             []part
}

// part is a container or struct that is being read.
type part struct {
	shape
	b     []byte
	i     int
	value bool // of entry i the key is read
}

// take returns the next value's bytes.
func (d *decoder) take() ([]byte, error) {
	if len(d.open) == 0 {
		b := d.next
		d.next = nil
		return b, nil
	}
	p := &d.open[len(d.open)-1]
	if p.kind == thrift.STRUCT {
		return d.next, nil // since ReadFieldBegin
	}
	if p.i >= p.n {
		return nil, malformed("more than %d elements are read", p.n)
	}
	if p.kind == thrift.MAP {
		e, err := p.entry(p.b[p.index(p.i):])
		if err != nil {
			return nil, err
		}
		if p.value = !p.value; p.value {
			return p.b[e.begin:e.mid], nil
		}
		p.i++
		return p.b[e.mid:e.end], nil
	}
	p.i++
	if p.size > 0 {
		return p.b[(p.i-1)*p.size : p.i*p.size], nil
	}
	return p.element(p.i - 1)
}

// element is that of a list or struct, by its end and the one in front.
func (p *part) element(i int) ([]byte, error) {
	var begin uint32
	if i > 0 {
		begin = order.Uint32(p.b[p.index(i-1):])
	}
	end := order.Uint32(p.b[p.index(i):])
	if err := p.span(begin, end); err != nil {
		return nil, err
	}
	return p.b[begin:end], nil
}

// fixed returns the next value's bytes, which are so many.
func (d *decoder) fixed(size int) ([]byte, error) {
	b, err := d.take()
	if err == nil && len(b) != size {
		err = malformed("%d bytes are a value of %d", len(b), size)
	}
	return b, err
}

func (d *decoder) begin(kind thrift.TType) (*part, error) {
	b, err := d.take()
	if err != nil {
		return nil, err
	}
	if len(d.open) >= MaxDepth {
		return nil, fmt.Errorf("%w: more than %d", ErrNested, MaxDepth)
	}
	s, err := shapeOf(kind, b[max(0, len(b)-footerSize):], int64(len(b)))
	if err != nil {
		return nil, err
	}
	p := part{shape: s, b: b}
	if err := p.whole(); err != nil {
		return nil, err
	}
	d.open = append(d.open, p)
	return &d.open[len(d.open)-1], nil
}

// whole checks that the elements fill the body, and so that none stands there twice: else
// short content could be a long value.
func (p *part) whole() error {
	var sum int64
	switch {
	case p.kind == thrift.MAP:
		for i := range p.n {
			e, err := p.entry(p.b[p.index(i):])
			if err != nil {
				return err
			}
			sum += int64(e.end - e.begin)
		}
	case p.size > 0:
		return nil
	case p.n > 0:
		sum = int64(order.Uint32(p.b[p.index(p.n-1):]))
	}
	if sum != p.body {
		return malformed("%d elements fill %d of %d bytes", p.n, sum, p.body)
	}
	return nil
}

func (d *decoder) end() error {
	if p := d.open[len(d.open)-1]; p.i != p.n {
		return malformed("%d of %d elements are read", p.i, p.n)
	}
	d.open = d.open[:len(d.open)-1]
	return nil
}

func (d *decoder) ReadStructBegin(context.Context) (string, error) {
	_, err := d.begin(thrift.STRUCT)
	return "", err
}
func (d *decoder) ReadStructEnd(context.Context) error { return d.end() }

func (d *decoder) ReadFieldBegin(context.Context) (string, thrift.TType, int16, error) {
	p := &d.open[len(d.open)-1]
	if p.i == p.n {
		return "", thrift.STOP, 0, nil
	}
	b, err := p.element(p.i)
	if err != nil {
		return "", 0, 0, err
	}
	at := p.index(p.i)
	p.i++
	d.next = b
	t := thrift.TType(p.b[at+6])
	if _, ok := sizeOf(t); !ok {
		return "", 0, 0, malformed("a field of type %d", t)
	}
	return "", t, int16(order.Uint16(p.b[at+4:])), nil
}
func (d *decoder) ReadFieldEnd(context.Context) error { return nil }

func (d *decoder) ReadMapBegin(context.Context) (k, v thrift.TType, n int, err error) {
	p, err := d.begin(thrift.MAP)
	if err != nil {
		return 0, 0, 0, err
	}
	return p.key, p.elem, p.n, nil
}
func (d *decoder) ReadMapEnd(context.Context) error { return d.end() }

func (d *decoder) ReadListBegin(context.Context) (t thrift.TType, n int, err error) {
	p, err := d.begin(thrift.LIST)
	if err != nil {
		return 0, 0, err
	}
	return p.elem, p.n, nil
}
func (d *decoder) ReadListEnd(context.Context) error { return d.end() }
func (d *decoder) ReadSetBegin(ctx context.Context) (t thrift.TType, n int, err error) {
	return d.ReadListBegin(ctx)
}
func (d *decoder) ReadSetEnd(context.Context) error { return d.end() }

func (d *decoder) ReadBool(context.Context) (bool, error) {
	b, err := d.fixed(1)
	return err == nil && b[0] != 0, err
}

func (d *decoder) ReadByte(context.Context) (int8, error) { //nolint:govet // Thrift's method
	b, err := d.fixed(1)
	if err != nil {
		return 0, err
	}
	return int8(b[0]), nil
}

func (d *decoder) ReadI16(context.Context) (int16, error) {
	b, err := d.fixed(2)
	if err != nil {
		return 0, err
	}
	return int16(order.Uint16(b)), nil
}

func (d *decoder) ReadI32(context.Context) (int32, error) {
	b, err := d.fixed(4)
	if err != nil {
		return 0, err
	}
	return int32(order.Uint32(b)), nil
}

func (d *decoder) ReadI64(context.Context) (int64, error) {
	b, err := d.fixed(8)
	if err != nil {
		return 0, err
	}
	return int64(order.Uint64(b)), nil
}

func (d *decoder) ReadDouble(ctx context.Context) (float64, error) {
	v, err := d.ReadI64(ctx)
	return math.Float64frombits(uint64(v)), err
}

func (d *decoder) ReadString(context.Context) (string, error) {
	b, err := d.take()
	return string(b), err
}

func (d *decoder) ReadBinary(context.Context) ([]byte, error) {
	b, err := d.take()
	if b == nil {
		b = []byte{}
	}
	return b[:len(b):len(b)], err
}

func (d *decoder) ReadUUID(context.Context) (v thrift.Tuuid, err error) {
	b, err := d.fixed(16)
	copy(v[:], b)
	return v, err
}

func (d *decoder) Skip(context.Context, thrift.TType) error {
	_, err := d.take()
	return err
}
