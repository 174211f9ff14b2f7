package p4info

import (
	"bytes"
	"math/big"
	"testing"

	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
)

func headerOf(t testing.TB, widths ...int32) *Header {
	t.Helper()
	m := &configv1.ControllerPacketMetadata{}
	for i, w := range widths {
		m.Metadata = append(m.Metadata, &configv1.ControllerPacketMetadata_Metadata{Id: uint32(i + 1), Name: "f", Bitwidth: w})
	}
	h, err := (&parser{}).header("test", m)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// FuzzHeader checks the codec against big numbers: the fields one after another
// are one number, with the padding behind.
func FuzzHeader(f *testing.F) {
	f.Add([]byte{9, 3, 4}, []byte{0x82, 0xd0, 'h', 'i'})
	f.Add([]byte{16, 8, 128}, bytes.Repeat([]byte{0xa5}, 40))
	f.Add([]byte{}, []byte{1})
	f.Add([]byte{1}, []byte{})
	f.Fuzz(func(t *testing.T, ws, frame []byte) {
		var widths []int32
		total := 0
		for _, w := range ws[:min(len(ws), 16)] {
			widths = append(widths, int32(w)+1)
			total += int(w) + 1
		}
		h := headerOf(t, widths...)
		md, payload, err := h.Decode(frame)
		if (err == nil) != (len(frame) >= (total+7)/8) {
			t.Fatalf("%d bytes for %d bits: %v", len(frame), total, err)
		}
		if err != nil {
			return
		}
		all := new(big.Int)
		for i, m := range md {
			if CheckWidth(m.GetValue(), int(widths[i])) != nil || !bytes.Equal(m.GetValue(), Canonical(m.GetValue())) {
				t.Fatalf("field %d is %x", i, m.GetValue())
			}
			all.Lsh(all, uint(widths[i])).Or(all, new(big.Int).SetBytes(m.GetValue()))
		}
		n := (total + 7) / 8
		pad := uint(n*8 - total)
		if want := new(big.Int).Rsh(new(big.Int).SetBytes(frame[:n]), pad); all.Cmp(want) != 0 {
			t.Fatalf("%x decoded as %x", frame[:n], all)
		}
		back, err := h.Encode(md, payload)
		if err != nil {
			t.Fatal(err)
		}
		want := bytes.Clone(frame)
		if n > 0 {
			want[n-1] &= 0xff << pad
		}
		if !bytes.Equal(back, want) {
			t.Fatalf("%x encoded as %x", want, back)
		}
	})
}

func TestHeader_WithoutFields(t *testing.T) {
	h := &Header{}
	md, payload, err := h.Decode([]byte("all"))
	if err != nil || len(md) != 0 || string(payload) != "all" {
		t.Errorf("got %v, %q, %v", md, payload, err)
	}
	if _, err := h.Encode([]*p4v1.PacketMetadata{{MetadataId: 1, Value: []byte{1}}}, nil); err == nil {
		t.Error("metadata that the program does not have has been taken")
	}
}

func BenchmarkHeaderDecode(b *testing.B) {
	h := headerOf(b, 16, 8, 8)
	frame := make([]byte, 1500)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := h.Decode(frame); err != nil {
			b.Fatal(err)
		}
	}
}
