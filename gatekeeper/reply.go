package gatekeeper

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/lease"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/frame"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wirefmt"
	"github.com/bifrost-rack/bifrost/rpc/direct"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// heldReply takes a reply or exception. It counts only from the node and the
// incarnation that the call was delivered to.
func (c *controller) heldReply(n *node, h *held, m *rpcpacket.Message) {
	if m.CalleeIncarnation != n.incarnation {
		c.count.Foreign++
		return
	}
	var results []dsmpacket.Pointer
	if m.Type == rpcpacket.Reply {
		results = m.Pointers
	}
	k := c.calls[m.Call]
	switch {
	case k == nil && len(results) == 0:
		// A reply to a call that was settled, or held by another Gatekeeper: there
		// is nothing to decide about it, and nothing to vouch for.
		c.release(h, 0)
		return
	case k == nil:
		if k = c.unheldCall(n, h, m); k == nil {
			return
		}
	case k.callee != h.src || k.caller != h.dst || k.incarnation != m.CalleeIncarnation:
		c.count.Foreign++
		return
	}
	switch k.stage {
	case stageWaiting, stageReplying:
		c.count.Duplicates++
	case stageFinished:
		if !c.overloaded(c.pressure.stalled) {
			c.count.Duplicates++
			c.releaseReply(k, h, m)
		}
	case stageRunning:
		if c.overloaded(!c.pressure.takesAnswer(!k.header.Parent.IsZero(), len(h.payload))) {
			return
		}
		k.stage, k.unlogged = stageReplying, h.payload
		c.atB2(k, m)
		c.callEvent(ReplyHeld, k)
		c.submit(lease.Reply{ID: k.id(), Caller: k.caller, Callee: k.callee, Results: results},
			verdict(func(s lease.Step, _ error) { c.replied(k, h, m, s) }))
	}
}

// unheldCall puts a call on record that was not held, when its reply hands over
// regions. Its caller must be a node. Whoever has sent the reply is charged: the caller may know nothing of it.
func (c *controller) unheldCall(n *node, h *held, m *rpcpacket.Message) *call {
	caller := c.nodes[h.dst]
	if caller == nil || m.Flags&rpcpacket.FlagSession == 0 || !rpcpacket.Owns(caller.address, m.Call.Session()) {
		c.count.Foreign++
		return nil
	}
	if c.overloaded(c.charges[n.address] >= c.cfg.Limits.NodeCalls) {
		return nil
	}
	s := caller.sessionOf(m.Call)
	if m.Call.Sequence() < max(s.floor, s.replied[n.address]) {
		c.count.Late++
		return nil
	}
	c.settleWith(s, n.address, m)
	k := &call{
		header: m.Header, caller: caller.address, callee: n.address, incarnation: n.incarnation,
		method: m.Method.String(), stage: stageRunning,
	}
	c.addCall(k)
	c.record(caller, k)
	return k
}

// settleWith forgets what the caller has settled with this very callee, which
// repeats the caller's floor in its replies. A late copy of such a reply must not
// hand its regions over once more: the callee may have them back by now.
func (c *controller) settleWith(s *session, callee netip.Addr, m *rpcpacket.Message) {
	floor := min(m.Floor, m.Call.Sequence())
	if floor <= s.replied[callee] {
		return
	}
	if s.replied == nil {
		s.replied = map[netip.Addr]uint64{}
	}
	s.replied[callee] = floor
	for i := len(s.calls) - 1; i >= 0; i-- {
		if k := s.calls[i]; k.callee == callee && k.id().Sequence() < floor {
			k.settled = true
			c.forgetSettled(k)
		}
	}
}

// replied goes on with a reply whose rules are in place.
func (c *controller) replied(k *call, h *held, m *rpcpacket.Message, s lease.Step) {
	if s.Outcome == lease.Duplicate {
		return
	}
	if s.Refusal != nil {
		k.refusal = &fault.Error{Code: s.Refusal.Code(), Op: "reply", Msg: s.Refusal.Error()}
	}
	c.releaseReply(k, h, m)
	c.finish(k)
	if n := c.nodes[k.caller]; k.settled || n == nil || n.incarnation != k.header.CallerIncarnation {
		c.reclaimResults(k, m)
	}
}

