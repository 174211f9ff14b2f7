package blame

import (
	"net/netip"
	"testing"
)

// Figures are by sender and reason, and those of many senders stay bounded.
func TestCounts(t *testing.T) {
	var c Counts
	sender := func(i int) netip.Addr { return netip.AddrFrom16([16]byte{1, 14: byte(i >> 8), 15: byte(i)}) }
	for i := range 2 * MaxSenders {
		c.Add(sender(i), "foreign")
		c.Add(sender(0), "malformed")
	}
	all := c.All()
	if len(all) != MaxSenders+2 {
		t.Fatalf("%d figures", len(all))
	}
	if got := all[0]; got.Sender() != "other" || got.Packets != MaxSenders {
		t.Errorf("others: %+v", got)
	}
	if got := all[2]; got != (Count{sender(0), "malformed", 2 * MaxSenders}) {
		t.Errorf("the first: %+v", got)
	}
}
