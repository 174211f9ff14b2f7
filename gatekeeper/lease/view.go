package lease

import (
	"bytes"
	"iter"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
)

// Region is what is known of a region. Controller is the zero Node if that is
// gone and only leases keep the region.
type Region struct {
	Region     dsmpacket.Region
	Owner      Node // whose allocation it was
	Controller Node
	Freeing    bool
	Leases     []Lease
}

// Lease is one call's lease, and who may read by it.
type Lease struct {
	Call CallID
	Node Node
}

// Regions yields all regions, in no particular order.
func (m *Machine) Regions() iter.Seq[Region] {
	return func(yield func(Region) bool) {
		for _, r := range m.regions {
			if !r.dead && !yield(r.view()) {
				return
			}
		}
	}
}

// After yields the regions behind an address in the order of their addresses.
func (m *Machine) After(p dsmpacket.Pointer) iter.Seq[Region] {
	return func(yield func(Region) bool) {
		m.order.AscendGreaterOrEqual(&region{id: dsmpacket.Region{Base: p}}, func(r *region) bool {
			return r.dead || r.id.Base == p || yield(r.view())
		})
	}
}

// before is the order of regions by address.
func before(a, b *region) bool {
	if d := bytes.Compare(a.id.Base[:], b.id.Base[:]); d != 0 {
		return d < 0
	}
	return a.id.Class < b.id.Class
}

// Find returns the region that a pointer lies in.
func (m *Machine) Find(p dsmpacket.Pointer) (Region, bool) {
	r := m.find(p)
	if r == nil {
		return Region{}, false
	}
	return r.view(), true
}

func (r *region) view() Region {
	v := Region{Region: r.id, Owner: r.owner, Controller: r.controller, Freeing: r.freeing}
	for _, l := range r.leases {
		v.Leases = append(v.Leases, Lease{l.call.id, l.call.callee})
	}
	return v
}

// Len is how many regions are known, those included whose last rules just go.
func (m *Machine) Len() int { return len(m.regions) }

// Lends reports whether a call has leases now.
func (m *Machine) Lends(id CallID) bool {
	k := m.calls[id]
	return k != nil && len(k.leases) > 0
}

// Calls is how many calls the Machine follows.
func (m *Machine) Calls() int { return len(m.calls) }

// LeasesOf tells for each region on which a node has leases how many calls lent
// it (thesis section 5.4); nil if there are none.
func (m *Machine) LeasesOf(n Node) map[dsmpacket.Region]int {
	o := m.nodes[n]
	if o == nil {
		return nil
	}
	var leases map[dsmpacket.Region]int
	for c := range o.calls {
		if c.callee != n {
			continue
		}
		for _, l := range c.leases {
			if leases == nil {
				leases = map[dsmpacket.Region]int{}
			}
			leases[l.region.id]++
		}
	}
	return leases
}

// Rules yields the rules that the state gives, in no particular order. For a
// region in transition they are those that it leads to.
func (m *Machine) Rules() iter.Seq[Rule] {
	return func(yield func(Rule) bool) {
		for _, r := range m.regions {
			for _, rule := range r.rules() {
				if !yield(rule) {
					return
				}
			}
		}
	}
}

// rules returns all rules of a region.
func (r *region) rules() []Rule {
	var rules []Rule
	if r.controller.IsValid() {
		rules = r.ops(r.controller).rules(rules, r.controller, r.id)
	}
	for _, o := range r.readers {
		if o.node != r.controller {
			rules = r.ops(o.node).rules(rules, o.node, r.id)
		}
	}
	return rules
}
