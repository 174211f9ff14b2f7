package rpc

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// lineage is who waits for a call that its node makes, as the trailer says of a direct call, behind
// its origin, and of one of policy none:
//
//	ancestor (16 bytes) | execution (16) | … | execution (16)
//
// Nobody waits for a direct call without a lineage, as far as deadlocks go; who waits for one of
// policy none is not known then, unless it has no parent. A call whose lineage would be too long fails.
type lineage struct {
	// ancestor is the nearest execution on whose behalf the call is made that the Gatekeeper
	// decides about; zero if there is none.
	ancestor rpcpacket.ID
	// serial are the executions that have the one slot of a service with state meanwhile, the
	// outermost first.
	serial []rpcpacket.ID
}

// lineageIn reads the trailer of a call of policy none; false if it is no lineage.
func lineageIn(trailer []byte) (l lineage, ok bool) {
	const size = len(l.ancestor)
	if len(trailer)%size != 0 || len(trailer) > (1+control.MaxSerial)*size {
		return l, false
	}
	for i := 0; i < len(trailer); i += size {
		id := rpcpacket.ID(trailer[i:])
		if i == 0 {
			l.ancestor = id
			continue
		}
		l.serial = append(l.serial, id)
	}
	return l, true
}

// nobody reports whether the lineage names nobody.
func (l *lineage) nobody() bool { return l.ancestor.IsZero() && len(l.serial) == 0 }

// append appends the lineage as a trailer.
func (l *lineage) append(b []byte) []byte {
	b = append(b, l.ancestor[:]...)
	for _, id := range l.serial {
		b = append(b, id[:]...)
	}
	return b
}

// waitFor are the executions that wait for the call.
func (l *lineage) waitFor() []control.ExecutionID {
	var all []control.ExecutionID
	if !l.ancestor.IsZero() {
		all = append(all, control.ExecutionID(l.ancestor))
	}
	for _, id := range l.serial {
		all = append(all, control.ExecutionID(id))
	}
	return all
}

// lineageOf is that of the calls which a branch makes. If it is not known who waits for the branch's execution, it has that
// execution at most.
func (b *opSequence) lineageOf() (l lineage, known bool) {
	if b == nil {
		return l, true
	}
	e := b.e
	l, known = e.lineage, e.journal != nil || e.named
	if e.journal != nil && !e.direct.Load() {
		l.ancestor = e.call.Call
	}
	if e.hasSlot() {
		l.serial = append(slices.Clip(l.serial), e.call.Call)
	}
	return l, known
}

// fits reports whether a trailer may have the lineage.
func (l *lineage) fits() bool { return len(l.serial) <= control.MaxSerial }

// hasSlot reports whether an execution has the one slot of a service with state.
func (e *execution) hasSlot() bool { return e.export != nil && e.export.config.stateful() }

// Direct calls go past the Gatekeeper, so nobody sees at once that some of them wait for each
// other. A call whose lineage has the execution that its service runs is refused when it comes.
// Longer circles the Gatekeeper finds: the nodes tell it which calls wait for their turn, and it
// has one of the circle refused where it waits (package callgraph, Waits).
//
//	a call has waited for waitsAfter ── report ──▶ Gatekeeper: a circle? ── refuse ──▶ the call's node
//	             ▲                                      │
//	             └──────────── again, slower ◀──────────┘ acknowledged

const (
	// waitsAfter is how long a call waits for its turn before it is told.
	waitsAfter = 20 * time.Millisecond
	// maxWaitsInterval is how often the same is told again at most.
	maxWaitsInterval = 320 * time.Millisecond
)

// waits is what is told of calls that wait for their turn.
type waits struct {
	mu            sync.Mutex
	due, interval time.Duration
	telling       bool // the last report is on its way
	told          bool // something that the Gatekeeper keeps
}

// watchWaits has the node look after calls that have begun to wait.
func (x *export) watchWaits() {
	if x.manager != nil && x.node.goesDirect() {
		x.node.wakeAt(x.node.now() + waitsAfter)
	}
}