// reclaimResults frees what a call of policy none has handed over to a caller that has given it up, or that has failed:
// nobody hears of it.
func (c *controller) reclaimResults(k *call, m *rpcpacket.Message) {
	if m.Type != rpcpacket.Reply || k.refusal != nil {
		return
	}
	for _, p := range m.Pointers {
		if v, ok := c.leases.Find(p); ok && v.Controller == k.caller {
			c.steps(c.leases.Abandon(v.Region, k.caller))
		}
	}
}

// releaseReply lets a reply go on to the caller, or an exception in its place.
func (c *controller) releaseReply(k *call, h *held, m *rpcpacket.Message) {
	if c.nodes[k.caller] == nil {
		return
	}
	if k.refusal != nil {
		c.count.Refused++
		c.callEvent(CallRefused, k)
		b := exception(&m.Header, k.refusal)
		c.send(0, (&held{src: h.dst, dst: h.src, srcPort: rackaddr.PortRPC, dstPort: rackaddr.PortRPC}).reply(b))
		return
	}
	rpcpacket.SetReleased(h.payload, k.incarnation)
	c.release(h, 0)
	c.callEvent(ReplyReleased, k)
}

// maxMessage bounds the text of an exception, in bytes.
const maxMessage = 1024

// release lets a held packet go on, with the checksum that it needs after a
// change or if its host had left it to the network card.
func (c *controller) release(h *held, to hop) {
	if err := frame.Fix(h.frame); err != nil {
		c.count.Malformed++ // it was parsed before, so this does not happen
		return
	}
	c.count.Released++
	c.send(to, h.frame)
}

// exception builds the message that answers a call in its callee's place: a refusal of a
// call that nobody has got.
func exception(m *rpcpacket.Header, why *fault.Error) []byte {
	h := *m
	h.Type, h.Code, h.Timeout = rpcpacket.Exception, why.Code, 0
	h.Flags = m.Flags&rpcpacket.FlagSession | rpcpacket.FlagReleased | rpcpacket.FlagUnbegun
	h.Flags = h.Flags.WithPolicy(m.Flags.Policy())
	text := why.Msg
	if len(text) > maxMessage {
		text = text[:maxMessage]
	}
	e := rpcpacket.Message{Header: h, Payload: []byte(strings.ToValidUTF8(text, "?"))}
	return e.Append(make([]byte, 0, e.Size()))
}

// except answers a held call with an exception, as from the service's address.
func (c *controller) except(h *held, m *rpcpacket.Header, why *fault.Error) {
	c.send(0, h.reply(exception(m, why)))
}

// refuse is except for a call that never came on record.
func (c *controller) refuse(h *held, m *rpcpacket.Header, why *fault.Error) {
	c.count.Refused++
	c.traceRefused(h, m, why)
	c.event(Event{Kind: CallRefused, Node: h.src, Method: m.Method.String(), Call: m.Call.String(), Code: why.Code, Message: why.Msg})
	c.except(h, m, why)
}

// refuseCall ends a call on record with its refusal.
func (c *controller) refuseCall(k *call, h *held, m *rpcpacket.Header) {
	c.count.Refused++
	c.callEvent(CallRefused, k)
	c.keepRefusal(k, k.refusal)
	c.except(h, m, k.refusal)
	c.finish(k)
}

// heldNoRoute takes a call without pointers that found no route: there is none to
// a stateful service, and one to another may have come up meanwhile. It goes on
// if it may, or is answered.
func (c *controller) heldNoRoute(h *held) {
	n, m, ok := c.readHeld(h)
	if !ok {
		return
	}
	callee, why := c.choose(h, &m.Header)
	if why == moving {
		c.comeAgain(h, &m.Header)
		return
	}
	if why == nil && c.park(h, &m) {
		return
	}
	if why == nil {
		why = c.unheld(n, callee, c.services[h.dst], &m.Header)
	}
	if why == doubtful && c.wait(h, &m, rpcpacket.ID{}) {
		return
	}
	if why != nil {
		c.refuse(h, &m.Header, why)
		return
	}
	c.release(h, hopOf(callee.blade.port.num))
}

