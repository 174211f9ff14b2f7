package gatekeeper

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
	"github.com/bifrost-rack/bifrost/gatekeeper/recovery"
	"github.com/bifrost-rack/bifrost/gatekeeper/trace"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/p4switch/p4rt"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// controller is all state of the Gatekeeper, and what it decides. It is
// sequential: who has the turn calls one of its inputs, sets now before, and
// carries out what it finds in out after.
type controller struct {
	cfg    Config
	logger *slog.Logger // for people
	now    time.Time

	ports                    map[uint16]*port
	refused                  refusals
	population               // blades and nodes
	journal                  // what this input writes down
	tables                   // what the switch should have
	services                 catalog
	fleetKept                uint64                 // the version of the registry that is on the log
	leases                   leases                 // that stand
	hand                     hand                   // what is done to these
	endings                  map[netip.Addr]*ending // of nodes that have a row
	slotGathers, wordGathers gathers                // whole readings for nodes
	listings                 listings               // of what nodes own, for these
	surveys                  surveys                // for people
	lookings                 []*looking             // that are under way
	rebuild                  *rebuild               // of the registers, that is under way
	saved                    *image                 // of them, from a backup

	// Durable mains, and nodes that have failed: mains.go, recover.go, undo.go.
	todo     []recovery.Action // that are to be carried out
	working  bool              // and are being
	joins    []joining         // joins that wait for former incarnations of nodes
	owners   owners            // of the names of services and mains
	draining []*draining       // nodes that are stopped when they have finished their calls
	timeline *trace.Recorder
	told     told // of direct calls

	hearing hearing
	talks   talks

	began           uint64 // tells this rack from others: control.Welcome.Began
	secret          endpoint.Secret
	lastNode        uint64     // number given out
	lastIncarnation uint32     // likewise
	lastExport      uint64     // number given out
	resuming        resumption // what is left to do after a restart

	connected bool     // the switch is there, its tables as they should be
	pressure  pressure // of the log
	full      bool     // people were told that it is nearly full
	fullTold  time.Time
	narrate   bool // somebody listens to events
	timers    bool // deadline may have changed
	out       output
	count     Counters
	denied    []Denial // the latest, oldest first
}

// output is what the controller wants done, in order.
type output struct {
	plans   []*plan
	packets []packetOut
	events  []Event
	mute    bool // the switch does not answer: the session is given up
}

func newController(cfg Config) *controller {
	c := &controller{
		cfg: cfg, began: cfg.Boot, secret: cfg.Secret, logger: cfg.Logger, ports: map[uint16]*port{}, population: newPopulation(&cfg), journal: journal{on: cfg.Store != nil},
		services: catalog{}, tables: tables{base{}, cfg.DSMPrefix, cfg.MAC}, endings: map[netip.Addr]*ending{},
		owners: newOwners(),
	}
	c.leases = newLeases(c.takeIncarnation, c.rowOfAddr, func() time.Time { return c.now })
	c.timeline = trace.New(trace.DefaultCalls, c.services.hasMethod)
	c.fleet = newRegistry(&c.population)
	c.told = told{nodes: map[netip.Addr]*toldBy{}, calls: map[rpcpacket.ID]*directCall{}}
	return c
}

// take lets the peers of ports say what they have to, begins the readings that the input has asked for, and returns the output and forgets it.
func (c *controller) take() output {
	for again := true; again; again = c.beginGathers() { // one of nothing is over at once, and has something said
		c.converse()
	}
	c.keepFleet()
	o := c.out
	c.out = output{}
	return o
}

// send queues a frame for the switch.
func (c *controller) send(h hop, frame []byte) {
	c.out.packets = append(c.out.packets, packetOut{h, frame})
}

// event tells subscribers; it costs nothing when there are none.
func (c *controller) event(e Event) {
	if c.narrate {
		e.Time = c.now
		c.out.events = append(c.out.events, e)
	}
}

// change plans updates of the base tables, in the order of all such changes.
func (c *controller) change(then func(error), phases ...phase) {
	for _, p := range phases {
		c.count.RulesWritten += uint64(len(p))
	}
	c.out.plans = append(c.out.plans, &plan{phases: phases, ordered: true, then: func(err error) {
		if err != nil {
			c.count.Failures++
			c.logger.Error("the switch refuses a rule", "error", err)
		}
		if then != nil {
			then(err)
		}
	}})
}

// packetIn takes a packet that the switch holds, and notes of its port what was refused.
func (c *controller) packetIn(port uint16, why reason, b []byte) {
	before := c.count
	c.takePacket(port, why, b)
	c.refused.note(port, &before, &c.count)
}

