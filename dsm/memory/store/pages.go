package store

import (
	"math/bits"

	"github.com/bifrost-rack/bifrost/internal/fault"
)

// page is the old content of one page, or of a whole smaller region.
type page struct {
	at  uint64 // offset in the region
	old []byte // nil: zeros
}

// keep makes sure that n bytes at an offset, which are to be written then, can be
// brought back: of those of their pages that have not been kept yet, all or, if
// there is no room for them, none.
func (s *Store) keep(c *changes, at, n uint64) fault.Code {
	switch {
	case n == 0:
		return fault.OK
	case s.turns(c, at, n):
		s.turnPages(c, at, n)
		return fault.OK
	}
	return s.undo.copyPages(c, at, n)
}

// copyPages copies those pages of n bytes at an offset that have not been kept.
func (u *undo) copyPages(c *changes, at, n uint64) fault.Code {
	first, last := at>>pageShift, (at+n-1)>>pageShift
	cost := uint64(0)
	for i := first; i <= last; i++ {
		if !c.saved.has(i) {
			cost += pageCost + uint64(len(c.region.old(i)))
		}
	}
	if cost == 0 {
		return fault.OK
	}
	if status := u.room(c.by.by.node, cost); status != fault.OK {
		return status
	}
	u.charge(c.by, cost)
	c.cost += cost
	for i := first; i <= last; i++ {
		if c.saved.add(i) {
			c.pages = append(c.pages, page{i << pageShift, u.pages.copy(c.region.old(i))})
			u.kept++
		}
	}
	return fault.OK
}

// restore brings the old content back.
func (c *changes) restore() {
	for i, pages := range c.turned {
		c.region.shadow.there[i] ^= pages
		for ; pages != 0; pages &= pages - 1 {
			c.region.note((uint64(i)<<6+uint64(bits.TrailingZeros64(pages)))<<pageShift, pageSize)
		}
	}
	for _, p := range c.pages {
		c.region.note(p.at, min(pageSize, uint64(len(c.region.data))-p.at))
		if p.old == nil {
			clear(c.region.page(p.at >> pageShift))
		} else {
			copy(c.region.page(p.at>>pageShift), p.old)
		}
	}
}

// page returns the i-th page of the region.
func (r *region) page(i uint64) []byte {
	from := i << pageShift
	return r.run(from, min(pageSize, uint64(len(r.data))-from))
}

// old returns what of the i-th page there is to copy: nil if it is all zeros.
func (r *region) old(i uint64) []byte {
	if from := i << pageShift; from >= r.to || from+pageSize <= r.from {
		return nil
	}
	return r.page(i)
}

// pageSet is a set of page numbers.
type pageSet struct {
	first uint64            // bit i: page i
	rest  map[uint64]uint64 // bit i of n: page 64n+i, for n > 0
}

func (s *pageSet) has(i uint64) bool {
	if i < 64 {
		return s.first>>i&1 != 0
	}
	return s.rest[i>>6]>>(i&63)&1 != 0
}

// add reports whether the page is new in the set.
func (s *pageSet) add(i uint64) bool {
	if s.has(i) {
		return false
	}
	if i < 64 {
		s.first |= 1 << i
		return true
	}
	if s.rest == nil {
		s.rest = make(map[uint64]uint64)
	}
	s.rest[i>>6] |= 1 << (i & 63)
	return true
}

// spare is pages to be used again, the one used last first.
type spare struct{ list [][]byte }

// copy returns a copy of a page or a smaller region; nil of nil.
func (s *spare) copy(b []byte) []byte {
	if n := len(s.list); n > 0 && len(b) == pageSize {
		p := s.list[n-1]
		s.list = s.list[:n-1]
		copy(p, b)
		return p
	}
	return append([]byte(nil), b...)
}

// put takes a copy that nobody needs any more.
func (s *spare) put(b []byte) {
	if len(b) == pageSize && len(s.list) < sparePages {
		s.list = append(s.list, b)
	}
}

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
	for s.shadows.bytes > uint64(s.cfg.Limits.IdleShadows) && len(s.shadows.list) > 1 { //nolint:gosec // not negative
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
