package dsmpacket

import (
	"encoding/binary"

	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
)

// A rack has 2^SlotBits region slots. The Gatekeeper gives them to nodes in batches, each on one memory machine. A node chooses slot and
// generation of a region itself (docs/rights.md, section 3).

const (
	// BatchSlots is how many region slots a batch has: those whose numbers divided by it give the same.
	BatchSlots = 64
	// Batches is how many batches a rack has. Nobody gets batch 0.
	Batches = 1 << SlotBits / BatchSlots
	// MaxBatches is how many batches a node may have.
	MaxBatches = 4096
	// MostAhead is how far a new region's generation may lie above the slot's last one, so that nobody uses a slot up by a few packets.
	MostAhead = 8
)

// Batch is the batch that the region's slot is in.
func (id RegionID) Batch() uint32 { return id.Slot() / BatchSlots }

// SlotState is what a memory server knows of a slot.
type SlotState struct {
	// Generation is the last one that the slot has had, or the highest that it may not have any more.
	Generation uint32
	// Live says that the region of that generation is there. Rests says that it was freed just now: the slot has none for a second.
	Live, Rests bool
}

const (
	slotLive  = 1 << 31
	slotRests = 1 << 30
	// SlotsSize is how many bytes the answer to OpSlots has: four for each slot of the batch.
	SlotsSize = 4 * BatchSlots
)

// AppendSlots appends the answer to OpSlots.
func AppendSlots(b []byte, states *[BatchSlots]SlotState) []byte {
	for _, s := range states {
		v := s.Generation
		if s.Live {
			v |= slotLive
		}
		if s.Rests {
			v |= slotRests
		}
		b = binary.BigEndian.AppendUint32(b, v)
	}
	return b
}

// ParseSlots reads what AppendSlots has appended. The error wraps wirefmt.ErrFormat.
func ParseSlots(b []byte) (states [BatchSlots]SlotState, err error) {
	if len(b) != SlotsSize {
		return states, wirefmt.Errorf("slots of a batch: %d bytes, want %d", len(b), SlotsSize)
	}
	for i := range states {
		v := binary.BigEndian.Uint32(b[4*i:])
		s := SlotState{Generation: v &^ (slotLive | slotRests), Live: v&slotLive != 0, Rests: v&slotRests != 0}
		if s.Generation > MaxGeneration || s.Live && (s.Rests || s.Generation == 0) {
			return states, wirefmt.Errorf("slots of a batch: slot %d is %#x", i, v)
		}
		states[i] = s
	}
	return states, nil
}