// probeInterval is how often the callee of a call whose caller is gone is asked
// for its reply: nobody else would ask, and if the reply was lost the leases of
// the call would never end.
const probeInterval = time.Second

// orphanLends reports whether a call of policy none that an earlier incarnation of a node has made is under way. Its callee
// is asked for the reply.
func (c *controller) orphanLends(n *node, id rpcpacket.ID) bool {
	k := c.calls[id]
	if k == nil || k.caller != n.address || k.stage == stageFinished || k.header.CallerIncarnation >= n.incarnation {
		return false
	}
	if due, known := c.orphans[k]; k.stage == stageRunning && (!known || c.now.Sub(due.Add(-probeInterval)) >= loanAgain) {
		c.orphans[k] = c.now
		c.probe()
	}
	return true
}

// probe asks for the replies that are due. It sends what the caller would: the
// call again. A callee that has not seen it finds no arguments in it, and says so.
func (c *controller) probe() {
	orphans := slices.SortedFunc(maps.Keys(c.orphans), func(a, b *call) int { return a.id().Compare(b.id()) })
	for _, k := range orphans {
		n := c.nodes[k.callee]
		if n == nil || n.blade.port == nil || k.stage != stageRunning || !k.to.IsValid() {
			delete(c.orphans, k) // it ends without our help
			continue
		}
		if c.now.Before(c.orphans[k]) {
			continue
		}
		c.orphans[k] = c.now.Add(probeInterval)
		m := rpcpacket.Message{Header: k.header}
		// Held: the answer must come here, also if the caller's next incarnation has its
		// address by now. Of a call with a pointer it would; this one has none. Nor does it
		// promise arguments that exceed a packet: the callee would look for them, and say nothing.
		m.Flags = m.Flags&^rpcpacket.FlagMore | rpcpacket.FlagReleased | rpcpacket.FlagReplay | rpcpacket.FlagHeld
		m.CalleeIncarnation, m.Timeout = k.incarnation, 1 // too late to begin
		c.count.Probes++
		c.send(hopOf(n.blade.port.num), frame.UDP6{
			Src: netip.AddrPortFrom(k.caller, rackaddr.PortRPC), Dst: netip.AddrPortFrom(k.to, rackaddr.PortRPC),
			Payload: m.Append(nil),
		}.Append(nil))
	}
}

// reason is why the switch held a packet; the enum Reason of p4/bifrost.p4.
type reason uint8

const (
	reasonControl     reason = 1
	reasonCall        reason = 2
	reasonFree        reason = 3
	reasonMemoryReply reason = 4
	reasonNoHome      reason = 5
	reasonNoRoute     reason = 6
)

// held is a packet that the switch holds for us. Everything in it aliases frame,
// which is ours.
type held struct {
	port    uint16 // of the switch, where it came in
	reason  reason
	frame   []byte
	srcMAC  frame.MAC
	src     netip.Addr
	dst     netip.Addr
	srcPort uint16
	dstPort uint16
	payload []byte // of UDP
}

// parseHeld takes a held frame apart. The UDP checksum is not looked at: a host
// may leave it for its network card, and what goes on gets a new one.
func parseHeld(port uint16, why reason, b []byte) (*held, error) {
	p, err := frame.Parse(b)
	if err != nil {
		return nil, err
	}
	if p.NextHeader != frame.ProtoUDP || len(p.Payload) < frame.UDPSize {
		return nil, wirefmt.Errorf("held packet: next header %d with %d bytes, want UDP", p.NextHeader, len(p.Payload))
	}
	length := int(binary.BigEndian.Uint16(p.Payload[4:]))
	if length != len(p.Payload) {
		return nil, wirefmt.Errorf("held packet: UDP length %d in an IPv6 payload of %d bytes", length, len(p.Payload))
	}
	return &held{
		port: port, reason: why, frame: b, srcMAC: p.SrcMAC, src: p.Src, dst: p.Dst,
		srcPort: binary.BigEndian.Uint16(p.Payload), dstPort: binary.BigEndian.Uint16(p.Payload[2:]),
		payload: p.Payload[frame.UDPSize:],
	}, nil
}

