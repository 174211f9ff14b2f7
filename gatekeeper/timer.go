package gatekeeper

import "time"

// tick does what is due now.
func (c *controller) tick() {
	c.timers = true
	c.listen()
	for _, p := range c.sortedPorts() {
		if at, ok := p.peer.Deadline(); ok && !c.now.Before(at) {
			p.peer.Tick(c.now)
			c.converse(p)
		}
	}
	c.repeatCommands()
	c.deliverAgain()
	c.probe()
	c.act(c.fleet.Tick(c.now))
	c.resume()
	c.giveUpFallen()
	c.emptied()
	c.giveUpParents()
	c.graph.Expire(c.now.Add(-looseAge))
}

// deadline is when tick has something to do next; false means not before
// another input. It changes only when timers is set.
func (c *controller) deadline() (at time.Time, ok bool) {
	c.timers = false
	earliest := func(t time.Time) {
		if !ok || t.Before(at) {
			at, ok = t, true
		}
	}
	c.listenDeadline(earliest)
	for _, p := range c.ports {
		if t, due := p.peer.Deadline(); due {
			earliest(t)
		}
	}
	for _, t := range c.orphans {
		earliest(t)
	}
	if len(c.parked) > 0 {
		earliest(c.parked[0].until)
	}
	if c.resuming.due() && c.connected {
		earliest(c.now)
	}
	for _, b := range c.blades {
		for _, m := range b.commands {
			if b.alive() && m.again.After(c.now) {
				earliest(m.again)
			}
		}
	}
	for _, e := range c.emptying {
		if c.connected {
			earliest(e.next)
		}
	}
	if !c.lastAgain.IsZero() {
		earliest(c.lastAgain.Add(probeInterval))
	}
	if due, waits := c.fleet.Deadline(); waits {
		earliest(due)
	}
	if last, loose := c.graph.Quietest(); loose {
		earliest(last.Add(looseAge + 1))
	}
	return at, ok
}
