package crash

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/internal/control"
)

// In a rack with Setting.Pairs both memory blades are copies of one machine. While one
// complete copy is there and can be heard, nothing is lost and nothing is unavailable: the
// oracle asks of such a case what it asks of one in which no memory blade fails.

// pair is what the explorer knows of the machine's copies.
type pair struct {
	last gatekeeper.MachineState
	// gone is the incarnation of a blade's copy when its memory was lost: another copy there
	// is complete only if it is a later one.
	gone  map[string]uint32
	away  map[string]int       // how often a blade is stopped or unheard now
	since map[string]time.Time // when that began
}

// heldAfter is for how long a copy that cannot be heard counts in any case: nobody gives it up
// before it has missed three heartbeats.
const heldAfter = time.Second

// look asks the Gatekeeper for the copies, which must not wait for packets; without one they are what they were.
func (r *Run) look() gatekeeper.MachineState {
	if gk := r.rack.Gatekeeper(); gk != nil {
		if o, err := gk.Status(context.Background()); err == nil && len(o.Machines) > 0 {
			r.pair.last = o.Machines[0]
		}
	}
	return r.pair.last
}

// hitPair notes that a blade of the pair is hit, and reports whether the other one has a
// complete copy and can be heard; or else, whether it has a copy that still counts.
func (r *Run) hitPair(blade string, loses bool) (heard, counts bool) {
	state := r.look()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, name := range state.Copies {
		inc := state.Incarnations[i]
		switch {
		case name == blade && loses:
			r.pair.gone[blade] = inc
		case name != blade:
			gone, lost := r.pair.gone[name]
			complete := !lost || inc > gone
			heard = complete && r.pair.away[name] == 0
			counts = complete && (heard || time.Since(r.pair.since[name]) < heldAfter)
		}
	}
	return heard, counts
}

// stayAway notes that a blade goes away, or is back.
func (r *Run) stayAway(blade string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pair.away[blade] == 0 {
		r.pair.since[blade] = time.Now()
	}
	r.pair.away[blade] += n
}

// unequal tells in which regions and ledgers the machine's copies differ, "" if in none. It is asked
// when nobody changes anything.
func (r *Run) unequal(s *gatekeeper.Snapshot) string {
	if m := s.Machines[0]; len(m.Copies) != 2 || m.Why != "" {
		return fmt.Sprintf("the machine has one copy, %v: %s", m.Copies, m.Why)
	}
	first, second := r.rack.MemoryServer(memoryBlades[0]), r.rack.MemoryServer(memoryBlades[1])
	if first == nil || second == nil {
		return "a memory blade does not serve"
	}
	a, errA := first.Regions(control.Regions{Max: control.MaxRegions})
	b, errB := second.Regions(control.Regions{Max: control.MaxRegions})
	if errA != nil || errB != nil || !slices.Equal(a.Regions, b.Regions) {
		return fmt.Sprintf("the copies have other regions: %+v, %v; %+v, %v", a, errA, b, errB)
	}
	for _, id := range a.Regions {
		x, _ := first.ReadRegion(id.ID, 1<<id.Class)
		y, _ := second.ReadRegion(id.ID, 1<<id.Class)
		if !bytes.Equal(x, y) {
			return fmt.Sprintf("the copies differ in region %+v", id)
		}
	}
	return unequalLedger(s, first, second)
}

// judgeCopies waits until the machine has two copies, and compares them.
func (r *Run) judgeCopies(ctx context.Context) error {
	if !r.opt.Setting.Pairs {
		return nil
	}
	why := ""
	err := r.idle(ctx, "the copies differ", func(s *gatekeeper.Snapshot) bool {
		why = r.unequal(s)
		return why == ""
	})
	if err != nil {
		r.ledger.complain("%s", why)
	}
	return nil
}
