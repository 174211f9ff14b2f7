package p4info

import (
	"bytes"
	"math/big"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The specification's table "Examples of Valid Bytestring Encoding": every
// encoding is accepted, and only the marked one is canonical.
func TestSection8_4_ValidEncodings(t *testing.T) {
	for _, tc := range []struct {
		signed    bool
		width     int
		in        string
		canonical bool
	}{
		{false, 8, "\x63", true}, {false, 16, "\x00\x63", false}, {false, 16, "\x63", true},
		{false, 16, "\x30\x64", true}, {false, 16, "\x00\x30\x64", false},
		{false, 12, "\x00\x63", false}, {false, 12, "\x63", true}, {false, 12, "\x00\x00\x63", false},
		{true, 8, "\x63", true}, {true, 8, "\x9d", true}, {true, 8, "\xff\x9d", false},
		{true, 12, "\xfd\x1d", true}, {true, 16, "\x00\x00", false}, {true, 16, "\x00", true},
	} {
		err, canon := CheckWidth([]byte(tc.in), tc.width), Canonical([]byte(tc.in))
		if tc.signed {
			err, canon = checkSigned([]byte(tc.in), tc.width), canonicalSigned([]byte(tc.in))
		}
		if err != nil || (string(canon) == tc.in) != tc.canonical {
			t.Errorf("%+v: %v, canonical %x", tc, err, canon)
		}
	}
}

// The specification's table "Examples of Invalid Bytestring Encoding".
func TestSection8_4_InvalidEncodings(t *testing.T) {
	for _, tc := range []struct {
		signed bool
		width  int
		in     string
	}{
		{false, 8, "\x01\x63"}, {false, 8, ""}, {false, 16, "\x01\x00\x63"}, {false, 12, "\x10\x63"},
		{false, 12, "\x01\x00\x63"}, {false, 12, "\x00\x40\x63"}, {true, 8, "\x00\x9d"}, {true, 12, "\x8d\x1d"}, {true, 16, ""},
	} {
		err := CheckWidth([]byte(tc.in), tc.width)
		if tc.signed {
			err = checkSigned([]byte(tc.in), tc.width)
		}
		if status.Code(err) != codes.OutOfRange {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}

// FuzzUnsigned checks the byte strings against big numbers.
func FuzzUnsigned(f *testing.F) {
	f.Add([]byte{0, 1, 2}, uint16(9))
	f.Add([]byte{0xff}, uint16(8))
	f.Add([]byte{}, uint16(1))
	f.Fuzz(func(t *testing.T, b []byte, w uint16) {
		width := int(w%300) + 1
		value := new(big.Int).SetBytes(b)
		err := CheckWidth(b, width)
		if fits := len(b) > 0 && value.BitLen() <= width; fits != (err == nil) {
			t.Fatalf("%x in %d bits: %v", b, width, err)
		}
		if err != nil {
			return
		}
		wide := Widen(b, width)
		if len(wide) != (width+7)/8 || new(big.Int).SetBytes(wide).Cmp(value) != 0 {
			t.Fatalf("%x widened to %x", b, wide)
		}
		canon := Canonical(wide)
		if new(big.Int).SetBytes(canon).Cmp(value) != 0 || len(canon) > 1 && canon[0] == 0 || len(canon) == 0 {
			t.Fatalf("%x has the canonical form %x", b, canon)
		}
		for n := range width + 1 {
			if trailingZeros(wide, n) != (new(big.Int).And(value, new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), uint(n)), big.NewInt(1))).Sign() == 0) {
				t.Fatalf("%x: the last %d bits", wide, n)
			}
		}
	})
}

// FuzzSigned checks that signed values survive the way to the data plane and back.
func FuzzSigned(f *testing.F) {
	f.Add([]byte{0xfd, 0x1d}, uint16(12))
	f.Add([]byte{0x80}, uint16(8))
	f.Add([]byte{0}, uint16(1))
	f.Fuzz(func(t *testing.T, b []byte, w uint16) {
		width := int(w%300) + 1
		if checkSigned(b, width) != nil {
			return
		}
		wide := widenSigned(b, width)
		if len(wide) != (width+7)/8 || CheckWidth(wide, width) != nil {
			t.Fatalf("%x widened to %x for %d bits", b, wide, width)
		}
		if back := narrowSigned(wide, width); !bytes.Equal(back, canonicalSigned(b)) {
			t.Fatalf("%x came back as %x", b, back)
		}
	})
}

func TestAllOnes(t *testing.T) {
	for width, want := range map[int]string{1: "\x01", 8: "\xff", 9: "\x01\xff", 12: "\x0f\xff"} {
		if got := allOnes(width); string(got) != want {
			t.Errorf("%d bits: %x", width, got)
		}
	}
}
