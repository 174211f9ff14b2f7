package rpc

import (
	"bytes"
	"context"
	"time"

	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// The state of a service whose calls go direct is in its node's ledger, and nowhere else.
//
//	direct call   runs ── done, with the change ──▶ ledger        the next call runs meanwhile
//	                                  settled ──▶ REPLY
//	other call    waits until that is settled, runs ── changed ──▶ ledger
//	                                  settled ──▶ REPLY, with the call's id as the state ──▶ logged
//	              decided ──▶ ledger ◀── ACK ◀──────────────────────────────────────────────┘
//
// So a change by a call that the Gatekeeper decides about counts if, and only if, the
// Gatekeeper has logged the call's answer. After a crash the id in its log says so: only the
// last change can be in doubt, since the next call waits for the decision.

// inLedger reports whether the service's state is in the node's ledger.
func (x *export) inLedger() bool {
	n := x.node
	return x.manager != nil && n.goesDirect() && n.ledger.place != nil && n.ledger.place.States
}

// maxState is the size of a state, or of a change of it, in a ledger.
const maxState = 64 << 20

// room is how large a change of a state may be: the ledger must have room for a base with it,
// too.
func (l *ledger) room() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return maxState
	}
	return int(min(maxState, l.file.Room()/2)) //nolint:gosec // at most maxState
}

// afterSettled waits, before an execution runs whose doings the ledger does not order, until
// all is settled that the service's state comes from. It reports false if the node has ended.
func (e *execution) afterSettled() bool {
	if e.export == nil || !e.export.inLedger() || e.direct.Load() {
		return true
	}
	l := e.node.ledger
	last, settled := l.unsettled()
	if settled {
		return true
	}
	e.promote()
	return l.settle(last)
}

// recordChange keeps what a direct call has made of the state for its done. The change by any other
// call is written down, and what it returns is the state that the Gatekeeper logs.
func (x *export) recordChange(e *execution, former past, change []byte) []byte {
	if len(change) == 0 {
		return nil
	}
	e.former, e.change = former, change
	if e.direct.Load() {
		return nil
	}
	l, id := x.node.ledger, e.call.Call
	e.promote()
	e.unsettled = !l.settle(l.write(&record.Changed{Execution: id, Service: x.hash, State: change}))
	return trailer.Section{Type: trailer.Snapshot, Data: id[:]}.Append(nil)
}

// takeBack restores the state before an execution whose outcome is not written.
func (x *export) takeBack(e *execution) {
	if len(e.change) == 0 {
		return
	}
	x.manager.was = e.former
	if err := x.manager.undo(); err != nil {
		x.node.fail(&Error{Code: Internal, Op: "service " + x.name, Msg: "undo what a call that was given up did to the state", Err: err})
	}
}

// decided notes that the Gatekeeper has logged an answer.
func (x *export) decided(c *commitment, id rpcpacket.ID) {
	if c.changed && x.inLedger() {
		x.node.ledger.write(&record.Decided{Execution: id, Service: x.hash, Counts: true})
	}
}

// forwarded waits until the Gatekeeper knows all executions that former incarnations of the
// node have handed over: one of them may be the service's next.
func (x *export) forwarded(ctx context.Context) error {
	if !x.inLedger() {
		return nil
	}
	select {
	case <-x.node.ledger.resumes.forwarded:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-x.node.base.Done():
		return x.node.whyEnded()
	}
}

// adopted stands for the execution that has brought a state from the Gatekeeper's log.
var adopted = rpcpacket.ID{1}

// fromLedger is the service's state as the ledger has it; logged is what the Gatekeeper has.
// A change in doubt is decided. A state that the Gatekeeper has, from when the service's
// node had no ledger for it, is taken over.
func (x *export) fromLedger(logged join.State) join.State {
	l := x.node.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	v, _ := l.table.State().Service(x.hash)
	if !v.By.IsZero() {
		x.node.stats.doubtful.Add(1)
		l.add(&record.Decided{Execution: v.By, Service: x.hash, Counts: bytes.Equal(logged.Base, v.By[:])})
		v, _ = l.table.State().Service(x.hash)
	}
	if logged.Unsettled || logged.First != (rpcpacket.ID{}) {
		x.gate.Store(true)
		go x.lift(logged)
	}
	switch state := logged.Append(nil); {
	case !v.HasSnapshot && len(v.Deltas) == 0 && len(state) > 0:
		l.add(&record.Changed{Execution: adopted, Service: x.hash, State: state}, &record.Decided{Execution: adopted, Service: x.hash, Counts: true})
	default:
		logged.Base, logged.Deltas = nil, v.Deltas
		if v.HasSnapshot {
			logged.Base = append([]byte{}, v.Snapshot...)
		}
	}
	return logged
}

// lift opens the gate: the calls that the Gatekeeper does not order may come when earlier
// outcomes are in effect, and the call has run that a former incarnation may have begun.
func (x *export) lift(was join.State) {
	pace := leastGatePace
	for now := was; now.Unsettled || now.First != (rpcpacket.ID{}) && (was.Unsettled || now.First == was.First); {
		select {
		case <-time.After(pace):
		case <-x.node.base.Done():
			return
		}
		s, err := join.FetchState(x.node.base, x.node.session, x.name)
		if err != nil {
			continue
		}
		if now = s; was.Unsettled {
			was = now
		}
		pace = min(2*pace, maxGatePace)
	}
	x.gate.Store(false)
	x.announce()
}

// The gate is looked after at these intervals.
const (
	leastGatePace = 2 * time.Millisecond
	maxGatePace   = 100 * time.Millisecond
)
