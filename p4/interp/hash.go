package interp

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"

	"github.com/bifrost-rack/bifrost/p4/v1model"
)

// algorithm makes the function of a hash or checksum.
func algorithm(a v1model.Algorithm) func(*state, []byte) uint64 {
	pure := func(f func([]byte) uint64) func(*state, []byte) uint64 {
		return func(_ *state, b []byte) uint64 { return f(b) }
	}
	switch a {
	case v1model.HashCRC16, v1model.HashCRC16Custom:
		return pure(crc16)
	case v1model.HashCRC32, v1model.HashCRC32Custom:
		return pure(func(b []byte) uint64 { return uint64(crc32.ChecksumIEEE(b)) })
	case v1model.HashCSum16:
		return pure(csum16)
	case v1model.HashXor16:
		return pure(xor16)
	case v1model.HashIdentity:
		return pure(identity)
	default:
		return func(s *state, _ []byte) uint64 { return s.rand() }
	}
}

// crc16Table is for CRC-16/ARC: polynomial 0x8005, bits reflected.
var crc16Table = func() (t [256]uint16) {
	const reflected = 0xa001
	for i := range t {
		v := uint16(i)
		for range 8 {
			if v&1 != 0 {
				v = v>>1 ^ reflected
			} else {
				v >>= 1
			}
		}
		t[i] = v
	}
	return t
}()

func crc16(b []byte) uint64 {
	var crc uint16
	for _, x := range b {
		crc = crc>>8 ^ crc16Table[byte(crc)^x]
	}
	return uint64(crc)
}

// csum16 is the Internet checksum (RFC 1071).
func csum16(b []byte) uint64 {
	var sum, carry uint64
	for len(b) >= 8 {
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b), carry)
		b = b[8:]
	}
	var tail [8]byte
	copy(tail[:], b)
	sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(tail[:]), carry)
	sum, carry = bits.Add64(sum, 0, carry)
	sum += carry
	sum = sum>>32 + sum&0xffffffff
	sum = sum>>32 + sum&0xffffffff
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return sum ^ 0xffff
}

// xor16 xors 16-bit words; an odd last byte is a word's upper half.
func xor16(b []byte) uint64 {
	var v uint16
	for len(b) >= 2 {
		v ^= binary.BigEndian.Uint16(b)
		b = b[2:]
	}
	if len(b) == 1 {
		v ^= uint16(b[0]) << 8
	}
	return uint64(v)
}

// identity is the first 8 bytes as a number.
func identity(b []byte) uint64 {
	var v uint64
	for _, x := range b[:min(len(b), 8)] {
		v = v<<8 | uint64(x)
	}
	return v
}
