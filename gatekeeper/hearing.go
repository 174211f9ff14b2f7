package gatekeeper

import (
	"fmt"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/duration"
)

// A blade that is silent for missedHeartbeats has failed, but only if the Gatekeeper
// could have heard the blade. The Gatekeeper could not
//
//   - while it has no session with the switch;
//   - while the way from the switch is stalled: then nothing comes from any blade;
//   - while its own process did not run: then its pulse is late;
//   - before it has read what the switch held meanwhile;
//   - while what it has to say waits for its log: then it has asked for nothing yet;
//   - while the blade's port sends control packets at half the allowed rate or more: the
//     switch drops what exceeds the rate, which may be heartbeats. A blade that floods is alive.
//
// So the Gatekeeper probes the switch before it judges. The answer to a probe comes behind all
// packets that the switch held before it. After a time in which no blade could be heard,
// each blade has missedHeartbeats once more.
//
// If the switch tells the status of its ports, the Gatekeeper notices sooner: a blade is silent
// when its port has been down for portPatience.
//
//	silent for 3 heartbeats, or nothing heard from anybody for one ─▶ probe ─▶ answered ─▶ still silent: failed
//	                                                                     └─ late, or not: nobody is judged

// hearing says since when the Gatekeeper can hear blades. Times are zero while there is
// no session.
type hearing struct {
	heartbeat time.Duration // Config.Heartbeat

	began  time.Time            // when the session did
	last   time.Time            // when anything came from the switch
	pulse  time.Time            // when to look again whether anything has
	probed time.Time            // when the probe that is out was sent; zero for none
	down   map[uint16]time.Time // since when ports are down, as far as the switch tells
}

// muteAfter is for how long nothing comes from a switch that was asked for an answer until the session is given up: the switch is wedged, or silently
// gone. gRPC's own pings are no choice, since bmv2 takes more than one in five minutes for an attack.
const muteAfter = 10 * time.Second

// deafAfter is after how many heartbeats in which nothing was heard from the switch
// nothing could be heard: with a way that works, a probe is answered long before.
const deafAfter = 2

// connect begins to listen to a session.
func (c *controller) connect() {
	c.connected, c.timers = true, true
	c.hearing = hearing{heartbeat: c.cfg.Heartbeat, began: c.now, last: c.now, pulse: c.now.Add(c.cfg.Heartbeat), down: map[uint16]time.Time{}}
	c.listenAnew()
}

// disconnect ends that.
func (c *controller) disconnect() {
	c.connected, c.timers = false, true
	c.surveys.end()
	c.hand.end(probing{})
	c.hearing = hearing{heartbeat: c.cfg.Heartbeat}
}

// hear notes that something has come from the switch.
func (c *controller) hear() {
	if c.hearing.last.IsZero() {
		return // of a session that is over
	}
	if quiet := c.now.Sub(c.hearing.last); quiet > deafAfter*c.cfg.Heartbeat {
		c.logger.Warn("the switch was not heard", "for", quiet)
		c.count.Deaf++
		c.listenAnew()
	}
	c.hearing.last = c.now
}

// listenAnew gives all blades their time once more: to be heard, and to obey.
func (c *controller) listenAnew() {
	c.hearing.last, c.timers = c.now, true
	for _, b := range c.blades {
		b.heard = c.now
		for _, m := range b.commands {
			m.until = later(m.until, c.now.Add(c.cfg.patience()))
		}
	}
	c.rebuild.listenAnew(c.now)
}

