package gatekeeper

import (
	"net/netip"

	"github.com/bifrost-rack/bifrost/gatekeeper/execution"
	"github.com/bifrost-rack/bifrost/gatekeeper/log"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/frame"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
)

// What the switch holds of calls with a policy other than none is judged by the
// execution.Table, and by nobody else: this file hands it in, and
// perform_exactly.go carries out what the Table wants. Calls of policy none, which
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
	m        *rpc.Message
}

// identity is a node as the log knows it.
func (n *node) logged() log.Node { return log.Node{Address: n.address, Incarnation: n.incarnation} }

// whole puts held messages together that have come in parts. It reports false
// while parts are missing.
func (c *controller) whole(h *held, m *rpc.Message) bool {
	if m.Flags&rpc.FlagPart == 0 {
		return true
	}
	b, err := c.parts.Add(h.src, m, h.payload)
	if err == nil && b != nil {
		h.payload = b
		*m, err = rpc.Parse(b)
	}
	if err != nil {
		c.count.Malformed++
		c.log.Debug("part of a call dropped", "from", h.src, "error", err)
	}
	return err == nil && b != nil
}

// exactRequest takes a call, one-way or checkpoint.
func (c *controller) exactRequest(n *node, h *held, m *rpc.Message) {
	q := execution.Request{Message: m, Datagram: h.payload, Caller: n.logged(), Now: c.now}
	c.arriving = &arrival{from: n, h: h, m: m}
	defer func() { c.arriving = nil }()
	if m.Flags&rpc.FlagCheckpoint != 0 && h.dst == rackaddr.Gatekeeper {
		if c.overloaded(uint64(len(h.payload)) > c.pressure.room) {
			return
		}
		v, o := c.table.Checkpoint(q)
		c.judgedExact(v)
		c.execute(o)
		return
	}
	if m.Flags&rpc.FlagEnlist != 0 && h.dst == rackaddr.Gatekeeper {
		c.arriving = nil
		c.enlistment(n, h, m)
		return
	}
	if m.Flags&rpc.FlagSettled != 0 && h.dst == rackaddr.Gatekeeper {
		c.settledSession(n, m)
		return
	}
	switch {
	case m.Service != serviceHash(h.dst):
		c.malformedCall(h, &m.Header, fault.New(fault.BadRequest, "call", "the header names another service than the address %s", h.dst))
		return
	case m.Flags&rpc.FlagHeld == 0:
		c.malformedCall(h, &m.Header, fault.New(fault.BadRequest, "call", "policy %s of a call that does not ask to be held", m.Flags.Policy()))
		return
	case m.Flags&rpc.FlagSession != 0 && m.Floor > m.Call.Sequence():
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
		if m.Flags&rpc.FlagSession != 0 && m.CallerIncarnation == n.incarnation { // also of a call that is dropped now: it makes room
			c.execute(c.table.Settle(n.address, m.Call.Session(), m.Floor))
		}
		if c.overloaded(c.leases.Pending() >= c.cfg.Limits.Held || c.pressure.new) {
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
	if v == execution.Done && m.Type == rpc.Call {
		c.count.Recalled++
	}
	c.execute(o)
}

// chooseExact finds the callee of an exactly-once call. If all that served the
// method have failed and are to come back, or move, it is one of these: the call waits.
func (c *controller) chooseExact(h *held, m *rpc.Header) (*node, *fault.Error) {
	n, why := c.choose(h, m)
	if why == nil {
		return n, nil
	}
	if s := c.services[h.dst]; s != nil {
		if x := s.waits(m.Method, m.Call); x != nil {
			return x.node, nil
		}
	}
	return nil, why
}

// settledSession takes a client's word that it asks no more for calls of a session. It counts
// from the present incarnation only.
func (c *controller) settledSession(n *node, m *rpc.Message) {
	if m.CallerIncarnation != n.incarnation || m.Flags&rpc.FlagSession == 0 || m.Call.Sequence() != 0 {
		c.count.Malformed++
		return
	}
	if s := n.sessions[m.Call.Session()]; s != nil {
		c.settle(n, s, m.Floor)
	}
	c.execute(c.table.Settle(n.address, m.Call.Session(), m.Floor))
	if c.pressure.stalled {
		return // it says so again
	}
	ack := rpc.Message{Header: rpc.Header{Type: rpc.Ack, Call: m.Call, Floor: m.Floor, Flags: rpc.FlagReleased}}
	c.send(0, frame.UDP6{
		Src: netip.AddrPortFrom(rackaddr.Gatekeeper, rackaddr.PortRPC), Dst: netip.AddrPortFrom(n.address, rackaddr.PortRPC), Payload: ack.Append(nil),
	}.Append(nil))
}

// exactReply takes the answer to a call, or the completion of a one-way.
func (c *controller) exactReply(n *node, h *held, m *rpc.Message) {
	if c.overloaded(c.pressure.stalled || uint64(len(h.payload)) > c.pressure.room && c.table.Runs(m.Call)) {
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
		c.traceCode(TraceReplied, m.Call, n.logged(), 0, codeOf(m))
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
