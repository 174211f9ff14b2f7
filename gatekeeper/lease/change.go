package lease

import "github.com/bifrost-rack/bifrost/dsm/dsmpacket"

// change collects what one event changes, so that the rules' exact differences
// can be told afterwards: whatever may change is touched first.
type change struct {
	regions []*region
	reclaim []dsmpacket.Region
}

// custody is what of a region must outlive a restart: its leases follow from the
// calls.
type custody struct {
	controller    Node
	freeing, dead bool
}

func (r *region) custody() custody { return custody{r.controller, r.freeing, r.dead} }

// touched is what a node could do with a region before the event.
type touched struct {
	node   Node
	before ops
}

// touch notes what node n may do with region r now, once for each event.
func (c *change) touch(r *region, n Node) {
	if !n.IsValid() {
		return
	}
	for _, t := range r.touched {
		if t.node == n {
			return
		}
	}
	if len(r.touched) == 0 {
		c.regions = append(c.regions, r)
		r.was = r.custody()
	}
	r.touched = append(r.touched, touched{n, r.ops(n)})
}

// changed returns the regions that are in other hands than before.
func (c *change) changed() (out []dsmpacket.Region) {
	for _, r := range c.regions {
		if r.custody() != r.was {
			out = append(out, r.id)
		}
	}
	return out
}

// rules returns the differences and forgets the touches.
func (c *change) rules() (revoke, grant []Rule) {
	for _, r := range c.regions {
		for _, t := range r.touched {
			after := r.ops(t.node)
			revoke = (t.before &^ after).rules(revoke, t.node, r.id)
			grant = (after &^ t.before).rules(grant, t.node, r.id)
		}
		r.touched = nil
	}
	c.regions = nil
	return revoke, grant
}
