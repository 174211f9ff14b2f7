package store

import (
	"math/bits"
	"net/netip"

	"github.com/bifrost-rack/bifrost/dsm/packet"
)

// region is one live allocation.
type region struct {
	base  uint64 // address, for ever this region's alone
	block uint64 // where its bytes are in the arena
	class uint8
	owner netip.Addr // the node that allocated it; invalid until a copy that is filled is told
	data  []byte     // the block's
	// Only from..to has been written to; the rest is still zero.
	from, to uint64
	changes  *changes // what can be taken back; nil if everything is final
	shadow   *shadow  // nil unless there is one
	notes    *notes   // what is to be copied; nil unless another copy is being filled
}

// regions finds a region by any address in it. Regions are aligned to their
// size, so a lookup tries one base address for each size class in use.
type regions struct {
	byBase map[uint64]*region
	count  [packet.MaxClass + 1]int // live regions of each class
	inUse  uint64                   // bit c is set while count[c] > 0
}

func (t *regions) find(addr uint64) *region {
	for m := t.inUse; m != 0; m &= m - 1 {
		class := bits.TrailingZeros64(m)
		base := addr &^ (1<<class - 1)
		if r := t.byBase[base]; r != nil && int(r.class) == class {
			return r
		}
	}
	return nil
}

func (t *regions) add(r *region) {
	if t.byBase == nil {
		t.byBase = make(map[uint64]*region)
	}
	t.byBase[r.base] = r
	t.count[r.class]++
	t.inUse |= 1 << r.class
}

func (t *regions) remove(r *region) {
	delete(t.byBase, r.base)
	if t.count[r.class]--; t.count[r.class] == 0 {
		t.inUse &^= 1 << r.class
	}
}
