package gatekeeper

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/callgraph"
	"github.com/bifrost-rack/bifrost/gatekeeper/trace"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/duration"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// CallState is one call under way, as the node that serves it has told last.
type CallState struct {
	Call    string     `json:"call"`
	Parent  string     `json:"parent,omitempty"` // the execution that made it
	Caller  netip.Addr `json:"caller"`
	Callee  netip.Addr `json:"callee"`
	Service string     `json:"service,omitempty"`
	Method  string     `json:"method"`
	Policy  string     `json:"policy,omitempty"`
	// B1 is when its callee got it (checkpoint b1 of the thesis's figure 5.3).
	B1     time.Time `json:"b1,omitzero"`
	Oneway bool      `json:"oneway,omitempty"`
	// Behind is the call that its service, which has state, runs before it.
	Behind string `json:"behind,omitempty"`
	// Attempts is how often it was begun before.
	Attempts int `json:"attempts,omitempty"`
	// Told is when its callee told so last.
	Told    time.Time     `json:"told,omitzero"`
	Details trace.Details `json:"details,omitzero"`
}

// CallQuery selects calls under way; the zero value selects all.
type CallQuery struct {
	// Node is the caller or the callee.
	Node netip.Addr
	// From is the cursor that the page before has returned.
	From CallCursor
	// Limit is how many calls a page has at most, at least 1.
	Limit int
}

// CallCursor is where a listing of calls goes on; the zero CallCursor is its beginning.
type CallCursor struct{ last rpcpacket.ID }

// String is the cursor as ParseCallCursor reads it, "" for the beginning.
func (c CallCursor) String() string {
	if c.last.IsZero() {
		return ""
	}
	return c.last.String()
}

// ParseCallCursor reads what String wrote.
func ParseCallCursor(s string) (c CallCursor, err error) {
	if s == "" {
		return c, nil
	}
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(c.last) {
		return CallCursor{}, fmt.Errorf("%q is not a cursor of a list of calls", s)
	}
	c.last = rpcpacket.ID(b)
	return c, nil
}

// Calls returns a page of calls under way, in the order of their ids, and the cursor of the next page, which is zero on
// the last one.
func (g *Gatekeeper) Calls(ctx context.Context, q CallQuery) (page []CallState, next CallCursor, err error) {
	err = g.do(ctx, func() {
		for _, k := range g.ctl.told.after(&q) {
			if len(page) == q.Limit {
				return
			}
			page, next = append(page, g.ctl.told.state(k)), CallCursor{k.id}
		}
		next = CallCursor{}
	})
	if err != nil {
		return nil, CallCursor{}, err
	}
	return page, next, nil
}

// Call returns one call that is under way. It reports false if there is none.
func (g *Gatekeeper) Call(ctx context.Context, id rpcpacket.ID) (s CallState, ok bool, err error) {
	err = g.do(ctx, func() {
		var k *directCall
		if k, ok = g.ctl.told.calls[id]; ok {
			s = g.ctl.told.state(k)
		}
	})
	return s, ok, err
}

// CancelCall has the node that runs a call end its handler's context; what the handler then
// returns is the answer. A call that waits there is answered with Canceled. It returns when the
// node's daemon has told the program, not when the call has ended: a handler that does not heed
// its context runs on. NotFound: no such call is under way; Unavailable: its node is not there, or its daemon has not answered within 5 s. It fails
// with ErrStopped if the Gatekeeper does not run, or stops.
func (g *Gatekeeper) CancelCall(ctx context.Context, id rpcpacket.ID) error {
	answer := make(chan error, 1)
	err := g.query(ctx, func(c *controller) error { return c.cancelCall(id, answer) })
	if err != nil {
		return err
	}
	said, err := awaitAnswer(ctx, g, answer)
	switch {
	case err == nil:
		return said
	case errors.Is(err, ErrStopped):
		return err
	case ctx.Err() != nil:
		return fault.FromContext("cancel", ctx.Err())
	}
	return fault.New(fault.Unavailable, "cancel", "the blade that runs call %s does not answer", id)
}

// cancelCall asks the daemon of the node that runs a call; answer has room for what it says.
func (c *controller) cancelCall(id rpcpacket.ID, answer chan<- error) error {
	k := c.told.calls[id]
	if k == nil {
		return fault.New(fault.NotFound, "cancel", "no call %s is under way", id)
	}
	n := c.nodes[k.callee.Address]
	if n == nil || !n.blade.alive() {
		return fault.New(fault.Unavailable, "cancel", "call %s is at node %s, which is not in service: it goes on when that is back", id, k.callee.Address)
	}
	c.logger.Info("operator", "action", "cancel", "call", id, "node", n.address)
	return n.blade.port.ask(c.now, control.KindCancelCall, control.CancelCall{Node: n.address, Call: id.String()}, func(m control.Message) {
		if m.Status != fault.OK {
			answer <- fault.Remote(m.Status, "cancel", "%s", m.Body)
			return
		}
		c.event(Event{Kind: CallCanceled, Node: n.address, Call: id.String(), Method: k.method})
		answer <- nil
	})
}

