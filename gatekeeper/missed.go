package gatekeeper

import (
	"slices"

	"github.com/bifrost-rack/bifrost/gatekeeper/log"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
)

// A memory blade that is out of service, but has not begun anew, still has its
// regions and what executions did to them. When it says hello again, it is told what
// it has missed, before the first request reaches it:
//
//	hello ─▶ fences ─▶ commits and rollbacks ─▶ commit of what has ended meanwhile ─▶ in service
//	              each is struck out when the blade has done it
//
// If the blade answers one of them with an error, its hello fails, and it says hello
// again.

// missed is what a memory blade was not there for. Commits are those of durable mains
// that go on; of what has ended, the blade knows itself what is to be committed. An
// execution cannot have changed anything there since the first of its commits and
// rollbacks. So of each execution there are at most two: the first, which decides, and
// the latest, after which the blade refuses all that are older.
type missed struct {
	Fences []control.Fence `json:"fences,omitempty"`
	Undos  []missedUndo    `json:"undos,omitempty"`
}

// missedUndo is a commit or rollback of a run.
type missedUndo struct {
	Kind control.Kind `json:"kind"` // KindCommit or KindRollback
	Run  control.Run  `json:"run"`
}

// fence adds a fence, instead of one of an earlier incarnation. It reports whether it did.
func (m *missed) fence(f control.Fence) bool {
	i := slices.IndexFunc(m.Fences, func(o control.Fence) bool { return o.Node == f.Node })
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

// settle adds a commit or rollback, in the place of a former latest one of the
// execution. It reports whether it did.
func (m *missed) settle(kind control.Kind, run control.Run) bool {
	u := missedUndo{kind, run}
	if slices.Contains(m.Undos, u) {
		return false
	}
	of := func(o missedUndo) bool { return o.Run.Execution == run.Execution }
	if i := slices.IndexFunc(m.Undos, of); i >= 0 {
		if k := slices.IndexFunc(m.Undos[i+1:], of); k >= 0 {
			m.Undos = slices.Delete(m.Undos, i+1+k, i+2+k)
		}
	}
	m.Undos = append(m.Undos, u)
	return true
}

// next returns what is due next: a fence, or commits or rollbacks of one kind; nothing
// for neither.
func (m *missed) next() (f *control.Fence, undos []missedUndo) {
	if len(m.Fences) > 0 {
		first := m.Fences[0]
		return &first, nil
	}
	for _, u := range m.Undos {
		if u.Kind != m.Undos[0].Kind || len(undos) == control.MaxExecutions {
			break
		}
		undos = append(undos, u)
	}
	return nil, undos
}

// done strikes out what the blade has done.
func (m *missed) done(f *control.Fence, undos []missedUndo) {
	m.Fences = slices.DeleteFunc(m.Fences, func(o control.Fence) bool { return f != nil && o == *f })
	has := make(map[missedUndo]bool, len(undos))
	for _, u := range undos {
		has[u] = true
	}
	m.Undos = slices.DeleteFunc(m.Undos, func(o missedUndo) bool { return has[o] })
}

// place is a blade's switch port, and from which address it speaks there.
type place struct {
	port uint16
	mac  string
}

// absent yields the memory blades that are out of service.
func (c *controller) absent(yield func(*blade) bool) {
	for _, b := range c.sortedBlades() {
		if b.memory() && !b.alive() && b.holds() && !yield(b) {
			return
		}
	}
}

// missFence notes a fence for the blades that are not there.
func (c *controller) missFence(n log.Node) {
	for b := range c.absent {
		if b.missed.fence(control.Fence{Node: n.Address, Incarnation: n.Incarnation}) {
			c.keepMissed(b)
		}
	}
}

// missSettling notes a commit of a durable main, or a rollback, for the blades that
// are not there.
func (c *controller) missSettling(kind control.Kind, run control.Run) {
	if _, call := c.table.View(rpc.ID(run.Execution)); call && kind == control.KindCommit {
		return
	}
	for b := range c.absent {
		if b.missed.settle(kind, run) {
			c.keepMissed(b)
		}
	}
}

// catchUp tells a memory blade what it has missed, and then goes on with its hello. What
// an earlier hello has begun to tell is given up.
func (c *controller) catchUp(p *port, hello control.Message, b *blade) error {
	p.cancel()
	return c.catchUpMore(p, hello, b)
}

func (c *controller) catchUpMore(p *port, hello control.Message, b *blade) error {
	f, undos := b.missed.next()
	done := func(m control.Message) {
		if c.caughtUp(p, hello, m, b) {
			c.settledRuns(b, m)
			b.missed.done(f, undos)
			c.keepMissed(b)
			c.goOn(p, hello, c.catchUpMore(p, hello, b))
		}
	}
	switch {
	case f != nil:
		return c.ask(p, control.KindFence, f, func(m control.Message) {
			if m.Status == fault.OK {
				c.fenced(b, *f, m)
			}
			done(m)
		})
	case len(undos) > 0:
		runs := make([]control.Run, len(undos))
		for i, u := range undos {
			runs[i] = u.Run
		}
		return c.ask(p, undos[0].Kind, undoBody(b, undos[0].Kind, runs), done)
	}
	return c.commitRest(p, hello, b, control.ExecutionID{})
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
	c.log.Error("a memory blade does not catch up, and stays out of service", "blade", b.hello.Blade, "command", m.Kind, "error", err)
	c.goOn(p, hello, err)
	return false
}

// goOn answers a hello with an error, if there is one: the daemon says hello again.
func (c *controller) goOn(p *port, hello control.Message, err error) {
	if err != nil {
		c.fail(p, hello, err)
	}
}

// decided reports whether what an execution did is to stay: it is known no more, or its
// outcome is logged and is not that it was given up.
func (c *controller) decided(e rpc.ID) bool {
	v, call := c.table.View(e)
	return !c.table.Open(e) || call && v.Stage == "committing"
}

// commitRest has a memory blade commit what executions did that have ended
// meanwhile, page by page, and then goes on with its hello.
func (c *controller) commitRest(p *port, hello control.Message, b *blade, from control.ExecutionID) error {
	return c.ask(p, control.KindExecutions, control.Executions{From: from, Max: control.MaxExecutions}, func(m control.Message) {
		if !c.caughtUp(p, hello, m, b) {
			return
		}
		var page control.ExecutionList
		if err := m.Decode(&page); err != nil {
			c.goOn(p, hello, err)
			return
		}
		ended := slices.DeleteFunc(page.Runs, func(r control.Run) bool { return !c.decided(rpc.ID(r.Execution)) })
		next := func() error {
			switch {
			case page.Next != control.ExecutionID{}:
				return c.commitRest(p, hello, b, page.Next)
			case len(b.missed.Fences)+len(b.missed.Undos) > 0: // meanwhile
				return c.catchUpMore(p, hello, b)
			}
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
		if len(ended) == 0 {
			c.goOn(p, hello, next())
			return
		}
		c.goOn(p, hello, c.ask(p, control.KindCommit, undoBody(b, control.KindCommit, ended), func(m control.Message) {
			if c.caughtUp(p, hello, m, b) {
				c.settledRuns(b, m)
				c.goOn(p, hello, next())
			}
		}))
	})
}
