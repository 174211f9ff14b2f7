package transport

import (
	"math/bits"

	"github.com/bifrost-rack/bifrost/dsm/packet"
)

// maxKnown bounds what a peer remembers of regions' extents.
const maxKnown = 1 << 12

// classes remembers the extents of regions that this client allocated, as far
// as it has room. Addresses are never used again, so nothing here gets wrong.
type classes struct {
	byBase map[packet.Pointer]uint8
	order  []packet.Pointer // a ring: the oldest makes room
	at     int
	inUse  uint64 // bit c: a region of class c has been learnt
}

func (c *classes) learn(reg packet.Region) {
	if c.byBase == nil {
		c.byBase = make(map[packet.Pointer]uint8)
	}
	if len(c.order) < maxKnown {
		c.order = append(c.order, reg.Base)
	} else {
		delete(c.byBase, c.order[c.at])
		c.order[c.at] = reg.Base
		c.at = (c.at + 1) % maxKnown
	}
	c.byBase[reg.Base] = reg.Class
	c.inUse |= 1 << reg.Class
}

func (c *classes) forget(base packet.Pointer) { delete(c.byBase, base.Bare()) }

// find returns the known region that p lies in.
func (c *classes) find(p packet.Pointer) (packet.Region, bool) {
	p = p.Bare()
	for m := c.inUse; m != 0; m &= m - 1 {
		class := uint8(bits.TrailingZeros64(m))
		base := packet.Make(p.Prefix(), p.Machine(), p.Offset()&^(1<<class-1))
		if got, ok := c.byBase[base]; ok && got == class {
			return packet.Region{Base: base, Class: class}, true
		}
	}
	return packet.Region{}, false
}
