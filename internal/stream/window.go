package stream

// Window bounds what may be under way at a time, in any unit, as TCP does (RFC 5681). A loss halves it. Up to the size that it has
// then, it grows by as much as is answered, and beyond that by one part for each window without a loss.
//
// Its limit is halved with it, down to a floor that receivers can buffer whatever they are: what they can buffer beyond that is
// not known, and does not change. A loss that turns out to be none, since the part is answered twice, is taken back.
//
// Sendings are numbered in their order, from 1.
type Window struct {
	bounds
	slow        int // it grows fast up to here
	floor, part int
	recovery    uint64 // losses of what was sent before do not count again
	before      bounds // the losses of which it is not known that they were
}

// bounds are the window's size, and how large it gets.
type bounds struct{ size, limit int }

// least is how many parts are under way at least, however many are lost.
const least = 2

// NewWindow returns a window of a size that grows up to a limit. Losses leave the limit as it is down to the floor. A part counts
// for so much as part says at most.
func NewWindow(size, limit, floor, part int) Window {
	limit = max(limit, part)
	return Window{bounds: bounds{min(max(size, part), limit), limit}, slow: limit, floor: min(limit, max(floor, least*part)), part: part}
}

// Size is how much may be under way.
func (w *Window) Size() int { return w.size }

// Fits reports whether so much may be sent while out is under way. If nothing is, something always may.
func (w *Window) Fits(out, cost int) bool { return out == 0 || out+cost <= w.size }

// Answered takes in that what counts for n has been answered, and the number of its last sending. If it was sent once, after a
// loss, then all that was sent before, and has arrived, has been answered.
func (w *Window) Answered(n int, sending uint64, once bool) {
	if w.size < w.slow {
		w.size += n
	} else {
		w.size += max(1, w.part*n/w.size)
	}
	w.size = min(w.size, w.limit)
	if once && sending >= w.recovery {
		w.before = bounds{}
	}
}

// Lost takes in that a sending was lost; next is the number of the next one. Losses among what was under way together count once.
func (w *Window) Lost(sending, next uint64) {
	if sending < w.recovery {
		return
	}
	if w.before == (bounds{}) {
		w.before = w.bounds
	}
	w.limit = max(w.limit/2, w.floor)
	w.size = min(max(w.size/2, least*w.part), w.limit)
	w.slow, w.recovery = w.size, next
}

// Twice takes in that something has been answered twice.
func (w *Window) Twice() {
	w.bounds = bounds{max(w.size, w.before.size), max(w.limit, w.before.limit)}
	w.before = bounds{}
}
