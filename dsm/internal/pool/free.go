package pool

import (
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
)

// Verdict is what becomes of a free.
type Verdict uint8

// The verdicts.
const (
	Unknown  Verdict = iota // the memory blade has to be asked
	Kept                    // the region waits to be used again
	Deferred                // it is to be freed, and that will succeed: nobody has to wait
	Twice                   // it has been freed before
)

// Free judges a program's free of a region. limit bounds the idle bytes.
func (p *Pool) Free(now time.Duration, ptr dsmpacket.Pointer, limit uint64) Verdict {
	ptr = ptr.Bare()
	if _, ok := p.gained[ptr]; ok {
		delete(p.gained, ptr)
		if p.givenUp.count(now); p.givenUp.lately(now, again) {
			return Deferred
		}
		return Unknown
	}
	r := p.Find(ptr)
	switch {
	case r == nil || r.Base != ptr && !r.idle:
		return Unknown
	case r.idle:
		return Twice
	case r.out > 0 || r.under > 0 || !p.shelves[r.Class].asked.lately(now, again):
		p.forget(r)
		return Unknown
	case p.idle+1<<r.Class > min(limit, maxIdle):
		p.forget(r)
		return Deferred
	}
	r.Stale, r.written = r.Stale.Hull(r.written), Span{}
	p.put(now, r)
	return Kept
}

// Trim takes out what has been idle for KeepTime, or everything if all: it is to be freed.
func (p *Pool) Trim(now time.Duration, all bool) (doomed []dsmpacket.Pointer) {
	for class := range p.shelves {
		s := &p.shelves[class]
		n := 0
		for n < len(s.idle) && (all || now-s.idle[n].since >= KeepTime) {
			doomed = append(doomed, s.idle[n].Base)
			p.forget(s.idle[n])
			n++
		}
		if n == 0 {
			continue
		}
		p.idle -= uint64(n) << class
		s.idle = append(s.idle[:0], s.idle[n:]...)
		s.ahead = 0 // they were not wanted
	}
	return doomed
}

// Due is when Trim has something to do next; false if there is nothing idle.
func (p *Pool) Due() (at time.Duration, ok bool) {
	for class := range p.shelves {
		if s := &p.shelves[class]; len(s.idle) > 0 {
			if due := s.idle[0].since + KeepTime; !ok || due < at {
				at, ok = due, true
			}
		}
	}
	return at, ok
}

// Recall takes out what is idle on a machine: it is to be freed, if it is still there.
func (p *Pool) Recall(machine uint8) (doomed []dsmpacket.Pointer) {
	for class := range p.shelves {
		s := &p.shelves[class]
		rest := s.idle[:0]
		for _, r := range s.idle {
			if r.Base.Machine() != machine {
				rest = append(rest, r)
				continue
			}
			p.idle -= 1 << class
			p.forget(r)
			doomed = append(doomed, r.Base)
		}
		s.idle = rest
	}
	return doomed
}
