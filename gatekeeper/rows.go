package gatekeeper

import (
	"net/netip"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
	"github.com/bifrost-rack/bifrost/p4"
)

// Each node has a row: its place in the switch's registers (docs/rights.md, section 1). It is on the log with the
// node. Its next incarnations keep it. Another node gets it when nothing of the first one is left, a second later at least.

// lastRow is the highest row. The one above stands for regions that are frozen.
const lastRow = 4094

// sink is a hop behind which there is no port: packets to a node that is away end there, after the switch has judged them.
const sink hop = 0xFFFF

// rows says who has which row.
type rows struct {
	of   map[uint16]netip.Addr
	last uint16 // that was given out; it is on the log
}

// free is the next row after the last one that nobody has, 0 if all are taken. So it is long until a row is another node's.
func (r *rows) free() uint16 {
	for i := range uint16(lastRow) {
		if row := (r.last+i)%lastRow + 1; !r.of[row].IsValid() {
			return row
		}
	}
	return 0
}

// give gives a node a row that it has, or a free one.
func (r *rows) give(n *node) {
	if n.row == 0 {
		if n.row = r.free(); n.row == 0 {
			return
		}
		r.last = n.row
	}
	r.of[n.row] = n.address
}

// rights reports whether the node has a row. One for which there was none left was refused, and has done nothing.
func (n *node) rights() bool { return n.row != 0 }

// nodeIdentity says that the node lives at a port, with its row and incarnation if it has a row.
func nodeIdentity(port uint16, n *node) entry {
	e := identityEntry(port, host(n.address), p4.Node)
	if n.rights() {
		e.Params = known(p4.Node, n.row, n.incarnation)
	}
	return e
}

// memoryIdentity says that a memory blade answers for its machine. No answers of other incarnations of its copy pass.
func (t tables) memoryIdentity(b *blade) entry {
	e := identityEntry(b.port.num, dsmpacket.MachinePrefix(t.prefix, b.hello.Machine), p4.MemoryServer)
	e.Params = known(p4.MemoryServer, 0, b.copyIncarnation())
	return e
}

// copyIncarnation is that of the blade's copy of its machine, as it is in the blade's answers.
func (b *blade) copyIncarnation() uint32 {
	if b.mirror == nil {
		return 0
	}
	if b.mirror.filling != nil && b.mirror.filling.blade == b.hello.Blade {
		return b.mirror.filling.incarnation
	}
	return b.mirror.mirrorOf(b).Incarnation
}

func known(kind p4.Sender, row uint16, incarnation uint32) []param {
	return []param{
		{Name: "kind", Value: p4rtclient.Uint(uint64(kind))}, {Name: "row", Value: p4rtclient.Uint(uint64(row))}, {Name: "incarnation", Value: p4rtclient.Uint(uint64(incarnation))},
	}
}

// nodeRoute leads to a node. To one that is away it leads nowhere, but the switch goes on to judge what is sent there.
func nodeRoute(n *node) entry {
	h := sink
	if !n.gone && n.blade.port != nil {
		h = hopOf(n.blade.port.num)
	}
	e := l3Entry(host(n.address), h)
	if n.rights() {
		going := uint64(0)
		if n.going || n.lost {
			going = 1
		}
		e.Action, e.Params = "to_node", append(e.Params, param{Name: "row", Value: p4rtclient.Uint(uint64(n.row))}, param{Name: "going", Value: p4rtclient.Uint(going)})
	}
	return e
}

func blockEntry(row uint16, block uint32) entry {
	return entry{
		Table:  "block_rule",
		Match:  []match{{Field: "row", Value: p4rtclient.Uint(uint64(row))}, {Field: "block", Value: p4rtclient.Uint(uint64(block))}},
		Action: "may",
	}
}

// controlEntry has a node allocate in a batch, and the switch tell when half of the batch is used, or three quarters.
func controlEntry(row uint16, machine uint8, batch uint32, tells bool) entry {
	told := uint64(0)
	if tells {
		told = 1
	}
	return entry{
		Table: "control_rule",
		Match: []match{
			{Field: "row", Value: p4rtclient.Uint(uint64(row))}, {Field: "machine", Value: p4rtclient.Uint(uint64(machine))},
			{Field: "batch", Value: p4rtclient.Uint(uint64(batch))},
		},
		Action: "allocates", Params: []param{{Name: "tells", Value: p4rtclient.Uint(told)}},
	}
}

// wantBlocks has the node use its blocks.
func (t tables) wantBlocks(n *node) (u phase) {
	if n.rights() {
		for _, block := range n.blocks {
			u = append(u, t.want(blockEntry(n.row, block))...)
		}
	}
	return u
}

// wantBatches has the node allocate in its batches. The last one on a machine is that of which the switch tells: then the node needs the next one. In those
// before it the node allocates again and again, and the Gatekeeper has no use for hearing that.
func (t tables) wantBatches(n *node) (u phase) {
	if n.rights() {
		for machine, all := range n.batches {
			for i, number := range all {
				u = append(u, t.want(controlEntry(n.row, machine, number, i == len(all)-1))...)
			}
		}
	}
	return u
}

// unwantBatches ends that.
func (t tables) unwantBatches(n *node) (u phase) {
	if n.rights() {
		for machine, all := range n.batches {
			for _, number := range all {
				u = append(u, t.unwant(controlEntry(n.row, machine, number, false))...)
			}
		}
	}
	return u
}

// takeRow takes the row of a node of which nothing is left, with all rules that name it.
func (c *controller) takeRow(n *node) {
	if !n.rights() {
		return
	}
	var u phase
	for _, block := range n.blocks {
		u = append(u, c.unwant(blockEntry(n.row, block))...)
	}
	u = append(u, c.unwantBatches(n)...)
	u = append(u, c.unwant(nodeRoute(n))...)
	c.change(nil, u)
	delete(c.rows.of, n.row)
	n.row = 0
}

// away has what is sent to a node that has ended lead nowhere. One that is gone for good takes no calls any more.
func (c *controller) away(n *node, gone bool) phase {
	if !n.rights() {
		return nil
	}
	n.going = gone
	c.keepNode(n)
	return c.want(nodeRoute(n))
}
