package daemon

import (
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// OnCancel implements join.Canceller.
func (n *node) OnCancel(f func(call string)) {
	n.daemon.mu.Lock()
	defer n.daemon.mu.Unlock()
	n.cancel = f
}

// cancelCall has a node cancel a call that it runs.
func (c *Compute) cancelCall(q control.CancelCall) error {
	n := c.node(q.Node)
	if n == nil {
		return fault.New(fault.NotFound, "cancel", "no node %s runs on blade %s", q.Node, c.cfg.Name)
	}
	c.mu.Lock()
	cancel := n.cancel
	c.mu.Unlock()
	if cancel == nil {
		return fault.New(fault.Unsupported, "cancel", "the program of node %s takes no cancellations", q.Node)
	}
	cancel(q.Call)
	return nil
}
