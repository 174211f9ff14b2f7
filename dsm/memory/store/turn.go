package store

import "github.com/bifrost-rack/bifrost/internal/fault"

// turns reports whether pages of a region are turned, not copied: they are once it
// has brought enough whole ones, and there was room for a shadow.
func (s *Store) turns(c *changes, at, n uint64) bool {
	if c.turned != nil {
		return true
	}
	reg, fresh := c.region, 0
	size := uint64(len(reg.data))
	if size < leastShadow || n < leastWhole*pageSize || s.undo.room(c.by.by.node, size) != fault.OK {
		return false
	}
	for i := at >> pageShift; i <= (at+n-1)>>pageShift; i++ {
		if !c.saved.has(i) && whole(i, at, n) && reg.old(i) != nil {
			fresh++
		}
	}
	if fresh < leastWhole || !s.shade(reg) {
		return false
	}
	c.turned = make([]uint64, len(reg.shadow.there))
	c.cost += size
	s.undo.charge(c.by, size)
	return true
}

// turnPages turns those pages of n bytes at an offset that have not been kept. One
// that the n bytes do not cover takes its content along, so that a region which is
// overwritten in pieces stands in one block again in the end.
func (s *Store) turnPages(c *changes, at, n uint64) {
	r := c.region
	for i := at >> pageShift; i <= (at+n-1)>>pageShift; i++ {
		if c.turned[i>>6]>>(i&63)&1 != 0 || c.saved.has(i) {
			continue
		}
		c.turned[i>>6] |= 1 << (i & 63)
		was := r.page(i)
		r.turn(i)
		if !whole(i, at, n) {
			r.put(i<<pageShift, was)
		}
		s.undo.kept++
	}
}

// whole reports whether n bytes at an offset cover a page.
func whole(i, at, n uint64) bool { return at <= i<<pageShift && (i+1)<<pageShift <= at+n }
