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

// missed is what a memory blade was not there for. Commits are those of durable mains
// that go on; of what has ended, the blade knows itself what is to be committed. An
// execution cannot have changed anything there since the first of its commits and
// rollbacks, so that one alone counts, and is in one of the two.
type missed struct {
	Fences    []control.Fence       `json:"fences,omitempty"`
	Commits   []control.ExecutionID `json:"commits,omitempty"`
	Rollbacks []control.ExecutionID `json:"rollbacks,omitempty"`
}

// fence adds the fences among commands that a blade has not answered.
func (m *missed) fence(commands []*command) {
	for _, o := range commands {
		if f, ok := o.body.(control.Fence); ok {
			m.Fences = append(m.Fences, f)
		}
	}
}

// any reports whether there is anything.
func (m *missed) any() bool { return len(m.Fences)+len(m.Commits)+len(m.Rollbacks) > 0 }

// settle adds a commit or rollback, unless the execution's first one is there. It
// reports whether it did.
func (m *missed) settle(kind control.Kind, e control.ExecutionID) bool {
	if slices.Contains(m.Commits, e) || slices.Contains(m.Rollbacks, e) {
		return false
	}
	if kind == control.KindCommit {
		m.Commits = append(m.Commits, e)
	} else {
		m.Rollbacks = append(m.Rollbacks, e)
	}
	return true
}

// next returns the command that is due next, and strikes it out; a nil body if there is
// none.
func (m *missed) next() (kind control.Kind, body any) {
	switch {
	case len(m.Fences) > 0:
		f := m.Fences[0]
		m.Fences = m.Fences[1:]
		return control.KindFence, f
	case len(m.Commits) > 0:
		return control.KindCommit, control.Commit{Executions: some(&m.Commits)}
	case len(m.Rollbacks) > 0:
		return control.KindRollback, control.Rollback{Executions: some(&m.Rollbacks)}
	}
	return 0, nil
}

// some takes as many executions from the front as one command may name.
func some(all *[]control.ExecutionID) []control.ExecutionID {
	n := min(len(*all), control.MaxExecutions)
	first := (*all)[:n]
	*all = (*all)[n:]
	return first
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

// missSettling notes a commit of a durable main, or a rollback, for the blades that
// are not there.
func (c *controller) missSettling(kind control.Kind, id rpc.ID) {
	if _, call := c.table.View(id); call && kind == control.KindCommit {
		return
	}
	for b := range c.absent {
		if b.missed.settle(kind, control.ExecutionID(id)) {
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
		if b.hello.Boot != boot || b.alive() {
			return // meanwhile
		}
		kind, body := b.missed.next()
		var err error
		switch f, fence := body.(control.Fence); {
		case fence:
			err = c.ask(p, kind, f, func(m control.Message) {
				c.fenced(b, f, m)
				next(m)
			})
		case body != nil:
			err = c.ask(p, kind, body, next)
		default:
			err = c.commitRest(p, b, control.ExecutionID{}, func(err error) {
				switch {
				case err != nil:
					c.fail(p, hello, err)
				case b.missed.any(): // meanwhile
					next(control.Message{})
				default:
					p.caughtUp = b.hello.Boot
					c.request(p, hello)
				}
			})
		}
		if err != nil {
			c.fail(p, hello, err) // the daemon says hello again
		}
	}
	next(control.Message{})
	return nil
}

// decided reports whether what an execution did is to stay: it is known no more, or its
// outcome is logged and is not that it was given up.
func (c *controller) decided(e rpc.ID) bool {
	v, call := c.table.View(e)
	return !c.table.Open(e) || call && v.Stage == "committing"
}

// commitRest has a memory blade commit what executions did that have ended
// meanwhile, page by page, and then goes on.
func (c *controller) commitRest(p *port, b *blade, from control.ExecutionID, then func(error)) error {
	return c.ask(p, control.KindExecutions, control.Executions{From: from, Max: control.MaxExecutions}, func(m control.Message) {
		var page control.ExecutionList
		err := json.Unmarshal(m.Body, &page)
		if m.Status != fault.OK { // it does not serve memory yet, so it has none
			err, page = nil, control.ExecutionList{}
		}
		ended := slices.DeleteFunc(page.Executions, func(e control.ExecutionID) bool { return !c.decided(rpc.ID(e)) })
		done := func(control.Message) {
			if page.Next == (control.ExecutionID{}) {
				then(nil)
			} else if err := c.commitRest(p, b, page.Next, then); err != nil {
				then(err)
			}
		}
		if err != nil || len(ended) == 0 {
			done(control.Message{})
			return
		}
		if err := c.ask(p, control.KindCommit, control.Commit{Executions: ended}, done); err != nil {
			then(err)
		}
	})
}
