package crash

import "github.com/bifrost-rack/bifrost/rpc"

// wentDirect counts what a node has done with direct calls.
func (c *crasher) wentDirect(n *rpc.Node) {
	s := n.Stats()
	c.mu.Lock()
	defer c.mu.Unlock()
	for what, count := range map[string]uint64{
		"direct calls": s.Direct, "direct calls handed over": s.Enlisted, "direct calls resumed": s.Resumed, "direct calls answered again": s.Recalled,
	} {
		if count > 0 {
			c.did[what] += int(count) //nolint:gosec // few
		}
	}
}
