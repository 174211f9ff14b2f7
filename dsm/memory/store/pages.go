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
