package resources

import (
	"cmp"
	"math/bits"
	"net/netip"
	"slices"
)

// MaxShare is how many nodes can share a method at most: one for each value of
// spread.
const MaxShare = 256

// Prefix is one entry of the switch's route table for a method: the calls whose
// spread (the last byte of the call id) begins with the Len high bits of Value
// go to Node.
type Prefix struct {
	Value uint8      `json:"value"`
	Len   uint8      `json:"len"` // 0 … 8
	Node  netip.Addr `json:"node"`
}

// Spread says which node takes which of the 256 values of spread. The zero
// Spread has no node. It is a value: Share returns a new one.
type Spread struct {
	owner [256]netip.Addr
}

// Node returns the node that takes value v, the zero address if there is none.
func (s *Spread) Node(v uint8) netip.Addr { return s.owner[v] }

// Share divides the values among the given nodes: each gets 256/n of them, or
// one more. No more values change hands than that needs, and they go in blocks
// as large as possible, so that few entries of the switch change. More than
// MaxShare nodes cannot share; those beyond get nothing.
func (s *Spread) Share(nodes []netip.Addr) Spread {
	d := newDivision(s, nodes)
	for i := range d.shares {
		to := &d.shares[i]
		for to.missing > 0 {
			d.take(to)
		}
	}
	return d.spread
}

// share is what one node has and should get.
type share struct {
	node    netip.Addr
	surplus int // values to give away
	missing int // values to take
}

// division is a spread that is being divided anew.
type division struct {
	spread Spread
	shares []share
	index  map[netip.Addr]int // node → shares; the zero address stands for nobody's values
}

func newDivision(s *Spread, nodes []netip.Addr) *division {
	d := &division{spread: *s, index: map[netip.Addr]int{}}
	count := map[netip.Addr]int{}
	for _, n := range nodes {
		count[n] = 0
	}
	for v, n := range d.spread.owner {
		if _, stays := count[n]; !stays || !n.IsValid() {
			d.spread.owner[v] = netip.Addr{}
			continue
		}
		count[n]++
	}
	delete(count, netip.Addr{})
	order := make([]netip.Addr, 0, len(count))
	for n := range count {
		order = append(order, n)
	}
	// Those that have most keep the values left over by the division.
	slices.SortFunc(order, func(a, b netip.Addr) int {
		return cmp.Or(count[b]-count[a], a.Compare(b))
	})
	order = order[:min(len(order), MaxShare)]
	for i, n := range order {
		want := 256 / len(order)
		if i < 256%len(order) {
			want++
		}
		d.index[n] = len(d.shares)
		d.shares = append(d.shares, share{node: n, surplus: max(0, count[n]-want), missing: max(0, want-count[n])})
	}
	return d
}

// take moves one block to a node: the largest that it still needs and that
// somebody can give. Of several, one that is not a part of a larger block, and
// then one beside a block that the node has already.
func (d *division) take(to *share) {
	for size := 1 << (bits.Len(uint(to.missing)) - 1); size > 0; size /= 2 {
		if v, ok := d.find(to.node, size); ok {
			d.give(v, size, to)
			return
		}
	}
}

// find looks for the best block of a size that can be given to a node.
func (d *division) find(to netip.Addr, size int) (best int, ok bool) {
	bestCost := 0
	for v := 0; v < 256; v += size {
		from, whole := d.uniform(v, size)
		if !whole || !d.canGive(from, size) {
			continue
		}
		cost := 2 * d.span(v, size)
		if buddy, whole := d.uniform(v^size, size); !whole || buddy != to || size == 256 {
			cost++
		}
		if !ok || cost < bestCost {
			best, bestCost, ok = v, cost, true
		}
	}
	return best, ok
}

// uniform reports whether an aligned block belongs to one node, and to which.
func (d *division) uniform(v, size int) (netip.Addr, bool) {
	v &= 255
	n := d.spread.owner[v]
	for _, o := range d.spread.owner[v : v+size] {
		if o != n {
			return n, false
		}
	}
	return n, true
}

// span is the size of the largest aligned block around one that belongs to the
// same node.
func (d *division) span(v, size int) int {
	for size < 256 {
		if _, whole := d.uniform(v&^(2*size-1), 2*size); !whole {
			break
		}
		size *= 2
	}
	return size
}

// canGive reports whether a node has that many values too many; what belongs to
// nobody can always be given.
func (d *division) canGive(from netip.Addr, size int) bool {
	i, known := d.index[from]
	return !known || d.shares[i].surplus >= size
}

func (d *division) give(v, size int, to *share) {
	if i, known := d.index[d.spread.owner[v]]; known {
		d.shares[i].surplus -= size
	}
	to.missing -= size
	for i := v; i < v+size; i++ {
		d.spread.owner[i] = to.node
	}
}
