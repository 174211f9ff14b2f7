package gatekeeper

import (
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// command is something that a blade has to do before the Gatekeeper goes on. It is
// asked for until the blade has done it, or is out of service.
type command struct {
	kind  control.Kind
	body  any
	until time.Time // the blade has failed if it has not obeyed by then
	asked bool
	again time.Time             // not to be asked before: the blade has answered with an error
	pause time.Duration         // until then
	error *fault.Error          // the last one
	then  func(control.Message) // what follows; nil for nothing
}

// commandPatience is for how long a blade that reports may leave a command
// unanswered, or for as long as it may be silent if that is longer. By then something
// is wrong with it, and whatever depends on the command cannot wait.
const commandPatience = 5 * time.Second

// patience is for how long a blade may leave a command unanswered.
func (c *controller) patience() time.Duration {
	return max(commandPatience, missedHeartbeats*c.cfg.Heartbeat)
}

// command has a blade do something, and then goes on. What finds no room among the
// messages under way waits for the blade's next one.
func (c *controller) command(b *blade, kind control.Kind, body any, then func(control.Message)) {
	b.commands = append(b.commands, &command{kind: kind, body: body, then: then, until: c.now.Add(c.patience())})
	c.timers = true
	c.askCommands(b)
}

// askCommands asks a blade for what it has not been asked for yet, and again for what it
// has not done.
func (c *controller) askCommands(b *blade) {
	for _, m := range slices.Clone(b.commands) {
		if m.asked || !b.alive() || c.now.Before(m.again) {
			continue
		}
		err := c.ask(b.port, m.kind, m.body, func(reply control.Message) {
			if reply.Status == fault.Stale || !slices.Contains(b.commands, m) {
				return // there is another Gatekeeper, and we do not count any more
			}
			c.obeyed(b, m, reply)
		})
		if err != nil {
			return // too much is under way
		}
		m.asked = true
	}
}

// obeyed takes a blade's answer to a command. What a memory blade refuses to do is not
// done: others depend on it, so it is asked again until giveUpCommands. A compute blade
// that does not stop a program does not run it, or is fenced.
func (c *controller) obeyed(b *blade, m *command, reply control.Message) {
	if reply.Status != fault.OK {
		m.error = fault.Remote(reply.Status, m.kind.String(), "%s", reply.Body)
		c.count.Failures++
		c.log.Error("a blade does not obey", "blade", b.hello.Blade, "command", m.kind, "error", m.error)
		if b.memory() {
			m.pause = min(max(2*m.pause, control.FirstRetry), control.MaxRetry)
			m.asked, m.again, c.timers = false, c.now.Add(m.pause), true
			return
		}
	}
	b.commands = slices.DeleteFunc(b.commands, func(o *command) bool { return o == m })
	if m.then != nil {
		m.then(reply)
	}
	c.askCommands(b)
}

// repeatCommands asks again for what blades have not done.
func (c *controller) repeatCommands() {
	for _, b := range c.sortedBlades() {
		if b.alive() {
			c.askCommands(b)
		}
	}
}

// overdue is the index of the first command that a blade has not obeyed by some time, or -1.
func (b *blade) overdue(at time.Time) int {
	return slices.IndexFunc(b.commands, func(m *command) bool { return !at.Before(m.until) })
}

// giveUpCommands takes blades out of service that report, but had not obeyed by some
// time: a memory blade, for others depend on it. A compute blade's programs are fenced
// anyway.
func (c *controller) giveUpCommands(at time.Time) {
	for _, b := range c.sortedBlades() {
		i := b.overdue(at)
		switch {
		case !b.alive() || i < 0:
		case b.memory():
			c.count.Failures++
			why := "it does not answer commands"
			if err := b.commands[i].error; err != nil {
				why = "it does not obey: " + err.Error()
			}
			c.giveUp(b, at, why)
		default:
			b.commands = slices.DeleteFunc(b.commands, func(m *command) bool { return !at.Before(m.until) })
		}
	}
}

// cancel gives up what was asked of the daemon at a port: it is out of service. A copy
// that is on its way is not served after the next request.
func (p *port) cancel() {
	for id := range p.asked {
		p.peer.Cancel(id)
	}
	clear(p.asked)
}

// settledRuns reads a memory blade's answer to a commit or rollback. A run that the blade
// refuses is settled there: the blade has nothing of it. That another run's changes are
// in its place must not happen, and is reported.
func (c *controller) settledRuns(b *blade, m control.Message) {
	var s control.Settled
	if len(m.Body) == 0 || m.Decode(&s) != nil {
		return
	}
	for _, run := range s.Refused {
		c.count.Failures++
		c.log.Error("a memory blade has changes of another run", "blade", b.hello.Blade, "command", m.Kind, "execution", run.Execution,
			"node", run.Node, "incarnation", run.Incarnation)
	}
}
