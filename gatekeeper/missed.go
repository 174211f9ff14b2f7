package gatekeeper

import (
	"encoding/json"
	"slices"

	"github.com/bifrost-rack/bifrost/gatekeeper/log"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
)

// A memory blade that is out of service, but has not begun anew, still has its
// regions and what executions did to them. When it says hello again, it is told what
// it has missed, before the first request reaches it.

// missed is what a memory blade was not there for.
type missed struct {
	Fences    []control.Fence       `json:"fences,omitempty"`
	Rollbacks []control.ExecutionID `json:"rollbacks,omitempty"`
}

// add adds what a blade had been told and has not answered.
func (m *missed) add(commands []*command, rollbacks []*undoErrand) {
	for _, o := range commands {
		if f, ok := o.body.(control.Fence); ok {
			m.Fences = append(m.Fences, f)
		}
	}
	for _, e := range rollbacks {
		m.Rollbacks = append(m.Rollbacks, e.execution)
	}
}

// place is a blade's switch port, and from which address it speaks there.
type place struct {
	port uint16
	mac  string
}

// absent yields the memory blades that are out of service.
func (c *controller) absent(yield func(*blade) bool) {
	for _, b := range c.sortedBlades() {
		if b.memory() && !b.alive() && !yield(b) {
			return
		}
	}
}

// missFence notes a fence for the blades that are not there.
func (c *controller) missFence(n log.Node) {
	for b := range c.absent {
		f := control.Fence{Node: n.Address, Incarnation: n.Incarnation}
		if !slices.Contains(b.missed.Fences, f) {
			b.missed.Fences = append(slices.DeleteFunc(b.missed.Fences, func(o control.Fence) bool { return o.Node == f.Node }), f)
			c.keepMissed(b)
		}
	}
}

// missRollback notes a rollback for the blades that are not there.
func (c *controller) missRollback(id rpc.ID) {
	for b := range c.absent {
		if e := control.ExecutionID(id); !slices.Contains(b.missed.Rollbacks, e) {
			b.missed.Rollbacks = append(b.missed.Rollbacks, e)
			c.keepMissed(b)
		}
	}
}

// catchUp tells a memory blade what it has missed, and then goes on with its hello.
func (c *controller) catchUp(p *port, hello control.Message, b *blade) error {
	boot := b.hello.Boot
	var next func(control.Message)
	next = func(m control.Message) {
		if m.Status != fault.OK {
			c.count.Failures++
			c.log.Error("a memory blade does not catch up", "blade", b.hello.Blade, "command", m.Kind, "error", fault.Remote(m.Status, m.Kind.String(), "%s", m.Body))
		}
		var err error
		switch {
		case b.hello.Boot != boot || b.alive(): // meanwhile
		case len(b.missed.Fences) > 0:
			f := b.missed.Fences[0]
			b.missed.Fences = b.missed.Fences[1:]
			err = c.ask(p, control.KindFence, f, func(m control.Message) {
				c.fenced(b, f, m)
				next(m)
			})
		case len(b.missed.Rollbacks) > 0:
			n := min(len(b.missed.Rollbacks), control.MaxExecutions)
			r := control.Rollback{Executions: b.missed.Rollbacks[:n]}
			b.missed.Rollbacks = b.missed.Rollbacks[n:]
			err = c.ask(p, control.KindRollback, r, next)
		default:
			err = c.commitRest(p, hello, b, control.ExecutionID{})
		}
		if err != nil {
			c.fail(p, hello, err) // the daemon says hello again
		}
	}
	next(control.Message{})
	return nil
}

// commitRest has a memory blade commit what executions did that have ended
// meanwhile, page by page, and then goes on with its hello.
func (c *controller) commitRest(p *port, hello control.Message, b *blade, from control.ExecutionID) error {
	return c.ask(p, control.KindExecutions, control.Executions{From: from, Max: control.MaxExecutions}, func(m control.Message) {
		var page control.ExecutionList
		err := json.Unmarshal(m.Body, &page)
		if m.Status != fault.OK { // it does not serve memory yet, so it has none
			err, page = nil, control.ExecutionList{}
		}
		ended := slices.DeleteFunc(page.Executions, func(e control.ExecutionID) bool { return c.table.Open(rpc.ID(e)) })
		done := func(control.Message) {
			if page.Next != (control.ExecutionID{}) {
				if c.commitRest(p, hello, b, page.Next) == nil {
					return
				}
			}
			b.missed, p.caughtUp = missed{}, b.hello.Boot
			c.request(p, hello)
		}
		if err != nil || len(ended) == 0 {
			done(control.Message{})
			return
		}
		if err := c.ask(p, control.KindCommit, control.Commit{Executions: ended}, done); err != nil {
			c.fail(p, hello, err)
		}
	})
}
