package p4rtclient

import (
	"math/big"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

// Values are canonical, whatever they are made of, and count as numbers do.
func TestValue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), 1, 17).Draw(t, "bytes")
		n := new(big.Int).SetBytes(b)
		v := Bytes(b)
		if len(v) > 1 && v[0] == 0 || v != Bytes(append([]byte{0, 0}, b...)) {
			t.Fatalf("%x is not canonical", string(v))
		}
		if v.width() != n.BitLen() {
			t.Fatalf("%s has width %d, want %d", v, v.width(), n.BitLen())
		}
		if got, ok := v.Uint64(); ok != n.IsUint64() || ok && got != n.Uint64() {
			t.Fatalf("%s as a number: %d, %v", v, got, ok)
		}
		if n.IsUint64() && Uint(n.Uint64()) != v {
			t.Fatalf("%s is not Uint(%s)", v, n)
		}
		width := rapid.IntRange(1, 140).Draw(t, "width")
		if _, err := v.fit(width); (err == nil) != (n.BitLen() <= width) {
			t.Fatalf("%s in %d bits: %v", v, width, err)
		}
		zeros := rapid.IntRange(0, 140).Draw(t, "zeros")
		if want := n.Sign() == 0 || int(n.TrailingZeroBits()) >= zeros; v.trailingZeros(zeros) != want {
			t.Fatalf("%s ends with %d zeros: want %v", v, zeros, want)
		}
		if a, ok := v.Addr(); ok != (n.BitLen() <= 128) || ok && Addr(a) != v {
			t.Fatalf("%s as an address: %s, %v", v, a, ok)
		}
	})
}

func TestValue_Edges(t *testing.T) {
	if Bytes(nil) != Uint(0) || Addr(netip.IPv6Unspecified()) != Uint(0) || Uint(0) != "\x00" {
		t.Error("0 is not one zero byte")
	}
	if _, err := Value("").fit(8); err == nil {
		t.Error("the zero Value passed for a value")
	}
	if got := Addr(netip.MustParseAddr("fd00::1")); len(got) != 16 || got[0] != 0xfd {
		t.Errorf("fd00::1 became %s", got)
	}
}
