package endpoint

import "github.com/bifrost-rack/bifrost/rpc/rpcpacket"

// Used calls f with the last number of each slot that this incarnation has used.
func (c *Caller) Used(f func(rpcpacket.Slot, rpcpacket.Number)) {
	for _, block := range c.blocks {
		for _, s := range block {
			if s.count > 0 {
				f(s.number, rpcpacket.NumberOf(c.incarnation, s.count))
			}
		}
	}
}

// Waiting appends every call that waits for slots.
func (c *Caller) Waiting(calls []*Call) []*Call {
	for _, q := range c.waiting {
		calls = append(calls, q.calls...)
	}
	return calls
}

// Asks reports whether a call is a question about a call of a former incarnation, or about one that holds its slots.
func (c *Caller) Asks(call *Call) bool { return c.asks(call) }
