package transport

import (
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// Receive takes in one datagram: from is its source address. What does not
// answer a request of this client is counted and ignored.
func (e *Endpoint) Receive(now time.Duration, from dsmpacket.Pointer, h *dsmpacket.Header, data []byte) {
	p := e.peers[from.Machine()]
	if p == nil || !from.InPrefix(p.prefix) || h.Incarnation != e.cfg.Incarnation || h.Kind == dsmpacket.Request {
		e.Stats.Unexpected++
		return
	}
	e.meet(now, p, h.Mirror)
	if h.Request == 0 { // the Gatekeeper only tells of the copies
		e.pumpAll(now, p)
		return
	}
	if h.More > 0 {
		e.receiveMany(now, p, from, h)
	} else {
		e.receiveOne(now, p, from, h, data)
	}
	e.pumpAll(now, p)
}

// receiveOne takes in an answer to one request.
func (e *Endpoint) receiveOne(now time.Duration, p *peer, from dsmpacket.Pointer, h *dsmpacket.Header, data []byte) {
	r := p.find(h.Request)
	if r == nil || !r.answeredBy(from, h, data) {
		e.Stats.Unexpected++
		if r == nil && h.Request < p.next {
			p.window.Twice()
		}
		return
	}
	if h.Kind == dsmpacket.Nack {
		e.Stats.Denied++
		e.denied(now, p, r, h.Status)
	} else {
		p.heard = now
		e.Stats.Answered++
		e.answered(now, p, r, h, data)
	}
}

// answeredBy reports whether a datagram can be the answer to r.
func (r *request) answeredBy(from dsmpacket.Pointer, h *dsmpacket.Header, data []byte) bool {
	switch ok := h.Kind != dsmpacket.Nack && h.Status == fault.OK; {
	case from != r.to:
		return false
	case !ok:
		return true
	case r.reads():
		return len(data) == r.n && h.Length == r.length
	case r.op() == dsmpacket.OpWrite || r.op() == dsmpacket.OpAlloc:
		return h.Length == r.length
	}
	return true
}

// answered takes in the server's reply to r.
func (e *Endpoint) answered(now time.Duration, p *peer, r *request, h *dsmpacket.Header, data []byte) {
	if h.Status == fault.Overloaded {
		r.refused = true // it was not looked at: the timer sends it again
		return
	}
	if !e.decided(now, p, r, h) {
		return
	}
	e.measure(now, p, r)
	if r.asks != nil {
		r.asks.loses(h)
		e.resolved(now, p, r.asks, h)
		return
	}
	r.loses(h)
	switch t := r.transfer; {
	case h.Status != fault.OK:
		if r.op() == dsmpacket.OpAlloc && t != nil {
			t.Share, t.Slot = h.Flags&dsmpacket.FlagShare != 0, h.Flags&dsmpacket.FlagSlot != 0
		}
	case r.reads():
		if to := t.Buf[r.off:]; &to[0] != &data[0] { // else it was received there
			copy(to, data)
		}
	case r.op() == dsmpacket.OpAlloc:
		if t == nil {
			e.discard(now, r)
		}
	}
	status := h.Status
	if r.settler != nil && status == fault.Canceled {
		status = r.verdict // the server has it settled, and says so sooner than to the settler
	}
	e.finish(p, r, status)
}

// measure takes r's round trip in, and looks for requests that it overtook.
func (e *Endpoint) measure(now time.Duration, p *peer, r *request) {
	l := r.lane
	if l == nil {
		return // an answer that came after all, while r is being resolved
	}
	if r.sends == 1 {
		l.rtt.Learn(now - r.sent)
		l.answered = max(l.answered, r.number)
	}
	p.window.Answered(max(r.cost, overhead), r.number, r.sends == 1)
	if o := l.oldest; o != r {
		e.wake = min(e.wake, o.due())
	}
}

// loses takes in that r's region is lost, if a copy of the machine says so: nobody else knows that.
func (r *request) loses(h *dsmpacket.Header) {
	if t := r.transfer; t != nil && h.Status == fault.Unavailable && h.Mirror.Members > 0 {
		t.Lost = true
	}
}

// denied takes in the switch's NACK to r. Overloaded says that r's region is lent now.
func (e *Endpoint) denied(now time.Duration, p *peer, r *request, why fault.Code) {
	switch r.op() {
	case dsmpacket.OpRead:
		e.measure(now, p, r)
		e.resolve(now, p, r, fault.PermissionDenied)
	case dsmpacket.OpWrite, dsmpacket.OpFree:
		// Another copy of it may have been let through, or still be.
		if why != fault.Overloaded {
			why = fault.PermissionDenied
		}
		e.resolve(now, p, r, why)
	case dsmpacket.OpAlloc: // likewise, but then the switch has not made the region the node's
		e.resolve(now, p, r, fault.PermissionDenied)
	default: // the switch judges no others
	}
}

// finish reports r's fate and settles it.
func (e *Endpoint) finish(p *peer, r *request, status fault.Code) {
	t, off := r.transfer, r.off
	if r.settler != nil {
		e.leave(p, r.settler)
	}
	e.leave(p, r)
	if t == nil {
		return
	}
	t.open--
	if status != fault.OK {
		if lowest := t.fail(off, status, false); lowest {
			t.Lent = status == fault.Overloaded // a server that is overloaded is asked again
		}
	}
	e.conclude(p, t)
}

// conclude reports a transfer of which nothing is left to do.
func (e *Endpoint) conclude(p *peer, t *Transfer) {
	if t.open > 0 || t.more() {
		return
	}
	p.queue.remove(t)
	t.conclude()
	if !t.orphan {
		e.ready.Done = append(e.ready.Done, t)
	}
}

// leave ends r: its fate is known.
func (e *Endpoint) leave(p *peer, r *request) {
	e.release(p, r)
	r.unlink()
	p.leave(r)
	if r.abandoned {
		p.abandoned--
	}
	for _, b := range r.waiting {
		if b.holds--; b.holds == 0 {
			e.ready.Passed = append(e.ready.Passed, b)
		}
	}
	e.recycle(r)
}
