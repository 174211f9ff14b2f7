package offload

import (
	"encoding/binary"
	"math/bits"
)

// sum is the ones' complement sum of b, taken as little-endian words: the sum
// does not care which way round its words are as long as fold turns the result,
// and little-endian words are what most machines load at once. Parts that are
// summed one after another must be of even length, the last excepted.
func sum(acc uint64, b []byte) uint64 {
	var carry uint64
	for len(b) >= 64 {
		w := b[:64]
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(w), 0)
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(w[8:]), carry)
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(w[16:]), carry)
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(w[24:]), carry)
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(w[32:]), carry)
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(w[40:]), carry)
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(w[48:]), carry)
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(w[56:]), carry)
		acc += carry
		b = b[64:]
	}
	for len(b) >= 8 {
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(b), 0)
		acc += carry
		b = b[8:]
	}
	var tail [8]byte
	copy(tail[:], b)
	acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(tail[:]), 0)
	return acc + carry
}

// number is what a number in a packet, below 2^16, adds to a sum.
func number(n int) uint64 { return uint64(bits.ReverseBytes16(uint16(n))) }

// fold makes the 16 bits of a sum, in network order.
func fold(acc uint64) uint16 {
	acc = acc>>32 + acc&0xffffffff
	acc = acc>>32 + acc&0xffffffff
	acc = acc>>16 + acc&0xffff
	acc = acc>>16 + acc&0xffff
	return bits.ReverseBytes16(uint16(acc>>16 + acc&0xffff))
}

// complete turns the pseudo header's sum at b[offset:] into the checksum of b.
// UDP has no checksum zero; it is sent as all ones (harmless elsewhere, as both
// mean zero).
func complete(b []byte, offset int) {
	c := ^fold(sum(0, b))
	if c == 0 {
		c = 0xffff
	}
	binary.BigEndian.PutUint16(b[offset:], c)
}
