package gatekeeper

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/callgraph"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Direct calls go past the Gatekeeper. The nodes that serve them tell what they do, some
// moments later. People see it; nothing is decided by it.

// told is what nodes have told of direct calls.
type told struct {
	nodes map[netip.Addr]*toldBy
	calls map[rpcpacket.ID]*directCall // under way
}

// toldBy is what one node has told.
type toldBy struct {
	incarnation uint32
	running     []*directCall // oldest first
	more        int           // under way besides
	counts      map[countedAs]uint64
}

// countedAs is what calls that have ended are counted by.
type countedAs struct {
	service, method string
	code            fault.Code
}

// directCall is a direct call that was under way when its callee told so last.
type directCall struct {
	id, parent     rpcpacket.ID
	caller, callee wal.Node
	service        string
	method         string
	attempt        uint16
	began, told    time.Time
}

// directCalls takes what a node tells of direct calls.
func (c *controller) directCalls(p *port, m control.Message) error {
	var q control.NodeCalls
	if err := m.Decode(&q); err != nil {
		return err
	}
	n, err := c.nodeAt(p, "calls", q.Node, q.Incarnation)
	if err != nil {
		return err
	}
	if len(q.Running) > control.MaxDirectCalls || len(q.Ended) > control.MaxDirectCalls || len(q.Counts) > control.MaxMethodCounts {
		return fault.New(fault.BadRequest, "calls", "node %s tells of too many calls at a time", n.address)
	}
	if q.Over {
		n.over = true
		c.answer(p, m, nil)
		return nil
	}
	by := c.told.nodes[n.address]
	if by == nil || by.incarnation != n.incarnation {
		c.forgetTold(n.address)
		by = &toldBy{incarnation: n.incarnation}
		c.told.nodes[n.address] = by
		if !q.First { // what it has told to a former Gatekeeper does not count
			by.counts = countsIn(q.Counts)
		}
	}
	left := map[countedAs]uint64{} // have ended since it told last, and are not named
	for k, calls := range countsIn(q.Counts) {
		if was := by.counts[k]; calls > was && n.has(k.service, k.method) {
			left[k] = calls - was
		}
	}
	by.counts = countsIn(q.Counts)
	c.underWay(n, by, &q, left)
	for k, calls := range left {
		c.timeline.Ended(k.service, k.method, k.code, calls)
	}
	c.answer(p, m, nil)
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
		if k := c.directCall(n, &q.Ended[i]); k != nil {
			end(k, q.Ended[i].Code, k.began.Add(time.Duration(q.Ended[i].Took)*time.Microsecond))
		}
	}
	for i := range q.Running {
		k := c.directCall(n, &q.Running[i])
		if k == nil || c.told.calls[k.id] != nil {
			continue
		}
		if was[k.id] == nil {
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

// directCall reads a call of which a node tells; nil if the node does not serve it.
func (c *controller) directCall(n *node, d *control.DirectCall) *directCall {
	if !n.has(d.Service, d.Method) || d.Began < 0 || d.Took < 0 {
		c.count.Malformed++
		return nil
	}
	return &directCall{
		id: rpcpacket.ID(d.ID), parent: rpcpacket.ID(d.Parent), caller: wal.Node{Address: d.Caller, Incarnation: d.Incarnation}, callee: n.logged(),
		service: d.Service, method: d.Method, attempt: d.Attempt, began: c.now.Add(-time.Duration(d.Began) * time.Microsecond), told: c.now,
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

// forgetTold forgets what a node has told that has ended, or begun anew.
func (c *controller) forgetTold(a netip.Addr) {
	by := c.told.nodes[a]
	if by == nil {
		return
	}
	for _, k := range by.running {
		delete(c.told.calls, k.id)
	}
	delete(c.told.nodes, a)
}

// traceDirectSent follows a direct call that is under way.
func (c *controller) traceDirectSent(k *directCall) {
	if c.tracer == nil {
		return
	}
	c.tracer(TraceRecord{
		Time: k.began, Stage: TraceSent, Call: k.id, Node: k.callee, Parent: k.parent, Caller: k.caller, Service: k.service, Method: k.method,
		Policy: rpcpacket.PolicyRecover, Sampled: true,
	})
	stage := TraceDelivered
	if k.attempt > 0 {
		stage = TraceReplayed
	}
	c.tracer(TraceRecord{Time: k.began, Stage: stage, Call: k.id, Node: k.callee, Attempt: k.attempt})
}

// traceDirect follows a direct call to its end.
func (c *controller) traceDirect(k *directCall, code fault.Code, at time.Time) {
	if c.tracer == nil {
		return
	}
	c.traceDirectSent(k)
	c.tracer(TraceRecord{Time: at, Stage: TraceReplied, Call: k.id, Node: k.callee, Code: code})
	c.tracer(TraceRecord{Time: at, Stage: TraceAnswered, Call: k.id, Node: k.caller, Code: code})
}

// state is a direct call as people see it.
func (k *directCall) state() CallState {
	s := CallState{
		Call: k.id.String(), Caller: k.caller.Address, Callee: k.callee.Address, Service: k.service, Method: k.method, Stage: stageNames[stageRunning],
		Policy: rpcpacket.PolicyRecover.String(), Checkpoint: callgraph.B1.String(), A1: k.began, B1: k.began, Attempts: int(k.attempt), Told: k.told,
	}
	if !k.parent.IsZero() {
		s.Parent = k.parent.String()
	}
	return s
}

// toldAfter lists the direct calls under way that a query means, in the order of their ids.
func (c *controller) toldAfter(q *CallQuery) (all []*directCall) {
	for id, k := range c.told.calls {
		meant := !q.Node.IsValid() || k.caller.Address == q.Node || k.callee.Address == q.Node
		if _, known := c.table.View(id); meant && !known && compareIDs(id, q.From.direct) > 0 {
			all = append(all, k)
		}
	}
	slices.SortFunc(all, func(a, b *directCall) int { return compareIDs(a.id, b.id) })
	return all
}

// chain is a call and those on whose behalf it was made, innermost first, as far as they are
// under way; direct ones and others may follow each other.
func (c *controller) chain(id rpcpacket.ID) (all []CallState) {
	for range maxChain {
		views := c.graph.Chain(id)
		all = append(all, c.states(views)...)
		if len(views) > 0 {
			id = views[len(views)-1].Parent
		}
		k := c.told.calls[id]
		if k == nil {
			break
		}
		all = append(all, k.state())
		id = k.parent
	}
	return all
}

// maxChain bounds a chain: who has made a call is what nodes say.
const maxChain = 256

// toldOf lists the direct calls that a node has out, or serves, oldest first.
func (c *controller) toldOf(meant func(*directCall) bool) (all []CallState) {
	var calls []*directCall
	for _, k := range c.told.calls {
		if meant(k) {
			calls = append(calls, k)
		}
	}
	slices.SortFunc(calls, func(a, b *directCall) int { return cmp.Or(a.began.Compare(b.began), compareIDs(a.id, b.id)) })
	for _, k := range calls {
		all = append(all, k.state())
	}
	return all
}
