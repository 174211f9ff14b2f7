package store

import (
	"math"
	"math/bits"

	"github.com/bifrost-rack/bifrost/dsm/packet"
)

// arena hands out blocks of the machine's memory, whose sizes are powers of
// two, by the buddy method: a block is cut by halving, and two free halves
// become one again. Every block it hands out reads as zeros.
type arena struct {
	mem     []byte
	discard func([]byte) // gives whole pages back; they read as zeros then
	free    [packet.MaxClass + 1]blocks
	dirty   []dirt // given back and not yet zeroed, oldest first
	used    uint64
}

// dirt is a block that is zeroed bit by bit before it is free.
type dirt struct {
	off     uint64
	class   uint8
	touched []byte // what is left to zero
	keep    bool   // zero it in place, for the next region of its size
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
	off, ok := a.cut(class)
	for !ok && a.clean(math.MaxInt) {
		off, ok = a.cut(class)
	}
	if ok {
		a.used += 1 << class
	}
	return off, ok
}

// cut takes a block off the free lists.
func (a *arena) cut(class uint8) (uint64, bool) {
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
	return off, true
}

// give takes a block back, of which only the bytes from..to have been written.
func (a *arena) give(off uint64, class uint8, from, to uint64) {
	a.used -= 1 << class
	a.giveBack(off, class, from, to)
}

// giveBack is give for a block that does not count as used.
func (a *arena) giveBack(off uint64, class uint8, from, to uint64) {
	if to-from <= zeroAtOnce {
		clear(a.mem[off+from : off+to])
		a.merge(off, class)
		return
	}
	from, to = from&^(pageSize-1), alignUp(to, pageShift)
	a.dirty = append(a.dirty, dirt{off, class, a.mem[off+from : off+to], to-from <= zeroAndKeep})
}

// zero makes a block's bytes from..to zeros again, at once.
func (a *arena) zero(off, from, to uint64) {
	if to-from <= zeroAtOnce {
		clear(a.mem[off+from : off+to])
		return
	}
	a.discard(a.mem[off+from&^(pageSize-1) : off+alignUp(to, pageShift)])
}

// clean zeroes up to n bytes of the oldest dirt. It is false when there is none.
func (a *arena) clean(n int) bool {
	if len(a.dirty) == 0 {
		return false
	}
	d := &a.dirty[0]
	part := d.touched[:min(n, len(d.touched))]
	if d.keep {
		clear(part)
	} else {
		a.discard(part)
	}
	if d.touched = d.touched[len(part):]; len(d.touched) == 0 {
		off, class := d.off, d.class
		a.dirty = append(a.dirty[:0], a.dirty[1:]...)
		a.merge(off, class)
	}
	return true
}

// merge makes a block free.
func (a *arena) merge(off uint64, class uint8) {
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
