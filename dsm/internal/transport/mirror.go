package transport

import (
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// A memory machine has one copy, or two. The switch sends what changes something to
// every copy, and reads to the first one.
//
//	write ──▶ switch ─┬─▶ copy 0 ── answer (epoch 4, copy 0 of 2) ─┐
//	                  └─▶ copy 1 ── answer (epoch 4, copy 1 of 2) ─┴─▶ settled
//
// The Gatekeeper tells of a new epoch in an answer to request 0, which there is not.
//
// A change is settled when every copy has answered (package copies). So a client that
// hears of a new epoch sends all of its unsettled requests again: a copy that has
// carried one out answers from its window.
//
// Two copies may receive two packets in different orders. Therefore:
//
//   - A request that overlaps an unsettled write waits for that write.
//   - A write whose caller gives it up is sent until every copy has it.
//   - A settle first asks all copies. It becomes final only if no copy has carried the
//     request out; else a copy might apply what another one has refused for ever.
//   - What one copy has carried out when the region was lent is sent until the other
//     one has it, too.

// outcome is what copies have answered to a request in the newest epoch.
type outcome struct {
	heard   uint8      // bit i: copy i
	applied uint8      // a settle: copies that had carried the request out
	good    bool       // a copy has carried it out
	first   fault.Code // copy 0's answer
	bad     fault.Code
	why     uint8 // flags of that answer
}

// maxDoubts is how many rounds of answers to a settle may disagree: a packet on its way
// to one of the copies makes them disagree for a moment.
const maxDoubts = 8

// meet takes in what an answer says of the machine's copies. A new set of copies is
// sent all that is not settled.
func (e *Endpoint) meet(now time.Duration, p *peer, m dsmpacket.Mirror) {
	first := !p.copies.Known()
	if !p.copies.Meet(m) {
		return
	}
	p.plain.rtt.Doublings, p.held.rtt.Doublings = 0, 0
	p.each(func(r *request) {
		r.outcome, r.doubts = outcome{}, 0
		switch {
		case r.lane == nil: // its settler is sent instead
		case p.copies.Single() && r.abandoned:
			e.resolve(now, p, r, fault.Canceled)
		case !first:
			r.sends = min(r.sends, 1) // what the former copies did not answer says nothing about these
			e.Stats.Resent++
			e.transmit(now, p, r)
		}
	})
}

// decided takes in a copy's answer to r, and reports whether the answers that there
// are settle it. If so, h.Status is what all of them together say.
func (e *Endpoint) decided(now time.Duration, p *peer, r *request, h *dsmpacket.Header) bool {
	m := h.Mirror
	if m.Members == 0 || r.reads() {
		return true // nobody else answers
	}
	if p.copies.Old(m) {
		e.Stats.Unexpected++
		return false
	}
	bit := uint8(1) << m.Copy
	if r.asks != nil && h.Status == fault.OK && !replies(r.flags, h.Flags) {
		return false
	}
	o := &r.outcome
	o.heard |= bit
	if m.Copy == 0 {
		o.first = h.Status
	}
	if h.Status != fault.OK {
		o.bad, o.why = h.Status, h.Flags
	} else if r.asks == nil || h.Flags&dsmpacket.FlagApplied != 0 {
		o.good = true
	}
	if h.Flags&dsmpacket.FlagApplied != 0 {
		o.applied |= bit
	}
	if o.heard != 1<<m.Members-1 {
		return false
	}
	if r.asks != nil {
		return e.settled(now, p, r, h)
	}
	if h.Status = o.bad; o.bad != fault.OK {
		h.Flags = o.why
	}
	switch {
	case !o.good || o.bad == fault.OK:
	case o.bad == fault.NotFound && r.op() == dsmpacket.OpFree:
		h.Status = fault.OK // it is gone everywhere
	case r.op() == dsmpacket.OpAlloc:
		e.discard(now, r) // one copy has made the region
	case o.bad != fault.NotFound && o.bad != fault.Stale: // the region was freed meanwhile; the node is being fenced
		e.report(now, p, r)
		return false
	}
	return true
}

// replies reports whether the answer to a settle is to what it asks now, and not to what
// it asked before.
func replies(asked, answered uint8) bool {
	switch {
	case asked&dsmpacket.FlagDiverged != 0:
		return answered&dsmpacket.FlagNoted != 0
	case asked&dsmpacket.FlagFinal != 0:
		return answered&(dsmpacket.FlagFinal|dsmpacket.FlagApplied) != 0
	}
	return true
}

// settled takes in that all copies have answered a settle, and reports whether that
// ends it.
func (e *Endpoint) settled(now time.Duration, p *peer, s *request, h *dsmpacket.Header) bool {
	o := s.outcome
	all := uint8(1)<<h.Mirror.Members - 1
	switch {
	case o.applied == all || s.flags&dsmpacket.FlagDiverged != 0:
	case o.bad != fault.OK && o.applied == 0:
		h.Status = o.bad // about all requests of this client, or of the machine
		return true
	case o.applied == 0 && (h.Flags&dsmpacket.FlagFinal != 0 || s.asks.op() == dsmpacket.OpRead):
		return true
	case o.applied == 0: // now it may become final
		s.flags |= dsmpacket.FlagFinal
		s.outcome = outcome{}
		e.transmit(now, p, s)
		return false
	case s.asks.verdict == fault.Overloaded && s.flags&dsmpacket.FlagFinal == 0: // it is lent: the other copy gets it when that is over
		e.resume(now, p, s.asks)
		return false
	default:
		s.outcome = outcome{} // the timer asks again
		if s.doubts++; s.doubts >= maxDoubts || s.flags&dsmpacket.FlagFinal != 0 {
			s.flags |= dsmpacket.FlagDiverged
			e.Stats.Diverged++
			e.transmit(now, p, s)
		}
		return false
	}
	h.Flags &^= dsmpacket.FlagApplied
	h.Status = fault.OK
	if o.applied&1 != 0 { // if they differ, the first copy's word counts: the other one is dropped
		h.Flags |= dsmpacket.FlagApplied
		h.Status = o.first
	}
	return true
}

// report tells the copies that they disagree about r, and then ends it.
func (e *Endpoint) report(now time.Duration, p *peer, r *request) {
	e.Stats.Diverged++
	e.ask(now, p, r, r.outcome.bad, dsmpacket.FlagDiverged)
}

// drive keeps a write that nobody waits for any more on its way, until every copy has
// it: the caller's buffer is the caller's again.
func (r *request) drive(buf []byte) { r.data = slices.Clone(buf[r.off : r.off+r.n]) }

// bytes is what a write carries.
func (r *request) bytes() []byte {
	if r.transfer == nil {
		return r.data
	}
	return r.transfer.Buf[r.off : r.off+r.n]
}
