package offload

import (
	"encoding/binary"
	"math/bits"
)

// sum adds b to a ones' complement sum, eight bytes at a time. The parts of a
// packet that are added one after another must be of even length, the last
// excepted.
func sum(acc uint64, b []byte) uint64 {
	var carry uint64
	for len(b) >= 32 {
		acc, carry = bits.Add64(acc, binary.BigEndian.Uint64(b), carry)
		acc, carry = bits.Add64(acc, binary.BigEndian.Uint64(b[8:]), carry)
		acc, carry = bits.Add64(acc, binary.BigEndian.Uint64(b[16:]), carry)
		acc, carry = bits.Add64(acc, binary.BigEndian.Uint64(b[24:]), carry)
		b = b[32:]
	}
	for len(b) >= 8 {
		acc, carry = bits.Add64(acc, binary.BigEndian.Uint64(b), carry)
		b = b[8:]
	}
	var tail [8]byte
	copy(tail[:], b)
	acc, carry = bits.Add64(acc, binary.BigEndian.Uint64(tail[:]), carry)
	acc, carry = bits.Add64(acc, 0, carry)
	return acc + carry
}

// fold makes 16 bits of a sum.
func fold(acc uint64) uint16 {
	acc = acc>>32 + acc&0xffffffff
	acc = acc>>32 + acc&0xffffffff
	acc = acc>>16 + acc&0xffff
	acc = acc>>16 + acc&0xffff
	return uint16(acc>>16 + acc&0xffff)
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
