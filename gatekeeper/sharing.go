package gatekeeper

import (
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// sharing tells a node whether a caller may share its fate with it.
func (c *controller) sharing(p *port, m control.Message) error {
	var q control.Sharing
	if err := m.Decode(&q); err != nil {
		return err
	}
	n, err := c.nodeAt(p, "sharing", q.Node, q.Incarnation)
	if err != nil {
		return err
	}
	caller := c.nodeOrFallen(q.Caller)
	policy := c.fleet.PolicyOf(resources.ExportedPolicy{Service: q.Service, Method: q.Method}).Policy
	c.answer(p, m, control.SharingReply{
		Kin:      caller != nil && c.kin(n, caller),
		Declared: policy == rpcpacket.PolicyFateShare || policy == rpcpacket.PolicyTainted,
	})
	return nil
}

// kin reports whether two nodes belong to one deployment or, of those that belong to none, run as one user of one blade.
func (c *controller) kin(a, b *node) bool {
	one, other := a.owner(), b.owner()
	if one.App != "" || other.App != "" {
		return one.App == other.App
	}
	return c.cfg.ShareExports || one.Blade == other.Blade && a.user == b.user
}
