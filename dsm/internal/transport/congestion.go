package transport

// congestion bounds the bytes under way with one machine: at most limit; half as much
// after a loss, one datagram more after each window without one. A loss also halves
// limit, down to floor, which receivers can buffer whatever they are: what they can
// buffer beyond that is not known, and does not change.
type congestion struct {
	window, limit, floor, datagram int
	recovery                       uint64 // losses of what was sent before do not count again
}

func newCongestion(limit, floor, datagram int) congestion {
	limit = max(limit, datagram)
	return congestion{window: limit, limit: limit, floor: min(limit, max(floor, datagram)), datagram: datagram}
}

// answered takes in that n bytes have arrived.
func (c *congestion) answered(n int) {
	c.window = min(c.limit, c.window+max(1, c.datagram*n/c.window))
}

// lost takes in that transmission number sent was lost; next is the number of
// the next one.
func (c *congestion) lost(sent, next uint64) {
	if sent < c.recovery {
		return
	}
	c.window = max(c.window/2, c.datagram)
	c.limit = max(c.limit/2, c.floor)
	c.recovery = next
}
