package gatekeeper

import (
	"maps"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// A node that is gone is fenced before anything else is decided about it: first
// the switch forgets its identity, so that no more packets of it pass; then every
// memory blade in service refuses its incarnation, so that none of those that had
// passed by then is carried out later. Only then are its regions handed on.
//
//	identity deleted ──▶ fence to each memory blade ──▶ all have answered,
//	                                                    failed, or begun anew ──▶ then
type fence struct {
	fence   control.Fence
	waiting map[*blade]bool // memory blades without answer: true when they were asked
	until   time.Time
	then    func()
}

// fencePatience is for how many heartbeats a memory blade that reports may leave a
// fence unanswered. By then nothing is on its way to it any more.
const fencePatience = missedHeartbeats

// fenceOff has the memory blades refuse a node, and then goes on.
func (c *controller) fenceOff(n *node, then func()) {
	f := &fence{
		fence: control.Fence{Node: n.address, Incarnation: n.incarnation}, waiting: map[*blade]bool{}, then: then,
		until: c.now.Add(fencePatience * c.cfg.Heartbeat),
	}
	for _, b := range c.sortedBlades() {
		if b.memory() && b.alive() {
			f.waiting[b] = false
		}
	}
	c.fences = append(c.fences, f)
	c.timers = true
	for _, b := range c.sortedBlades() {
		c.askFences(b)
	}
	c.fenced(f)
}

// askFences asks a memory blade for what it has not been asked for yet. What finds
// no room waits for its next heartbeat.
func (c *controller) askFences(b *blade) {
	for _, f := range slices.Clone(c.fences) {
		asked, waits := f.waiting[b]
		if !waits || asked || !b.alive() {
			continue
		}
		f.waiting[b] = true
		err := c.ask(b.port, control.KindFence, f.fence, func(m control.Message) {
			if m.Status != fault.OK {
				c.count.Failures++
				c.log.Error("a memory blade does not fence", "blade", b.hello.Blade, "node", f.fence.Node, "error", fault.Remote(m.Status, "fence", "%s", m.Body))
			}
			delete(f.waiting, b)
			c.fenced(f)
		})
		if err != nil {
			c.log.Warn("cannot ask a memory blade to fence yet", "blade", b.hello.Blade, "error", err)
			f.waiting[b] = false
			return
		}
	}
}

// fenced goes on with a fence that nobody has to answer any more.
func (c *controller) fenced(f *fence) {
	if len(f.waiting) > 0 || !slices.Contains(c.fences, f) {
		return
	}
	c.fences = slices.DeleteFunc(c.fences, func(o *fence) bool { return o == f })
	f.then()
}

// unfenced says that a memory blade is out of service, or has begun anew: nothing
// that was sent to it is carried out.
func (c *controller) unfenced(b *blade) {
	for _, f := range slices.Clone(c.fences) {
		delete(f.waiting, b)
		c.fenced(f)
	}
}

// giveUpFences goes on where memory blades report, but do not answer.
func (c *controller) giveUpFences() {
	for _, f := range slices.Clone(c.fences) {
		if c.now.Before(f.until) {
			continue
		}
		for _, b := range slices.SortedFunc(maps.Keys(f.waiting), func(x, y *blade) int { return x.address.Compare(y.address) }) {
			c.count.Failures++
			c.log.Error("a memory blade does not answer a fence", "blade", b.hello.Blade, "node", f.fence.Node)
		}
		clear(f.waiting)
		c.fenced(f)
	}
}
