package transport

import (
	"time"

	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// Tick sends again what is due and gives up what was never answered.
func (e *Endpoint) Tick(now time.Duration) {
	if now < e.wake {
		return
	}
	e.wake = Never
	for _, p := range e.active {
		for _, l := range []*lane{&p.plain, &p.held} {
			e.tickLane(now, p, l)
		}
		e.expire(now, p)
		e.pumpAll(now, p)
	}
}

func (e *Endpoint) tickLane(now time.Duration, p *peer, l *lane) {
	for r := l.oldest; r != nil; {
		next := r.next
		if due := r.due(); due > now {
			e.wake = min(e.wake, due)
		} else {
			e.overdue(now, p, r)
		}
		r = next
	}
}

// overdue takes in that no answer to r came in time.
func (e *Endpoint) overdue(now time.Duration, p *peer, r *request) {
	// What a slow machine may still send must not hold others up.
	e.reads.give(r)
	if r.lane == &p.plain { // a held request may just wait for the Gatekeeper
		p.cc.lost(r.number, e.number)
	}
	if now >= r.deadline {
		r.lane.rtt.backoff = max(r.lane.rtt.backoff, min(r.doublings+1, 10))
	}
	if now-r.first >= giveUp && e.silent(now, p, r) {
		return
	}
	e.Stats.Resent++
	e.transmit(now, p, r)
}

// silent tells whoever waits for r that the machine does not answer. True means
// that r is not to be sent again.
func (e *Endpoint) silent(now time.Duration, p *peer, r *request) bool {
	waits := r
	if r.asks != nil {
		waits = r.asks
	}
	t := waits.transfer
	if t == nil {
		return false
	}
	status, op := fault.Unavailable, waits.op()
	if r.refused {
		status = fault.Overloaded
	}
	t.open--
	t.fail(waits.off, status, !r.refused)
	e.abandon(now, p, waits)
	e.conclude(p, t)
	return op == packet.OpRead || op == packet.OpWrite && r.asks == nil && r.lane == nil
}

// expire tells whoever waits to be sent to a machine that has long been silent.
func (e *Endpoint) expire(now time.Duration, p *peer) {
	if now-p.heard < giveUp {
		return
	}
	for t := p.queue.first; t != nil; {
		next := t.next
		if now-t.begun >= giveUp {
			p.queue.remove(t)
			t.fail(t.issued, fault.Unavailable, true)
			e.conclude(p, t)
		}
		t = next
	}
}
