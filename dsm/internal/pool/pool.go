package pool

import (
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
)

const (
	// KeepTime is for how long a freed region waits to be used again.
	KeepTime = time.Second
	// maxKnown bounds the regions that are looked after, some 150 bytes each; those
	// beyond are allocated and freed one by one.
	maxKnown = 1 << 14
	// maxIdle bounds the bytes that wait to be used again.
	maxIdle = 64 << 20
	// What a program does once is seen by the rack as it is. A region is kept, and a free
	// not waited for, if it is the second of its kind within demandTime; regions are
	// allocated ahead once that many were asked for in vain.
	again, demand, demandTime = 2, 4, time.Second
	// maxAhead bounds the regions of a size that are allocated ahead, and aheadBytes
	// their bytes.
	maxAhead   = 16
	aheadBytes = 8 << 20
)

// Pool is the regions that one node controls, as far as it knows them.
type Pool struct {
	known   map[dsmpacket.Pointer]*Region // by base
	gained  map[dsmpacket.Pointer]struct{}
	givenUp frequency // frees of these
	shelves [dsmpacket.MaxClass + 1]shelf
	idle    uint64 // bytes
}

// shelf is the regions of one size.
type shelf struct {
	idle   []*Region // the one freed last at the end
	coming int       // asked for ahead
	ahead  int       // to be in store for those that come: they do not come back
	asked  frequency
	missed frequency // those for which there was none
}

// frequency tells whether something happens often.
type frequency struct {
	times [demand]time.Duration // the last ones, a ring
	n     int
}

// count takes in that it happens.
func (f *frequency) count(now time.Duration) {
	f.times[f.n%demand] = now
	f.n++
}

// lately reports whether it has happened so many times, demand at most, within
// demandTime.
func (f *frequency) lately(now time.Duration, times int) bool {
	return f.n >= times && now-f.times[(f.n-times)%demand] < demandTime
}

// New returns an empty pool.
func New() *Pool {
	return &Pool{known: map[dsmpacket.Pointer]*Region{}, gained: map[dsmpacket.Pointer]struct{}{}}
}

// Fresh takes in a region that the node has just got.
func (p *Pool) Fresh(id dsmpacket.Region) {
	if len(p.known) < maxKnown {
		p.add(id)
	}
}

func (p *Pool) add(id dsmpacket.Region) *Region {
	r := &Region{Region: id}
	p.known[id.Base] = r
	return r
}

// Find returns the region that a pointer lies in, or nil.
func (p *Pool) Find(ptr dsmpacket.Pointer) *Region {
	if r := p.known[ptr.Base()]; r != nil && r.Contains(ptr) {
		return r
	}
	return nil
}

// forget leaves a region to the memory blade's judgement.
func (p *Pool) forget(r *Region) { delete(p.known, r.Base) }

// Forget does so with the region that a pointer lies in, if it is known.
func (p *Pool) Forget(ptr dsmpacket.Pointer) {
	delete(p.gained, ptr.Bare())
	if r := p.Find(ptr); r != nil && !r.idle {
		p.forget(r)
	}
}

// Disown leaves the region that a pointer lies in to the memory blade's judgement, also one that is idle: somebody else frees it.
func (p *Pool) Disown(ptr dsmpacket.Pointer) {
	p.Forget(ptr)
	r := p.Find(ptr)
	if r == nil {
		return
	}
	s := &p.shelves[r.Class]
	s.idle = slices.DeleteFunc(s.idle, func(o *Region) bool { return o == r })
	p.idle -= 1 << r.Class
	p.forget(r)
}

// Take returns an idle region of the class on a machine that is usable. If there is
// none, the caller has to allocate one.
func (p *Pool) Take(now time.Duration, class uint8, usable func(machine uint8) bool) (dsmpacket.Pointer, bool) {
	s := &p.shelves[class]
	s.asked.count(now)
	for i := len(s.idle) - 1; i >= 0; i-- {
		if r := s.idle[i]; usable(r.Base.Machine()) {
			s.idle = append(s.idle[:i], s.idle[i+1:]...)
			p.idle -= 1 << class
			r.idle = false
			return r.Base, true
		}
	}
	if s.missed.count(now); s.missed.lately(now, demand) {
		s.ahead = min(max(4, 2*s.ahead), maxAhead, aheadBytes>>class)
	}
	return dsmpacket.Pointer{}, false
}

// Ahead returns how many regions of the class to allocate now for those who will ask:
// several at once, as they wait for the Gatekeeper together. Each has to be reported by
// Came or Failed. limit bounds the idle bytes.
func (p *Pool) Ahead(class uint8, limit uint64) int {
	s := &p.shelves[class]
	have := len(s.idle) + s.coming
	if have > s.ahead/2 {
		return 0
	}
	n := s.ahead - have
	if p.idle+uint64(s.coming+n)<<class > min(limit, maxIdle) || len(p.known)+n > maxKnown {
		return 0
	}
	s.coming += n
	return n
}

// Came takes in a region that has been allocated ahead.
func (p *Pool) Came(now time.Duration, id dsmpacket.Region) {
	p.shelves[id.Class].coming--
	p.put(now, p.add(id))
}

// Failed takes in that an allocation ahead has failed.
func (p *Pool) Failed(class uint8) {
	s := &p.shelves[class]
	s.coming--
	s.ahead = 0
}

// put makes a region idle.
func (p *Pool) put(now time.Duration, r *Region) {
	s := &p.shelves[r.Class]
	r.idle, r.since = true, now
	s.idle = append(s.idle, r)
	p.idle += 1 << r.Class
}

// Lend notes that a call carries a pointer.
func (p *Pool) Lend(ptr dsmpacket.Pointer) {
	delete(p.gained, ptr.Bare())
	if r := p.Find(ptr); r != nil && !r.idle {
		r.out++
	}
}

// Back notes that the call has been answered, so that the region is not lent by it any more.
func (p *Pool) Back(ptr dsmpacket.Pointer) {
	if r := p.Find(ptr); r != nil && r.out > 0 {
		r.out--
	}
}

// Gained notes that control of a region has come to the node by an answer. Its extent
// is not known, so it is not kept when it is freed.
func (p *Pool) Gained(ptr dsmpacket.Pointer) {
	if r := p.Find(ptr); r != nil {
		p.forget(r) // it has come back after it had gone: what was known of it is old
	}
	if len(p.gained) < maxKnown {
		p.gained[ptr.Bare()] = struct{}{}
	}
}