// reply builds a frame that answers the held packet: from where it went to where
// it came from.
func (h *held) reply(payload []byte) []byte {
	return frame.UDP6{
		Src: netip.AddrPortFrom(h.dst, h.dstPort), Dst: netip.AddrPortFrom(h.src, h.srcPort), Payload: payload,
	}.Append(make([]byte, 0, frame.HeaderSize+len(payload)))
}

// packetOut is a frame for the switch; hop 0 lets it look the way up.
type packetOut struct {
	hop   hop
	frame []byte
}

// The answer to a direct call may hand regions over to the caller. It ends the call's loan, or makes
// one that is over at once: this record says that the answer is known, so a copy of it moves nothing.
// When nobody asks for the answer any more the record goes. What protects against copies from then on
// is a number for each lane, which the callee tells: see handedOver.

// results takes the answer to a direct call that did not pass here. It has to show that its call was made to whoever
// answers it. Its caller must be there, in the incarnation that has asked for the answer; and it is the callee that is charged.
func (c *controller) results(n *node, h *held, m *rpcpacket.Message) {
	proven := len(m.Trailer) >= originBytes && c.proven(h.dst, &m.Header, m.Trailer[:originBytes])
	caller := c.nodes[h.dst]
	lane, number := direct.LaneOf(&m.Header)
	switch {
	case lane == 0 || !rpcpacket.Owns(h.dst, lane) || m.CalleeIncarnation > n.incarnation:
		c.count.Foreign++
		return
	case !proven:
		c.count.Unproven++ // by its caller's fault, or its callee's, whose port this is
		return
	case caller == nil || m.CallerIncarnation != caller.incarnation || c.handedOver.late(n.address, lane, number) || c.handedOver.late(h.dst, lane, number):
		c.count.Late++
		return
	}
	full := c.handedOver.full(n.address, lane, c.cfg.Limits.NodeSessions) || c.handedOver.full(h.dst, lane, c.cfg.Limits.NodeSessions)
	if c.overloaded(full || c.lenders[n.address] >= c.cfg.Limits.NodeCalls || c.pressure.keepsAway(false, len(h.payload))) {
		return
	}
	k := &loan{header: headerOf(m), caller: h.dst, callee: h.src, charged: n.address, stage: loanOpen}
	c.addLoan(k)
	c.loanReply(k, n, h, m)
}

// takes reports whether whoever has made a call may still get regions by its answer: nobody would free those of an execution
// that has given the call up and has ended, or of a durable main that is over.
func (c *controller) takes(k *loan) bool { return !k.forgotten && !c.mainOver(k.header.Parent) }

// givenUp takes a node's word that an execution of its has ended, and has given a call up. What the call has returned goes, also
// if the execution's service has state: nobody knows the pointers. What it returns later stays its callee's. If there is no
// record of the call, the number of its lane keeps late answers, and late copies of the call, from handing anything over.
func (c *controller) givenUp(n *node, e rpcpacket.ID, g control.GivenUpCall) {
	if rpcpacket.Owns(n.address, g.Lane) {
		c.keepFloor(n.address, g.Lane, g.Number)
	}
	k := c.loans[rpcpacket.ID(g.Call)]
	if k == nil || k.caller != n.address || k.header.Parent != e {
		return
	}
	if !k.over() {
		c.forgetLoan(k)
		return
	}
	for _, p := range k.returned {
		if v, ok := c.leases.Find(p); ok && v.Controller == n.address && c.heldBy(v.Region) == e {
			c.steps(c.leases.Abandon(v.Region, n.address))
		}
	}
}

// deny answers a call in the place of a callee that may not hand over what it has answered with.
func (c *controller) deny(k *loan, m *rpcpacket.Header) {
	b := exception(m, k.refusal)
	if k.stage == loanDenied {
		b = rpcpacket.Begun(b)
	}
	c.count.Refused++
	c.send(0, frame.UDP6{
		Src: netip.AddrPortFrom(k.callee, rackaddr.PortRPC), Dst: netip.AddrPortFrom(k.caller, rackaddr.PortRPC), Payload: b,
	}.Append(nil))
}

