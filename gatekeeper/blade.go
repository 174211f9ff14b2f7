package gatekeeper

import (
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
)

// blade is a physical resource; it is remembered by name, also while it is gone.
type blade struct {
	hello   control.Hello
	address netip.Addr
	port    *port // nil while it has failed
	heard   time.Time
	used    uint64
	ledgers *control.LedgerSpace // as it last reported
	nodes   map[netip.Addr]*node
	joins   map[uint64]*node // by the daemon's token, so that a join is made once
	// Memory blades: regions to be freed, those of the command that is out first.
	reclaims   []control.RegionID
	reclaiming int
	commands   []*command  // without answer
	missed     missed      // what it was out of service for
	reserved   uint32      // memory blades: later starts begin above this generation, see reserve
	begin      uint32      // memory blades: at least the generations of earlier starts, 0 for the first
	floor      uint32      // memory blades: the generations of this start are above it
	at         portAddress // where it is, or was last
	mirror     *mirror     // nil unless its machine has two blades
	chosen     bool        // its machine id is not the Gatekeeper's choice
	anew       bool        // it serves another machine than it knows, and is to say hello
	// unlevel are fences that go on when the blade knows that its machine has one copy: until then the lost copy may still make it level.
	unlevel []*levelling
	// leaving are closed when it is out of service.
	leaving []chan struct{}
}

func (b *blade) memory() bool { return b.hello.Kind == control.Memory }

// alive reports whether the blade is in service.
func (b *blade) alive() bool { return b.port != nil }

// hello registers a blade. Of a memory blade that begins to serve a machine, the words of the machine's regions are read first: earlier starts may have got to
// generations that the Gatekeeper was not told of, since it was away.
func (c *controller) hello(p *port, m control.Message) error { return c.greet(p, m, false, nil) }

// greet is hello; words are those of the machine's regions once they are read.
func (c *controller) greet(p *port, m control.Message, read bool, words []word) error {
	var h control.Hello
	if err := m.Decode(&h); err != nil {
		return err
	}
	b, err := c.admit(p, &h)
	if err != nil {
		return err
	}
	if h.Kind == control.Memory && (b.hello.Boot != h.Boot || b.anew) {
		if all := c.batchesAt(h.Machine); len(all) > 0 && !read {
			c.look(all, func(words []word) {
				if err := c.greet(p, m, true, words); err != nil {
					p.fail(m, err)
				}
			})
			return nil
		}
		for _, w := range words {
			b.reserved = max(b.reserved, w.region.Generation())
		}
	}
	if b.memory() && !b.alive() && b.holds() && b.hello.Boot == h.Boot {
		if b.two() {
			if r, ok := c.fleet.Blade(h.Blade); ok && r.Mark == resources.Failed {
				return fault.New(fault.Unavailable, "hello of "+h.Blade, "marked failed: %s", r.Cause)
			}
			c.loseCopy(c.other(b), "blade "+h.Blade+" is back first")
		}
		p.cancel() // what an earlier hello has begun to tell
		return c.catchUp(p, m, b)
	}
	return c.register(p, m, b, h)
}

// register takes a blade into service. One that is back with what it had has been told
// what it had missed, in this very turn.
func (c *controller) register(p *port, m control.Message, b *blade, h control.Hello) error {
	restarted := b.hello.Boot != 0 && b.hello.Boot != h.Boot
	if err := c.registerBlade(&h, restarted); err != nil {
		return err
	}
	c.blades[h.Blade] = b
	if b.hello.Boot != h.Boot {
		b.begin = b.reserved
	}
	if h.Kind == control.Memory {
		if b.hello.Boot != h.Boot || b.anew {
			b.floor = c.generations() // others may have served its machine before
		}
		b.reserve(max(b.floor, h.Generation))
	}
	if restarted {
		p.cancel()
		c.restarted(b)
	}
	if b.memory() && h.Machine == 0 {
		h.Machine = b.hello.Machine
	}
	b.hello, b.port, b.heard, b.anew, p.blade = h, p, c.now, false, b
	b.address = bladeAddress(p.num)
	for _, n := range b.nodes {
		c.charge(n)
	}
	if b.memory() {
		if m := b.mirror; m.fills(b) && !m.has(b) {
			c.stopFilling(m, "blade "+h.Blade+" has said hello again")
		}
		b.mirror = c.mirrorFor(&h)
		if b.enroll() {
			c.keepMirror(b.mirror)
		}
		if b.holds() {
			c.serveMemory(b)
		}
	}
	c.keepBlade(b, p)
	c.change(func(err error) {
		if err != nil {
			p.fail(m, fault.New(fault.Internal, "hello", "the switch refuses the blade's rules: %v", err))
			return
		}
		c.event(Event{Kind: BladeUp, Blade: h.Blade, Node: b.address, Message: h.Kind})
		c.logger.Info("blade up", "blade", h.Blade, "kind", h.Kind, "port", p.num, "address", b.address)
		p.answer(m, control.Welcome{
			Address: b.address, Machine: h.Machine, Rack: c.rack(c.cfg.MTU), HeartbeatMS: int(c.cfg.Heartbeat.Milliseconds()), Undo: b.memory(), Began: c.began,
			Floor: b.floor, Lost: b.begin, Mirror: b.welcomeMirror(), Batches: c.grantsAt(b),
		})
		if b.memory() && b.holds() {
			c.reclaimMore(b)
			c.reconcileLedgers(b)
		}
		if b.memory() {
			c.warnUnpaired(b)
		}
		c.pairUp(b.mirror)
	}, c.bladeRules(b, c.tcpPeers(b))...)
	return nil
}

