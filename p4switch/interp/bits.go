package interp

import (
	"encoding/binary"
	"math/big"
	"math/bits"
)

// loadBits reads width bits, 1 to 64, from b at a bit offset.
func loadBits(b []byte, offset, width int) uint64 {
	first := offset / 8
	shift := offset % 8
	if shift+width <= 64 && first+8 <= len(b) {
		return binary.BigEndian.Uint64(b[first:]) << shift >> (64 - width)
	}
	var v uint64
	last := (offset + width - 1) / 8
	for i := first; i <= last && width > 0; i++ {
		n := min(8-shift, width)
		v = v<<n | uint64(b[i])<<shift&0xff>>(8-n)
		width -= n
		shift = 0
	}
	return v
}

// storeBits writes the low width bits of v, 1 to 64, to b at a bit offset and
// leaves the other bits alone.
func storeBits(b []byte, offset, width int, v uint64) {
	for width > 0 {
		room := 8 - offset%8
		n := min(room, width)
		part := byte(v >> (width - n) & (1<<n - 1))
		keep := ^byte((1<<n - 1) << (room - n))
		b[offset/8] = b[offset/8]&keep | part<<(room-n)
		offset += n
		width -= n
	}
}

// loadWords reads a field of any width into its words.
func loadWords(w []uint64, b []byte, offset, width int) {
	n := width - (len(w)-1)*64
	for i := range w {
		w[i] = loadBits(b, offset, n)
		offset += n
		n = 64
	}
}

// storeWords writes a field of any width from its words.
func storeWords(b []byte, offset, width int, w []uint64) {
	n := width - (len(w)-1)*64
	for _, v := range w {
		storeBits(b, offset, n, v)
		offset += n
		n = 64
	}
}

// copyBits copies n bits; the destination's first bit is at a byte boundary
// and n is a multiple of 8.
func copyBits(dst, src []byte, offset, n int) {
	if offset%8 == 0 {
		copy(dst[:n/8], src[offset/8:])
		return
	}
	for i := range dst[:n/8] {
		dst[i] = byte(loadBits(src, offset+i*8, 8))
	}
}

// mask64 has the low n bits set, n at most 64.
func mask64(n int) uint64 {
	if n >= 64 {
		return ^uint64(0)
	}
	return 1<<n - 1
}

// signExtend reads the low n bits, 1 to 64, as a two's complement number.
func signExtend(v uint64, n int) uint64 {
	shift := 64 - n
	return uint64(int64(v<<shift) >> shift)
}

// u128 is a number modulo 2^128.
type u128 struct{ hi, lo uint64 }

func extend128(v uint64, signed bool) u128 {
	if signed {
		return u128{uint64(int64(v) >> 63), v}
	}
	return u128{0, v}
}

func (a u128) add(b u128) u128 {
	lo, carry := bits.Add64(a.lo, b.lo, 0)
	return u128{a.hi + b.hi + carry, lo}
}

func (a u128) sub(b u128) u128 {
	lo, borrow := bits.Sub64(a.lo, b.lo, 0)
	return u128{a.hi - b.hi - borrow, lo}
}

func (a u128) mul(b u128) u128 {
	hi, lo := bits.Mul64(a.lo, b.lo)
	return u128{hi + a.hi*b.lo + a.lo*b.hi, lo}
}

func (a u128) shl(n uint64) u128 {
	if n >= 64 {
		return u128{a.lo << (n - 64), 0}
	}
	return u128{a.hi<<n | a.lo>>(64-n), a.lo << n}
}

// shr shifts right, filling with the sign if signed.
func (a u128) shr(n uint64, signed bool) u128 {
	if signed {
		sign := uint64(int64(a.hi) >> 63)
		if n >= 64 {
			return u128{sign, uint64(int64(a.hi) >> min(n-64, 63))}
		}
		return u128{uint64(int64(a.hi) >> n), a.lo>>n | a.hi<<(64-n)}
	}
	if n >= 64 {
		return u128{0, a.hi >> (n - 64)}
	}
	return u128{a.hi >> n, a.lo>>n | a.hi<<(64-n)}
}

func mask128(n int) u128 {
	if n > 64 {
		return u128{mask64(n - 64), ^uint64(0)}
	}
	return u128{0, mask64(n)}
}

func signExtend128(a u128, n int) u128 {
	if n <= 64 {
		return extend128(signExtend(a.lo, n), true)
	}
	return u128{signExtend(a.hi, n-64), a.lo}
}

// less compares as signed or unsigned numbers.
func (a u128) less(b u128, signed bool) bool {
	if a.hi != b.hi {
		if signed {
			return int64(a.hi) < int64(b.hi)
		}
		return a.hi < b.hi
	}
	return a.lo < b.lo
}

// wordsFor is how many words a field of n bits takes.
func wordsFor(n int) int { return (n + 63) / 64 }

// putBig writes v's low bits, two's complement, to w, most significant word
// first.
func putBig(w []uint64, v *big.Int, width int) {
	one := big.NewInt(1)
	mask := new(big.Int).Lsh(one, uint(width))
	mask.Sub(mask, one).And(mask, v)
	raw := mask.FillBytes(make([]byte, len(w)*8))
	for i := range w {
		w[i] = binary.BigEndian.Uint64(raw[i*8:])
	}
}

// getBig reads the unsigned number in w into z.
func getBig(z *big.Int, w []uint64) {
	raw := make([]byte, len(w)*8)
	for i, v := range w {
		binary.BigEndian.PutUint64(raw[i*8:], v)
	}
	z.SetBytes(raw)
}

// bytesToWords reads right-aligned bytes of a field of width bits.
func bytesToWords(b []byte, width int) []uint64 {
	w := make([]uint64, wordsFor(width))
	putBig(w, new(big.Int).SetBytes(b), width)
	return w
}

// wordsToBytes is the field of width bits in w, right-aligned.
func wordsToBytes(w []uint64, width int) []byte {
	z := new(big.Int)
	getBig(z, w)
	return z.FillBytes(make([]byte, (width+7)/8))
}
