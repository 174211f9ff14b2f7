package store

import (
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// The copies of a machine may differ in what a node had not settled when it was fenced. The first copy makes the second one what it is
// itself: it frees what either has freed, and what only one has allocated; and it gives the content of what either has written. Nobody else has access meanwhile, since the
// node's regions are handed on when the fence is complete.
//
//	Fence at both ─▶ Level at the first: items, in order ─▶ Take at the second ─▶ Levelled at the first
//
// Both remember what was unsettled until then, so that all of it may be repeated.

// Level frees what either copy has freed, and returns what gives the items for the second copy. It fails, and changes nothing, if the
// command makes no sense here: the copies are not level then.
func (s *Store) Level(q control.Level) (items []func(limit int) []byte, err error) {
	told := []*control.Unsettled{&q.First, &q.Second}
	seen := map[control.Span]bool{} // most writes have reached both
	for _, u := range told {
		if u.More {
			return nil, fault.New(fault.NoSpace, "level", "node %s has left more than %d writes and frees unsettled", q.Fence.Node, control.MaxUnsettled)
		}
		for _, w := range u.Writes {
			if _, _, status := s.find(s.at(w.ID, w.Offset), w.Length); status == fault.BadRequest {
				return nil, fault.New(fault.BadRequest, "level", "%d bytes at %d of %s are not in one region", w.Length, w.Offset, w.ID)
			}
			if !seen[w] {
				seen[w] = true
				items = append(items, s.contentOf(w))
			}
		}
	}
	for _, a := range slices.Concat(q.First.Beside(&q.Second), q.Second.Beside(&q.First)) {
		s.releaseID(a)
		items = append(items, Once(encode(itemGone, a)))
	}
	for _, u := range told {
		for _, id := range u.Frees {
			s.releaseID(id)
			items = append(items, Once(encode(itemGone, id)))
		}
	}
	return append(items, Once(encode(itemLevelled, levelledItem{q.Fence.Node.As16(), q.Fence.Incarnation}))), nil
}

// at is the pointer to a byte of a region.
func (s *Store) at(id dsmpacket.RegionID, offset uint64) dsmpacket.Pointer {
	return dsmpacket.Make(s.cfg.Prefix, s.cfg.Machine, id).Add(int64(offset)) //nolint:gosec // what is too large is the nil pointer
}

// contentOf gives what a part of a region holds; nothing if the region is gone, for then it goes at the other copy, too.
func (s *Store) contentOf(w control.Span) func(int) []byte {
	return func(limit int) []byte {
		reg, at, status := s.find(s.at(w.ID, w.Offset), w.Length)
		if status != fault.OK || w.Length == 0 {
			return nil
		}
		n := min(w.Length, uint64(limit-itemOverhead)) //nolint:gosec // see FillNext
		w.Offset, w.Length = w.Offset+n, w.Length-n
		return append(encode(itemPages, pagesItem{ID: reg.id, Class: reg.class, At: at}), reg.view(at, n)...)
	}
}

// Levelled says that both copies are equal in what an incarnation had not settled.
func (s *Store) Levelled(node netip.Addr, incarnation uint32) {
	if c := s.clients.byNode[node]; c != nil && c.incarnation == incarnation {
		c.unsettled = control.Unsettled{}
	}
}

// Content returns what the first n bytes of a region hold; false if it has not so many.
func (s *Store) Content(id dsmpacket.RegionID, n uint64) (data []byte, ok bool) {
	reg, at, status := s.find(s.at(id, 0), n)
	if status != fault.OK {
		return nil, false
	}
	return append([]byte(nil), reg.view(at, n)...), true
}
