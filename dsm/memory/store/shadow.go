package store

import "math/bits"

// shadow is a second block for a region that executions overwrite in large pieces.
// Each page's content stands in one of the two blocks. What overwrites a whole page
// for the first time goes into the other one, and what the page held stays where it
// is until the commit: nothing is copied.
//
//	own block  | 0 |   | 2 | 3'|        pages 0 and 2 are there; 3' is what 3 was
//	shadow     |   | 1 | 2'| 3 |        pages 1 and 3 are there; 2' nobody needs
type shadow struct {
	block    uint64
	data     []byte
	from, to uint64   // what has been written to of it
	there    []uint64 // bit i of n: page 64n+i stands in the shadow
}

// inShadow reports where a page stands.
func (r *region) inShadow(i uint64) bool {
	return r.shadow != nil && r.shadow.there[i>>6]>>(i&63)&1 != 0
}

// turn makes a page stand in the other block.
func (r *region) turn(i uint64) { r.shadow.there[i>>6] ^= 1 << (i & 63) }

// run returns the bytes at an offset: n, or as many as stand in one block.
func (r *region) run(at, n uint64) []byte {
	if r.shadow == nil {
		return r.data[at : at+n]
	}
	i := at >> pageShift
	in, end := r.inShadow(i), min(at+n, (i+1)<<pageShift)
	for end < at+n && r.inShadow(end>>pageShift) == in {
		end = min(at+n, end+pageSize)
	}
	if in {
		return r.shadow.data[at:end]
	}
	return r.data[at:end]
}

// view returns n bytes at an offset: the region's own, unless they stand apart.
func (r *region) view(at, n uint64) []byte {
	if b := r.run(at, n); uint64(len(b)) == n {
		return b
	}
	whole := make([]byte, 0, n)
	for uint64(len(whole)) < n {
		done := uint64(len(whole))
		whole = append(whole, r.run(at+done, n-done)...)
	}
	return whole
}

// put writes b at an offset; it must fit.
func (r *region) put(at uint64, b []byte) {
	r.note(at, uint64(len(b)))
	touch(&r.from, &r.to, at, uint64(len(b)))
	for len(b) > 0 {
		to := r.run(at, uint64(len(b)))
		if r.inShadow(at >> pageShift) {
			touch(&r.shadow.from, &r.shadow.to, at, uint64(len(to)))
		}
		n := copy(to, b)
		at, b = at+uint64(n), b[n:]
	}
}

// receive has n bytes put at an offset by who has them; they must fit. It reports whether they
// have been put there.
func (r *region) receive(at, n uint64, from func(to [2][]byte) bool) bool {
	var to [2][]byte
	for i, done := 0, uint64(0); done < n; i++ {
		if i == len(to) { // its pages stand apart
			b := make([]byte, n)
			if !from([2][]byte{b}) {
				return false
			}
			r.put(at, b)
			return true
		}
		to[i] = r.run(at+done, n-done)
		done += uint64(len(to[i]))
	}
	r.note(at, n)
	touch(&r.from, &r.to, at, n)
	for i, done := 0, uint64(0); done < n; i++ {
		if r.inShadow((at + done) >> pageShift) {
			touch(&r.shadow.from, &r.shadow.to, at+done, uint64(len(to[i])))
		}
		done += uint64(len(to[i]))
	}
	return from(to)
}

// touch extends from..to by n bytes at an offset.
func touch(from, to *uint64, at, n uint64) {
	if *from == *to {
		*from, *to = at, at+n
		return
	}
	*from, *to = min(*from, at), max(*to, at+n)
}

// shade gives a region its shadow, if there is room for one.
func (s *Store) shade(reg *region) bool {
	if reg.shadow != nil {
		s.shadows.remove(reg)
		return true
	}
	if s.arena.used > uint64(len(s.arena.mem))/2 {
		return false // leave the rest to regions
	}
	block, ok := s.arena.cut(reg.class)
	if !ok {
		return false
	}
	pages := len(reg.data) >> pageShift
	reg.shadow = &shadow{block: block, data: s.arena.bytes(block, reg.class), there: make([]uint64, (pages+63)/64)}
	return true
}

// rest keeps the shadow of a region that no execution has changed any more for the
// next one. Others make room.
func (s *Store) rest(reg *region) {
	if reg.shadow == nil {
		return
	}
	s.shadows.add(reg)
	for s.shadows.bytes > idleShadows && len(s.shadows.list) > 1 {
		s.unshade(s.shadows.list[0])
	}
}

// unshade brings all of a region into one block and gives the other back.
func (s *Store) unshade(reg *region) {
	s.shadows.remove(reg)
	sh := reg.shadow
	pages, there := len(reg.data)>>pageShift, 0
	for _, word := range sh.there {
		there += bits.OnesCount64(word)
	}
	stay := there > pages/2 // in the shadow
	for n := range sh.there {
		word := sh.there[n] // of the pages to move
		if stay {
			word = ^word & (1<<min(pages, 64) - 1)
		}
		for ; word != 0; word &= word - 1 {
			i := uint64(n)<<6 + uint64(bits.TrailingZeros64(word))
			b := reg.page(i)
			reg.turn(i)
			copy(reg.page(i), b)
		}
	}
	block, from, to := sh.block, sh.from, sh.to
	if stay {
		block, from, to = reg.block, reg.from, reg.to
		reg.block, reg.data = sh.block, sh.data
	}
	reg.shadow = nil
	s.arena.giveBack(block, reg.class, from, to)
}

// dropShadow gives the shadow of a region that ends back.
func (s *Store) dropShadow(reg *region) {
	if sh := reg.shadow; sh != nil {
		s.shadows.remove(reg)
		reg.shadow = nil
		s.arena.giveBack(sh.block, reg.class, sh.from, sh.to)
	}
}

// idle is the regions whose shadows no execution needs, the oldest first.
type idle struct {
	list  []*region
	bytes uint64
}

func (l *idle) add(r *region) {
	l.list = append(l.list, r)
	l.bytes += uint64(len(r.data))
}

func (l *idle) remove(r *region) {
	for i, other := range l.list {
		if other == r {
			l.list = append(l.list[:i], l.list[i+1:]...)
			l.bytes -= uint64(len(r.data))
			return
		}
	}
}
