package transport

import (
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
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
	case dsmpacket.OpAlloc:
		r.to, r.length = t.Pointer.With(t.Op), t.Size
	case dsmpacket.OpFree:
		r.to = t.Pointer.With(t.Op)
	default:
		r.n = min(e.cfg.MaxData, len(t.Buf)-t.issued)
		r.to, r.length = t.Pointer.Add(int64(t.issued)).With(t.Op), uint64(r.n)
		r.cost += r.n
	}
	return r
}

// fits reports whether r, and what goes out with it, may go out now: so many bytes.
// Something always may when nothing is under way.
func (e *Endpoint) fits(p *peer, r *request, cost int) bool {
	if !p.window.Fits(p.inflight, cost) {
		return false
	}
	return r.op() != dsmpacket.OpRead || e.reads.admit(p, cost)
}

// issue sends r for the first time.
func (e *Endpoint) issue(now time.Duration, p *peer, t *Transfer, r *request) {
	t.open++
	t.issued += max(1, r.n)
	p.inflight += r.cost
	if r.op() == dsmpacket.OpRead {
		e.reads.take(r)
	}
	p.enter(r)
	r.first = now
	e.transmit(now, p, r)
}

// schedule has r sent when its time is up, as if it were sent now.
func (e *Endpoint) schedule(now time.Duration, p *peer, r *request) {
	l := p.lane(r.op())
	r.doublings = max(l.rtt.Doublings, r.sends)
	r.sends++
	r.sent, r.number = now, e.number
	r.deadline = now + l.rtt.After(r.doublings)
	e.number++
	r.unlink()
	l.push(r)
	e.wake = min(e.wake, r.deadline)
}

// transmit sends r, for the first time or again.
func (e *Endpoint) transmit(now time.Duration, p *peer, r *request) {
	e.schedule(now, p, r)
	e.Stats.Sent++

	pkt := Packet{To: r.to, Of: r.transfer, Again: r.sends > 1, Header: dsmpacket.Header{
		Kind: dsmpacket.Request, Flags: r.flags, Request: r.id, Floor: p.floor, Length: r.length, Incarnation: e.cfg.Incarnation,
		Execution: r.scope.Execution, Branch: r.scope.Branch, Index: r.scope.Index,
	}}
	switch r.op() {
	case dsmpacket.OpWrite:
		pkt.Data = r.bytes()
	case dsmpacket.OpRead:
		pkt.Header.By = r.transfer.By
	default: // what has neither
	}
	e.ready.Send = append(e.ready.Send, pkt)
}

// release gives back what r has charged to the windows.
func (e *Endpoint) release(p *peer, r *request) {
	p.inflight -= r.cost
	e.reads.give(r)
	r.cost = 0
}

// queue is the transfers of a peer that have something left to request.
type queue struct{ first, last *Transfer }

func (q *queue) push(t *Transfer) {
	t.queued, t.prev, t.next = true, q.last, nil
	if q.last != nil {
		q.last.next = t
	} else {
		q.first = t
	}
	q.last = t
}

// remove takes t out, if it is in.
func (q *queue) remove(t *Transfer) {
	if !t.queued {
		return
	}
	if t.prev != nil {
		t.prev.next = t.next
	} else {
		q.first = t.next
	}
	if t.next != nil {
		t.next.prev = t.prev
	} else {
		q.last = t.prev
	}
	t.queued, t.prev, t.next = false, nil, nil
}

// A burst is reads of one transfer that are asked for by one packet: to send a request
// takes about as long as to receive its 64 KiB. Each is a request of its own for all
// the rest: it is answered, and sent again, alone.
//
//	requests r, r+1, r+2 ──▶ one packet (Header.More 2) ──▶ three answers
//
// The writes of a transfer are a packet each, for they carry data, but their answers
// may come in one.

// maxBurst is how many reads are asked for at once: more save little, and let the
// window run empty before the next ones are asked for.
const maxBurst = 4

// burstShare is which part of the window a burst takes at most: the answers to one
// come in while the machine makes those to another.
const burstShare = 3

// burst is how many requests of a transfer are to go out together now.
func (e *Endpoint) burst(p *peer, t *Transfer) int {
	if t.Op != dsmpacket.OpRead || p.abandoned > 0 {
		return 1
	}
	whole := (len(t.Buf) - t.issued) / e.cfg.MaxData
	return max(1, min(maxBurst, whole, p.window.Size()/burstShare/(overhead+e.cfg.MaxData)))
}

// join makes one packet of the last two, which are of one burst.
func (e *Endpoint) join() {
	last := len(e.ready.Send) - 1
	e.ready.Send[last-1].Header.More++
	e.ready.Send[last] = Packet{}
	e.ready.Send = e.ready.Send[:last]
}

// receiveMany takes in an answer to several requests: writes that were all carried
// out, or a burst of reads that was refused, which is asked for again one by one, as
// what is wrong may be so with one of them.
func (e *Endpoint) receiveMany(now time.Duration, p *peer, from dsmpacket.Pointer, h *dsmpacket.Header) {
	switch ok := h.Kind == dsmpacket.Reply && h.Status == fault.OK; {
	case ok && from.Op() == dsmpacket.OpWrite:
		for i := range uint64(h.More) + 1 {
			one := *h
			one.Request, one.More = h.Request+i, 0
			e.receiveOne(now, p, from.Add(int64(i*h.Length)), &one, nil)
		}
	case !ok && from.Op() == dsmpacket.OpRead:
		e.askOneByOne(now, p, from, h)
	default:
		e.Stats.Unexpected++
	}
}

// askOneByOne sends the reads of a refused burst again.
func (e *Endpoint) askOneByOne(now time.Duration, p *peer, from dsmpacket.Pointer, h *dsmpacket.Header) {
	first := p.find(h.Request)
	if first == nil || first.to != from {
		e.Stats.Unexpected++
		return
	}
	for i := range uint64(h.More) + 1 {
		if r := p.find(h.Request + i); r != nil && r.op() == dsmpacket.OpRead && r.transfer == first.transfer && r.sends == 1 {
			e.Stats.Resent++
			e.transmit(now, p, r)
		}
	}
}
