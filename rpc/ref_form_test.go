package rpc

import (
	"context"
	"math"
	"reflect"
	"testing"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
)

// form checks that values stand in memory as these bytes, and come back.
func form[T Plain](t *testing.T, v T, want []byte) {
	t.Helper()
	f := PlainForm[T]()
	b, err := f.encode(v)
	if err != nil || string(b) != string(want) {
		t.Errorf("%T %v is %x, %v; want %x", v, v, b, err, want)
	}
	back, err := f.decode(b)
	if err != nil || !reflect.DeepEqual(back, v) {
		t.Errorf("%T %v came back as %v, %v", v, v, back, err)
	}
}

func TestPlainForms(t *testing.T) {
	defer func(was bool) { little = was }(little)
	for _, little = range []bool{little, false} { // also as a machine of the other order has them
		plainForms(t)
	}
}

func plainForms(t *testing.T) {
	form(t, []byte{1, 2, 255}, []byte{1, 2, 255})
	form(t, []int8{-1, 2}, []byte{255, 2})
	form(t, []int16{-2, 0x0102}, []byte{254, 255, 2, 1})
	form(t, []int32{-2, 0x01020304}, []byte{254, 255, 255, 255, 4, 3, 2, 1})
	form(t, []int64{math.MinInt64}, []byte{0, 0, 0, 0, 0, 0, 0, 128})
	form(t, []float64{1, math.Inf(-1)}, []byte{0, 0, 0, 0, 0, 0, 240, 63, 0, 0, 0, 0, 0, 0, 240, 255})
	form(t, []int32{}, []byte{})
	if v, err := PlainForm[[]int32]().decode(make([]byte, 7)); err == nil {
		t.Errorf("7 bytes are %v", v)
	}
}

func TestStructForm(t *testing.T) {
	f := StructForm(bifrost.NewReference)
	in := &bifrost.Reference{Pointer: &bifrost.GlobalPointer{Address: []byte("sixteen bytes...")}, Length: 7}
	b, err := f.encode(in)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := f.decode(b); err != nil || !reflect.DeepEqual(out, in) {
		t.Errorf("came back as %v, %v", out, err)
	}
	if out, err := StructForm[*bifrost.Reference](nil).decode(b); err != nil || !reflect.DeepEqual(out, in) {
		t.Errorf("without a constructor: %v, %v", out, err)
	}
	for n := range b {
		if out, err := f.decode(b[:n]); err == nil {
			t.Errorf("%d of %d bytes are %v", n, len(b), out)
		}
	}
	if out, err := f.decode(append(b, 0)); err == nil {
		t.Errorf("one byte more is %v", out)
	}
	if _, err := f.encode(nil); err == nil {
		t.Error("nil has a form")
	}
}

// FuzzReference reads anything as arguments that hold a reference, and as what a
// reference refers to.
func FuzzReference(f *testing.F) {
	buf := thrift.NewTMemoryBuffer()
	w := &bifrost.Reference{Pointer: &bifrost.GlobalPointer{Address: []byte("sixteen bytes...")}, Length: 7}
	if err := WriteRefStruct(f.Context(), thrift.NewTBinaryProtocolConf(buf, nil), "x", WriteRef("a", 1, w)); err != nil {
		f.Fatal(err)
	}
	f.Add(buf.Bytes())
	f.Add([]byte{0})
	f.Fuzz(func(t *testing.T, b []byte) {
		in := newCodec(maxDatagram)
		defer in.free()
		in.read(b)
		var w *bifrost.Reference
		err := ReadRefStruct(context.Background(), in, func(id int16, kind thrift.TType) ReadFunc {
			if id == 1 && kind == thrift.STRUCT {
				return ReadRef(&w)
			}
			return nil
		})
		if err == nil {
			r, err := arrivedRef(PlainForm[[]byte](), "fuzz", w)
			if err == nil && (r.place.length < 0 || r.place.length > MaxRef || r.place.pointer.IsNil() != (r.place.length == 0)) {
				t.Errorf("%+v was accepted", w)
			}
		}
		_, _ = StructForm(bifrost.NewReference).decode(b)
		_, _ = PlainForm[[]float64]().decode(b)
	})
}
