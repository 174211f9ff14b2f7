package store

import (
	"net/netip"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/share"
)

// The owners of nodes share the machine's regions, and their bytes (package share). A region is charged to the node that has allocated it, wherever it has
// been handed over since, as long as that node has the region's batch: when the batch is given on, what lives there is charged to nobody (docs/rights.md,
// section 3).

// quotas is who has how much of the machine; nil if nobody says whose nodes are.
type quotas struct{ regions, bytes *share.Nodes }

// may reports whether a node may have another region of the class. If not, the flags say why.
func (s *Store) may(node netip.Addr, class uint8) (status fault.Code, why uint8) {
	switch q := s.quotas; {
	case len(s.regions.byID) >= s.cfg.Limits.Regions:
		return fault.NoSpace, 0
	case q != nil && (q.regions.Room(node) == 0 || q.bytes.Room(node) < 1<<class):
		q.bytes.Refuse(node)
		return fault.NoSpace, dsmpacket.FlagShare
	}
	return fault.OK, 0
}

// charged reports whether somebody is charged for a region: its owner.
func (s *Store) charged(reg *region) bool {
	b := s.batches.of[reg.id.Batch()]
	return s.quotas != nil && b != nil && reg.owner.IsValid() && b.node == reg.owner
}

// charge takes a region's share for its owner. What is there is charged whether there is room or not.
func (s *Store) charge(reg *region) {
	if s.charged(reg) {
		s.quotas.regions.Force(reg.owner, 1)
		s.quotas.bytes.Force(reg.owner, 1<<reg.class)
	}
}

// uncharge gives it back.
func (s *Store) uncharge(reg *region) {
	if s.charged(reg) {
		s.quotas.regions.Release(reg.owner, 1)
		s.quotas.bytes.Release(reg.owner, 1<<reg.class)
	}
}

// giveBatch says which node has a batch. What lives there of another one is charged to nobody from then on.
func (s *Store) giveBatch(number uint32, node netip.Addr) {
	b := s.batches.at(number)
	if b.node == node {
		return
	}
	var there []*region
	for i := range b.slots {
		id := dsmpacket.IDOf(number*dsmpacket.BatchSlots+uint32(i), b.slots[i].last) //nolint:gosec // 64
		if reg := s.regions.byID[id]; reg != nil {
			s.uncharge(reg)
			there = append(there, reg)
		}
	}
	b.node = node
	for _, reg := range there {
		s.charge(reg)
	}
}

// forgetBatches drops whose the batches are.
func (s *Store) forgetBatches() {
	for number := range s.batches.of {
		s.giveBatch(number, netip.Addr{})
	}
}

// RefusedRegions tells how often owners were refused a region beyond their share. Owners beyond share.MaxOwners are counted together, which it returns.
func (s *Store) RefusedRegions(each func(owner share.Owner, n uint64)) (others uint64) {
	if s.quotas == nil {
		return 0
	}
	return s.quotas.bytes.Refusals().Each(each)
}

// What executions change, and nobody has committed, is charged to the owners of their nodes (package share). An owner that has its share waits until some of
// that is committed, as everybody does when there is no room. Until it is known whose a node is, it is a stranger.

// maxOwners is of how many nodes the owners are remembered: more than a rack has.
const maxOwners = 4096

// owners are whose nodes are, as far as the Gatekeeper has said.
type owners struct{ of map[netip.Addr]ownerOf }

type ownerOf struct {
	share.Owner
	incarnation uint32 // an owner is asked for again when its node goes on as another one, at another blade perhaps
}

// ownerOf is whose a node is; nil knows nobody.
func (o *owners) ownerOf(node netip.Addr) share.Owner {
	if o != nil {
		if known := o.of[node]; known.Known() {
			return known.Owner
		}
	}
	return share.Stranger(node)
}

// seek reports whether it is to be asked whose the node of a request is.
func (o *owners) seek(r *Request) bool {
	if o == nil {
		return false
	}
	known, said := o.of[r.Node]
	return !said || known.incarnation < r.Header.Incarnation
}

// Learn says whose an incarnation of a node is; the zero Owner stands for nobody known.
func (s *Store) Learn(node netip.Addr, incarnation uint32, owner share.Owner) {
	o := s.undo.owners
	if o == nil || o.of[node] == (ownerOf{owner, incarnation}) {
		return
	}
	if o.of == nil || len(o.of) >= maxOwners {
		o.of = map[netip.Addr]ownerOf{}
	}
	o.of[node] = ownerOf{owner, incarnation}
	for _, total := range []*share.Nodes{s.undo.shares, s.quotas.regions, s.quotas.bytes} {
		total.Learn(node)
	}
}

// RefusedUndo tells how often owners were refused a change beyond their share of the undo. Owners beyond share.MaxOwners are counted together, which it
// returns.
func (s *Store) RefusedUndo(each func(owner share.Owner, n uint64)) (others uint64) {
	return s.undo.shares.Refusals().Each(each)
}
