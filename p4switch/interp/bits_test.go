package interp

import (
	"bytes"
	"encoding/hex"
	"math/big"
	"math/rand/v2"
	"testing"
)

// TestBits compares loads and stores at every offset with big numbers.
func TestBits(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 20000 {
		width := 1 + r.IntN(200)
		offset := r.IntN(20)
		b := make([]byte, (offset+width+7)/8+r.IntN(10))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		all := new(big.Int).SetBytes(b)
		tail := uint(len(b)*8 - offset - width)
		want := new(big.Int).Rsh(all, tail)
		w := make([]uint64, wordsFor(width))
		expect := make([]uint64, len(w))
		putBig(expect, want, width)
		loadWords(w, b, offset, width)
		if compareWords(w, expect) != 0 {
			t.Fatalf("%d bits at %d of %x: %x, not %x", width, offset, b, w, expect)
		}
		inverse := make([]uint64, len(w))
		mask := fullMask(width)
		for i := range w {
			inverse[i] = ^w[i] & mask[i]
		}
		flipped := bytes.Clone(b)
		storeWords(flipped, offset, width, inverse)
		ones := new(big.Int).Lsh(big.NewInt(1), uint(width))
		ones.Sub(ones, big.NewInt(1)).Lsh(ones, tail)
		if got := new(big.Int).SetBytes(flipped); got.Cmp(all.Xor(all, ones)) != 0 {
			t.Fatalf("%d bits stored at %d: %x became %x", width, offset, b, flipped)
		}
	}
}

// TestHashes holds the hashes against their published check values.
func TestHashes(t *testing.T) {
	check := []byte("123456789")
	for name, c := range map[string]struct{ got, want uint64 }{
		"CRC-16/ARC":          {crc16(check), 0xbb3d},
		"RFC 1071, section 3": {csum16([]byte{0, 1, 0xf2, 3, 0xf4, 0xf5, 0xf6, 0xf7}), 0xddf2 ^ 0xffff},
		"csum of nothing":     {csum16(nil), 0xffff},
		"csum, odd":           {csum16([]byte{1}), 0xfeff},
		"xor16, odd":          {xor16([]byte{1, 2, 3}), 0x0202},
		"identity":            {identity([]byte{1, 2, 3}), 0x010203},
		"identity, long":      {identity([]byte("123456789")), 0x3132333435363738},
	} {
		if c.got != c.want {
			t.Errorf("%s: %#x, not %#x", name, c.got, c.want)
		}
	}
}

// TestChecksumAnySplit: the checksum of long inputs, whose sum wraps often.
func TestChecksumAnySplit(t *testing.T) {
	for n := range 100 {
		b := bytes.Repeat([]byte{0xff, 0xfe, 0xff}, n)
		sum := 0
		for i := 0; i < len(b); i += 2 {
			sum += int(b[i]) << 8
			if i+1 < len(b) {
				sum += int(b[i+1])
			}
		}
		for sum > 0xffff {
			sum = sum>>16 + sum&0xffff
		}
		if got := csum16(b); got != uint64(sum^0xffff) {
			t.Fatalf("csum16(%s) is %#x, not %#x", hex.EncodeToString(b), got, sum^0xffff)
		}
	}
}
