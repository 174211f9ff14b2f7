package gatekeeper

import (
	"context"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
)

// halfUsedDigest says that a node has allocated in the second half of a batch. It may be lost.
const halfUsedDigest = "half_used_digest_t"

// halfUsedRate bounds these digests, by the port of the node.
var halfUsedRate = Rate{PerSecond: 500, Burst: 100}

// takeHalfUsed has the switch tell which batches are half used.
func (g *Gatekeeper) takeHalfUsed(ctx context.Context) error {
	if err := g.client.SetMeter(ctx, "half_used_digests", halfUsedRate); err != nil {
		return err
	}
	return g.client.EnableDigest(ctx, halfUsedDigest, p4rtclient.Batch{})
}

// toldHalfUsed takes a digest of the switch.
func (c *controller) toldHalfUsed(d p4rtclient.Digest) {
	if len(d.Fields) != 2 {
		return
	}
	row, _ := d.Fields[0].Uint64()
	slot, _ := d.Fields[1].Uint64()
	if n := c.rowOf(uint16(row)); n != nil { //nolint:gosec // 12 bits
		c.halfUsed(n, uint32(slot)/dsmpacket.BatchSlots) //nolint:gosec // 20 bits
	}
}

// halfUsed gives a node its next batch on a machine when it allocates in the second half of the last one. The node asks for the batch when it needs it, and
// then it has it already.
func (c *controller) halfUsed(n *node, batch uint32) {
	o := c.batches.of[batch]
	mine := n.batches[o.machine]
	if n.gone || o.node != n.address || len(mine) == 0 || mine[len(mine)-1] != batch || c.machines[o.machine] == nil {
		return
	}
	if news := c.grantBatches(n, o.machine, len(mine)+1); len(news) > 0 {
		c.grant(o.machine, news)
		c.change(nil, c.wantBatches(n))
	}
}
