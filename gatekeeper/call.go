package gatekeeper

import (
	"crypto/hmac"
	"encoding/binary"
	"net/netip"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/callgraph"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/frame"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// readHeld reads what a node sends. It is false if the sender is no node, or the packet
// is malformed, which the sender has been told then.
func (c *controller) readHeld(h *held) (n *node, m rpcpacket.Message, ok bool) {
	if n = c.caller(h); n == nil {
		return nil, m, false
	}
	m, err := rpcpacket.Parse(h.payload)
	if err != nil {
		c.malformedCall(h, &m.Header, err)
		return nil, m, false
	}
	return n, m, true
}

// heldCall takes a call, reply, exception or one-way that the switch holds.
func (c *controller) heldCall(h *held) {
	n, m, ok := c.readHeld(h)
	if !ok {
		return
	}
	switch m.Type {
	case rpcpacket.Call, rpcpacket.Oneway:
		c.heldRequest(n, h, &m)
	case rpcpacket.Reply, rpcpacket.Exception:
		c.directReply(n, h, &m)
	default:
		c.count.Malformed++
	}
}

// overloaded counts a packet that is dropped because there is no room for what it
// leads to. It will be sent again.
func (c *controller) overloaded(drop bool) bool {
	if drop {
		c.count.Overload++
	}
	return drop
}

// malformedCall answers what has at least a header; the rest is dropped.
func (c *controller) malformedCall(h *held, m *rpcpacket.Header, err error) {
	c.count.Malformed++
	c.logger.Debug("malformed call", "from", h.src, "error", err)
	if m.Type == rpcpacket.Call || m.Type == rpcpacket.Oneway {
		c.except(h, m, fault.New(fault.BadRequest, "call", "%v", err))
	}
}

// serviceHash is the part of a service's address that call headers repeat.
func serviceHash(a netip.Addr) uint64 {
	b := a.As16()
	return binary.BigEndian.Uint64(b[8:])
}

// identity is a node as the call graph knows it.
func (n *node) identity() callgraph.Node {
	return callgraph.Node{Address: n.address, Incarnation: n.incarnation}
}

// methodName is a method's full name, as the node that serves it exports it.
func (s *service) methodName(n *node, wire rpcpacket.Method) string {
	if x := n.exports[s.address]; x != nil {
		if m, ok := x.methods[wire]; ok {
			return m.Name
		}
	}
	return wire.String()
}

// What the switch holds of calls. Each goes straight to the node that serves it; the Gatekeeper is told of rights, and of what nobody
// asks for any more.
//
//	CALL with pointers, to a node ─▶ loan.go
//	FORGET  ids  ─▶ struck out ─▶ ACK with them
//	FORGET, given up ─▶ they hand nothing over any more ─▶ ACK with what they have handed over

// errToNodes refuses a call that is addressed to a service.
var errToNodes = fault.New(fault.BadRequest, "call", "a call goes to a node that serves it")

// heldRequest takes a call or one-way, or what a node says of calls.
func (c *controller) heldRequest(n *node, h *held, m *rpcpacket.Message) {
	switch {
	case rackaddr.NodePrefix.Contains(h.dst):
		c.loanRequest(n, h, m)
	case h.dst != rackaddr.Gatekeeper:
		c.malformedCall(h, &m.Header, errToNodes)
	case m.CallerIncarnation != n.incarnation:
		c.count.Malformed++
	case m.Flags&rpcpacket.FlagSettled != 0 && m.Type == rpcpacket.Oneway && len(m.Payload)%rpcpacket.ItemSize == 0:
		c.forgetDirect(n, m)
	default:
		c.count.Malformed++
	}
}

// originBytes is how many bytes a call's origin has: a proof, and the hash of the service whose
// execution makes the call, or 0 (rpc, metadata.go).
const originBytes = 24

// proven reports whether a direct call is a plain one of a node's, or of an execution of its own, and whether
// whoever made it has called, with this policy, the node that hands it over. The caller has proven that by what follows
// from the node's key, or from the key of the execution's service or main. So no node hands over a call
// of which it only knows the id, nor one that somebody will make.
func (c *controller) proven(caller netip.Addr, call *rpcpacket.Header, origin []byte) bool {
	var proof, want endpoint.Proof
	policy := call.Flags.Policy()
	service := binary.BigEndian.Uint64(origin[copy(proof[:], origin):])
	switch {
	case !call.Call.Derived():
		if call.Call != rpcpacket.PlainID(caller, call.Slot, call.Number) {
			return false
		}
		want = endpoint.NewProver(c.secret.Node(caller)).Prove(call.Call, policy)
	default:
		key, of := c.secret.Service(service), keyOf{service: service}
		if service == 0 {
			key, of = c.secret.Main(call.Parent), keyOf{main: call.Parent}
		}
		var id rpcpacket.ID
		if id, want = endpoint.Child(key, policy, call.Parent, call.Branch, call.Index); id != call.Call || !c.hasKey(caller, of) {
			return false // any node can make a name, and ids with its key
		}
	}
	return hmac.Equal(proof[:], want[:])
}

// forgetDirect takes a node's word that nobody asks for direct calls any more: of who has made them, or has answered them. With FlagGivenUp it is
// a question: the calls hand nothing over from then on, and what they have handed over is told. Their records stay then.
func (c *controller) forgetDirect(n *node, m *rpcpacket.Message) {
	asks := m.Flags & rpcpacket.FlagGivenUp
	flags := rpcpacket.FlagReleased | rpcpacket.FlagSettled | asks
	ack := rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Ack, Flags: flags}}
	foreign := false
	for items := m.Payload; len(items) > 0; items = items[rpcpacket.ItemSize:] {
		id, s, number := rpcpacket.ParseItem(items)
		k, owner := c.loans[id], c.blocks.owner(s)
		switch {
		case k != nil && k.caller != n.address && k.callee != n.address:
			foreign, k = true, nil // nothing follows from what it says of others' calls
		case k != nil && asks != 0 && k.stage == loanReturned:
			continue // its answer is about to hand regions over: it is asked again
		case owner == n.address:
			c.keepOver(s, number)
		case owner.IsValid():
			c.keepFloor(n.address, s, number)
		}
		if has := c.handedTo(k, n); asks != 0 && len(has) > 0 {
			c.tellNode(n.address, &rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Ack, Call: id, Flags: flags}, Lists: rpcpacket.ListsOf(has...), Payload: id[:]})
			continue
		}
		if k != nil && (asks == 0 || !k.over()) {
			c.forgetLoan(k)
		}
		ack.Payload = append(ack.Payload, id[:]...)
	}
	if foreign {
		c.count.Foreign++
	}
	if len(ack.Payload) > 0 {
		c.tellNode(n.address, &ack)
	}
}

// handedTo is what a call has handed over which is over: to who has made it and asks, what it has still.
func (c *controller) handedTo(k *loan, n *node) (has []dsmpacket.Pointer) {
	if k == nil || !k.over() {
		return nil
	}
	if k.caller != n.address {
		return k.returned
	}
	for _, p := range k.returned {
		if v, ok := c.leases.Find(p); ok && v.Controller == n.address {
			has = append(has, p)
		}
	}
	return has
}

// tellNode sends a node a message of ours.
func (c *controller) tellNode(to netip.Addr, m *rpcpacket.Message) {
	c.send(0, frame.UDP6{
		Src: netip.AddrPortFrom(rackaddr.Gatekeeper, rackaddr.PortRPC), Dst: netip.AddrPortFrom(to, rackaddr.PortRPC), Payload: m.Append(nil),
	}.Append(nil))
}
