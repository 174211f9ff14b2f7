package transport

import (
	"time"

	"github.com/bifrost-rack/bifrost/dsm/packet"
)

// pump turns queued transfers into requests while the windows have room. Each
// transfer gets one request a turn, or one burst, so that a small one does not wait
// for the end of a large one.
func (e *Endpoint) pump(now time.Duration, p *peer) {
	for p.queue.first != nil {
		t := p.queue.first
		if t.more() {
			r, n := e.next(t), e.burst(p, t)
			if p.next-p.floor+uint64(n) > maxSpan || p.mustWait(r) || !e.fits(p, r, n*r.cost) {
				e.recycle(r)
				return
			}
			e.issue(now, p, t, r)
			for range n - 1 {
				e.issue(now, p, t, e.next(t))
				e.join()
			}
		}
		p.queue.remove(t)
		if t.more() {
			p.queue.push(t)
		}
	}
}

// next returns the request for a transfer's next bytes.
func (e *Endpoint) next(t *Transfer) *request {
	r := e.newRequest()
	r.transfer, r.scope, r.off, r.cost = t, t.Scope, t.issued, overhead
	switch t.Op {
	case packet.OpAlloc:
		class, _ := packet.ClassFor(t.Size)
		r.to, r.length = packet.Make(t.Pointer.Prefix(), t.Pointer.Machine(), 0).With(t.Op, class), t.Size
		if t.Recall {
			r.flags = packet.FlagRecall
		}
	case packet.OpFree:
		r.to = t.Pointer.With(t.Op, 0)
	default:
		r.n = min(e.cfg.MaxData, len(t.Buf)-t.issued)
		r.to, r.length = t.Pointer.Add(int64(t.issued)).With(t.Op, 0), uint64(r.n)
		r.cost += r.n
	}
	return r
}

// fits reports whether r, and what goes out with it, may go out now: so many bytes.
// Something always may when nothing is under way.
func (e *Endpoint) fits(p *peer, r *request, cost int) bool {
	if p.inflight > 0 && p.inflight+cost > p.cc.window {
		return false
	}
	return r.op() != packet.OpRead || e.reads.admit(p, cost)
}

// issue sends r for the first time.
func (e *Endpoint) issue(now time.Duration, p *peer, t *Transfer, r *request) {
	t.open++
	t.issued += max(1, r.n)
	p.inflight += r.cost
	if r.op() == packet.OpRead {
		e.reads.take(r)
	}
	p.enter(r)
	r.first = now
	e.transmit(now, p, r)
}

// transmit sends r, for the first time or again.
func (e *Endpoint) transmit(now time.Duration, p *peer, r *request) {
	l := p.lane(r.op())
	r.doublings = max(l.rtt.backoff, uint(r.sends))
	r.sends++
	r.sent, r.number = now, e.number
	r.deadline = now + l.rtt.timeout(r.doublings)
	e.number++
	r.unlink()
	l.push(r)
	e.wake = min(e.wake, r.deadline)
	e.Stats.Sent++

	pkt := Packet{To: r.to, Header: packet.Header{
		Kind: packet.Request, Flags: r.flags, Request: r.id, Floor: p.floor, Length: r.length, Incarnation: e.cfg.Incarnation,
		Execution: r.scope.Execution, Branch: r.scope.Branch, Index: r.scope.Index,
	}}
	if r.op() == packet.OpWrite {
		pkt.Data = r.bytes()
		if r.sends == 1 {
			pkt.First = r.transfer
		}
	}
	e.ready.Send = append(e.ready.Send, pkt)
}

// release gives back what r has charged to the windows.
func (e *Endpoint) release(p *peer, r *request) {
	p.inflight -= r.cost
	e.reads.give(r)
	r.cost = 0
}
