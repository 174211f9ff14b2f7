package gatekeeper

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/trace"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// What became of the latest calls, also of those that are over: the trace.Recorder is
// told every step of every call by the controller, and asked here.

// Timeline returns the calls that belong together with one, from the outermost on:
// see trace.Recorder.Tree. It is empty if the call is not among those remembered.
func (g *Gatekeeper) Timeline(ctx context.Context, id rpcpacket.ID, limit int) (tree []trace.Leaf, more bool, err error) {
	err = g.do(ctx, func() { tree, more = g.ctl.timeline.Tree(id, limit) })
	return tree, more, err
}

// Timelines returns the latest calls, the last one first, and the Before of the page
// that follows, 0 if there is none. Other inputs come in between.
func (g *Gatekeeper) Timelines(ctx context.Context, q trace.Query) (page []trace.Call, next uint64, err error) {
	for want := q.Limit; ; {
		var part []trace.Call
		if err = g.do(ctx, func() { part, next = g.ctl.timeline.Recent(q, scanned) }); err != nil {
			return nil, 0, err
		}
		page = append(page, part...)
		if q.Before, q.Limit = next, want-len(page); next == 0 || q.Limit <= 0 {
			return page, next, nil
		}
	}
}

// Edges returns who calls whom, and how often since a moment, as far as calls are kept. Other inputs come in between.
func (g *Gatekeeper) Edges(ctx context.Context, since time.Time) (map[trace.Edge]trace.Tally, error) {
	all := map[trace.Edge]trace.Tally{}
	for before := uint64(0); ; {
		if err := g.do(ctx, func() { before = g.ctl.timeline.Count(all, since, before, scanned) }); err != nil || before == 0 {
			return all, err
		}
	}
}

// Methods returns what has become of the calls of each method since the Gatekeeper began.
func (g *Gatekeeper) Methods(ctx context.Context) (all []trace.Method, err error) {
	err = g.do(ctx, func() { all = g.ctl.timeline.Methods() })
	return all, err
}

// TakeEnded returns the calls that have ended since it was last asked, and how many there were
// besides: see trace.Recorder.TakeEnded. One asks, since what it returns it does not return again.
func (g *Gatekeeper) TakeEnded(ctx context.Context) (calls []trace.Call, missed uint64, err error) {
	err = g.do(ctx, func() { calls, missed = g.ctl.timeline.TakeEnded() })
	return calls, missed, err
}

// Totals returns what has become of all calls since the Gatekeeper began.
func (g *Gatekeeper) Totals(ctx context.Context) (t trace.Totals, err error) {
	err = g.do(ctx, func() { t = g.ctl.timeline.Totals() })
	return t, err
}

// remember notes a step of a call. A call that was there before this run of the Gatekeeper
// becomes known with its first step in it.
func (c *controller) remember(e trace.Event) {
	if n := c.nodes[e.Node.Address]; n != nil {
		e.Blade = n.blade.hello.Blade
	}
	if over := c.timeline.Note(&e); over && c.cfg.Over != nil {
		call, _ := c.timeline.Call(e.Call)
		c.cfg.Over(call, c.timeline.Root(e.Call))
	}
}

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
	// AppRolledOut says that all nodes of a deployment run its new programs, AppRolledBack that
	// the former ones come back, and why.
	AppRolledOut    EventKind = "app.rolledout"
	AppRolledBack   EventKind = "app.rolledback"
	JobRun          EventKind = "app.job"    // an operator has run a finished job again: Message is the arguments
	AppShort        EventKind = "app.short"  // there are not enough blades for a program, or there are again
	PolicySet       EventKind = "policy.set" // by an operator: Message is the policy
	ProgramStarted  EventKind = "program.started"
	ProgramFailed   EventKind = "program.failed" // it could not be started, or has ended by itself: Message says why
	NodeJoined      EventKind = "node.joined"
	NodeLeft        EventKind = "node.left"
	NodeFailed      EventKind = "node.failed"    // it has ended, and is being fenced
	NodeFenced      EventKind = "node.fenced"    // switch and memory blades refuse what may still come of it
	NodeRecovered   EventKind = "node.recovered" // its next incarnation serves
	ServiceExported EventKind = "service.exported"
	RegionReclaimed EventKind = "region.reclaimed" // nobody owned it any more
	RegionFrozen    EventKind = "region.frozen"    // nobody can say whose it is, since the switch has lost its registers
	CallRefused     EventKind = "call.refused"     // the caller gets an exception
	CallGivenUp     EventKind = "call.givenup"     // its program has ended too often while it executed the call
	CallCanceled    EventKind = "call.canceled"    // an operator has had it cancelled where it runs
	AccessDenied    EventKind = "access.denied"    // by the switch
)

// EventKinds returns all kinds of events.
func EventKinds() []string {
	var all []string
	for _, k := range []EventKind{
		SwitchConnected, SwitchLost, SwitchReconciled, BladeUp, BladeFailed, BladeDraining, BladeDrained,
		BladeReturned, MachineMirrored, MachineUnmirrored, MachineFilling, AppDeployed, AppUndeployed, AppRestarted, AppRolledOut,
		AppRolledBack, AppShort, JobRun,
		PolicySet, ProgramStarted, ProgramFailed, NodeJoined, NodeLeft, NodeFailed, NodeFenced, NodeRecovered,
		ServiceExported, RegionReclaimed, RegionFrozen, CallRefused, CallGivenUp, CallCanceled, AccessDenied,
	} {
		all = append(all, string(k))
	}
	return all
}

// Event is something that happened in the rack. Fields that do not apply are
// empty.
type Event struct {
	Seq     uint64     `json:"seq"` // counts all events; a gap means that some were lost
	Time    time.Time  `json:"time"`
	Kind    EventKind  `json:"kind"`
	Blade   string     `json:"blade,omitempty"`
	Node    netip.Addr `json:"node,omitzero"` // who did it: caller, allocator, …
	Peer    netip.Addr `json:"peer,omitzero"` // with whom: callee
	Name    string     `json:"name,omitempty"`
	Service string     `json:"service,omitempty"`
	Method  string     `json:"method,omitempty"`
	Call    string     `json:"call,omitempty"`
	Region  string     `json:"region,omitempty"`
	Op      string     `json:"op,omitempty"`
	Code    fault.Code `json:"code,omitempty"`
	Message string     `json:"message,omitempty"`
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
