package gatekeeper

import (
	"net/netip"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/callgraph"
	"github.com/bifrost-rack/bifrost/gatekeeper/execution"
	"github.com/bifrost-rack/bifrost/gatekeeper/lease"
	"github.com/bifrost-rack/bifrost/gatekeeper/recovery"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/frame"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// What the switch holds of calls with a policy other than none is judged by the
// execution.Table, and by nobody else: this file hands it in, and
// exactly.go carries out what the Table wants. Calls of policy none, which
// are held for their pointers only, go the way of call.go and reply.go.
//
//	held packet ─▶ Table ─▶ Output: records ─▶ batch ─▶ log
//	                          └─▶ actions ─▶ leases, memory blades, packets (which wait for the log)
//	                                            └─▶ answers ─▶ Table

// arrival is a held call while the Table decides about it, and while its leases
// are judged.
type arrival struct {
	from, to *node
	h        *held
	m        *rpcpacket.Message
}

// identity is a node as the log knows it.
func (n *node) logged() wal.Node { return wal.Node{Address: n.address, Incarnation: n.incarnation} }

// whole puts held messages together that have come in parts. It reports false
// while parts are missing.
func (c *controller) whole(h *held, m *rpcpacket.Message) bool {
	if m.Flags&rpcpacket.FlagPart == 0 {
		return true
	}
	b, err := c.parts.Add(h.src, m, h.payload)
	if err == nil && b != nil {
		h.payload = b
		*m, err = rpcpacket.Parse(b)
	}
	if err != nil {
		c.count.Malformed++
		c.logger.Debug("part of a call dropped", "from", h.src, "error", err)
	}
	return err == nil && b != nil
}

// exactRequest takes a call, one-way or checkpoint.
func (c *controller) exactRequest(n *node, h *held, m *rpcpacket.Message) {
	q := execution.Request{Message: m, Datagram: h.payload, Caller: n.logged(), Now: c.now}
	c.arriving = &arrival{from: n, h: h, m: m}
	defer func() { c.arriving = nil }()
	if m.Flags&rpcpacket.FlagCheckpoint != 0 && h.dst == rackaddr.Gatekeeper {
		if why := c.tooLarge(len(h.payload)); why != nil {
			c.refuse(h, &m.Header, why)
			return
		}
		if c.overloaded(!c.pressure.takesAnswer(0, len(h.payload))) {
			return
		}
		take := c.table.Checkpoint
		if m.Flags&rpcpacket.FlagEnlist != 0 {
			take = c.table.HandOver
		}
		v, o := take(q)
		c.judgedExact(v)
		c.execute(o)
		return
	}
	if m.Flags&rpcpacket.FlagEnlist != 0 && h.dst == rackaddr.Gatekeeper {
		c.arriving = nil
		c.enlistment(n, h, m)
		return
	}
	if m.Flags&rpcpacket.FlagSettled != 0 && h.dst == rackaddr.Gatekeeper {
		c.settledSession(n, m)
		return
	}
	if c.cfg.Ledgers == LedgersTruth && rackaddr.NodePrefix.Contains(h.dst) {
		c.loanRequest(n, h, m)
		return
	}
	switch {
	case m.Service != serviceHash(h.dst):
		c.malformedCall(h, &m.Header, fault.New(fault.BadRequest, "call", "the header names another service than the address %s", h.dst))
		return
	case m.Flags&rpcpacket.FlagHeld == 0:
		c.malformedCall(h, &m.Header, fault.New(fault.BadRequest, "call", "a call of policy %s must ask to be held", m.Flags.Policy()))
		return
	case m.Flags&rpcpacket.FlagSession != 0 && m.Floor > m.Call.Sequence():
		c.malformedCall(h, &m.Header, fault.New(fault.BadRequest, "call", "floor %d above its own sequence number %d", m.Floor, m.Call.Sequence()))
		return
	}
	if _, known := c.table.Where(m.Call); known {
		if c.overloaded(c.pressure.stalled) {
			return
		}
	} else {
		if why := c.itsID(n, &m.Header); why != nil {
			c.refuse(h, &m.Header, why)
			return
		}
		if m.Flags&rpcpacket.FlagSession != 0 && m.CallerIncarnation == n.incarnation { // also of a call that is dropped now: it makes room
			c.execute(c.table.Settle(n.address, m.Call.Session(), m.Floor))
		}
		if why := c.tooLarge(len(h.payload)); why != nil {
			c.refuse(h, &m.Header, why)
			return
		}
		depth := c.table.Depth(m.Parent)
		if c.overloaded(c.leases.Pending() >= c.cfg.Limits.Held || c.pressure.keepsAway(depth, len(h.payload))) {
			return
		}
		if c.overloaded(c.pressure.exceeds(c.table.Charged(n.address), len(h.payload), callMark(depth))) {
			return
		}
		to, why := c.chooseExact(h, &m.Header)
		if why == nil && c.park(h, m) {
			return
		}
		if why != nil {
			q.Refusal = why
		} else {
			c.arriving.to = to
			q.Callee, q.Serial = to.logged(), c.services[h.dst].stateful()
		}
	}
	v, o := c.table.Call(q)
	c.judgedExact(v)
	if v == execution.Refused && q.Refusal != nil {
		c.exactEvent(CallRefused, m.Call, 0, q.Refusal)
	}
	if v == execution.Done && m.Type == rpcpacket.Call {
		c.count.Recalled++
	}
	c.execute(o)
}

// chooseExact finds the callee of an exactly-once call. If all that served the
// method have failed and are to come back, or move, it is one of these: the call waits.
func (c *controller) chooseExact(h *held, m *rpcpacket.Header) (*node, *fault.Error) {
	n, why := c.choose(h, m)
	if why == nil {
		return n, nil
	}
	if s := c.services[h.dst]; s != nil {
		if x := c.awaited(s, m.Method, m.Call); x != nil {
			return x.node, nil
		}
	}
	return nil, why
}

// settledSession takes a client's word that it asks no more for calls of a session. It counts
// from the present incarnation only.
func (c *controller) settledSession(n *node, m *rpcpacket.Message) {
	if m.CallerIncarnation != n.incarnation || m.Flags&rpcpacket.FlagSession == 0 || m.Call.Sequence() != 0 {
		c.count.Malformed++
		return
	}
	if s := n.sessions[m.Call.Session()]; s != nil {
		c.settle(n, s, m.Floor)
	}
	c.settleLoans(n, m.Call.Session(), m.Floor)
	c.execute(c.table.Settle(n.address, m.Call.Session(), m.Floor))
	if c.pressure.stalled {
		return // it says so again
	}
	ack := rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Ack, Call: m.Call, Floor: m.Floor, Flags: rpcpacket.FlagReleased}}
	c.send(0, frame.UDP6{
		Src: netip.AddrPortFrom(rackaddr.Gatekeeper, rackaddr.PortRPC), Dst: netip.AddrPortFrom(n.address, rackaddr.PortRPC), Payload: ack.Append(nil),
	}.Append(nil))
}