func (c *controller) takePacket(port uint16, why reason, b []byte) {
	c.hear()
	if why == reasonHand {
		c.handAnswered(b)
		return
	}
	c.count.Held++
	h, err := parseHeld(port, b)
	if err != nil {
		c.count.Malformed++
		c.logger.Debug("held packet dropped", "port", port, "reason", why, "error", err)
		return
	}
	switch why {
	case reasonControl:
		c.heldControl(h)
	case reasonNoRoute:
		c.heldNoRoute(h)
	case reasonNoHome:
		c.heldNoHome(h)
	default:
		c.count.Malformed++
	}
}

// deniedDigest is the digest of denied accesses.
const deniedDigest = "denied_digest_t"

// digest takes a sample of a digest.
func (c *controller) digest(d p4rtclient.Digest) {
	c.hear()
	if d.Name == halfUsedDigest {
		c.toldHalfUsed(d)
		return
	}
	if d.Name != deniedDigest || len(d.Fields) != 4 {
		return
	}
	port, _ := d.Fields[0].Uint64()
	src, _ := d.Fields[1].Addr()
	dst, _ := d.Fields[2].Addr()
	c.accessDenied(uint16(port), src, dst) //nolint:gosec // 9 bits
}

// turn is what owns the controller, its outbox and the session: whoever has it
// hands the controller one input and carries out what that wants, and waits for
// nothing meanwhile. The goroutine that brings an input takes the turn itself, so
// that nobody has to be woken on a held packet's way.
type turn struct {
	mu      sync.Mutex
	over    bool                // the Gatekeeper has stopped, or must
	session *p4rtclient.Session // nil while the switch is away
	timer   *time.Timer         // ticks; nil before Run
	failure error               // of the log
}

// do has f carried out as an input.
func (g *Gatekeeper) do(ctx context.Context, f func()) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return g.input(f)
}

// input has f carried out as an input, unless the Gatekeeper has stopped.
func (g *Gatekeeper) input(f func()) error {
	g.turn.mu.Lock()
	defer g.turn.mu.Unlock()
	if g.turn.over {
		return ErrStopped
	}
	g.ctl.now = time.Now()
	g.ctl.narrate = g.broker.active.Load() > 0
	if g.ctl.pressure = (pressure{}); g.outbox != nil {
		g.ctl.pressure = g.outbox.pressure()
		g.ctl.tellPressure()
	}
	f()
	g.perform()
	g.wind()
	return nil
}

// packetIn takes a packet that the switch has held.
func (g *Gatekeeper) packetIn(p p4rtclient.PacketIn) {
	_ = g.input(func() { // a packet for a Gatekeeper that has stopped is lost
		g.ctl.packetIn(uint16(p.Metadata[g.meta.port]), reason(p.Metadata[g.meta.reason]), p.Payload) //nolint:gosec // 16 and 8 bits wide
	})
}

// digest takes what the switch has told.
func (g *Gatekeeper) digest(d p4rtclient.Digest) {
	_ = g.input(func() { g.ctl.digest(d) })
}

// port takes the status of one of the switch's ports.
func (g *Gatekeeper) port(p p4rt.Port) {
	_ = g.input(func() { g.ctl.portStatus(uint16(p.Number), p.Up) }) //nolint:gosec // 16 bits wide, as in a packet
}

// tick is called by the timer.
func (g *Gatekeeper) tick() { _ = g.input(g.ctl.tick) }

// confirm is called by the log for each batch, in order.
func (g *Gatekeeper) confirm(err error) {
	g.turn.mu.Lock()
	defer g.turn.mu.Unlock()
	if g.turn.over {
		return
	}
	since, err := g.outbox.confirmed(err)
	g.check(err)
	if err == nil {
		g.ctl.now = time.Now()
		g.ctl.heldBack(since)
		g.wind()
	}
}

// perform carries out what the controller wants done.
func (g *Gatekeeper) perform() {
	out := g.ctl.take()
	if len(out.plans) > 0 {
		g.writer.submit(out.plans)
	}
	for _, e := range out.events {
		g.broker.publish(e)
	}
	if out.mute && g.turn.session != nil {
		g.turn.session.GiveUp(errMute)
	}
	if g.outbox == nil {
		for _, p := range out.packets {
			g.transmit(p)
		}
		return
	}
	batch := g.ctl.batch
	g.ctl.batch = wal.Batch{}
	g.check(g.outbox.put(g.ctl.now, &batch, out.packets))
}

