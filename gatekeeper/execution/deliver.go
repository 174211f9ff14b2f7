package execution

import (
	"net/netip"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// held reports whether a one-way waits for its parent's commit.
func (t *Table) held(k *call) bool {
	return k.oneway && !k.settled && k.session == nil
}

// deliverable reports whether a call may be with its callee now. Those of a
// stateful service wait for those before them; if their node is in the incarnation that
// runs these, it knows the order itself. They wait, too, for a call without a number that
// the node has begun by itself.
func (t *Table) deliverable(k *call) bool {
	if k.stage != running || k.cut || t.held(k) || !k.at.up[k.service] || k.at.empties && !k.sent {
		return false
	}
	if k.order > 0 && k.at.cuts > 0 {
		for o := range k.at.calls {
			if o.service == k.service && o.cut && o.order > 0 && o.order < k.order {
				return false
			}
		}
	}
	if k.order > 0 {
		for o := range t.service(k.service).enlisted {
			if o.at == k.at {
				return false
			}
		}
		for o := range t.service(k.service).settling {
			if o.at == k.at && o.order < k.order && o.incarnation != k.at.incarnation {
				return false
			}
		}
	}
	return true
}

// release delivers a call if it may be with its callee now, and is not.
func (t *Table) release(k *call) {
	if !k.sent && t.deliverable(k) {
		t.deliver(k, k.incarnation != 0)
	}
}

func (t *Table) deliver(k *call, replay bool) {
	if p := t.owner(k.parent); k.oneway || k.settled || k.enlisted || p != nil && p.cut {
		t.lonely[k] = struct{}{}
	}
	k.incarnation, k.sent = k.at.incarnation, true
	resumed := replay && k.delivery == 0
	if k.delivery == 0 {
		k.at.delivered++
		k.delivery = k.at.delivered
	}
	d := Deliver{Call: k.id, To: k.at.id(), Number: k.delivery, Order: k.order, Attempt: k.attempts, Replay: replay, Resumed: resumed}
	if k.attempts > 0 {
		d.Journal = k.journal[:len(k.journal):len(k.journal)]
	}
	t.do(d)
}

// Again delivers once more the calls that nobody else sends again: one-ways, those
// whose callers are cut, gone, wait no more or send to the callee, and those that others wait behind. It is to be called every second or
// so while there are any; each call counts as known to its callee.
func (t *Table) Again() Output {
	for _, k := range sorted(t.lonely) {
		if k.sent && t.deliverable(k) {
			t.deliver(k, true)
		}
	}
	return t.take()
}

// exception is the outcome of a call that the Gatekeeper decides.
func exception(h *rpcpacket.Header, why *fault.Error) []byte {
	e := rpcpacket.Message{Header: *h, Payload: []byte(why.Msg)}
	e.Type, e.Code, e.Timeout = rpcpacket.Exception, why.Code, 0
	e.Flags = (h.Flags&rpcpacket.FlagSession | rpcpacket.FlagReleased).WithPolicy(h.Flags.Policy())
	return e.Append(nil)
}

func goneError(n *node) *fault.Error {
	return fault.New(fault.Unavailable, "call", "node %s is gone", n.address)
}

// Runs reports whether a call is logged and has no outcome.
func (t *Table) Runs(id rpcpacket.ID) bool {
	k := t.calls[id]
	return k != nil && k.stage == running
}

// Callee returns where a call is, false if it is not known.
func (t *Table) Callee(id rpcpacket.ID) (netip.Addr, bool) {
	k := t.calls[id]
	if k == nil {
		return netip.Addr{}, false
	}
	return k.at.address, true
}
