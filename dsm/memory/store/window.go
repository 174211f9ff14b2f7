package store

import (
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// record is what became of one request that changes something.
type record struct {
	id      uint64 // 0: empty
	length  uint64 // as the reply said
	address uint64 // of the new region, or where it was written or freed
	op      packet.Op
	status  fault.Code
	class   uint8 // alloc: the new region's
	flags   uint8 // of the reply
	dead    bool  // settled before it came: it must never be applied
}

// window is one client's unsettled requests: a floor, below which everything is
// settled, and a ring of records above it. It accepts ids in any order.
type window struct {
	floor uint64
	top   uint64   // the highest id recorded
	ring  []record // id i is at i mod len; the length is a power of two
}

// raise moves the floor up to the client's.
func (w *window) raise(floor uint64) { w.floor = max(w.floor, floor) }

// find returns the record of id, nil if there is none.
func (w *window) find(id uint64) *record {
	if len(w.ring) == 0 {
		return nil
	}
	if r := &w.ring[id&uint64(len(w.ring)-1)]; r.id == id && id >= w.floor {
		return r
	}
	return nil
}

// unsettled returns the records that still count, in no order.
func (w *window) unsettled() []record {
	return slices.DeleteFunc(slices.Clone(w.ring), func(r record) bool { return r.id == 0 || r.id < w.floor })
}

// want returns the ring length for a record of id: 0 if id lies too far above
// the floor. It says less than the present length once a quarter would do.
func (w *window) want(id uint64) int {
	span := max(id, w.top, w.floor) - w.floor
	if span >= MaxSpan {
		return 0
	}
	n := minRing
	for uint64(n) <= span {
		n *= 2
	}
	if n < len(w.ring) && n > len(w.ring)/4 {
		return len(w.ring)
	}
	return n
}

// resize moves the records that still count to a ring of n.
func (w *window) resize(n int) {
	old := w.ring
	w.ring = make([]record, n)
	for _, r := range old {
		if r.id >= w.floor && r.id != 0 {
			w.ring[r.id&uint64(n-1)] = r
		}
	}
}

// put records what became of a request; the ring must be long enough.
func (w *window) put(r record) {
	w.ring[r.id&uint64(len(w.ring)-1)] = r
	w.top = max(w.top, r.id)
}
