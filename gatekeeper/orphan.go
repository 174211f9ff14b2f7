package gatekeeper

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/internal/frame"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
)

// probeInterval is how often the callee of a call whose caller is gone is asked
// for its reply: nobody else would ask, and if the reply was lost the leases of
// the call would never end.
const probeInterval = time.Second

// deliverAgain delivers the exactly-once calls again that nobody else sends again.
func (c *controller) deliverAgain() {
	if !c.table.Lonely() {
		c.lastAgain = time.Time{}
	} else if !c.lastAgain.IsZero() && !c.now.Before(c.lastAgain.Add(probeInterval)) {
		c.lastAgain = c.now
		c.execute(c.table.Again())
	}
}

// probe asks for the replies that are due. It sends what the caller would: the
// call again. A callee that has not seen it finds no arguments in it, and says so.
func (c *controller) probe() {
	orphans := slices.SortedFunc(maps.Keys(c.orphans), func(a, b *call) int { return compareIDs(a.id(), b.id()) })
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
		m := rpc.Message{Header: k.header}
		// Held: the answer must come here, also if the caller's next incarnation has its
		// address by now. Of a call with a pointer it would; this one has none.
		m.Flags |= rpc.FlagReleased | rpc.FlagReplay | rpc.FlagHeld
		m.CalleeIncarnation, m.Timeout = k.incarnation, 1 // too late to begin
		c.count.Probes++
		c.send(hopOf(n.blade.port.num), frame.UDP6{
			Src: netip.AddrPortFrom(k.caller, rackaddr.PortRPC), Dst: netip.AddrPortFrom(k.to, rackaddr.PortRPC),
			Payload: m.Append(nil),
		}.Append(nil))
	}
}
