package gatekeeper

import (
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// command is something that a blade has to do before the Gatekeeper goes on. It is
// asked for until the blade answers, or is out of service.
type command struct {
	kind  control.Kind
	body  any
	until time.Time // the blade has failed if it has not answered by then
	asked bool
	then  func(reply control.Message) // nil for none
}

// commandPatience is for how long a blade that reports may leave a command
// unanswered, or for as long as it may be silent if that is longer. By then something
// is wrong with it, and whatever depends on the command cannot wait.
const commandPatience = 5 * time.Second

// command has a blade do something, and then goes on. What finds no room among the
// messages under way waits for the blade's next one.
func (c *controller) command(b *blade, kind control.Kind, body any, then func(control.Message)) {
	b.commands = append(b.commands, &command{kind: kind, body: body, then: then, until: c.now.Add(max(commandPatience, missedHeartbeats*c.cfg.Heartbeat))})
	c.timers = true
	c.askCommands(b)
}

// askCommands asks a blade for what it has not been asked for yet.
func (c *controller) askCommands(b *blade) {
	for _, m := range slices.Clone(b.commands) {
		if m.asked || !b.alive() {
			continue
		}
		boot := b.hello.Boot
		err := c.ask(b.port, m.kind, m.body, func(reply control.Message) {
			i := slices.Index(b.commands, m)
			if i < 0 || b.hello.Boot != boot {
				return // the blade was out of service since
			}
			if reply.Status == fault.Stale {
				return // there is another Gatekeeper: we do not count any more
			}
			b.commands = slices.Delete(b.commands, i, i+1)
			if reply.Status != fault.OK {
				c.count.Failures++
				c.log.Error("a blade does not obey", "blade", b.hello.Blade, "command", m.kind, "error", fault.Remote(reply.Status, m.kind.String(), "%s", reply.Body))
			}
			if m.then != nil {
				m.then(reply)
			}
			c.askCommands(b)
		})
		if err != nil {
			return // too much is under way
		}
		m.asked = true
	}
}

// giveUpCommands takes blades out of service that report, but do not obey: a
// memory blade, for others depend on it. A compute blade's programs are fenced
// anyway.
func (c *controller) giveUpCommands() {
	for _, b := range c.sortedBlades() {
		late := slices.ContainsFunc(b.commands, func(m *command) bool { return !c.now.Before(m.until) })
		switch {
		case !late || !b.alive():
		case b.memory():
			c.count.Failures++
			c.failed(b, "it does not answer commands")
		default:
			b.commands = slices.DeleteFunc(b.commands, func(m *command) bool { return !c.now.Before(m.until) })
		}
	}
}