// generationReserve is how far beyond what a memory blade has told of its generations a later
// start begins. A slot rests for a second between two regions, and the later one is at most dsmpacket.MostAhead generations above, so half of
// it is more than a blade gets to while it is not heard. It leaves room for 32,000 starts of memory blades in a rack's life.
const generationReserve = 128

// reserve makes sure that later starts of memory blades' daemons begin above the
// generations that this one gets to before it is heard again. It reports whether that is
// to be written down.
func (b *blade) reserve(generation uint32) bool {
	if b.reserved > generation && b.reserved-generation >= generationReserve/2 {
		return false
	}
	b.reserved = min(generation+generationReserve, dsmpacket.MaxGeneration)
	return true
}

func newBlade() *blade {
	return &blade{nodes: map[netip.Addr]*node{}, joins: map[uint64]*node{}}
}

// bladeAddress is the address of the blade at a port: its number in the address
// plan is the port's, where 0 counts as the first one beyond all ports.
func bladeAddress(port uint16) netip.Addr {
	if port == 0 {
		port = 512
	}
	return rackaddr.Blade(uint64(port))
}

// admit decides whether a blade may take a port, and which one it is. What time
// may cure is Unavailable: the daemon tries again.
func (c *controller) admit(p *port, h *control.Hello) (*blade, error) {
	if err := checkHello(h); err != nil {
		return nil, err
	}
	claimed := c.claimed(h.Blade)
	if claimed != nil {
		h.Machine = 0 // it follows from the log
	}
	if err := c.cfg.bound(p.num, h); err != nil {
		return nil, err
	}
	if o := p.blade; o != nil && o.port == p && o.hello.Blade != h.Blade {
		return nil, fault.New(fault.Unavailable, "hello", "port %d belongs to blade %q", p.num, o.hello.Blade)
	}
	b := c.blades[h.Blade]
	if b == nil {
		if len(c.blades) >= maxBlades {
			return nil, fault.New(fault.NoSpace, "hello", "the rack has %d blades, its maximum", len(c.blades))
		}
		b = newBlade()
	}
	switch {
	case b.alive() && b.port != p:
		return nil, fault.New(fault.Unavailable, "hello", "blade %q is in service at port %d", h.Blade, b.port.num)
	case b.hello.Kind != "" && b.hello.Kind != h.Kind:
		return nil, fault.New(fault.BadRequest, "hello", "blade %q has registered as a %s blade before: choose another name", h.Blade, b.hello.Kind)
	}
	b.chosen = h.Machine != 0 && h.Machine != b.hello.Machine || b.chosen
	switch {
	case h.Kind != control.Memory:
	case claimed != nil:
		h.Machine = claimed.machine
	default:
		if err := c.chooseMachine(b, h); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// checkHello refuses what makes no sense in itself.
func checkHello(h *control.Hello) error {
	if err := checkName("blade", h.Blade); err != nil {
		return err
	}
	if err := h.Speaks.Check("hello", "blade "+h.Blade, "this Gatekeeper"); err != nil {
		return err
	}
	if h.Kind != control.Compute && h.Kind != control.Memory {
		return fault.New(fault.BadRequest, "hello", "blade %q is of kind %q: must be %s or %s", h.Blade, h.Kind, control.Compute, control.Memory)
	}
	if mac, err := frame.ParseMAC(h.MAC); err != nil || mac.Multicast() || mac.IsZero() {
		return fault.New(fault.BadRequest, "hello", "blade %q: %q is not a blade's Ethernet address", h.Blade, h.MAC)
	}
	if h.Boot == 0 {
		return fault.New(fault.BadRequest, "hello", "blade %q: boot must not be 0", h.Blade)
	}
	return nil
}

// checkName refuses names that people could not read or type.
func checkName(what, name string) error {
	bad := func(r rune) bool { return !unicode.IsPrint(r) || unicode.IsSpace(r) }
	if name == "" || len(name) > maxName || strings.ContainsFunc(name, bad) {
		return fault.New(fault.BadRequest, what, "name %.64q: must be 1 to %d bytes of printable characters without spaces", name, maxName)
	}
	return nil
}

// bladeRules are the rules of a blade itself.
func (t tables) bladeRules(b *blade, tcp []uint16) []phase {
	h := hopOf(b.port.num)
	var u phase
	u = append(u, t.want(identityEntry(b.port.num, host(b.address), p4.Daemon))...)
	u = append(u, t.want(l3Entry(host(b.address), h))...)
	for _, o := range tcp {
		u = append(u, t.want(tcpEntry(b.port.num, hopOf(o)))...)
		u = append(u, t.want(tcpEntry(o, h))...)
	}
	switch {
	case !b.memory() || !b.holds():
	case b.two(): // after a restart of ours
		u = append(u, t.memoryRules(b)...)
	default:
		u = append(u, t.memoryRules(b)...)
		u = append(u, t.want(homeEntry(dsmpacket.MachinePrefix(t.prefix, b.hello.Machine), h))...)
	}
	return split(u)
}

// restarted forgets what a blade's daemon had before it restarted.
func (c *controller) restarted(b *blade) {
	c.logger.Warn("blade restarted", "blade", b.hello.Blade)
	if b.mirror.fills(b) {
		c.stopFilling(b.mirror, "blade "+b.hello.Blade+" has restarted")
	}
	c.removeNodes("its daemon has restarted", b.sortedNodes()...)
	clear(b.joins)
	switch {
	case b.two():
		c.loseCopy(b, "blade "+b.hello.Blade+" has restarted")
	case b.memory() && b.holds():
		c.unserve(b)
		b.missed = missed{}
		c.dropReclaims(b, b.reclaims)
		b.reclaims, b.reclaiming = nil, 0
		if m := b.mirror; m != nil {
			m.copies, m.lost = nil, b.begin // it begins as another copy, above all that it had; enroll writes that down
		}
	default:
		b.commands = nil
	}
}

// takeOut takes a blade out of service: its nodes are gone, its memory is
// unavailable until it is back. A copy of two is lost unless it is kept.
func (c *controller) takeOut(b *blade, why string, keep bool) {
	c.logger.Warn("blade failed", "blade", b.hello.Blade, "reason", why)
	c.event(Event{Kind: BladeFailed, Blade: b.hello.Blade, Node: b.address, Message: why})
	p := b.port
	tcp := c.tcpPeers(b)
	b.port, b.used, b.reclaiming = nil, 0, 0
	for _, out := range b.leaving {
		close(out)
	}
	b.leaving = nil
	p.cancel()
	c.keepBlade(b, p)
	if b.memory() && b.first() {
		c.machines[b.hello.Machine] = nil
	}
	mirrored := b.two() && !keep
	var u phase
	u = append(u, c.unwant(identityEntry(p.num, host(b.address), p4.Daemon))...)
	u = append(u, c.unwant(l3Entry(host(b.address), 0))...)
	for _, o := range tcp {
		u = append(u, c.unwant(tcpEntry(p.num, hopOf(o)))...)
		u = append(u, c.unwant(tcpEntry(o, hopOf(p.num)))...)
	}
	if b.memory() && !mirrored && b.holds() {
		u = append(u, c.noMemoryRules(b)...)
		u = append(u, c.unwant(homeEntry(c.machinePrefix(b.hello.Machine), 0))...)
	}
	c.removeNodes(why, b.sortedNodes()...)
	clear(b.joins)
	c.change(nil, u)
	if b.mirror.fills(b) {
		c.stopFilling(b.mirror, "blade "+b.hello.Blade+" has failed: "+why)
	}
	switch {
	case mirrored:
		c.loseCopy(b, "blade "+b.hello.Blade+" has failed: "+why)
	case b.memory() && b.holds():
		c.unserve(b)
	default:
		b.commands = nil
	}
	c.act(c.fleet.Lost(b.hello.Blade, why, c.now))
}

// serveMemory takes a memory blade into service.
func (c *controller) serveMemory(b *blade) {
	if b.first() {
		c.machines[b.hello.Machine] = b
	}
	if !slices.Contains(c.servers, b) {
		c.servers = append(c.servers, b)
		c.recover(c.recoveries.AddServer(b.server()))
		c.forsakeAlso(b)
	}
}

// unserve takes a memory blade out of service: nobody waits for it any more.
func (c *controller) unserve(b *blade) {
	c.servers = slices.DeleteFunc(c.servers, func(o *blade) bool { return o == b })
	b.excuse()
	c.keepMissed(b)
	c.recover(c.recoveries.RemoveServer(b.server()))
}

// sortedNodes returns the blade's nodes in the order of their addresses.
func (b *blade) sortedNodes() []*node {
	out := make([]*node, 0, len(b.nodes))
	for _, n := range b.nodes {
		out = append(out, n)
	}
	slices.SortFunc(out, func(x, y *node) int { return x.address.Compare(y.address) })
	return out
}