// Calls go past the Gatekeeper. The nodes that serve them tell what they do, some
// moments later. People see it; nothing is decided by it.

// told is what nodes have told of direct calls, and which calls wait for others.
type told struct {
	nodes map[netip.Addr]*toldBy
	calls map[rpcpacket.ID]*directCall // under way
	waits callgraph.Waits
}

// toldBy is what one node has told.
type toldBy struct {
	incarnation uint32
	running     []*directCall // oldest first
	more        int           // under way besides
	counts      map[countedAs]uint64
	room        *uint64 // in its ledger
	states      uint64  // bytes in it of states and checkpoints
	maxStates   uint64  // how many these may be
}

// countedAs is what calls that have ended are counted by.
type countedAs struct {
	service, method string
	code            fault.Code
}

// directCall is a direct call that was under way when its callee told so last.
type directCall struct {
	id, parent     rpcpacket.ID
	in             rpcpacket.Ref // the use of its first slot
	caller, callee wal.Node
	service        string
	method         string
	attempt        uint16
	began, told    time.Time
	oneway         bool
	policy         rpcpacket.Policy
	details        trace.Details
}

// directCalls takes what a node tells of direct calls.
func (c *controller) directCalls(p *port, m control.Message) error {
	var q control.NodeCalls
	if err := m.Decode(&q); err != nil {
		return err
	}
	n, err := p.nodeAt("calls", q.Node, q.Incarnation)
	if err != nil {
		return err
	}
	if len(q.Running) > control.MaxDirectCalls || len(q.Ended) > control.MaxDirectCalls || len(q.Counts) > control.MaxMethodCounts {
		return fault.New(fault.BadRequest, "calls", "node %s tells of too many calls at a time", n.address)
	}
	if q.Waits != nil {
		err := c.hearWaits(n, q.Waits)
		if err == nil {
			p.answer(m, nil)
		}
		return err
	}
	if q.TakeBack != "" {
		c.beginAnew(n, q.TakeBack)
		p.answer(m, nil)
		return nil
	}
	if q.Main != nil {
		return c.mainEnded(p, m, n, q.Main)
	}
	if q.Owes {
		if err := c.owes(n); err != nil {
			return err
		}
		p.answer(m, nil)
		return nil
	}
	if q.Over {
		n.over = true
		p.answer(m, nil)
		return nil
	}
	by := c.told.nodes[n.address]
	if by == nil || by.incarnation != n.incarnation {
		c.told.forget(n.address)
		by = &toldBy{incarnation: n.incarnation}
		c.told.nodes[n.address] = by
		if !q.First { // what it has told to a former Gatekeeper does not count
			by.counts = countsIn(q.Counts)
		}
	}
	left := map[countedAs]uint64{} // have ended since it told last, and are not named
	for k, calls := range countsIn(q.Counts) {
		if was := by.counts[k]; calls > was && (k.method == "" || n.has(k.service, k.method)) {
			left[k] = calls - was
		}
	}
	by.counts, by.room, by.states, by.maxStates = countsIn(q.Counts), q.Room, q.States, q.MaxStates
	c.underWay(n, by, &q, left)
	for k, calls := range left {
		c.timeline.Ended(k.service, k.method, k.code, calls)
	}
	p.answer(m, nil)
	return nil
}

func countsIn(list []control.MethodCount) map[countedAs]uint64 {
	counts := make(map[countedAs]uint64, len(list))
	for i := range list {
		counts[countedAs{list[i].Service, list[i].Method, list[i].Code}] = list[i].Calls
	}
	return counts
}

// underWay takes in which calls of a node have ended and which are under way. Those that it
// names are taken off what is left to be counted.
func (c *controller) underWay(n *node, by *toldBy, q *control.NodeCalls, left map[countedAs]uint64) {
	was := map[rpcpacket.ID]*directCall{}
	for _, k := range by.running {
		was[k.id] = k
		delete(c.told.calls, k.id)
	}
	end := func(k *directCall, code fault.Code, at time.Time) {
		delete(was, k.id)
		key := countedAs{k.service, k.method, code}
		if left[key] > 0 {
			left[key]--
			c.traceDirect(k, code, at)
		}
	}
	by.running, by.more = nil, q.More
	for i := range q.Ended {
		if k := n.serves(&q.Ended[i], c.now); k == nil {
			c.count.Malformed++
		} else {
			end(k, q.Ended[i].Code, k.began.Add(duration.Times(min(q.Ended[i].Took, q.Ended[i].Began), time.Microsecond)))
			c.gaveUp(k, q.Ended[i].GivenUp)
		}
	}
	for i := range q.Running {
		k := n.serves(&q.Running[i], c.now)
		if k == nil {
			c.count.Malformed++
			continue
		}
		if c.told.calls[k.id] != nil {
			continue
		}
		if former := was[k.id]; former == nil || len(former.details.Headers) < len(k.details.Headers) { // it has begun since
			c.traceDirectSent(k)
		}
		delete(was, k.id)
		by.running = append(by.running, k)
		c.told.calls[k.id] = k
	}
	if q.More == 0 {
		for _, k := range was { // how it has ended there was no room to tell
			end(k, fault.OK, c.now)
		}
	}
}

