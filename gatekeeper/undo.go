package gatekeeper

import (
	"encoding/json"
	"slices"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// Nodes have memory blades keep or take back what executions have changed, as their ledgers say. The Gatekeeper tells blades
// which incarnations of nodes have ended, and looks after regions of which nobody else knows.

// excuse waits no longer for a memory blade that has failed or begun anew. It is told of fences when it is back.
func (b *blade) excuse() {
	for _, o := range b.commands {
		if f, ok := o.body.(control.Fence); ok {
			b.missed.fence(f)
		}
	}
	b.commands, b.unlevel = nil, nil
}

// A memory blade that is out of service, but has not begun anew, still has its
// regions and what executions did to them. When it says hello again, it is told of the fences that it
// has missed, before the first request reaches it:
//
//	hello ─▶ fences ─▶ in service
//	         each is struck out when the blade has done it
//
// If the blade answers one of them with an error, its hello fails, and it says hello
// again.

// missed is what a memory blade was not there for.
type missed struct {
	Fences []control.Fence `json:"fences,omitempty"`
}

// fence adds a fence, instead of one of an earlier incarnation. It reports whether it did. That an
// incarnation is forsaken stays, though a later one is fenced.
func (m *missed) fence(f control.Fence) bool {
	i := slices.IndexFunc(m.Fences, func(o control.Fence) bool { return o.Node == f.Node && o.Forsaken == f.Forsaken })
	switch {
	case i < 0:
		m.Fences = append(m.Fences, f)
	case m.Fences[i].Incarnation >= f.Incarnation:
		return false
	default:
		m.Fences[i] = f
	}
	return true
}

// done strikes out what the blade has done.
func (m *missed) done(f control.Fence) {
	m.Fences = slices.DeleteFunc(m.Fences, func(o control.Fence) bool { return o == f })
}

// portAddress is a blade's switch port, and from which address it speaks there.
type portAddress struct {
	port uint16
	mac  string
}

// missFence notes a fence for the blades that are not there.
func (c *controller) missFence(f control.Fence) {
	for b := range c.absent {
		if b.missed.fence(f) {
			c.keepMissed(b)
		}
	}
}

// catchUp tells a memory blade what it has missed, and then goes on with its hello.
func (c *controller) catchUp(p *port, hello control.Message, b *blade) error {
	if len(b.missed.Fences) == 0 {
		var h control.Hello
		if err := hello.Decode(&h); err != nil {
			return err
		}
		b, err := c.admit(p, &h) // things may have changed meanwhile
		if err != nil {
			return err
		}
		return c.register(p, hello, b, h)
	}
	f := b.missed.Fences[0]
	return p.ask(c.now, control.KindFence, f, func(m control.Message) {
		c.fenced(b, m, func() {
			if !c.caughtUp(p, hello, m, b) {
				return
			}
			b.missed.done(f)
			c.keepMissed(b)
			if err := c.catchUp(p, hello, b); err != nil {
				p.fail(hello, err)
			}
		})()
	})
}

// caughtUp reports whether a blade has done what catchUp has asked, and still waits for
// its hello.
func (c *controller) caughtUp(p *port, hello, m control.Message, b *blade) bool {
	switch {
	case b.alive() || m.Status == fault.Stale: // meanwhile; or there is another Gatekeeper
		return false
	case m.Status == fault.OK:
		return true
	}
	err := fault.Remote(m.Status, m.Kind.String(), "%s", m.Body)
	c.count.Failures++
	c.logger.Error("a memory blade does not catch up, and stays out of service", "blade", b.hello.Blade, "command", m.Kind, "error", err)
	p.fail(hello, err) // the daemon says hello again
	return false
}

// regionList reads a page of the answer.
func regionList(m control.Message) (page control.RegionList, err error) {
	switch m.Status {
	case fault.OK:
		err = json.Unmarshal(m.Body, &page)
	case fault.Unavailable: // it does not serve memory yet, so it has none
	default:
		err = fault.Remote(m.Status, "regions", "%s", m.Body)
	}
	return page, err
}