// check stops the Gatekeeper if the log has failed.
func (g *Gatekeeper) check(err error) {
	if err == nil {
		return
	}
	g.turn.failure, g.turn.over = fmt.Errorf("gatekeeper: %w", err), true
	g.cancel()
}

// transmit hands a frame to the switch; without one it is lost, like any packet.
func (g *Gatekeeper) transmit(p packetOut) {
	if g.turn.session == nil {
		g.ctl.count.Unsent++
		return
	}
	meta := make([]uint64, g.meta.outFields)
	meta[g.meta.hop] = uint64(p.hop)
	if err := g.turn.session.Send(p4rtclient.PacketOut{Payload: p.frame, Metadata: meta}); err != nil {
		g.ctl.count.Unsent++
	}
}

// wind sets the timer to when the controller has something to do next.
func (g *Gatekeeper) wind() {
	if !g.ctl.timers || g.turn.timer == nil {
		return
	}
	if at, ok := g.ctl.deadline(); ok {
		g.turn.timer.Reset(time.Until(at))
	} else {
		g.turn.timer.Stop()
	}
}

// begin starts the timer.
func (g *Gatekeeper) begin() {
	g.turn.mu.Lock()
	defer g.turn.mu.Unlock()
	g.turn.timer = time.AfterFunc(0, g.tick)
}

// end lets nobody take the turn any more, and returns the log's failure, if any.
func (g *Gatekeeper) end() error {
	g.turn.mu.Lock()
	defer g.turn.mu.Unlock()
	g.turn.over = true
	g.turn.timer.Stop()
	close(g.stopped)
	return g.turn.failure
}

// tick does what is due now.
func (c *controller) tick() {
	c.timers = true
	c.listen()
	for _, p := range slices.SortedFunc(maps.Values(c.ports), func(a, b *port) int { return int(a.num) - int(b.num) }) {
		if at, ok := p.peer.Deadline(); ok && !c.now.Before(at) {
			p.peer.Tick(c.now)
			p.speaks()
		}
	}
	for _, b := range c.sortedBlades() {
		c.askCommands(b)
	}
	if at := c.hand.deadline(); !at.IsZero() && !c.now.Before(at) {
		c.reach()
	}
	c.tickEndings()
	c.tickSurvey()
	c.tickListings()
	c.tickRebuild()
	c.goOnLeases()
	c.act(c.fleet.Tick(c.now))
	c.resume()
	c.giveUpFallen()
	c.emptied()
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
	c.hearing.deadline(c.blades, earliest)
	for _, p := range c.ports {
		if t, due := p.peer.Deadline(); due {
			earliest(t)
		}
	}
	if at := c.hand.deadline(); c.connected && !at.IsZero() {
		earliest(at)
	}
	if len(c.resting) > 0 {
		earliest(c.resting[0].until)
	}
	for _, e := range c.endings {
		if !e.again.IsZero() && c.rebuild == nil { // it goes on when the registers are rebuilt
			earliest(e.again)
		}
	}
	c.surveyDue(earliest)
	c.listings.due(earliest)
	if r := c.rebuild; r != nil && c.connected && !r.due.IsZero() {
		earliest(r.due)
	}
	c.leases.deadline(earliest)
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
	for _, e := range c.draining {
		if c.connected {
			earliest(e.next)
		}
	}
	if due, waits := c.fleet.Deadline(); waits {
		earliest(due)
	}
	return at, ok
}

// phase is a set of updates that may be applied in any order: deletions only, or
// insertions and modifications only.
type phase []p4rtclient.Update

// plan is a change of the switch's tables: phases that follow each other, and
// what to do when they are done. err tells of updates that the switch refuses.
type plan struct {
	phases []phase
	then   func(err error)
	// ordered plans are carried out one after the other, in the order in which
	// they were made; the others share no entry with any plan under way.
	ordered bool

	fixes int   // how often a phase was written again in another way
	err   error // the first refusal
}

// split makes phases out of updates: deletions first.
func split(updates []p4rtclient.Update) []phase {
	var revoke, grant phase
	for _, u := range updates {
		if u.Op == p4rtclient.Delete {
			revoke = append(revoke, u)
		} else {
			grant = append(grant, u)
		}
	}
	return []phase{revoke, grant}
}

// revokes reports whether the plan's present phase deletes.
func (p *plan) revokes() bool { return p.phases[0][0].Op == p4rtclient.Delete }

// skip drops empty phases in front.
func (p *plan) skip() {
	p.phases = slices.DeleteFunc(p.phases, func(f phase) bool { return len(f) == 0 })
}