// gaveUp tells people that a node has given a call up, if it has: after so many failures.
func (c *controller) gaveUp(k *directCall, failures uint32) {
	if failures == 0 {
		return
	}
	c.count.GivenUp++
	c.event(Event{
		Kind: CallGivenUp, Node: k.caller.Address, Peer: k.callee.Address, Service: k.service, Method: k.method, Call: k.id.String(), Code: fault.Unavailable,
		Message: fmt.Sprintf("its program has ended %d times while it executed the call", failures),
	})
}

// serves reads a call of which a node tells; nil if the node does not serve it.
func (n *node) serves(d *control.DirectCall, now time.Time) *directCall {
	if !n.has(d.Service, d.Method) || d.Began < 0 || d.Took < 0 || d.Policy > uint8(rpcpacket.PolicyTainted) {
		return nil
	}
	return &directCall{
		id: rpcpacket.ID(d.ID), parent: rpcpacket.ID(d.Parent), in: rpcpacket.Ref{Slot: rpcpacket.Slot(d.Slot), Number: rpcpacket.Number(d.Number)}, caller: wal.Node{Address: d.Caller, Incarnation: d.Incarnation}, callee: n.logged(),
		service: d.Service, method: d.Method, attempt: d.Attempt, began: now.Add(-duration.Times(d.Began, time.Microsecond)), told: now,
		oneway: d.Oneway, policy: rpcpacket.Policy(d.Policy), details: d.Details.Bounded(),
	}
}

// has reports whether a node exports a method.
func (n *node) has(service, method string) bool {
	x := n.exports[rackaddr.Service(service)]
	if x == nil {
		return false
	}
	wire, err := rpcpacket.MethodOf(method)
	_, ok := x.methods[wire]
	return err == nil && ok
}

// hearWaits takes which calls wait for their turn at a node, and has one refused if they wait for
// each other.
func (c *controller) hearWaits(n *node, q *control.NodeWaits) error {
	if len(q.Calls) > control.MaxWaits {
		return fault.New(fault.BadRequest, "calls", "node %s tells of too many calls that wait", n.address)
	}
	calls := make([]callgraph.Wait, len(q.Calls))
	for i := range q.Calls {
		k := &q.Calls[i]
		calls[i] = callgraph.Wait{
			ID: rpcpacket.ID(k.ID), Behind: rpcpacket.ID(k.Behind), For: callIDs(k.For), Service: k.Service, Method: k.Method,
		}
	}
	c.told.waits.Report(n.address, c.now, calls)
	if k, circle, found := c.told.waits.Deadlock(n.address, c.now); found {
		c.endDeadlock(&k, circle)
	}
	return nil
}

// callIDs are ids as the cores know them; the first ones, if these are too many.
func callIDs(ids []control.ExecutionID) []rpcpacket.ID {
	all := make([]rpcpacket.ID, min(len(ids), 1+control.MaxSerial))
	for i := range all {
		all[i] = rpcpacket.ID(ids[i])
	}
	return all
}

// endDeadlock has a call refused, where it waits for its turn, that waits for itself.
func (c *controller) endDeadlock(k *callgraph.Wait, circle []rpcpacket.ID) {
	n := c.nodes[k.Node]
	if n == nil || !n.blade.alive() {
		return // it is told again
	}
	c.count.Deadlocks++
	way := make([]string, len(circle))
	for i, id := range circle {
		way[i] = id.String()
	}
	why := "these calls wait for each other: " + strings.Join(way, " → ")
	c.logger.Warn("a deadlock: a call is refused", "call", k.ID, "service", k.Service, "method", k.Method, "node", n.address, "circle", way)
	c.event(Event{Kind: CallRefused, Peer: n.address, Service: k.Service, Method: k.Method, Call: k.ID.String(), Code: fault.Deadlock, Message: why})
	q := control.CancelCall{Node: n.address, Call: k.ID.String(), Deadlock: why}
	_ = n.blade.port.ask(c.now, control.KindCancelCall, q, func(control.Message) {}) // if that fails, the deadlock is found again
}

