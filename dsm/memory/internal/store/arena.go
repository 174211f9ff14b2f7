package store

import (
	"math/bits"

	"github.com/bifrost-rack/bifrost/dsm/packet"
)

// arena hands out blocks of the machine's memory, whose sizes are powers of
// two, by the buddy method: a block is cut by halving, and two free halves
// become one again. Every block it hands out reads as zeros.
type arena struct {
	mem     []byte
	discard func([]byte) // turns bytes into zeros, and gives them back if it can
	free    [packet.MaxClass + 1]blocks
	used    uint64
}

// newArena returns an arena over mem, whose bytes must be zero. A tail shorter
// than the smallest region is left unused.
func newArena(mem []byte, discard func([]byte)) *arena {
	a := &arena{mem: mem, discard: discard}
	size := uint64(len(mem)) &^ (1<<packet.MinClass - 1)
	for off := uint64(0); off < size; {
		class := min(bits.Len64(size-off)-1, packet.MaxClass)
		if off > 0 {
			class = min(class, bits.TrailingZeros64(off))
		}
		a.free[class].add(off)
		off += 1 << class
	}
	return a
}

// take returns the offset of a block of 2^class bytes; false when none is free.
func (a *arena) take(class uint8) (uint64, bool) {
	c := class
	for c <= packet.MaxClass && a.free[c].empty() {
		c++
	}
	if c > packet.MaxClass {
		return 0, false
	}
	off := a.free[c].pop()
	for ; c > class; c-- {
		a.free[c-1].add(off + 1<<(c-1))
	}
	a.used += 1 << class
	return off, true
}

// give takes a block back, zeroed.
func (a *arena) give(off uint64, class uint8) {
	a.discard(a.bytes(off, class))
	a.used -= 1 << class
	for class < packet.MaxClass && a.free[class].remove(off^1<<class) {
		off &^= 1 << class
		class++
	}
	a.free[class].add(off)
}

// bytes returns a block's memory.
func (a *arena) bytes(off uint64, class uint8) []byte {
	end := off + 1<<class
	return a.mem[off:end:end]
}

// blocks is a set of offsets that forgets the newest first, so that memory
// touched lately is used again before memory never touched.
type blocks struct {
	list []uint64
	at   map[uint64]int // index in list
}

func (b *blocks) empty() bool { return len(b.list) == 0 }

func (b *blocks) add(off uint64) {
	if b.at == nil {
		b.at = make(map[uint64]int)
	}
	b.at[off] = len(b.list)
	b.list = append(b.list, off)
}

func (b *blocks) pop() uint64 {
	off := b.list[len(b.list)-1]
	b.remove(off)
	return off
}

func (b *blocks) remove(off uint64) bool {
	i, ok := b.at[off]
	if !ok {
		return false
	}
	last := len(b.list) - 1
	b.list[i] = b.list[last]
	b.at[b.list[i]] = i
	b.list = b.list[:last]
	delete(b.at, off)
	return true
}