// exactReply takes the answer to a call, or the completion of a one-way.
func (c *controller) exactReply(n *node, h *held, m *rpcpacket.Message) {
	if c.overloaded(c.pressure.stalled || c.table.Runs(m.Call) && !c.pressure.takesAnswer(c.table.DepthOf(m.Call), len(h.payload))) {
		return
	}
	if e, at, unborn := c.table.Unborn(m); unborn && c.nodeOrFallen(at) != nil {
		c.askToEnlist(e, at, m.Call)
		return // it comes again
	}
	v, o := c.table.Reply(execution.Response{Message: m, Datagram: h.payload, Callee: n.logged(), Now: c.now})
	if v != execution.Fresh {
		c.judgedExact(v)
	} else {
		c.graph.Finished(m.Call, c.now)
		c.traceCode(TraceReplied, m.Call, n.logged(), 0, m.Outcome())
	}
	c.execute(o)
}

// judgedExact counts what became of a held message.
func (c *controller) judgedExact(v execution.Verdict) {
	switch v {
	case execution.Fresh:
		c.count.Calls++
	case execution.Refused, execution.Diverges:
		c.count.Refused++
	case execution.Stale:
		c.count.Late++
	default:
		c.count.Duplicates++
	}
}

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
func (c *controller) keepAll(put []wal.Record, strike []wal.Key) {
	for _, r := range put {
		c.put(r)
		if r.Kind == wal.KindCall || r.Kind == wal.KindReply {
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
		c.logger.Error("an execution has diverged", "execution", a.Parent, "call", a.Call)
	case execution.Aborted:
		c.count.Aborted++
		c.exactEvent(CallEnded, a.Call, 0, a.Why)
		c.logger.Warn("call given up", "call", a.Call, "error", a.Why)
	}
}

// admitCall asks the call graph and the lease machine about a new call.
func (c *controller) admitCall(id rpcpacket.ID) {
	k := c.arriving
	s := c.services[k.h.dst]
	call := callgraph.Call{
		ID: id, Parent: k.m.Parent, Policy: k.m.Flags.Policy(), Pointers: k.m.Pointers, Caller: k.from.identity(), Callee: k.to.identity(),
		Service: s.name, Method: s.methodName(k.to, k.m.Method), Serial: s.stateful(), Oneway: k.m.Type == rpcpacket.Oneway,
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
func (c *controller) dropAdmitted(id rpcpacket.ID) {
	v, known := c.graph.Remove(id)
	if !known || len(v.Pointers) == 0 {
		return
	}
	from, to, parent := v.Caller.Address, v.Callee.Address, v.Parent
	if _, known := c.table.Where(parent); !known {
		parent = rpcpacket.ID{}
	}
	if v.Oneway {
		c.submit(lease.Withdrawn{ID: id, Parent: parent, Caller: from, Callee: to, Pointers: v.Pointers}, nil)
	} else {
		c.submit(lease.Reply{ID: id, Caller: from, Callee: to}, nil)
	}
}

// handOver moves control of what a one-way hands over, unless it has moved.
func (c *controller) handOver(id rpcpacket.ID) {
	v, _ := c.table.View(id)
	e := lease.Oneway{ID: id, Caller: v.Caller, Callee: v.Callee.Address, Pointers: c.pointersOf(wal.KindCall, id)}
	c.submit(e, verdict(func(lease.Step, error) { c.execute(c.table.Handed(id)) }))
}

// takeBack gives an execution that was rolled back again what it has handed over by
// one-ways that have not left, and then goes on.
func (c *controller) takeBack(parent rpcpacket.ID, then func()) {
	ids := c.table.Withheld(parent)
	left := len(ids)
	if left == 0 {
		then()
		return
	}
	for _, id := range ids {
		v, _ := c.table.View(id)
		e := lease.Withdrawn{ID: id, Parent: parent, Caller: v.Caller, Callee: v.Callee.Address, Pointers: c.pointersOf(wal.KindCall, id)}
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
	b, ok := c.packetOf(wal.KindCall, a.Call)
	if !ok {
		return
	}
	d := rpcpacket.Delivery{Number: rpcpacket.DeliveryNumber(c.run, a.Number), Callee: a.To.Incarnation, Order: a.Order, Attempt: a.Attempt, Replay: a.Replay, Trailer: a.Journal}
	payload := rpcpacket.AppendReleased(nil, b, d)
	if budget := c.budget(); len(payload) > budget {
		d.Trailer = trailer.Spilled(len(a.Journal)) // the callee asks for it
		payload = rpcpacket.AppendReleased(nil, b, d)
		if len(payload) > budget { // and for this
			if payload, ok = rpcpacket.First(payload, budget, 0, 0); !ok {
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
	b, ok := c.packetOf(wal.KindReply, a.Call)
	if !ok || !known {
		return // the caller asks again
	}
	from := v.Callee.Address
	if !from.IsValid() {
		from = rackaddr.ServiceOf(v.Header.Service)
	}
	payload := rpcpacket.AppendReleased(nil, b, rpcpacket.Delivery{
		Callee: v.Callee.Incarnation, Order: v.Order, Replay: a.Replay || c.anotherCaller(&v),
	})
	if budget := c.budget(); len(payload) > budget {
		if payload, ok = rpcpacket.First(payload, budget, 0, 0); !ok {
			return
		}
	}
	c.send(0, frame.UDP6{
		Src: netip.AddrPortFrom(from, rackaddr.PortRPC), Dst: netip.AddrPortFrom(a.To, rackaddr.PortRPC), Payload: payload,
	}.Append(nil))
	c.trace(TraceAnswered, a.Call, wal.Node{Address: a.To}, v.Attempts)
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
	m := rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Ack, Call: a.Call, Flags: rpcpacket.FlagReleased}}
	if v, known := c.table.View(a.Call); a.Done {
		m.Flags |= rpcpacket.FlagDone
		m.Floor = rpcpacket.DeliveryNumber(c.run, a.Number)
	} else if a.Replay || known && c.anotherCaller(&v) {
		m.Flags |= rpcpacket.FlagReplay
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
	var results []dsmpacket.Pointer
	if !a.Aborted {
		results = c.resultsOf(a.Call)
	}
	moves := len(results) > 0
	if c.resumed[a.Call] { // it may have been handed over before
		results = c.stillOf(v.Callee.Address, v.Caller, results)
		delete(c.resumed, a.Call)
	}
	returned := func(why *fault.Error) {
		if b, ok := c.packetOf(wal.KindReply, a.Call); ok && moves && why == nil {
			c.execute(c.table.Moved(a.Call, b, c.now))
		}
		c.handedEnds(a.Call)
		c.graph.Returned(a.Call, c.now)
		c.endHoldings(a.Call, v.Callee.Address, !a.Aborted && c.keepsState(v.Header.Service))
		// Of a direct caller the Table knows nothing, and its regions are its own.
		if p := c.onBehalf(v); moves && !p.IsZero() && c.ended(p) {
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
func (c *controller) resultsOf(id rpcpacket.ID) []dsmpacket.Pointer {
	return c.pointersOf(wal.KindReply, id)
}

// pointersOf returns the pointers of a call's or a reply's record.
func (c *controller) pointersOf(kind wal.Kind, id rpcpacket.ID) []dsmpacket.Pointer {
	b, ok := c.packetOf(kind, id)
	if !ok {
		return nil
	}
	m, err := rpcpacket.Parse(b)
	if err != nil || m.Type == rpcpacket.Exception {
		return nil
	}
	return m.Pointers
}

// stillOf leaves out the pointers that the caller has been given already.
func (c *controller) stillOf(callee, caller netip.Addr, all []dsmpacket.Pointer) (left []dsmpacket.Pointer) {
	for _, p := range all {
		if r, ok := c.leases.Find(p); ok && (r.Controller == callee || r.Controller != caller) {
			left = append(left, p)
		}
	}
	return left
}

// packetOf returns the packet of a record, logged or about to be.
func (c *controller) packetOf(kind wal.Kind, id rpcpacket.ID) ([]byte, bool) {
	b, ok, _ := c.readPacket(kind, id)
	return b, ok
}

// readPacket is packetOf, and tells when the log cannot be read: perhaps another Gatekeeper
// has it.
func (c *controller) readPacket(kind wal.Kind, id rpcpacket.ID) (b []byte, ok bool, err error) {
	key := wal.Key{Kind: kind, ID: wal.ID(id)}
	if b, ok := c.fresh[key]; ok {
		return b, true, nil
	}
	if !c.logging() {
		return nil, false, nil
	}
	r, ok, err := c.cfg.Store.Get(kind, wal.ID(id))
	if err != nil {
		c.count.Failures++
		c.logger.Error("the log does not give a packet back", "record", key, "error", err)
		return nil, false, err
	}
	return r.Packet, ok, nil
}

// beginning is a question for a durable main that waits until what the former run
// did is rolled back.
type beginning struct {
	port *port
	ask  control.Message
	node netip.Addr // that asks
}

// state tells a node what is logged for it.
func (c *controller) state(p *port, m control.Message) error {
	var q control.State
	if err := m.Decode(&q); err != nil {
		return err
	}
	n, err := c.nodeAt(p, "state", q.Node, q.Incarnation)
	if err != nil {
		return err
	}
	if q.Message == (control.ExecutionID{}) && q.Execution == (control.ExecutionID{}) {
		if err := checkName("state", q.Name); err != nil {
			return err
		}
	}
	switch {
	case q.Message != control.ExecutionID{}:
		return c.payload(p, m, &q, n)
	case q.Execution != control.ExecutionID{}:
		journal, ok := c.table.Journal(rpcpacket.ID(q.Execution), n.logged())
		if !ok {
			return fault.New(fault.Stale, "state", "execution %s does not run at node %s", q.Execution, n.address)
		}
		c.answer(p, m, control.PartOf(journal, q.Offset, 0))
		return nil
	case !q.Main:
		if err := c.claim(n, claim{claimService, q.Name}); err != nil {
			return err
		}
		hash := serviceHash(rackaddr.Service(q.Name))
		sections, next := c.table.State(hash)
		part := control.PartOf(sections, q.Offset, next)
		first, unsettled := c.table.First(hash)
		c.execute(execution.Output{}) // the first call may have to be delivered again
		part.First, part.Unsettled = control.ExecutionID(first), unsettled
		c.answer(p, m, part)
		return nil
	}
	if err := c.claim(n, claim{claimMain, q.Name}); err != nil {
		return err
	}
	if err := c.mayKeep(n, "main "+q.Name); err != nil {
		return err
	}
	id := endpoint.MainID(q.Name)
	if q.Offset > 0 { // it has begun
		c.answerMain(beginning{p, m, n.address}, id, q.Offset, false)
		return nil
	}
	var birth uint64
	if n.ledger != nil && n.ledger.Stays {
		birth = n.ledger.Birth
	}
	o, err := c.table.Begin(id, q.Name, n.logged(), m.ID, birth)
	if former, ok := c.beginnings[id]; ok && former.node != n.address && err == nil {
		c.fail(former.port, former.ask, fault.New(fault.BadRequest, "main "+q.Name, "node %s runs this main now", n.address))
	}
	c.beginnings[id] = beginning{p, m, n.address}
	if err != nil {
		delete(c.beginnings, id)
		return err
	}
	c.execute(o)
	return nil
}

// payload tells a node a part of the payload of a logged call that it serves, or of
// the logged answer to one that it has made.
func (c *controller) payload(p *port, ask control.Message, q *control.State, n *node) error {
	id, kind := rpcpacket.ID(q.Message), wal.KindCall
	v, known := c.table.View(id)
	its := v.Callee == n.logged()
	if q.Answer {
		kind, its = wal.KindReply, v.Caller == n.address
	}
	b, ok, err := c.readPacket(kind, id)
	switch {
	case err != nil:
		return nil // no answer: the node asks again, and whoever has the log by then answers
	case !known || !its || !ok:
		return fault.New(fault.Stale, "state", "%s is not logged for node %s", q.Of(), n.address)
	}
	m, err := rpcpacket.Parse(b)
	if err != nil {
		return err
	}
	c.answer(p, ask, control.PartOf(m.Payload, q.Offset, 0))
	return nil
}

// mainEnded takes a node's word that a durable main is over. Who has told it is answered when that is logged.
func (c *controller) mainEnded(p *port, m control.Message, n *node, q *control.EndedMain) error {
	id := rpcpacket.ID(q.Execution)
	out, err := c.table.EndMain(id, n.logged(), q.Index)
	if err != nil {
		return err
	}
	c.execute(out)
	c.endHoldings(id, n.address, false)
	c.answer(p, m, nil)
	return nil
}

// begun answers the question for a main that may go on.
func (c *controller) begun(a execution.Begun) {
	q, ok := c.beginnings[a.Main]
	if !ok || q.ask.ID != a.Run {
		return // it asks again
	}
	delete(c.beginnings, a.Main)
	c.answerMain(q, a.Main, 0, a.Over)
}

func (c *controller) answerMain(q beginning, id rpcpacket.ID, offset uint64, over bool) {
	state, journal, index := c.table.Main(id)
	part := control.PartOf(append(state[:len(state):len(state)], journal...), offset, uint64(index))
	part.Done, part.Key, part.Memory = over, c.secret.Main(id), control.ExecutionID(c.secret.ToMemory(id))
	part.Ledger, part.Handed = c.table.Direct(id)
	part.Run = c.table.Run(id)
	c.answer(q.port, q.ask, part)
}
