package transport

import "testing"

// A loss halves the window and its limit. What is answered twice was none, unless what
// was sent after the loss has been answered before.
func TestCongestion(t *testing.T) {
	const datagram = 1000
	type step func(*congestion)
	lost := func(sent, next uint64) step { return func(c *congestion) { c.lost(sent, next) } }
	answered := func(sent uint64, first bool) step { return func(c *congestion) { c.answered(0, sent, first) } }
	twice := (*congestion).twice
	for name, c := range map[string]struct {
		steps []step
		limit int
	}{
		"lost":                         {[]step{lost(3, 10)}, 6},
		"lost at once":                 {[]step{lost(3, 10), lost(4, 11)}, 6},
		"lost again":                   {[]step{lost(3, 10), lost(10, 20)}, 4},
		"late":                         {[]step{lost(3, 10), twice}, 12},
		"late, and late again":         {[]step{lost(3, 10), lost(10, 20), twice, twice}, 12},
		"late, older ones answered":    {[]step{lost(3, 10), answered(4, true), answered(12, false), twice}, 12},
		"lost, as newer ones show":     {[]step{lost(3, 10), answered(10, true), twice}, 6},
		"lost, then late":              {[]step{lost(3, 10), answered(10, true), lost(15, 20), twice}, 6},
		"answered twice for no reason": {[]step{twice}, 12},
	} {
		cc := newCongestion(12*datagram, 4*datagram, datagram)
		for _, s := range c.steps {
			s(&cc)
		}
		if cc.limit != c.limit*datagram || cc.window > cc.limit || cc.window < datagram {
			t.Errorf("%s: limit %d, window %d, want a limit of %d datagrams", name, cc.limit, cc.window, c.limit)
		}
	}
}
