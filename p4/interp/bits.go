package interp

import "encoding/binary"

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
