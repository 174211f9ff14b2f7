package interp

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"

	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// bitWriter appends fields to bytes, bit by bit where it has to.
type bitWriter struct {
	b    []byte
	bits int // written; b is as long as they need
}

// grow makes room for n more bits and returns the offset of the first.
func (w *bitWriter) grow(n int) int {
	at := w.bits
	w.bits += n
	for need := (w.bits + 7) / 8; len(w.b) < need; {
		w.b = append(w.b, 0)
	}
	return at
}

func (w *bitWriter) words(v []uint64, width int) {
	if width > 0 {
		storeWords(w.b, w.grow(width), width, v)
	}
}

func (w *bitWriter) bytes(b []byte) {
	if w.bits%8 == 0 {
		w.b = append(w.b, b...)
		w.bits += len(b) * 8
		return
	}
	for _, x := range b {
		storeBits(w.b, w.grow(8), 8, uint64(x))
	}
}

// calculation compiles a calculation to the function of its value.
func (c *compiler) calculation(calc *v1model.Calculation) func(*state) uint64 {
	hash := algorithm(calc.Algorithm)
	var inputs []func(*state, *bitWriter)
	for _, in := range calc.Input {
		inputs = append(inputs, c.input(in))
	}
	return func(s *state) uint64 {
		w := bitWriter{b: s.hash[:0]}
		for _, in := range inputs {
			in(s, &w)
		}
		if calc.Payload {
			w.bytes(s.payload())
		}
		s.hash = w.b
		return hash(s, w.b)
	}
}

// input compiles one part of a calculation's input.
func (c *compiler) input(in v1model.Input) func(*state, *bitWriter) {
	switch {
	case in.Header != nil:
		i := in.Header.Index
		return func(s *state, w *bitWriter) {
			if s.w[c.lay.bases[i]] != 0 {
				c.appendHeader(s, i, w)
			}
		}
	case in.Field.Valid():
		i, sl := in.Field.Header.Index, c.lay.slot(in.Field)
		varbit := in.Field.Def().Varbit
		base := c.lay.bases[i]
		return func(s *state, w *bitWriter) {
			switch {
			case s.w[base] == 0:
			case varbit:
				w.bytes(s.varbit[i])
			default:
				w.words(s.w[sl.at:sl.at+sl.n], sl.width)
			}
		}
	}
	k, n := bytesToWords(in.Const, in.Bits), in.Bits
	return func(_ *state, w *bitWriter) { w.words(k, n) }
}

// appendHeader appends a header as it is on the wire.
func (c *compiler) appendHeader(s *state, i int, w *bitWriter) {
	t, words := c.lay.heads[i], s.w[c.lay.bases[i]:]
	for k, f := range t.fields {
		if k == t.Varbit {
			w.bytes(s.varbit[i])
			continue
		}
		w.words(words[f.at:f.at+f.n], f.width)
	}
}

// checksum is a checksum to verify or to update.
type checksum struct {
	target slot
	base   int // the target's header
	cond   pred
	value  func(*state) uint64
}

func (c *compiler) checksum(sum *v1model.Checksum) checksum {
	x := checksum{
		target: c.lay.slot(sum.Target),
		base:   c.lay.bases[sum.Target.Header.Index],
		value:  c.calculation(sum.Calculation),
	}
	if sum.Cond != nil {
		x.cond = c.cond(sum.Cond)
	}
	return x
}

// verify tells whether the checksum is right or does not apply.
func (x *checksum) verify(s *state) bool {
	if s.w[x.base] == 0 || x.cond != nil && !x.cond(s) {
		return true
	}
	at, n := x.target.at, x.target.n
	for _, high := range s.w[at : at+n-1] {
		if high != 0 {
			return false
		}
	}
	return s.w[at+n-1] == x.value(s)
}

func (x *checksum) update(s *state) {
	if x.cond != nil && !x.cond(s) {
		return
	}
	at, n := x.target.at, x.target.n
	clear(s.w[at : at+n-1])
	s.w[at+n-1] = x.value(s) & mask64(x.target.width)
}

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
