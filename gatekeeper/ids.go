package gatekeeper

import (
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
)

// A call id is its caller's. Ids of two kinds exist: those of a session, which belongs to
// the node that uses it first, and those of calls that an execution makes, which follow
// from the execution's id. Who knows the id of a call can compute the ids of its siblings
// and of the calls to come, and could use one of them first; the true call would never run.

// itsID decides whether a node may use the id of a call that is not on record. (One that
// is on record is refused to any other node.)
func (c *controller) itsID(n *node, m *rpc.Header) *fault.Error {
	if m.Flags&rpc.FlagSession == 0 {
		if m.Call != endpoint.ChildID(m.Parent, m.Branch, m.Index) {
			c.count.Foreign++
			return fault.New(fault.BadRequest, "call", "the call id does not follow from the execution that makes the call")
		}
		return nil
	}
	s := m.Call.Session()
	switch by, bound := c.sessions[s]; {
	case bound && by != n.address:
		c.count.Foreign++
		return fault.New(fault.BadRequest, "call", "the call id belongs to another node's session")
	case !bound && len(n.bound) >= c.cfg.Limits.NodeSessions:
		return fault.New(fault.Overloaded, "call", "node %s has %d sessions", n.address, len(n.bound))
	case !bound:
		c.bind(n, s)
	}
	return nil
}

// bind notes that a session is a node's, until the node is gone.
func (c *controller) bind(n *node, session uint64) {
	c.sessions[session] = n.address
	if n.bound == nil {
		n.bound = map[uint64]struct{}{}
	}
	n.bound[session] = struct{}{}
}

// unbind forgets the sessions of a node that is gone.
func (c *controller) unbind(n *node) {
	for s := range n.bound {
		delete(c.sessions, s)
	}
	n.bound = nil
}
