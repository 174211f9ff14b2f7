package gatekeeper

import (
	"net/netip"

	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/gatekeeper/callgraph"
	"github.com/bifrost-rack/bifrost/gatekeeper/execution"
	"github.com/bifrost-rack/bifrost/gatekeeper/lease"
	"github.com/bifrost-rack/bifrost/gatekeeper/log"
	"github.com/bifrost-rack/bifrost/gatekeeper/recovery"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/frame"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// execute writes down what the Table of executions has changed, and carries out
// what it wants.
func (c *controller) execute(o execution.Output) {
	c.keepAll(o.Put, o.Delete)
	for _, a := range o.Actions {
		c.todo = append(c.todo, a)
	}
	if c.lastAgain.IsZero() && c.table.Lonely() {
		c.lastAgain, c.timers = c.now, true
	}
	c.work()
}

// keepAll puts a core's records into the input's batch.
func (c *controller) keepAll(put []log.Record, strike []log.Key) {
	for _, r := range put {
		c.put(r)
		if r.Kind == log.KindCall || r.Kind == log.KindReply {
			c.fresh[r.Key()] = r.Packet
		}
	}
	for _, k := range strike {
		c.drop(k.Kind, k.ID)
		delete(c.fresh, k)
	}
}

// submitted says that all records so far are with the log, which gives them back
// from now on. Without a log they stay here.
func (c *controller) submitted() {
	if len(c.fresh) > 0 && c.logging() {
		clear(c.fresh)
	}
}

// work carries out the actions of both cores in their order, those included that
// follow from the first ones.
func (c *controller) work() {
	if c.working {
		return
	}
	c.working = true
	for len(c.todo) > 0 {
		a := c.todo[0]
		c.todo = c.todo[1:]
		switch a := a.(type) {
		case execution.Action:
			c.performExact(a)
		case recovery.Action:
			c.performRecovery(a)
		}
	}
	c.todo, c.working = nil, false
}

func (c *controller) performExact(a execution.Action) {
	switch a := a.(type) {
	case execution.Admit:
		c.admitCall(a.Call)
	case execution.Drop:
		c.dropAdmitted(a.Call)
	case execution.Hand:
		c.handOver(a.Call)
	case execution.Deliver:
		c.deliverCall(a)
	case execution.Answer:
		c.answerCall(a)
	case execution.Except:
		if k := c.arriving; k != nil && k.m.Call == a.Call {
			c.refuse(k.h, &k.m.Header, a.Why)
		}
	case execution.Ack:
		c.ackCall(a)
	case execution.Commit:
		c.commit(a.Run)
	case execution.Return:
		c.returnCall(a)
	case execution.Rollback:
		c.rollback(a.Run)
	case execution.Begun:
		c.begun(a)
	case execution.Whole:
		c.recover(c.recoveries.Whole(a.Node, c.now))
	case execution.Diverged:
		c.count.Diverged++
		c.event(Event{Kind: CallDiverged, Call: a.Call.String(), Message: "the execution " + a.Parent.String() + " has made another call than before"})
		c.log.Error("an execution has diverged", "execution", a.Parent, "call", a.Call)
	case execution.Aborted:
		c.count.Aborted++
		c.exactEvent(CallEnded, a.Call, 0, a.Why)
		c.log.Warn("call given up", "call", a.Call, "error", a.Why)
	}
}

// admitCall asks the call graph and the lease machine about a new call.
func (c *controller) admitCall(id rpc.ID) {
	k := c.arriving
	s := c.services[k.h.dst]
	call := callgraph.Call{
		ID: id, Parent: k.m.Parent, Policy: k.m.Flags.Policy(), Pointers: k.m.Pointers, Caller: k.from.identity(), Callee: k.to.identity(),
		Service: s.name, Method: s.methodName(k.to, k.m.Method), Serial: s.stateful(), Oneway: k.m.Type == rpc.Oneway,
	}
	refuse := func(why *fault.Error) {
		c.count.Refused++
		c.exactEvent(CallRefused, id, 0, why)
		c.execute(c.table.Admitted(id, why))
	}
	if why := c.enter(call); why != nil {
		refuse(why)
		return
	}
	c.traceSent(&call)
	if len(k.m.Pointers) == 0 {
		c.execute(c.table.Admitted(id, nil))
		return
	}
	v := verdict(func(st lease.Step, err error) {
		c.arriving = k
		defer func() { c.arriving = nil }()
		switch {
		case err != nil:
			c.dropAdmitted(id)
			refuse(fault.New(fault.Overloaded, "call", "the switch has no room for the lease: %v", err))
		case st.Outcome == lease.Refused:
			c.graph.Remove(id)
			refuse(&fault.Error{Code: st.Refusal.Code(), Op: "call", Msg: st.Refusal.Error()})
		default:
			c.execute(c.table.Admitted(id, nil))
		}
	})
	if call.Oneway {
		c.submit(lease.Oneway{ID: id, Caller: k.from.address, Callee: k.to.address, Pointers: k.m.Pointers}, v)
	} else {
		c.submit(lease.Call{ID: id, Parent: k.m.Parent, Caller: k.from.address, Callee: k.to.address, Pointers: k.m.Pointers}, v)
	}
}

// dropAdmitted takes a call out of graph and leases that was let in and does not
// run. What a one-way has handed over goes back.
func (c *controller) dropAdmitted(id rpc.ID) {
	v, known := c.graph.Remove(id)
	if !known || len(v.Pointers) == 0 {
		return
	}
	from, to, parent := v.Caller.Address, v.Callee.Address, v.Parent
	if _, known := c.table.Where(parent); !known {
		parent = rpc.ID{}
	}
	if v.Oneway {
		c.submit(lease.Withdrawn{ID: id, Parent: parent, Caller: from, Callee: to, Pointers: v.Pointers}, nil)
	} else {
		c.submit(lease.Reply{ID: id, Caller: from, Callee: to}, nil)
	}
}

// handOver moves control of what a one-way hands over, unless it has moved.
func (c *controller) handOver(id rpc.ID) {
	v, _ := c.table.View(id)
	e := lease.Oneway{ID: id, Caller: v.Caller, Callee: v.Callee.Address, Pointers: c.pointersOf(log.KindCall, id)}
	c.submit(e, verdict(func(lease.Step, error) { c.execute(c.table.Handed(id)) }))
}

// takeBack gives an execution that was rolled back again what it has handed over by
// one-ways that have not left, and then goes on.
func (c *controller) takeBack(parent rpc.ID, then func()) {
	ids := c.table.Withheld(parent)
	left := len(ids)
	if left == 0 {
		then()
		return
	}
	for _, id := range ids {
		v, _ := c.table.View(id)
		e := lease.Withdrawn{ID: id, Parent: parent, Caller: v.Caller, Callee: v.Callee.Address, Pointers: c.pointersOf(log.KindCall, id)}
		c.submit(e, verdict(func(lease.Step, error) {
			if left--; left == 0 {
				then()
			}
		}))
	}
}

// deliverCall releases a logged call to its callee.
func (c *controller) deliverCall(a execution.Deliver) {
	c.graph.Delivered(a.Call, callgraph.Node(a.To), c.now)
	n := c.nodes[a.To.Address]
	v, known := c.table.View(a.Call)
	if n == nil || n.incarnation != a.To.Incarnation || n.blade.port == nil || !known {
		return // it has failed; or the call has ended, meanwhile
	}
	b, ok := c.packetOf(log.KindCall, a.Call)
	if !ok {
		return
	}
	d := rpc.Delivery{Number: rpc.DeliveryNumber(c.run, a.Number), Callee: a.To.Incarnation, Order: a.Order, Attempt: a.Attempt, Replay: a.Replay, Trailer: a.Journal}
	payload := rpc.AppendReleased(nil, b, d)
	if budget := c.budget(); len(payload) > budget {
		d.Trailer = trailer.Spilled(len(a.Journal)) // the callee asks for it
		payload = rpc.AppendReleased(nil, b, d)
		if len(payload) > budget { // and for this
			if payload, ok = rpc.First(payload, budget, 0); !ok {
				return
			}
		}
	}
	c.count.Released++
	if a.Resumed {
		c.count.Resumed++
	}
	c.send(hopOf(n.blade.port.num), frame.UDP6{
		Src: netip.AddrPortFrom(v.Caller, rackaddr.PortRPC), Dst: netip.AddrPortFrom(rackaddr.ServiceOf(v.Header.Service), rackaddr.PortRPC),
		Payload: payload,
	}.Append(nil))
	stage := TraceDelivered
	if a.Replay {
		stage = TraceReplayed
	}
	c.trace(stage, a.Call, a.To, a.Attempt)
}

// budget is how many bytes a datagram has at most.
func (c *controller) budget() int { return min(c.cfg.MTU-netio.Overhead, netio.MaxDatagram) }

// answerCall sends a caller the logged outcome.
func (c *controller) answerCall(a execution.Answer) {
	v, known := c.table.View(a.Call)
	b, ok := c.packetOf(log.KindReply, a.Call)
	if !ok || !known {
		return // the caller asks again
	}
	from := v.Callee.Address
	if !from.IsValid() {
		from = rackaddr.ServiceOf(v.Header.Service)
	}
	payload := rpc.AppendReleased(nil, b, rpc.Delivery{
		Callee: v.Callee.Incarnation, Order: v.Order, Replay: a.Replay || c.anotherCaller(&v),
	})
	if budget := c.budget(); len(payload) > budget {
		if payload, ok = rpc.First(payload, budget, 0); !ok {
			return
		}
	}
	c.send(0, frame.UDP6{
		Src: netip.AddrPortFrom(from, rackaddr.PortRPC), Dst: netip.AddrPortFrom(a.To, rackaddr.PortRPC), Payload: payload,
	}.Append(nil))
	c.trace(TraceAnswered, a.Call, log.Node{Address: a.To}, v.Attempts)
}

// anotherCaller reports whether a call was logged when its caller was in another
// incarnation: the answer is then no receipt for the trailer that the present one has
// sent with it.
func (c *controller) anotherCaller(v *execution.View) bool {
	n := c.nodes[v.Caller]
	return n != nil && n.incarnation != v.Header.CallerIncarnation
}

// ackCall tells a node that a message of its own is logged.
func (c *controller) ackCall(a execution.Ack) {
	m := rpc.Message{Header: rpc.Header{Type: rpc.Ack, Call: a.Call, Flags: rpc.FlagReleased}}
	if v, known := c.table.View(a.Call); a.Done {
		m.Flags |= rpc.FlagDone
		m.Floor = rpc.DeliveryNumber(c.run, a.Number)
	} else if a.Replay || known && c.anotherCaller(&v) {
		m.Flags |= rpc.FlagReplay
	}
	c.send(0, frame.UDP6{
		Src: netip.AddrPortFrom(rackaddr.Gatekeeper, rackaddr.PortRPC), Dst: netip.AddrPortFrom(a.To, rackaddr.PortRPC), Payload: m.Append(nil),
	}.Append(nil))
}

// returnCall ends the leases of a call and hands its results over.
func (c *controller) returnCall(a execution.Return) {
	v, known := c.table.View(a.Call)
	if !known {
		return
	}
	var results []packet.Pointer
	if !a.Aborted {
		results = c.resultsOf(a.Call)
	}
	moves := len(results) > 0
	if c.resumed[a.Call] { // it may have been handed over before
		results = c.stillOf(v.Callee.Address, v.Caller, results)
		delete(c.resumed, a.Call)
	}
	returned := func(why *fault.Error) {
		if b, ok := c.packetOf(log.KindReply, a.Call); ok && moves && why == nil {
			c.execute(c.table.Moved(a.Call, b, c.now))
		}
		c.graph.Returned(a.Call, c.now)
		c.endHoldings(a.Call, v.Callee.Address, !a.Aborted && c.keepsState(v.Header.Service))
		if p := c.onBehalf(v); !p.IsZero() && c.ended(p) {
			c.endHoldings(p, v.Caller, false) // it had given the call up, and nobody hears of the results
		}
		c.execute(c.table.Returned(a.Call, why, c.now))
	}
	if !v.Lends && len(results) == 0 {
		returned(nil)
		return
	}
	c.submit(lease.Reply{ID: a.Call, Caller: v.Caller, Callee: v.Callee.Address, Results: results}, verdict(func(s lease.Step, _ error) {
		if s.Refusal != nil {
			returned(&fault.Error{Code: s.Refusal.Code(), Op: "reply", Msg: s.Refusal.Error()})
			return
		}
		returned(nil)
	}))
}

// resultsOf returns the pointers of a logged reply; an exception hands nothing over.
func (c *controller) resultsOf(id rpc.ID) []packet.Pointer {
	return c.pointersOf(log.KindReply, id)
}

// pointersOf returns the pointers of a call's or a reply's record.
func (c *controller) pointersOf(kind log.Kind, id rpc.ID) []packet.Pointer {
	b, ok := c.packetOf(kind, id)
	if !ok {
		return nil
	}
	m, err := rpc.Parse(b)
	if err != nil || m.Type == rpc.Exception {
		return nil
	}
	return m.Pointers
}

// stillOf leaves out the pointers that the caller has been given already.
func (c *controller) stillOf(callee, caller netip.Addr, all []packet.Pointer) (left []packet.Pointer) {
	for _, p := range all {
		if r, ok := c.leases.Find(p); ok && (r.Controller == callee || r.Controller != caller) {
			left = append(left, p)
		}
	}
	return left
}

// packetOf returns the packet of a record, logged or about to be.
func (c *controller) packetOf(kind log.Kind, id rpc.ID) ([]byte, bool) {
	key := log.Key{Kind: kind, ID: log.ID(id)}
	if b, ok := c.fresh[key]; ok {
		return b, true
	}
	if !c.logging() {
		return nil, false
	}
	r, ok, err := c.cfg.Store.Get(kind, log.ID(id))
	if err != nil {
		c.count.Failures++
		c.log.Error("the log does not give a packet back", "record", key, "error", err)
	}
	return r.Packet, ok && err == nil
}