// heldBack says that what was sent since some time has waited for the log until now: who was asked then has heard of it just now.
func (c *controller) heldBack(since time.Time) {
	held := c.now.Sub(since)
	if held <= c.cfg.Heartbeat/2 {
		return
	}
	c.logger.Warn("the log took its time", "for", held)
	c.timers = true
	for _, b := range c.blades {
		for _, m := range b.commands {
			if !m.until.Before(since.Add(c.cfg.patience())) { // it was to be obeyed since then
				m.until = later(m.until, c.now.Add(c.cfg.patience()))
			}
		}
	}
	if r := c.rebuild; r != nil && !r.asking.Before(since) {
		r.listenAnew(c.now)
	}
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// listen does what is due for hearing.
func (c *controller) listen() {
	h := &c.hearing
	if h.last.IsZero() {
		return
	}
	if !c.now.Before(h.pulse) {
		if late := c.now.Sub(h.pulse); late > c.cfg.Heartbeat/2 {
			c.logger.Warn("the Gatekeeper did not run", "for", late)
			c.count.Deaf++
			c.listenAnew()
		}
		h.pulse = c.now.Add(c.cfg.Heartbeat / 2)
		if c.now.Sub(h.last) >= c.cfg.Heartbeat {
			c.probeSwitch()
		}
		c.out.mute = !h.probed.IsZero() && c.now.Sub(later(h.probed, h.last)) >= muteAfter
	}
	for _, b := range c.blades {
		if b.alive() && !b.doubtful() && (!c.now.Before(c.hearing.silent(b)) || b.overdue(c.now) >= 0) {
			c.probeSwitch()
			return
		}
	}
}

// probeSwitch has the switch asked for an answer, if it is not already.
func (c *controller) probeSwitch() {
	if c.hearing.probed.IsZero() {
		c.hearing.probed = c.now
		c.hand.probe()
		c.reach()
	}
}

// probeAnswered judges the blades that were silent, or had not obeyed, when the switch
// was asked.
func (c *controller) probeAnswered() {
	asked := c.hearing.probed
	c.hearing.probed, c.timers = time.Time{}, true
	for _, b := range c.sortedBlades() {
		if b.alive() && !asked.Before(c.hearing.silent(b)) {
			c.giveUp(b, asked, c.hearing.silence(b, c.now))
		}
	}
	c.giveUpCommands(asked)
	c.overdue(c.rebuild)
}

// deadline is when listen has something to do next.
func (h *hearing) deadline(blades map[string]*blade, earliest func(time.Time)) {
	if h.last.IsZero() {
		return
	}
	earliest(h.pulse)
	if !h.probed.IsZero() {
		return // its answer judges
	}
	for _, b := range blades {
		if !b.alive() || b.doubtful() {
			continue
		}
		earliest(h.silent(b))
		for _, m := range b.commands {
			earliest(m.until)
		}
	}
}

// silent is when a blade has been silent for too long: for missedHeartbeats, or for
// portPatience behind a port that is down.
func (h *hearing) silent(b *blade) time.Time {
	at := later(b.heard, b.port.crowd.last).Add(missedHeartbeats * h.heartbeat)
	if down := h.down[b.port.num]; down.After(b.heard) && down.Add(portPatience).Before(at) {
		return down.Add(portPatience)
	}
	return at
}

// crowd is how many control packets a port sends.
type crowd struct {
	since time.Time // when came began to count: a heartbeat ago, at most
	came  float64
	last  time.Time // when the port last sent so many that others of its packets may be lost
}

// counts counts a control packet of a port. rate is how many may come in a second.
func (w *crowd) counts(now time.Time, heartbeat time.Duration, rate int64) {
	if now.Sub(w.since) >= heartbeat {
		w.since, w.came = now, 0
	}
	w.came++
	if w.came >= float64(rate)*heartbeat.Seconds()/2 {
		w.last = now
	}
}

// silence says for how long a blade has been silent, and whether its port is down.
func (h *hearing) silence(b *blade, now time.Time) string {
	why := fmt.Sprintf("no heartbeat for %s", now.Sub(b.heard))
	if down := h.down[b.port.num]; down.After(b.heard) {
		why += fmt.Sprintf(", and port %d of the switch is down", b.port.num)
	}
	return why
}

// portPatience is how long a port may be down before the blade behind it has failed: a link
// that is set up anew is down for some milliseconds.
const portPatience = 50 * time.Millisecond

// portStatus takes in whether a port of the switch is up.
func (c *controller) portStatus(num uint16, up bool) {
	c.hear()
	if c.hearing.last.IsZero() {
		return // of a session that is over
	}
	c.timers = true
	_, known := c.hearing.down[num]
	switch {
	case up:
		delete(c.hearing.down, num)
	case !known:
		c.hearing.down[num] = c.now
	}
}

// heartbeat keeps a blade in service and brings it up to date.
func (c *controller) heartbeat(p *port, m control.Message) error {
	var h control.Heartbeat
	if err := m.Decode(&h); err != nil {
		return err
	}
	b := p.blade
	if b == nil || b.port != p || b.hello.Blade != h.Blade || b.hello.Boot != h.Boot || b.anew {
		p.answer(m, control.HeartbeatReply{Rack: c.rack(c.cfg.MTU)})
		return nil
	}
	b.heard, b.used, b.ledgers = c.now, h.Used, h.Ledgers
	if b.memory() && b.reserve(h.Generation) {
		c.keepMissed(b)
	}
	if h.Ledgers != nil && h.Ledgers.Birth != b.hello.Birth {
		b.hello.Birth = h.Ledgers.Birth // it has forgotten what another rack had
		c.keepMissed(b)
		if b.mirror != nil && b.mirror.has(b) && b.enroll() {
			c.keepMirror(b.mirror)
		}
	}
	if h.Diverged > 0 && b.two() && h.MirrorEpoch == b.mirror.epoch {
		c.disagree(b.mirror, "the copies answer differently")
	}
	if c.pull(b); !b.alive() {
		p.answer(m, control.HeartbeatReply{Rack: c.rack(c.cfg.MTU)})
		return nil
	}
	c.quit(b, "blade "+h.Blade+" is to have no copy", nil)
	c.filled(b, h.Fill)
	c.pairUp(b.mirror)
	b.callersTold(&h, c.now)
	c.reported(b, &h)
	c.removeNodes("its blade does not run it", b.ghosts(&h)...)
	c.askCommands(b)
	c.reclaimMore(b) // what found no room among the messages under way
	reply := control.HeartbeatReply{Known: true, Rack: c.rack(c.cfg.MTU)}
	for i, a := range h.Nodes {
		if n := b.nodes[a]; n == nil || i < len(h.Incarnations) && n.incarnation != h.Incarnations[i] {
			reply.Gone = append(reply.Gone, a)
		}
	}
	p.answer(m, reply)
	return nil
}

// callersTold notes when a blade's daemon has told callers of its nodes.
func (b *blade) callersTold(h *control.Heartbeat, now time.Time) {
	for i, a := range h.Nodes {
		n := b.nodes[a]
		if n == nil || i >= len(h.Incarnations) || n.incarnation != h.Incarnations[i] {
			continue
		}
		n.named, n.bound = laterOf(n.named, now, h.Named, i), laterOf(n.bound, now, h.Bound, i)
	}
}

// laterOf is when something was last, by what was known and by what a heartbeat says of the i-th node.
func laterOf(last, now time.Time, at []uint32, i int) time.Time {
	if i < len(at) && at[i] > 0 {
		if t := now.Add(-duration.Times(int64(at[i]-1), time.Millisecond)); t.After(last) {
			return t
		}
	}
	return last
}

// daemonEnded takes a memory blade out of service whose daemon has ended. Of a pair the other
// copy goes on, unasked: what this one held is lost in any case.
func (c *controller) daemonEnded(p *port, m control.Message) error {
	var e control.Ended
	if err := m.Decode(&e); err != nil {
		return err
	}
	b := p.blade
	if b != nil && b.port == p && b.memory() && b.hello.Blade == e.Blade && b.hello.Boot == e.Boot {
		c.takeOut(b, "its daemon has ended", false)
	}
	p.answer(m, nil)
	return nil
}

// ghosts are the nodes that a blade does not have, by its heartbeat: of a program that
// has ended long since, a copy of whose join has come to a Gatekeeper which did not
// know that one.
func (b *blade) ghosts(h *control.Heartbeat) (ghosts []*node) {
	for _, n := range b.sortedNodes() {
		i := slices.Index(h.Nodes, n.address)
		here := i >= 0 && i < len(h.Incarnations) && h.Incarnations[i] == n.incarnation
		if !here && n.token <= h.Token && !slices.Contains(h.Unsettled, n.token) {
			ghosts = append(ghosts, n)
		}
	}
	return ghosts
}

// free is how many bytes a memory machine has room for: with two copies, or when the second
// one is being filled, as many as the smaller one has.
func (e *estate) free(b *blade) uint64 {
	n := b.hello.Capacity - min(b.used, b.hello.Capacity)
	switch {
	case b.two():
		o := e.other(b)
		n = min(n, o.hello.Capacity-min(o.used, o.hello.Capacity))
	case b.mirror.fills(b):
		o := e.blades[b.mirror.filling.blade]
		n = min(n, o.hello.Capacity-min(b.used, o.hello.Capacity))
	}
	return n
}

// rack is what nodes and daemons have to know of the rack.
func (e *estate) rack(mtu int) control.Rack {
	_, policies := e.fleet.ExplicitPolicies()
	r := control.Rack{DSMPrefix: e.prefix, MTU: mtu, PolicyVersion: policies}
	for _, b := range e.blades {
		switch {
		case !b.memory() || !b.first():
		case !e.open(b):
			r.Others = append(r.Others, int(b.hello.Machine))
		default:
			r.Memories = append(r.Memories, control.MemoryBlade{Machine: b.hello.Machine, Free: e.free(b), Copies: b.copies()})
		}
	}
	slices.Sort(r.Others)
	slices.SortFunc(r.Memories, func(x, y control.MemoryBlade) int { return int(x.Machine) - int(y.Machine) })
	return r
}
