package store

import (
	"slices"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// listBytes is what one region takes of a List's answer at most, in JSON; the
// whole must fit a datagram.
const listBytes = 96

// Fence refuses a node's incarnations up to the given one from now on. It is
// idempotent.
func (s *Store) Fence(f control.Fence) { s.clients.fence(f.Node, f.Incarnation) }

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

// List returns live regions in the order of their addresses, as many as one
// datagram holds.
func (s *Store) List(q control.Regions) control.RegionList {
	limit := max(1, s.cfg.MaxData/listBytes)
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
		reg := s.regions.byBase[base]
		l.Regions = append(l.Regions, control.RegionID{Offset: base, Class: reg.class, Owner: reg.owner})
	}
	return l
}
