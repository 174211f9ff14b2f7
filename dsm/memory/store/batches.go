package store

import (
	"net/netip"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// The Gatekeeper gives nodes region slots in batches, and tells the machine's copies whose each batch is. A node chooses slot and generation of
// a region itself, so all copies make the same one. The store keeps the last generation of each slot, also of a freed one: each region of a slot
// has a higher one than those before it.

// restTime is for how long a freed slot has no region: late packets about the former one arrive meanwhile, and nobody uses a slot up in a day.
const restTime = time.Second

// batches are what is known of slots.
type batches struct {
	of      map[uint32]*batch
	floor   uint32 // generations begin above it
	highest uint32 // of all that were given
}

// batch is 64 slots.
type batch struct {
	node  netip.Addr // that may allocate there; invalid: nobody
	slots [dsmpacket.BatchSlots]slot
}

// slot is the state of a slot that has no region.
type slot struct {
	last  uint32        // the generation that it had last, 0 if none
	rests time.Duration // until then it has no other region
}

// at is the batch of a number, which is made.
func (t *batches) at(number uint32) *batch {
	b := t.of[number]
	if b == nil {
		if t.of == nil {
			t.of = map[uint32]*batch{}
		}
		b = &batch{}
		t.of[number] = b
	}
	return b
}

// slot is that of a region.
func (t *batches) slot(id dsmpacket.RegionID) *slot {
	return &t.at(id.Batch()).slots[id.Slot()%dsmpacket.BatchSlots]
}

// give notes that a region is made.
func (t *batches) give(id dsmpacket.RegionID) {
	s := t.slot(id)
	s.last = max(s.last, id.Generation())
	t.highest = max(t.highest, id.Generation())
}

// item is what another copy is told of a batch.
func (t *batches) item(number uint32) batchItem {
	v := batchItem{Batch: number}
	for i := range v.Last {
		v.Last[i] = t.of[number].slots[i].last
	}
	return v
}

// Grant says which nodes may allocate in which batches from now on, and whose these nodes are. It is idempotent.
func (s *Store) Grant(g control.Grant) error {
	for _, b := range g.Batches {
		if b.Batch == 0 || b.Batch >= dsmpacket.Batches {
			return fault.New(fault.BadRequest, "grant", "the rack has no batch %d", b.Batch)
		}
	}
	for _, b := range g.Batches {
		if b.Owner.Known() {
			s.Learn(b.Node, b.Incarnation, b.Owner)
		}
		s.giveBatch(b.Batch, b.Node)
	}
	return nil
}

// granted is the batch of a request's slot if it is its node's. Else the Gatekeeper's word may be on its way: the client asks again.
func (s *Store) granted(r *Request) *batch {
	if b := s.batches.of[r.To.ID().Batch()]; b != nil && b.node == r.Node {
		return b
	}
	return nil
}

// free reports whether a slot may have a region of a generation now.
func (s *Store) free(k *slot, generation uint32) bool {
	return generation > max(k.last, s.batches.floor) && s.time >= k.rests
}

// neverMade takes in that a region is freed which is not here. If it was never made here, another copy of the machine has made it, which this one refused: its
// generation counts as used here, too. Else the copies' generations would drift apart, until what one of them takes is too new for the other one.
func (s *Store) neverMade(id dsmpacket.RegionID) {
	b := s.batches.of[id.Batch()]
	if b == nil || !id.Valid() {
		return
	}
	if k := &b.slots[id.Slot()%dsmpacket.BatchSlots]; !s.lives(dsmpacket.IDOf(id.Slot(), k.last)) && id.Generation() > k.last {
		s.batches.give(id)
		k.rests = s.time + restTime
	}
}

// slotsOf tells a node what became of the slots of its batch.
func (s *Store) slotsOf(r *Request) Answer {
	b := s.granted(r)
	switch {
	case r.Header.Length != dsmpacket.SlotsSize:
		return refuse(r, fault.BadRequest)
	case b == nil:
		return refuse(r, fault.Overloaded)
	}
	var states [dsmpacket.BatchSlots]dsmpacket.SlotState
	first := r.To.ID().Batch() * dsmpacket.BatchSlots
	for i := range states {
		k := &b.slots[i]
		live := s.regions.byID[dsmpacket.IDOf(first+uint32(i), k.last)] != nil //nolint:gosec // 64
		states[i] = dsmpacket.SlotState{Generation: max(k.last, s.batches.floor), Live: live, Rests: !live && s.time < k.rests}
	}
	a := answer(r, fault.OK, r.Header.Length)
	a.Data = dsmpacket.AppendSlots(nil, &states)
	return a
}
