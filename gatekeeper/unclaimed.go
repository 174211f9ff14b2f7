package gatekeeper

import (
	"encoding/json"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
)

// A region comes up at a memory blade when that handles the request, and here when
// the answer comes by. If its node fails in between, and the answer is lost, nobody
// asks again, and nobody but the memory blade knows the region. So its answer to a
// fence names the regions whose allocations the node had not settled:
//
//	fence ─▶ unsettled allocations ─▶ known here? it is somebody's ─▶ nothing to do
//	                                          └─ no ─▶ an execution's that is run again, which finds it: wait for its end
//	                                               └─▶ else: reclaimed
//
// What is lost with the Gatekeeper's own end, the audit of its successor finds.

// fenced takes a memory blade's answer to a fence.
func (c *controller) fenced(b *blade, f control.Fence, m control.Message) {
	var told control.Fenced
	if m.Status != fault.OK || len(m.Body) == 0 || json.Unmarshal(m.Body, &told) != nil {
		return // an error is reported by whoever has asked; what it hides waits for an audit
	}
	for _, id := range told.Regions {
		c.lost(c.strayOf(b, id), f.Node)
	}
	if told.More {
		c.audit(b)
	}
}

// stray is a region of a memory blade that nobody here knows, and the execution that
// has allocated it, if that has not been committed, in which incarnation of its node.
type stray struct {
	region      packet.Region
	execution   rpc.ID
	incarnation uint32
}

// strayOf is a region that a memory blade names.
func (c *controller) strayOf(b *blade, id control.RegionID) stray {
	return stray{id.Region(c.cfg.DSMPrefix, b.hello.Machine), rpc.ID(id.Execution), id.Incarnation}
}

// lost looks after a region whose owner, an incarnation of a node, has ended, and may
// not have heard of it.
func (c *controller) lost(s stray, owner netip.Addr) {
	if !s.execution.IsZero() && c.runsAgain(s.execution, owner) {
		if !slices.Contains(c.unclaimed[s.execution], s) {
			c.unclaimed[s.execution] = append(c.unclaimed[s.execution], s)
		}
		return
	}
	c.reclaimUnknown(s)
}

// runsAgain reports whether an execution may yet ask for what it has allocated on a
// node: it has not ended, and is not a call's that ends with that node.
func (c *controller) runsAgain(e rpc.ID, at netip.Addr) bool {
	if !c.table.Open(e) {
		return false
	}
	_, awaited := c.recoveries.Awaits(at)
	_, call := c.table.View(e)
	return !call || awaited || c.nodes[at] != nil
}

// endUnclaimed reclaims what an execution has allocated and never got.
func (c *controller) endUnclaimed(e rpc.ID) {
	for _, s := range c.unclaimed[e] {
		c.reclaimUnknown(s)
	}
	delete(c.unclaimed, e)
}

func (c *controller) reclaimUnknown(s stray) {
	if _, known := c.leases.Find(s.region.Base); !known {
		c.reclaimStray(s)
	}
}
