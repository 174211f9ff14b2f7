package store

import (
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
		if rec.op != packet.OpAlloc && s.mirrored() {
			s.unsettled(&answer, &rec)
			continue
		}
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

// maxUnsettled is how many unsettled writes and frees an answer to a fence names at most.
const maxUnsettled = 64

// unsettled adds a write or free that the node may not have got to all copies. What an
// execution has changed is taken back everywhere, so it is left out.
func (s *Store) unsettled(answer *control.Fenced, rec *record) {
	reg := s.regions.find(rec.address)
	free := rec.op == packet.OpFree && rec.flags&packet.FlagDeferred == 0
	switch {
	case rec.status != fault.OK || !free && (reg == nil || reg.changes != nil):
	case len(answer.Writes)+len(answer.Frees) == maxUnsettled:
		answer.MoreUnsettled = true
	case free:
		answer.Frees = append(answer.Frees, rec.address)
	default:
		answer.Writes = append(answer.Writes, control.Span{Offset: rec.address, Length: rec.length})
	}
}

// id is how the Gatekeeper is told of a region.
func (r *region) id() control.RegionID {
	id := control.RegionID{Offset: r.base, Class: r.class, Owner: r.owner}
	if c := r.changes; c != nil && c.own {
		id.Execution, id.Incarnation = c.by.id, c.by.by.incarnation
	}
	return id
}

// Forget frees all regions, and forgets all that is known of nodes, of executions and of
// other copies. No address is handed out again.
func (s *Store) Forget() {
	s.EndFill()
	for _, reg := range s.regions.byBase {
		s.release(reg)
	}
	s.clients = newClients(s.cfg.Limits)
	s.undo.marks = marks{most: s.cfg.Limits.Marks}
	s.filled = nil
	s.mirror, s.diverged = packet.Mirror{Members: 1}, 0
}

// Reclaim frees regions whose holder is gone. A region that does not live any
// more is no error.
func (s *Store) Reclaim(r control.Reclaim) (answer control.Reclaimed) {
	for _, id := range r.Regions {
		switch reg := s.regions.find(id.Offset); {
		case reg == nil:
		case reg.base != id.Offset || reg.class != id.Class || reg.taken(id):
			s.undo.refused++
			answer.Refused = append(answer.Refused, id)
		default:
			s.release(reg)
		}
	}
	return answer
}

// taken reports whether a later run of the execution that an id names has allocated the
// region again.
func (r *region) taken(id control.RegionID) bool {
	c := r.changes
	return c != nil && c.own && c.used && c.by.id == id.Execution && c.by.by.incarnation > id.Incarnation
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
