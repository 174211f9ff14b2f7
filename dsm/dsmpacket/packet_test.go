package dsmpacket

import (
	"bytes"
	"errors"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
)

func TestLayoutMatchesCodec(t *testing.T) {
	if err := Layout.Check(); err != nil {
		t.Fatal(err)
	}
	if Layout.Size() != HeaderSize {
		t.Fatalf("layout has %d bytes, HeaderSize is %d", Layout.Size(), HeaderSize)
	}
	h := Header{
		Flags: 1, More: 10, Kind: Request, Request: 0x0102030405060708, Floor: 0x0001020304050607,
		Execution: [16]byte{1, 15: 16}, Branch: 0x1112131415161718, Index: 0x21222324,
		Incarnation: 0x31323334, Length: 0x4142434445464748,
		Mirror: Mirror{Epoch: 0x51525354, Incarnation: 0x61626364, Copy: 1, Members: 2}, By: Use{Number: 0x7172737475767778, Slot: 0x81828384},
	}
	want := map[string][]byte{
		"magic": {0xB1, 0xFD}, "version": {4}, "flags": {0xA1}, "verdict": {1, 0}, "verdict_twin": {0xFE, 0xFF},
		"request": {1, 2, 3, 4, 5, 6, 7, 8}, "floor": {0, 1, 2, 3, 4, 5, 6, 7},
		"execution": h.Execution[:], "branch": {0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18},
		"index": {0x21, 0x22, 0x23, 0x24}, "incarnation": {0x31, 0x32, 0x33, 0x34},
		"length":       {0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48},
		"mirror_epoch": {0x51, 0x52, 0x53, 0x54}, "blade_incarnation": {0x61, 0x62, 0x63, 0x64},
		"number": {0x71, 0x72, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78}, "slot": {0x81, 0x82, 0x83, 0x84},
		"copy": {1}, "members": {2}, "reserved": {0, 0},
	}
	b := h.Append(nil)
	for _, f := range Layout.Fields {
		if got := b[f.Offset : f.Offset+f.Size]; !bytes.Equal(got, want[f.Name]) {
			t.Errorf("%s = %x, want %x", f.Name, got, want[f.Name])
		}
	}
}

func TestParseRefuses(t *testing.T) {
	good := (&Header{Kind: Request, Request: 9, Floor: 3}).Append(nil)
	if _, _, err := Parse(good); err != nil {
		t.Fatal(err)
	}
	edit := func(i int, v byte) []byte {
		b := bytes.Clone(good)
		b[i] = v
		return b
	}
	bad := map[string][]byte{
		"empty": nil, "magic": edit(0, 0), "version": edit(2, 9), "kind": edit(4, 7), "floor": edit(16, 1),
		"version 3": edit(2, 3), "copy": edit(84, 1), "members": edit(85, 3), "verdict's twin": edit(6, 0), "and its status": edit(7, 0),
	}
	for n := range HeaderSize {
		bad["truncated"] = good[:n]
		for name, b := range bad {
			if _, _, err := Parse(b); !errors.Is(err, wirefmt.ErrFormat) {
				t.Errorf("%s: error %v, want one that wraps ErrFormat", name, err)
			}
		}
	}
}

// The switch refuses by swapping addresses and writing the two words behind the flags; the client must read that as a
// refusal. The packet's checksum stays right: the two are each other's complement.
func TestTurnedAroundIsRefusal(t *testing.T) {
	for _, status := range []fault.Code{fault.PermissionDenied, fault.Overloaded} {
		b := (&Header{Kind: Request, Request: 9}).Append(nil)
		before := internetSum(b)
		b[4], b[5], b[6], b[7] = byte(Nack), byte(status), ^byte(Nack), ^byte(status)
		h, _, err := Parse(b)
		if err != nil || h.Kind != Nack || h.Status != status || internetSum(b) != before {
			t.Fatalf("parsed %+v, %v; the sum was %#x and is %#x", h, err, before, internetSum(b))
		}
	}
}

// internetSum is the ones' complement sum of 16-bit words.
func internetSum(b []byte) uint32 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	for sum > 0xFFFF {
		sum = sum&0xFFFF + sum>>16
	}
	return sum
}

func TestRegionArithmetic(t *testing.T) {
	for _, c := range []struct {
		size  uint64
		class uint8
		ok    bool
	}{{0, 0, false}, {1, 6, true}, {64, 6, true}, {65, 7, true}, {2 << 20, 21, true}, {1 << 30, 30, true}, {1<<30 + 1, 0, false}} {
		if class, ok := ClassFor(c.size); class != c.class || ok != c.ok {
			t.Errorf("ClassFor(%d) = %d, %v", c.size, class, ok)
		}
	}
	base := Make(0x10, 2, IDOf(0x12345, 0x3abcde))
	if want := (Pointer{4: 0x10, 5: 2, 7: 0x12, 8: 0x34, 9: 0x5e, 10: 0xaf, 11: 0x37, 12: 0x80}); base != want || !base.Stored() {
		t.Errorf("slot 0x12345, generation 0x3abcde: %x, want %x", base, want)
	}
	r, err := RegionOf(base.With(OpAlloc), 4000)
	if err != nil {
		t.Fatal(err)
	}
	if id := r.Base.ID(); r.Size() != 4096 || id.Slot() != 0x12345 || id.Generation() != 0x3abcde || r.String() != "::1002:12:345e:af37:8000:0/116" {
		t.Errorf("region %v of %d bytes, slot %#x, generation %#x", r, r.Size(), id.Slot(), id.Generation())
	}
	in, out := r.Base.Add(4095), r.Base.Add(4096)
	if !r.Contains(in) || !r.Contains(in.With(OpRead)) || in.Offset() != 4095 || in.Add(-4095) != base || r.Contains(out) || out.Base() != base {
		t.Error("Contains is wrong at the region's edges")
	}
	for name, p := range map[string]Pointer{"machine": Make(0x10, 3, base.ID()), "generation": Make(0x10, 2, base.ID()+1), "slot": Make(0x10, 2, base.ID()+1<<GenerationBits)} {
		if r.Contains(p) {
			t.Errorf("it contains a pointer to another %s", name)
		}
	}
	if end := base.Add(1<<30 - 1); end.Base() != base || !end.Add(1).IsNil() || !base.Add(-1).IsNil() || !base.Add(1<<62).IsNil() {
		t.Error("Add leaves the region's 30 bits")
	}
	for _, c := range []struct {
		p    Pointer
		size uint64
	}{{base.Add(1), 8}, {base, 0}, {base, 1<<30 + 1}, {Make(0x10, 2, IDOf(3, 0)), 8}, {Make(0, 2, base.ID()), 8}} {
		if _, err := RegionOf(c.p.With(OpAlloc), c.size); err == nil {
			t.Errorf("RegionOf(%s, %d) succeeded", c.p, c.size)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add((&Header{Kind: Reply, Request: 1}).Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, data, err := Parse(b)
		if err != nil {
			return
		}
		again, rest, err := Parse(append(h.Append(nil), data...))
		if err != nil || again != h || !bytes.Equal(rest, data) {
			t.Fatalf("round trip of %+v gave %+v, %v", h, again, err)
		}
	})
}

func FuzzPointer(f *testing.F) {
	f.Add(make([]byte, 16))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := FromBytes(b)
		if err != nil || p.IsNil() {
			return
		}
		if p.Bare() != p || FromAddr(p.With(OpRead).Addr()).Bare() != p {
			t.Fatalf("%s does not survive the wire", p)
		}
	})
}
