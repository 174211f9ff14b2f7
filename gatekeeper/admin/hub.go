package admin

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/bifrost-rack/bifrost/gatekeeper"
)

// hub keeps the latest events for any number of readers, each of which goes its own
// pace. A reader has no queue but a position, so a slow one costs nothing: when
// what it should read next is gone, it learns how many events it has missed.
type hub struct {
	boot   string                  // first part of event ids
	note   func(*gatekeeper.Event) // is told of each event, if it is set
	before uint64                  // numbers in front of this run's first event, for events of former runs

	mu    sync.Mutex
	ring  []gatekeeper.Event // the latest, from first on round the ring
	first int
	joined
	more  chan struct{} // closed when there is more to read; nil if nobody waits
	ended bool          // there will be no more
	lost  uint64        // events that the hub itself was too slow for
}

// position is where a reader stands: behind the event of number seq. While it is
// not known what came before, nothing counts as missed.
type position struct {
	seq   uint64
	known bool
}

// run keeps events until there are no more.
func (h *hub) run(events <-chan gatekeeper.Event) {
	for e := range events {
		h.add(e)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	h.wake()
}

func (h *hub) add(e gatekeeper.Event) {
	if h.note != nil {
		h.note(&e)
	}
	e.Seq += h.before
	h.mu.Lock()
	defer h.mu.Unlock()
	h.learn(&e, false)
	if n := len(h.ring); n > 0 {
		h.lost += e.Seq - h.at(n-1).Seq - 1
	}
	if len(h.ring) < kept {
		h.ring = append(h.ring, e)
	} else {
		h.ring[h.first] = e
		h.first = (h.first + 1) % kept
	}
	h.wake()
}

// recall puts events of former runs, before of them at most, in front of those that are kept.
func (h *hub) recall(earlier []gatekeeper.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make([]gatekeeper.Event, 0, len(earlier)+len(h.ring))
	for i := len(earlier) - 1; i >= 0; i-- {
		h.learn(&earlier[i], true)
	}
	for i, e := range earlier {
		e.Seq = h.before - uint64(len(earlier)-i-1) //nolint:gosec // not negative
		all = append(all, e)
	}
	for i := range h.ring {
		all = append(all, *h.at(i))
	}
	h.ring, h.first = all[max(0, len(all)-kept):], 0
}

// wake tells all who wait; h.mu is held.
func (h *hub) wake() {
	if h.more != nil {
		close(h.more)
		h.more = nil
	}
}

// at is the i-th event kept; h.mu is held.
func (h *hub) at(i int) *gatekeeper.Event { return &h.ring[(h.first+i)%len(h.ring)] }

// after is the index of the first event kept behind a position; h.mu is held.
func (h *hub) after(p position) int {
	lo, hi := 0, len(h.ring)
	for lo < hi {
		if mid := (lo + hi) / 2; h.at(mid).Seq > p.seq {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}

// read returns up to limit events behind a position. If there are none, it returns a
// channel that is closed when there may be, or nil if there never will be.
func (h *hub) read(p position, limit int) (events []gatekeeper.Event, more <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := h.after(p); i < len(h.ring) && len(events) < limit; i++ {
		events = append(events, *h.at(i))
	}
	switch {
	case len(events) > 0 || h.ended:
		return events, nil
	case h.more == nil:
		h.more = make(chan struct{})
	}
	return nil, h.more
}

// recent returns the latest events that a filter takes, oldest first, limit at most.
func (h *hub) recent(f *EventFilter, limit int) (events []gatekeeper.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := len(h.ring) - 1; i >= 0 && len(events) < limit; i-- {
		if e := h.at(i); f.takes(e) {
			events = append(events, *e)
		}
	}
	slices.Reverse(events)
	return events
}

// latest is the position that has the latest n events in front of it.
func (h *hub) latest(n int) position {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n = min(n, len(h.ring)); n == len(h.ring) {
		return position{}
	}
	return position{h.at(len(h.ring) - 1 - n).Seq, true}
}

// id is an event's id in this run of the Gatekeeper.
func (h *hub) id(seq uint64) string { return h.boot + "-" + strconv.FormatUint(seq, 10) }

// resume is the position behind the event of an id. Of another run of the Gatekeeper
// nobody knows how much is missed: restarted is true, and the position is the beginning
// of this run.
func (h *hub) resume(id string) (p position, restarted bool, err error) {
	boot, number, ok := strings.Cut(id, "-")
	p.seq, err = strconv.ParseUint(number, 10, 64)
	switch {
	case !ok || err != nil || boot == "":
		return position{}, false, fmt.Errorf("%q is not an event id", id)
	case boot != h.boot:
		return position{seq: h.before}, true, nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	newest := uint64(0)
	if n := len(h.ring); n > 0 {
		newest = h.at(n - 1).Seq
	}
	return position{min(p.seq, newest), true}, false, nil
}

// lostEvents is how many events the hub was too slow for.
func (h *hub) lostEvents() float64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return float64(h.lost)
}
