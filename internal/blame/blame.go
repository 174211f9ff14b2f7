// Package blame counts what is refused by who has sent it, in bounded space.
package blame

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
)

// MaxSenders is of how many senders Counts keeps figures; those of further ones are under the
// zero address.
const MaxSenders = 256

// Counts are the figures. The zero value is ready. Methods may be called concurrently.
type Counts struct {
	mu sync.Mutex
	of map[netip.Addr]map[string]uint64
}

// Count is how many packets of a sender were refused for a reason.
type Count struct {
	From    netip.Addr // the zero Addr stands for senders beyond MaxSenders
	Reason  string
	Packets uint64
}

// Sender names the sender: its address, or "other".
func (c *Count) Sender() string {
	if !c.From.IsValid() {
		return "other"
	}
	return c.From.String()
}

// Add counts a packet. There must be few reasons.
func (c *Counts) Add(from netip.Addr, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[netip.Addr]map[string]uint64{}
	}
	if c.of[from] == nil {
		if len(c.of) >= MaxSenders {
			from = netip.Addr{}
		}
		if c.of[from] == nil {
			c.of[from] = map[string]uint64{}
		}
	}
	c.of[from][reason]++
}

// All lists the figures by sender, then by reason.
func (c *Counts) All() (all []Count) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for from, by := range c.of {
		for reason, n := range by {
			all = append(all, Count{from, reason, n})
		}
	}
	slices.SortFunc(all, func(a, b Count) int { return cmp.Or(a.From.Compare(b.From), cmp.Compare(a.Reason, b.Reason)) })
	return all
}
