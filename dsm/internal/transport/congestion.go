package transport

// congestion bounds the bytes under way with one machine: at most limit, which
// receivers can buffer; half as much after a loss, one datagram more after each
// window without one.
type congestion struct {
	window, limit, datagram int
	recovery                uint64 // losses of what was sent before do not count again
}

func newCongestion(limit, datagram int) congestion {
	limit = max(limit, datagram)
	return congestion{window: limit, limit: limit, datagram: datagram}
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
	c.recovery = next
}
