package gatekeeper

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/lease"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// EventKind says what happened.
type EventKind string

// The kinds of events.
const (
	SwitchConnected EventKind = "switch.connected" // its tables are what they should be
	SwitchLost      EventKind = "switch.lost"
	// SwitchReconciled says that somebody has had the switch's tables read back.
	SwitchReconciled EventKind = "switch.reconciled"
	BladeUp          EventKind = "blade.up"
	BladeFailed      EventKind = "blade.failed"
	BladeDraining    EventKind = "blade.draining" // an operator wants it empty
	BladeDrained     EventKind = "blade.drained"  // and it is
	BladeReturned    EventKind = "blade.returned" // an operator puts it back into service
	// MachineMirrored says that a memory machine has two copies, MachineUnmirrored that one
	// of them is lost. Blade is the second copy's, or the lost one's.
	MachineMirrored   EventKind = "machine.mirrored"
	MachineUnmirrored EventKind = "machine.unmirrored"
	// MachineFilling says that a second copy is being filled, on Blade.
	MachineFilling EventKind = "machine.filling"
	AppDeployed    EventKind = "app.deployed"
	AppUndeployed  EventKind = "app.undeployed"
	AppRestarted   EventKind = "app.restarted" // by an operator: its nodes are started again, one after the other
	AppShort       EventKind = "app.short"     // there are not enough blades for a program, or there are again
	PolicySet      EventKind = "policy.set"    // by an operator: Message is the policy
	ProgramStarted EventKind = "program.started"
	ProgramFailed  EventKind = "program.failed" // a blade could not start it
	NodeJoined     EventKind = "node.joined"
	NodeLeft       EventKind = "node.left"
	NodeFailed     EventKind = "node.failed"    // it has ended, and is being fenced
	NodeFenced     EventKind = "node.fenced"    // switch and memory blades refuse what may still come of it
	NodeRecovered  EventKind = "node.recovered" // its next incarnation serves
	// ExecutionRolledBack says that what an execution did to memory is taken back.
	ExecutionRolledBack EventKind = "execution.rolledback"
	ServiceExported     EventKind = "service.exported"
	RegionAllocated     EventKind = "region.allocated"
	RegionFreed         EventKind = "region.freed"
	RegionReclaimed     EventKind = "region.reclaimed" // its controller is gone, and the last lease
	CallHeld            EventKind = "call.held"
	CallReleased        EventKind = "call.released"
	CallReplayed        EventKind = "call.replayed" // released again
	CallDiverged        EventKind = "call.diverged" // an execution has repeated it with other arguments
	ReplyHeld           EventKind = "reply.held"
	ReplyReleased       EventKind = "reply.released"
	CallRefused         EventKind = "call.refused"  // the caller gets an exception
	CallEnded           EventKind = "call.ended"    // its callee is gone
	CallCanceled        EventKind = "call.canceled" // an operator has had it cancelled where it runs
	RulesRevoked        EventKind = "rules.revoked"
	RulesGranted        EventKind = "rules.granted"
	AccessDenied        EventKind = "access.denied" // by the switch
)

// EventKinds returns all kinds of events.
func EventKinds() []string {
	var all []string
	for _, k := range []EventKind{
		SwitchConnected, SwitchLost, SwitchReconciled, BladeUp, BladeFailed, BladeDraining, BladeDrained,
		BladeReturned, MachineMirrored, MachineUnmirrored, MachineFilling, AppDeployed, AppUndeployed, AppRestarted, AppShort,
		PolicySet, ProgramStarted, ProgramFailed, NodeJoined, NodeLeft, NodeFailed, NodeFenced, NodeRecovered,
		ExecutionRolledBack, ServiceExported, RegionAllocated, RegionFreed, RegionReclaimed, CallHeld,
		CallReleased, CallReplayed, CallDiverged, ReplyHeld, ReplyReleased, CallRefused, CallEnded, CallCanceled, RulesRevoked,
		RulesGranted, AccessDenied,
	} {
		all = append(all, string(k))
	}
	return all
}

// Event is something that happened in the rack. Fields that do not apply are
// empty.
type Event struct {
	Seq     uint64       `json:"seq"` // counts all events; a gap means that some were lost
	Time    time.Time    `json:"time"`
	Kind    EventKind    `json:"kind"`
	Blade   string       `json:"blade,omitempty"`
	Node    netip.Addr   `json:"node,omitzero"` // who did it: caller, allocator, …
	Peer    netip.Addr   `json:"peer,omitzero"` // with whom: callee
	Name    string       `json:"name,omitempty"`
	Service string       `json:"service,omitempty"`
	Method  string       `json:"method,omitempty"`
	Call    string       `json:"call,omitempty"`
	Attempt uint16       `json:"attempt,omitempty"` // how often the call's execution was cut off
	Region  string       `json:"region,omitempty"`
	Op      string       `json:"op,omitempty"`
	Rules   []lease.Rule `json:"rules,omitempty"`
	Code    fault.Code   `json:"code,omitempty"`
	Message string       `json:"message,omitempty"`
}

// broker hands events to subscribers. Publish never blocks.
type broker struct {
	active atomic.Int32 // subscribers; the controller makes no events for nobody

	mu   sync.Mutex
	seq  uint64
	subs map[chan Event]struct{}
}

// publish hands an event to every subscriber that has room.
func (b *broker) publish(e Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seq++
	e.Seq = b.seq
	for ch := range b.subs {
		select {
		case ch <- e:
		default:
		}
	}
}

// subscribe returns a channel of events from now on, closed when ctx ends. A
// subscriber that falls behind loses events; their sequence numbers tell.
func (b *broker) subscribe(ctx context.Context) <-chan Event {
	ch := make(chan Event, eventQueue)
	b.mu.Lock()
	if b.subs == nil {
		b.subs = map[chan Event]struct{}{}
	}
	b.subs[ch] = struct{}{}
	b.active.Add(1)
	b.mu.Unlock()
	context.AfterFunc(ctx, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.subs, ch)
		b.active.Add(-1)
		close(ch)
	})
	return ch
}
