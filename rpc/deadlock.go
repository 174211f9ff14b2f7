package rpc

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
)

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
	if x.manager != nil {
		x.node.wakeAt(x.node.now() + waitsAfter)
	}
}

// tickWaits tells what waits, if that is due, and returns when it has to be called next.
func (n *Node) tickWaits(now time.Duration) (next time.Duration, ok bool) {
	w := &n.waits
	w.mu.Lock()
	defer w.mu.Unlock()
	if due, early := w.early(now); early {
		return due, true
	}
	report, next, more := n.waiting(now)
	some := len(report.Calls) > 0
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
	return report, next, more
}

// waitingCall is a call that waits for its turn behind another one; false if no execution can be
// waiting for it that has the slot of a service with state.
func (x *export) waitingCall(e, holder *execution) (control.WaitingCall, bool) {
	direct := e.journal != nil
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
	x.endUnbegun(e, Deadlock, "the call would wait for itself: "+why)
}
