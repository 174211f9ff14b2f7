package transport

import (
	"time"

	"github.com/bifrost-rack/bifrost/dsm/packet"
)

// peer is one memory machine as this client sees it.
type peer struct {
	prefix, machine uint8
	next, floor     uint64     // the next request id; all below floor are settled
	ring            []*request // id i is at i mod len; the length is a power of two
	queue           queue
	waits           bool          // in reads.waiting
	inflight        int           // bytes charged
	abandoned       int           // writes given up whose fate is not known
	heard           time.Duration // when it last answered
	cc              congestion
	plain, held     lane
	known           classes
	mirror          mirror
	writes          int // unsettled
}

// minRing is the length of a new peer's ring.
const minRing = 64

func newPeer(prefix, machine uint8, cc congestion) *peer {
	return &peer{prefix: prefix, machine: machine, next: 1, floor: 1, ring: make([]*request, minRing), cc: cc}
}

func (p *peer) lane(op packet.Op) *lane {
	if op == packet.OpAlloc || op == packet.OpFree {
		return &p.held
	}
	return &p.plain
}

func (p *peer) find(id uint64) *request {
	if id < p.floor || id >= p.next {
		return nil
	}
	return p.ring[id&uint64(len(p.ring)-1)]
}

// enter gives r the next id.
func (p *peer) enter(r *request) {
	if p.next-p.floor == uint64(len(p.ring)) {
		old := p.ring
		p.ring = make([]*request, 2*len(old))
		for id := p.floor; id < p.next; id++ {
			p.ring[id&uint64(len(p.ring)-1)] = old[id&uint64(len(old)-1)]
		}
	}
	r.id = p.next
	p.next++
	p.ring[r.id&uint64(len(p.ring)-1)] = r
	if r.op() == packet.OpWrite {
		p.writes++
	}
}

// leave forgets r, whose fate is known, and moves the floor.
func (p *peer) leave(r *request) {
	p.ring[r.id&uint64(len(p.ring)-1)] = nil
	if r.op() == packet.OpWrite {
		p.writes--
	}
	for p.floor < p.next && p.ring[p.floor&uint64(len(p.ring)-1)] == nil {
		p.floor++
	}
}

// each calls f for every request whose fate is not known. f may settle it.
func (p *peer) each(f func(*request)) {
	for id := p.floor; id < p.next; id++ {
		if r := p.find(id); r != nil {
			f(r)
		}
	}
}

// mustWait reports whether r touches bytes of a write that it must not overtake: of one
// that was given up and might still be applied, or, if the machine may have two copies,
// of any that is not settled.
func (p *peer) mustWait(r *request) (wait bool) {
	if p.writes == 0 || p.mirror.single() && p.abandoned == 0 {
		return false
	}
	from := r.to.Offset()
	p.each(func(w *request) {
		if w.op() != packet.OpWrite || p.mirror.single() && !w.abandoned {
			return
		}
		at := w.to.Offset()
		wait = wait || from < at+uint64(w.n) && at < from+uint64(r.n)
	})
	return wait
}
