package transport

import (
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// resolve asks the server what became of r, which is not sent any more.
// verdict is what to report if it was not applied. Until it is known, a denied
// request keeps its place in the window, so that a large transfer does not run on
// into the same denial. The settle request is sent to r's pointer: if the region there
// is lost, the server says so, which nobody else can.
func (e *Endpoint) resolve(now time.Duration, p *peer, r *request, verdict fault.Code) {
	e.ask(now, p, r, verdict, 0)
}

// ask is resolve with flags for the settle request.
func (e *Endpoint) ask(now time.Duration, p *peer, r *request, verdict fault.Code, flags uint8) {
	if r.settler != nil {
		return
	}
	r.unlink()
	s := e.newRequest()
	s.to, s.length = r.to.With(packet.OpSettle, 0), r.id
	r.verdict, r.settler, s.asks, s.flags = verdict, s, r, flags
	p.enter(s)
	s.first = now
	e.transmit(now, p, s)
}

// resolved takes in the answer to r's settle request. An answer with an error
// is one about all of the client's requests (its incarnation is fenced) or the
// machine's (it is gone, and its regions with it).
func (e *Endpoint) resolved(p *peer, r *request, h *packet.Header) {
	if h.Status == fault.OK && h.Flags&packet.FlagApplied == 0 {
		e.finish(p, r, r.verdict)
		return
	}
	e.finish(p, r, h.Status)
}

// abandon ends the caller's interest in r. An alloc or a free goes on: the
// Gatekeeper may have it in hand already, and must see its end. So does a write,
// unless the machine has a single copy, which is asked to forget it.
func (e *Endpoint) abandon(now time.Duration, p *peer, r *request) {
	buf := r.transfer.Buf
	r.transfer = nil
	e.release(p, r)
	switch r.op() {
	case packet.OpRead:
		if r.settler != nil {
			e.leave(p, r.settler)
		}
		e.leave(p, r)
	case packet.OpWrite:
		r.abandoned = true
		p.abandoned++
		if p.mirror.single() {
			e.resolve(now, p, r, fault.Canceled)
		} else {
			r.drive(buf)
		}
	}
}

// discard frees a region whose alloc was answered after its caller had gone. The
// alloc's scope tells the server that this takes the alloc back.
func (e *Endpoint) discard(now time.Duration, reg packet.Region, s Scope) {
	e.Start(now, &Transfer{Op: packet.OpFree, Pointer: reg.Base, Scope: s, orphan: true})
}

// Drop frees a region; nobody waits for it.
func (e *Endpoint) Drop(now time.Duration, p packet.Pointer) {
	e.Start(now, &Transfer{Op: packet.OpFree, Pointer: p, orphan: true})
}

// Barrier is a wait for requests whose fate is not known.
type Barrier struct {
	// Tag is the caller's own.
	Tag   any
	holds int
}

// Barrier returns a barrier that passes when the fate of every write and free
// of the given pointers' regions that has been sent by now is known; nil if
// there is none. Where the extent of a region is not known here, everything
// on its machine counts that may belong to it.
func (e *Endpoint) Barrier(ptrs []packet.Pointer) *Barrier {
	return e.barrier(func(p *peer, r *request) bool {
		if op := r.op(); op != packet.OpWrite && op != packet.OpFree {
			return false
		}
		return slices.ContainsFunc(ptrs, func(ptr packet.Pointer) bool { return p.mayShare(ptr, r.to) })
	})
}

// BarrierOf is like Barrier for everything that has been sent in a branch of an
// execution, whatever its index.
func (e *Endpoint) BarrierOf(s Scope) *Barrier {
	return e.barrier(func(_ *peer, r *request) bool { return r.asks == nil && r.op() != packet.OpRead && r.scope.in(s) })
}

// barrier returns a barrier that is held by the requests that f picks.
func (e *Endpoint) barrier(f func(*peer, *request) bool) (b *Barrier) {
	for _, p := range e.active {
		p.each(func(r *request) {
			if !f(p, r) {
				return
			}
			if b == nil {
				b = new(Barrier)
			}
			r.waiting = append(r.waiting, b)
			b.holds++
		})
	}
	return b
}

// mayShare reports whether two pointers may lie in one region of the machine.
func (p *peer) mayShare(a, b packet.Pointer) bool {
	if a.Machine() != p.machine || a.Prefix() != p.prefix {
		return false
	}
	if reg, ok := p.known.find(a); ok {
		return reg.Contains(b)
	}
	_, ok := p.known.find(b)
	return !ok
}
