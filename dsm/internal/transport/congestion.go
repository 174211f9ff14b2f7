package transport

// congestion bounds the bytes under way with one machine: at most limit; half as much
// after a loss, one datagram more after each window without one. A loss also halves
// limit, down to floor, which receivers can buffer whatever they are: what they can
// buffer beyond that is not known, and does not change. What turns out to have been
// late and not lost, as it is answered twice, is taken back.
type congestion struct {
	bounds
	floor, datagram int
	recovery        uint64 // losses of what was sent before do not count again
	before          bounds // the losses of which it is not known that they were
}

// bounds are in bytes.
type bounds struct{ window, limit int }

func newCongestion(limit, floor, datagram int) congestion {
	limit = max(limit, datagram)
	return congestion{bounds: bounds{limit, limit}, floor: min(limit, max(floor, datagram)), datagram: datagram}
}

// answered takes in that n bytes have arrived, in answer to transmission number sent. If
// that was not a repetition and came after a loss, all that was sent before, and
// arrived, has been answered.
func (c *congestion) answered(n int, sent uint64, first bool) {
	c.window = min(c.limit, c.window+max(1, c.datagram*n/c.window))
	if first && sent >= c.recovery {
		c.before = bounds{}
	}
}

// lost takes in that transmission number sent was lost; next is the number of
// the next one.
func (c *congestion) lost(sent, next uint64) {
	if sent < c.recovery {
		return
	}
	if c.before == (bounds{}) {
		c.before = c.bounds
	}
	c.window = max(c.window/2, c.datagram)
	c.limit = max(c.limit/2, c.floor)
	c.recovery = next
}

// twice takes in that something has been answered twice.
func (c *congestion) twice() {
	c.bounds = bounds{max(c.window, c.before.window), max(c.limit, c.before.limit)}
	c.before = bounds{}
}