// forget forgets what a node has told that has ended, or begun anew.
func (t *told) forget(a netip.Addr) {
	t.waits.Gone(a)
	by := t.nodes[a]
	if by == nil {
		return
	}
	for _, k := range by.running {
		delete(t.calls, k.id)
	}
	delete(t.nodes, a)
}

// traceDirectSent follows a direct call that is under way.
func (c *controller) traceDirectSent(k *directCall) {
	about := trace.About{
		Parent: k.parent, Caller: trace.Node(k.caller), Callee: trace.Node(k.callee), Service: k.service, Method: k.method, Policy: k.policy, Oneway: k.oneway,
	}
	c.remember(trace.Event{Call: k.id, Step: k.step(trace.Sent, k.began), About: about, Details: k.details})
	began := k.step(trace.Delivered, k.began)
	if began.Attempt = k.attempt; k.attempt > 0 {
		began.Kind = trace.Replayed
		if n := c.nodes[k.callee.Address]; n != nil {
			began.Why = n.whyBefore
		}
	}
	c.remember(trace.Event{Call: k.id, Step: began})
}

// traceDirect follows a direct call to its end.
func (c *controller) traceDirect(k *directCall, code fault.Code, at time.Time) {
	c.traceDirectSent(k)
	replied, answered := k.step(trace.Replied, at), k.step(trace.Answered, at)
	replied.Attempt, answered.Attempt, answered.Node = k.attempt, k.attempt, trace.Node(k.caller)
	c.remember(trace.Event{Call: k.id, Step: replied, Code: code, Details: k.details})
	c.remember(trace.Event{Call: k.id, Step: answered, Code: code})
}

// step is a step of the call at its callee.
func (k *directCall) step(kind trace.Kind, at time.Time) trace.Step {
	return trace.Step{Time: at, Kind: kind, Node: trace.Node(k.callee)}
}

// state is a direct call as people see it.
func (t *told) state(k *directCall) CallState {
	s := CallState{
		Call: k.id.String(), Caller: k.caller.Address, Callee: k.callee.Address, Service: k.service, Method: k.method,
		Policy: k.policy.String(), B1: k.began, Attempts: int(k.attempt), Told: k.told, Oneway: k.oneway, Details: k.details,
	}
	if !k.parent.IsZero() {
		s.Parent = k.parent.String()
	}
	if behind := t.waits.Behind(k.callee.Address, k.id); !behind.IsZero() {
		s.Behind = behind.String()
	}
	return s
}

// after lists the direct calls under way that a query means, in the order of their ids.
func (t *told) after(q *CallQuery) (all []*directCall) {
	for id, k := range t.calls {
		meant := !q.Node.IsValid() || k.caller.Address == q.Node || k.callee.Address == q.Node
		if meant && id.Compare(q.From.last) > 0 {
			all = append(all, k)
		}
	}
	slices.SortFunc(all, func(a, b *directCall) int { return a.id.Compare(b.id) })
	return all
}

// chain is a call and those on whose behalf it was made, innermost first, as far as they are under way.
func (t *told) chain(id rpcpacket.ID) (all []CallState) {
	for range maxChain {
		k := t.calls[id]
		if k == nil {
			break
		}
		all = append(all, t.state(k))
		id = k.parent
	}
	return all
}

// maxChain bounds a chain: who has made a call is what nodes say.
const maxChain = 256

// of lists the direct calls that a node has out, or serves, oldest first.
func (t *told) of(meant func(*directCall) bool) (all []CallState) {
	var calls []*directCall
	for _, k := range t.calls {
		if meant(k) {
			calls = append(calls, k)
		}
	}
	slices.SortFunc(calls, func(a, b *directCall) int { return cmp.Or(a.began.Compare(b.began), a.id.Compare(b.id)) })
	for _, k := range calls {
		all = append(all, t.state(k))
	}
	return all
}

// graph are the calls under way, the oldest first.
func (t *told) graph() (all []callgraph.Call) {
	calls := slices.SortedFunc(maps.Values(t.calls), func(a, b *directCall) int { return cmp.Or(a.began.Compare(b.began), a.id.Compare(b.id)) })
	for _, k := range calls {
		all = append(all, callgraph.Call{
			ID: k.id, Parent: k.parent, Caller: callgraph.Node(k.caller), Callee: callgraph.Node(k.callee), Policy: k.policy, Oneway: k.oneway,
		})
	}
	return all
}

// states are the calls with these ids.
func (t *told) states(ids []rpcpacket.ID) (all []CallState) {
	for _, id := range ids {
		all = append(all, t.state(t.calls[id]))
	}
	return all
}
