package stream

import (
	"iter"
	"time"

	"github.com/bifrost-rack/bifrost/internal/pace"
)

// reorder is how many places later a part must have been sent than a missing one, until that counts as lost (RFC 9002 section 6.1.1).
const reorder = 3

// Flight is the parts of one stream that are under way, with a value of the caller's for each. Times count from any fixed
// instant.
type Flight[T any] struct {
	// Window bounds what is under way together.
	Window Window

	low      uint64    // the first part that has not come
	parts    []part[T] // from low on
	out      int       // what is under way, and not lost
	lost     int       // parts that are to be sent again
	sendings uint64    // how many there have been
	timeout  pace.Timeout
	tries    int           // timeouts since something has come
	since    time.Duration // when something came last, or was sent again
}

// part is one that may be under way.
type part[T any] struct {
	sending uint64        // number of its last sending; 0: it has come
	at      time.Duration // of its last sending
	cost    int
	once    bool // it was sent once, and it is known when
	lost    bool // it is to be sent again
	value   T
}

// NewFlight returns a flight whose first part has a number.
func NewFlight[T any](first uint64, w Window, t pace.Timeout) Flight[T] {
	return Flight[T]{low: first, Window: w, timeout: t}
}

// Low is the first part that has not come.
func (f *Flight[T]) Low() uint64 { return f.low }

// First is the value of the first part that has not come; nil if no part is under way.
func (f *Flight[T]) First() *T {
	if len(f.parts) == 0 {
		return nil
	}
	return &f.parts[0].value
}

// Next is the part that Send sends next.
func (f *Flight[T]) Next() uint64 { return f.low + uint64(len(f.parts)) }

// Len is how many parts there are from the first that has not come up to the last that was sent.
func (f *Flight[T]) Len() int { return len(f.parts) }

// Out is how much is under way, without what is lost.
func (f *Flight[T]) Out() int { return f.out }

// Tries is how many timeouts there have been since something has come.
func (f *Flight[T]) Tries() int { return f.tries }

// Missing yields the parts that have been sent and have not come, in their order, lost ones too.
func (f *Flight[T]) Missing() iter.Seq2[uint64, *T] {
	return func(yield func(uint64, *T) bool) {
		for i := range f.parts {
			if p := &f.parts[i]; p.sending != 0 && !yield(f.low+uint64(i), &p.value) {
				return
			}
		}
	}
}

// Send notes that the next part is sent, and returns its number. Whether it should be is the caller's business.
func (f *Flight[T]) Send(now time.Duration, cost int, value T) uint64 {
	n := f.Expect(now, cost, value)
	f.parts[len(f.parts)-1].once = true
	return n
}

// Expect is Send for a part that the other side sends unasked: it tells no round trip.
func (f *Flight[T]) Expect(now time.Duration, cost int, value T) uint64 {
	if len(f.parts) == 0 {
		f.since = now
	}
	f.sendings++
	f.parts = append(f.parts, part[T]{sending: f.sendings, at: now, cost: cost, value: value})
	f.out += cost
	return f.Next() - 1
}

// Again yields the parts that are lost, as far as the window goes, in their order. Those that it yields are sent again.
func (f *Flight[T]) Again(now time.Duration) iter.Seq2[uint64, *T] {
	return func(yield func(uint64, *T) bool) {
		for i := 0; i < len(f.parts) && f.lost > 0; i++ {
			p := &f.parts[i]
			if !p.lost {
				continue
			}
			if !f.Window.Fits(f.out, p.cost) {
				return
			}
			f.sendings++
			p.sending, p.at, p.lost, p.once = f.sendings, now, false, false
			f.lost--
			f.out += p.cost
			f.since = now
			if !yield(f.low+uint64(i), &p.value) {
				return
			}
		}
	}
}

// Came takes in that a part has come, and reports whether it was missing. What was sent well before it and has not come is lost.
func (f *Flight[T]) Came(now time.Duration, n uint64) bool {
	if n < f.low || n >= f.Next() || f.parts[n-f.low].sending == 0 {
		if n < f.Next() {
			f.Window.Twice()
		}
		return false
	}
	p := &f.parts[n-f.low]
	if p.once {
		f.timeout.Learn(now - p.at)
	}
	sending, lost := p.sending, p.lost
	f.come(p)
	if !lost && n > f.low {
		for i := range f.parts {
			f.overtaken(&f.parts[i], sending)
		}
	}
	f.progress(now)
	return true
}

// Below takes in that all parts below one have come.
func (f *Flight[T]) Below(now time.Duration, n uint64) {
	if n <= f.low || n > f.Next() {
		return
	}
	once, at := true, time.Duration(0)
	for i := range n - f.low {
		if p := &f.parts[i]; p.sending != 0 {
			once, at = once && p.once, p.at
			f.come(p)
		}
	}
	if once { // else who knows what the answer has waited for
		f.timeout.Learn(now - at)
	}
	f.progress(now)
}

// Overtaken takes in that a part has come somewhere where an earlier one has not, which is lost if it was sent well before.
func (f *Flight[T]) Overtaken(n, by uint64) {
	if f.low <= n && n < by && by < f.Next() {
		f.overtaken(&f.parts[n-f.low], f.parts[by-f.low].sending)
	}
}

// Lose gives up all that is under way below a part: it is to be sent again.
func (f *Flight[T]) Lose(below uint64) {
	for i := range min(below, f.Next()) - min(below, f.low) {
		f.lose(&f.parts[i])
	}
}

// Tick gives up all that is under way if nothing has come for too long, and reports whether it did.
func (f *Flight[T]) Tick(now time.Duration) bool {
	if due, ok := f.Due(); !ok || now < due {
		return false
	}
	f.tries++
	f.timeout.Doublings++
	f.since = now
	f.Lose(f.Next())
	return true
}

// Due is when Tick has something to do; false means that nothing is under way.
func (f *Flight[T]) Due() (at time.Duration, ok bool) {
	return f.since + f.timeout.After(f.timeout.Doublings), len(f.parts) > 0
}

// come ends a part's way.
func (f *Flight[T]) come(p *part[T]) {
	if p.lost {
		f.lost--
	} else {
		f.out -= p.cost
	}
	f.Window.Answered(p.cost, p.sending, p.once)
	*p = part[T]{}
}

// progress lets the flight begin with a part that has not come.
func (f *Flight[T]) progress(now time.Duration) {
	n := 0
	for n < len(f.parts) && f.parts[n].sending == 0 {
		n++
	}
	f.low += uint64(n)
	if n == len(f.parts) {
		n = 0
		f.parts = f.parts[:0] // the array is used again
	}
	f.parts = f.parts[n:]
	f.tries, f.since = 0, now
}

func (f *Flight[T]) overtaken(p *part[T], by uint64) {
	if p.sending != 0 && p.sending+reorder <= by {
		f.lose(p)
	}
}

// lose gives a part up, unless it has come or is lost already.
func (f *Flight[T]) lose(p *part[T]) {
	if p.sending == 0 || p.lost {
		return
	}
	f.Window.Lost(p.sending, f.sendings+1)
	p.lost = true
	f.lost++
	f.out -= p.cost
}
