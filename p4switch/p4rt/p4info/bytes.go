package p4info

import (
	"bytes"
	"math/bits"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Canonical is the shortest byte string for an unsigned integer: b without its
// leading zero bytes, but at least one byte (specification, section
// "Bytestrings"). It shares b's memory.
func Canonical(b []byte) []byte {
	for len(b) > 1 && b[0] == 0 {
		b = b[1:]
	}
	return b
}

// CheckWidth tells whether b is a byte string for bit<width>: not empty, and
// its value fits. Any number of leading zeros is allowed.
func CheckWidth(b []byte, width int) error {
	if len(b) == 0 {
		return status.Error(codes.OutOfRange, "empty byte string")
	}
	if n := bitLen(b); n > width {
		return status.Errorf(codes.OutOfRange, "value %#x needs %d bits, the field has %d", b, n, width)
	}
	return nil
}

// Widen is b as the data plane wants it: big-endian and as long as width bits
// rounded up to bytes. b must fit (CheckWidth). The result shares b's memory where
// it is as long.
func Widen(b []byte, width int) []byte {
	b = Canonical(b)
	if len(b) == byteLen(width) {
		return b
	}
	out := make([]byte, byteLen(width))
	if len(b) > len(out) { // only the single zero byte of a zero-width field
		return out
	}
	copy(out[len(out)-len(b):], b)
	return out
}

// checkSigned tells whether b is a byte string for int<width>, two's complement.
func checkSigned(b []byte, width int) error {
	if len(b) == 0 {
		return status.Error(codes.OutOfRange, "empty byte string")
	}
	if n := signedLen(b); n > width {
		return status.Errorf(codes.OutOfRange, "signed value %#x needs %d bits, the field has %d", b, n, width)
	}
	return nil
}

// canonicalSigned is the shortest two's complement byte string for b's value.
func canonicalSigned(b []byte) []byte {
	for len(b) > 1 && (b[0] == 0 && b[1] < 0x80 || b[0] == 0xff && b[1] >= 0x80) {
		b = b[1:]
	}
	return b
}

// widenSigned sign-extends b to width bits; bits above width in the first byte
// are zero, as the data plane keeps them.
func widenSigned(b []byte, width int) []byte {
	out := make([]byte, byteLen(width))
	if len(b) > 0 && b[0] >= 0x80 {
		for i := range out {
			out[i] = 0xff
		}
	}
	b = canonicalSigned(b)
	copy(out[len(out)-len(b):], b)
	if extra := len(out)*8 - width; extra > 0 {
		out[0] &= 0xff >> extra
	}
	return out
}

// narrowSigned is the inverse of widenSigned: it turns width bits into the
// canonical signed byte string.
func narrowSigned(b []byte, width int) []byte {
	out := bytes.Clone(b)
	extra := len(out)*8 - width
	if extra > 0 && out[0]>>(7-extra)&1 == 1 {
		out[0] |= ^byte(0xff >> extra)
	}
	return canonicalSigned(out)
}

// byteLen is width in bits, rounded up to bytes.
func byteLen(width int) int { return (width + 7) / 8 }

// bitLen is how many bits the unsigned value of b needs; 0 for zero.
func bitLen(b []byte) int {
	b = Canonical(b)
	return (len(b)-1)*8 + bits.Len8(b[0])
}

// signedLen is how many bits the two's complement value of b needs, its sign
// bit included.
func signedLen(b []byte) int {
	b = canonicalSigned(b)
	first := b[0]
	if first >= 0x80 {
		first = ^first
	}
	return (len(b)-1)*8 + bits.Len8(first) + 1
}

// trailingZeros tells whether the low n bits of b are zero.
func trailingZeros(b []byte, n int) bool {
	for i := len(b) - 1; i >= 0 && n > 0; i, n = i-1, n-8 {
		mask := byte(0xff)
		if n < 8 {
			mask = 1<<n - 1
		}
		if b[i]&mask != 0 {
			return false
		}
	}
	return true
}

func allZero(b []byte) bool { return trailingZeros(b, len(b)*8) }

// allOnes is the largest value of bit<width>, as long as width.
func allOnes(width int) []byte {
	out := bytes.Repeat([]byte{0xff}, byteLen(width))
	if extra := len(out)*8 - width; extra > 0 {
		out[0] >>= extra
	}
	return out
}