// tickWaits tells what waits, if that is due, and returns when it has to be called next.
func (n *Node) tickWaits(now time.Duration) (next time.Duration, ok bool) {
	if !n.goesDirect() {
		return 0, false
	}
	w := &n.waits
	w.mu.Lock()
	defer w.mu.Unlock()
	if due, early := w.early(now); early {
		return due, true
	}
	report, next, more := n.waiting(now)
	some := len(report.Calls)+len(report.Handed) > 0
	if !some && !w.told {
		return next, more
	}
	due := w.pace(now, some)
	go func() {
		if err := n.session.Calls(n.base, control.NodeCalls{Waits: &report}); err != nil {
			n.log.Debug("rpc: the Gatekeeper has not heard which calls wait", "node", n.self.Name, "err", err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.telling = false
		n.wakeAt(w.due)
	}()
	return due, true
}

// early reports whether it is too early to tell anything, and when to look again.
func (w *waits) early(now time.Duration) (due time.Duration, early bool) {
	if w.telling {
		return now + waitsAfter, true
	}
	return w.due, now < w.due
}

// pace notes that it is told now what waits, if there is some, and returns when to look again.
func (w *waits) pace(now time.Duration, some bool) (due time.Duration) {
	w.interval = min(max(waitsAfter, 2*w.interval), maxWaitsInterval)
	if !some {
		w.interval = 0
	}
	w.telling, w.told, w.due = true, some, now+max(waitsAfter, w.interval)
	return w.due
}

// waiting is what has waited for its turn for long enough to be told, and when there will be
// more, if there may be.
func (n *Node) waiting(now time.Duration) (report control.NodeWaits, next time.Duration, more bool) {
	n.mu.Lock()
	exports := slices.Collect(maps.Values(n.exports))
	n.mu.Unlock()
	for _, x := range exports {
		if x.manager == nil {
			continue
		}
		queue, holder := x.pool.waiting()
		for _, e := range queue {
			if due := e.queued + waitsAfter; due > now {
				if !more || due < next {
					next, more = due, true
				}
				continue
			}
			if k, ok := x.waitingCall(e, holder); ok && len(report.Calls) < control.MaxWaits {
				report.Calls = append(report.Calls, k)
			}
		}
	}
	l := n.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, h := range l.handed {
		switch due := h.at + waitsAfter; {
		case due > now:
			if !more || due < next {
				next, more = due, true
			}
		case len(report.Handed) < control.MaxWaits:
			report.Handed = append(report.Handed, control.HandedCall{ID: control.ExecutionID(id), For: h.lineage.waitFor()})
		}
	}
	return report, next, more
}

// waitingCall is a call that waits for its turn behind another one; false if no execution can be
// waiting for it that has the slot of a service with state.
func (x *export) waitingCall(e, holder *execution) (control.WaitingCall, bool) {
	direct := e.direct.Load()
	if holder == nil || e.nobody() && (direct || e.call.Parent.IsZero()) {
		return control.WaitingCall{}, false
	}
	k := control.WaitingCall{
		ID: control.ExecutionID(e.call.Call), Behind: control.ExecutionID(holder.call.Call), For: e.waitFor(),
		Service: x.name, Direct: direct,
	}
	if m := x.offer.Load().methods[e.call.Method]; m != nil {
		k.Method = m.name
	}
	return k, true
}

// refuseWaiting answers a call that would wait for itself, and has not begun. The answer is
// recorded like any other.
func (x *export) refuseWaiting(e *execution, why string) {
	x.answerException(e, Deadlock, "the call would wait for itself: "+why)
	e.close()
}

// handed is an execution for which services with state wait, and which was handed over to the
// Gatekeeper.
type handed struct {
	lineage lineage
	at      time.Duration // in node time
}

// noteHanded notes that an execution has been handed over, until the Gatekeeper has its answer.
func (l *ledger) noteHanded(e *execution) {
	if e.nobody() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.handed == nil {
		l.handed = map[rpcpacket.ID]handed{}
	}
	now := l.node.now()
	l.handed[e.call.Call] = handed{e.lineage, now}
	l.node.wakeAt(now + waitsAfter)
}
