package rpc

import (
	"context"
	"math"
	"reflect"
	"testing"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/rpc/form"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
)

// checkForm checks that values stand in memory as these bytes, and come back.
func checkForm[T Plain](t *testing.T, v T, want []byte) {
	t.Helper()
	f := plainForm[T]()
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
	checkForm(t, []byte{1, 2, 255}, []byte{1, 2, 255})
	checkForm(t, []int8{-1, 2}, []byte{255, 2})
	checkForm(t, []int16{-2, 0x0102}, []byte{254, 255, 2, 1})
	checkForm(t, []int32{-2, 0x01020304}, []byte{254, 255, 255, 255, 4, 3, 2, 1})
	checkForm(t, []int64{math.MinInt64}, []byte{0, 0, 0, 0, 0, 0, 0, 128})
	checkForm(t, []float64{1, math.Inf(-1)}, []byte{0, 0, 0, 0, 0, 0, 240, 63, 0, 0, 0, 0, 0, 0, 240, 255})
	checkForm(t, []int32{}, []byte{})
	if v, err := plainForm[[]int32]().decode(make([]byte, 7)); err == nil {
		t.Errorf("7 bytes are %v", v)
	}
}

func TestStructForm(t *testing.T) {
	f := typedForm(form.Struct(bifrost.NewReference))
	in := &bifrost.Reference{Pointer: &bifrost.GlobalPointer{Address: []byte("sixteen bytes...")}, Length: 7}
	b, err := f.encode(in)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := f.decode(b); err != nil || !reflect.DeepEqual(out, in) {
		t.Errorf("came back as %v, %v", out, err)
	}
	for n := range b { // the struct of the pointer is one by itself, and stands first
		if out, err := f.decode(b[:n]); err == nil && out.Length == 7 {
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

// FuzzReference takes anything as a reference that a message carries, and as what a
// reference refers to.
func FuzzReference(f *testing.F) {
	buf := thrift.NewTMemoryBuffer()
	w := &bifrost.Reference{Pointer: &bifrost.GlobalPointer{Address: []byte("sixteen bytes...")}, Length: 7}
	if err := w.Write(f.Context(), thrift.NewTBinaryProtocolConf(buf, nil)); err != nil {
		f.Fatal(err)
	}
	f.Add(buf.Bytes())
	f.Add([]byte{0})
	f.Fuzz(func(t *testing.T, b []byte) {
		in := newCodec(maxDatagram)
		defer in.free()
		in.read(b)
		w := bifrost.NewReference()
		if w.Read(context.Background(), in) == nil {
			r := RefOf[[]byte](nil)
			err := r.arrive("fuzz", w)
			if err == nil && r.storage.inline != nil && int64(len(r.storage.inline)) != r.storage.length {
				t.Errorf("%d bytes are inside, of %d", len(r.storage.inline), r.storage.length)
			}
			if err == nil && (r.storage.length < 0 || r.storage.length > MaxRef || r.storage.pointer.IsNil() != (r.storage.length == 0 || r.storage.inline != nil)) {
				t.Errorf("%+v was accepted", w)
			}
		}
		typed := typedForm(form.Struct(bifrost.NewReference))
		if v, err := typed.decode(b); err == nil {
			again, err := typed.encode(v)
			if err != nil {
				t.Fatal(err)
			}
			if back, err := typed.decode(again); err != nil || !reflect.DeepEqual(back, v) {
				t.Errorf("%v came back as %v, %v", v, back, err)
			}
		}
		plain := plainForm[[]float64]()
		v, err := plain.decode(b)
		if (err == nil) != (len(b)%8 == 0) {
			t.Errorf("%d bytes: %v", len(b), err)
		} else if again, _ := plain.encode(v); err == nil && string(again) != string(b) {
			t.Errorf("%x came back as %x", b, again)
		}
	})
}

// TestGrown: the regions of a value that is written as it comes double, and none is longer than regions
// can be as long as the value is not.
func TestGrown(t *testing.T) {
	const piece = 256<<10 + 6
	room, regions := int64(0), 0
	for need := int64(piece); need <= MaxRef; need += piece {
		if need > room {
			before := room
			if room, regions = grown(room, need), regions+1; room > MaxRef || room < need || room < MaxRef && room < 2*before {
				t.Fatalf("a region of %d bytes takes the place of one of %d, %d are needed", room, before, need)
			}
		}
	}
	if regions > 14 {
		t.Errorf("a value of 1 GiB is written into %d regions, one after the other", regions)
	}
}
