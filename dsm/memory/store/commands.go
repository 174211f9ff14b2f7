package store

import (
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// Fence refuses a node's incarnations up to the given one from now on. It is
// idempotent, but only the first time returns what they had allocated by requests
// that they had not settled.
func (s *Store) Fence(f control.Fence) (answer control.Fenced) {
	for _, rec := range s.clients.fence(f.Node, f.Incarnation) {
		reg := s.regions.byBase[rec.address]
		if rec.op != packet.OpAlloc || rec.status != fault.OK || reg == nil {
			continue // it is no region, or not any more
		}
		if len(answer.Regions) == control.MaxRegions {
			answer.More = true
			break
		}
		answer.Regions = append(answer.Regions, reg.id())
	}
	return answer
}

// id is how the Gatekeeper is told of a region.
func (r *region) id() control.RegionID {
	id := control.RegionID{Offset: r.base, Class: r.class, Owner: r.owner}
	if c := r.changes; c != nil && c.own {
		id.Execution = c.by.id
	}
	return id
}

// Forget frees all regions, and forgets all that is known of nodes and executions. No
// address is handed out again.
func (s *Store) Forget() {
	for _, reg := range s.regions.byBase {
		s.release(reg)
	}
	s.clients = clients{byNode: make(map[netip.Addr]*client)}
}

// Reclaim frees regions whose holder is gone. A region that does not live any
// more is no error. An id that does not match a live region's base and class is
// BadRequest, and then none is freed.
func (s *Store) Reclaim(r control.Reclaim) error {
	var doomed []*region
	for _, id := range r.Regions {
		reg := s.regions.find(id.Offset)
		if reg == nil {
			continue
		}
		if reg.base != id.Offset || reg.class != id.Class {
			return fault.New(fault.BadRequest, "reclaim", "%#x of class %d is no region; the address lies in %#x of class %d",
				id.Offset, id.Class, reg.base, reg.class)
		}
		doomed = append(doomed, reg)
	}
	for _, reg := range doomed {
		if s.regions.byBase[reg.base] == reg { // it may have been named twice
			s.release(reg)
		}
	}
	return nil
}

// List returns live regions in the order of their addresses.
func (s *Store) List(q control.Regions) control.RegionList {
	limit := control.MaxRegions
	if q.Max > 0 {
		limit = min(limit, q.Max)
	}
	var bases []uint64
	for base := range s.regions.byBase {
		if base >= q.From {
			bases = append(bases, base)
		}
	}
	slices.Sort(bases)
	var l control.RegionList
	for i, base := range bases {
		if i == limit {
			l.Next = base
			break
		}
		l.Regions = append(l.Regions, s.regions.byBase[base].id())
	}
	return l
}