// resultsFor is the execution that the results of a call are for, which is zero for a client's.
func (c *controller) resultsFor(id rpcpacket.ID) rpcpacket.ID {
	k := c.loans[id]
	if k == nil || k.header.Flags&rpcpacket.FlagSession != 0 {
		return rpcpacket.ID{}
	}
	return k.header.Parent
}

// forgetAnswered takes a callee's word that nobody asks for an answer any more, which may have had
// pointers. A callee that names no lane does not say that.
func (c *controller) forgetAnswered(n *node, r *control.EndedRegions) {
	if r.Lane == 0 {
		return
	}
	if c.callerIn(r.Lane) {
		c.keepFloor(n.address, r.Lane, r.Number)
	}
	if k := c.loans[rpcpacket.ID(r.Execution)]; k != nil && k.callee == n.address {
		c.forgetLoan(k)
	}
}

// keepFloor notes that no message up to a number of a lane hands regions of a node over any more.
func (c *controller) keepFloor(node lease.Node, lane, number uint64) {
	if c.handedOver.end(node, lane, number, c.cfg.Limits.NodeSessions) {
		c.put(wal.Record{Kind: wal.KindReturned, ID: sessionID(node, lane), Callee: wal.Node{Address: node}, Order: c.handedOver[node][lane]})
	}
}

// callerIn reports whether the node whose lane this is may still get answers.
func (c *controller) callerIn(lane uint64) bool {
	return c.nodeOrFallen(rackaddr.Node(lane>>32)) != nil
}

// forgetReturned drops what handedOver has of a node that is gone, or that begins anew.
func (c *controller) forgetReturned(node lease.Node, gone bool) {
	c.handedOver.forget(node, gone, func(callee lease.Node, lane uint64) {
		c.drop(wal.KindReturned, sessionID(callee, lane))
	})
}

// restoreReturned brings back what a callee has said of a lane, unless one of the two nodes is gone.
func (c *controller) restoreReturned(r *wal.Record) error {
	callee, lane := r.Callee.Address, binary.BigEndian.Uint64(r.ID[:])
	switch {
	case !callee.IsValid() || r.ID != sessionID(callee, lane) || r.Order == 0:
		return corrupt(r, "lane %x of callee %s, up to number %d", lane, callee, r.Order)
	case c.nodeOrFallen(callee) == nil || !c.callerIn(lane):
		c.drop(r.Kind, r.ID)
	default:
		c.handedOver.end(callee, lane, r.Order-1, c.cfg.Limits.NodeSessions)
	}
	return nil
}

// handedOver has, for each callee and each lane of a caller, the number of the first call of which an
// answer may still hand regions over. A late copy of an answer to an earlier call must not: the callee
// may have the regions again by then. The callee says so itself, so nobody else suffers if it lies. It
// is on the log, and goes with the callee, and with the incarnation of the caller. It has the same of a node's own lanes: of
// the one-ways that the node has sent there, and of the calls that its executions have given up.
type handedOver map[lease.Node]map[uint64]uint64

func (o handedOver) late(callee lease.Node, lane, number uint64) bool {
	return number < o[callee][lane]
}

// full reports whether a callee may not have a lane: it has a number of them at most.
func (o handedOver) full(callee lease.Node, lane uint64, most int) bool {
	_, known := o[callee][lane]
	return !known && len(o[callee]) >= most
}

// end notes that nobody asks for the answer to a call any more. It reports whether that is news.
func (o handedOver) end(callee lease.Node, lane, number uint64, most int) bool {
	if o.full(callee, lane, most) || number+1 <= o[callee][lane] {
		return false // no call in this lane has handed anything over; or a later call has ended
	}
	if o[callee] == nil {
		o[callee] = map[uint64]uint64{}
	}
	o[callee][lane] = number + 1
	return true
}

// forget drops what a node has said, if it is gone, and what was said of its lanes: the calls of its
// former incarnations are late in any case.
func (o handedOver) forget(node lease.Node, gone bool, dropped func(callee lease.Node, lane uint64)) {
	for callee, lanes := range o {
		for lane := range lanes {
			if gone && callee == node || rpcpacket.Owns(node, lane) {
				delete(lanes, lane)
				dropped(callee, lane)
			}
		}
		if len(lanes) == 0 {
			delete(o, callee)
		}
	}
}
