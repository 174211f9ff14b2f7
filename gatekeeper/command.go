package gatekeeper

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
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
func (c *Config) patience() time.Duration {
	return max(commandPatience, missedHeartbeats*c.Heartbeat)
}

// awaitAnswer waits for the answer to a command, for as long as a blade may leave one unanswered. It fails with ErrStopped when the Gatekeeper stops, which
// nobody answers then, and else as a context does.
func awaitAnswer[T any](ctx context.Context, g *Gatekeeper, answer <-chan T) (a T, err error) {
	ctx, cancel := context.WithTimeout(ctx, commandPatience)
	defer cancel()
	select {
	case a = <-answer:
		return a, nil
	case <-g.stopped:
		return a, ErrStopped
	case <-ctx.Done():
		return a, ctx.Err()
	}
}

// command has a blade do something, and then goes on. What finds no room among the
// messages under way waits for the blade's next one.
func (c *controller) command(b *blade, kind control.Kind, body any, then func(control.Message)) {
	b.commands = append(b.commands, &command{kind: kind, body: body, then: then, until: c.now.Add(c.cfg.patience())})
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
		err := b.port.ask(c.now, m.kind, m.body, func(reply control.Message) {
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
		c.logger.Error("a blade does not obey", "blade", b.hello.Blade, "command", m.kind, "error", m.error)
		if b.memory() {
			m.pause = control.Retries.Next(m.pause)
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

// port is a switch port from which a daemon has spoken.
type port struct {
	num    uint16
	mac    frame.MAC
	ready  bool           // its next_hop entry is in place
	remote netip.AddrPort // where the daemon speaks from
	peer   *control.Peer
	blade  *blade                           // nil before a hello was accepted
	asked  map[uint64]func(control.Message) // our requests without reply
	crowd  crowd
	talks  *talks
	spoken bool // it is among talks
}

// heldControl takes a control packet. Every one is held, whoever it is from and
// wherever it goes. Those that are not for the Gatekeeper end here, and so do
// those that no daemon has sent: it alone has the control port of its blade, and
// speaks from a link-local address until it has one of the rack's.
func (c *controller) heldControl(h *held) {
	p := c.ports[h.port]
	if p != nil {
		p.crowd.counts(c.now, c.cfg.Heartbeat, cmp.Or(c.cfg.Rates.Control, DefaultRates.Control).PerSecond)
	}
	c.timers = true
	daemon := h.src.IsLinkLocalUnicast() || rackaddr.BladePrefix.Contains(h.src)
	if h.dst != rackaddr.Gatekeeper || h.srcPort != rackaddr.PortControl || !daemon {
		c.count.Foreign++
		return
	}
	if p == nil {
		p = c.newPort(h.port)
	}
	p.remote = netip.AddrPortFrom(h.src, h.srcPort)
	if p.mac != h.srcMAC {
		p.mac, p.ready = h.srcMAC, false
		c.change(func(error) {
			p.ready = true
			c.deliver(p, h)
		}, c.want(hopEntry(hopOf(p.num), p.num, p.mac, c.cfg.MAC)))
		return
	}
	if p.ready { // else the daemon will say it again
		c.deliver(p, h)
	}
}

// newPort makes a port known, with nothing said.
func (c *controller) newPort(num uint16) *port {
	p := &port{num: num, talks: &c.talks, asked: map[uint64]func(control.Message){}, peer: control.NewPeer(control.PeerConfig{
		Boot: c.cfg.Boot, Election: c.cfg.Election, MaxDatagram: c.cfg.MTU - netio.Overhead,
	})}
	c.ports[num] = p
	return p
}

// deliver hands a control packet to its port's end of the conversation.
func (c *controller) deliver(p *port, h *held) {
	if err := p.peer.Input(h.payload); err != nil {
		c.count.Malformed++
		c.logger.Debug("control packet dropped", "port", p.num, "error", err)
	}
	p.speaks()
}

// converse carries out what peers want done, until they want nothing more.
func (c *controller) converse() {
	for len(c.talks.ports) > 0 {
		p := c.talks.ports[0]
		c.talks.ports, p.spoken, c.timers = c.talks.ports[1:], false, true
		r := p.peer.Ready()
		for _, b := range r.Send {
			c.send(hopOf(p.num), frame.UDP6{
				Src: netip.AddrPortFrom(rackaddr.Gatekeeper, rackaddr.PortControl), Dst: p.remote, Payload: b,
			}.Append(nil))
		}
		for _, m := range r.Replies {
			then := p.asked[m.ID]
			delete(p.asked, m.ID)
			if then != nil {
				then(m)
			}
		}
		for _, m := range r.Requests {
			c.request(p, m)
		}
	}
}

// request carries out a daemon's request.
func (c *controller) request(p *port, m control.Message) {
	var err error
	switch m.Kind {
	case control.KindHello:
		err = c.hello(p, m)
	case control.KindHeartbeat:
		err = c.heartbeat(p, m)
	case control.KindJoin:
		err = c.join(p, m)
	case control.KindExport:
		err = c.export(p, m)
	case control.KindLeave:
		err = c.leave(p, m)
	case control.KindMain:
		err = c.askedForMain(p, m)
	case control.KindPolicies:
		p.answer(m, explicitPolicies(c.fleet))
	case control.KindWho:
		err = c.who(p, m)
	case control.KindService:
		err = c.services.describe(p, m)
	case control.KindSharing:
		err = c.sharing(p, m)
	case control.KindOwners:
		err = c.ownersOf(p, m)
	case control.KindCalls:
		err = c.directCalls(p, m)
	case control.KindEnded:
		err = c.daemonEnded(p, m)
	case control.KindLedger:
		err = c.placeLedger(p, m)
	case control.KindBlocks:
		err = c.moreBlocks(p, m)
	case control.KindHoldings:
		err = c.holdings(p, m)
	case control.KindBatches:
		err = c.moreBatches(p, m)
	case control.KindShare:
		err = c.shares(p, m)
	case control.KindAccount:
		err = c.account(p, m)
	default:
		err = fault.New(fault.Unsupported, m.Kind.String(), "the Gatekeeper does not take this request")
	}
	if err != nil {
		c.count.Refused++
		c.logger.Warn("request refused", "port", p.num, "request", m.Kind, "error", err)
		p.fail(m, err)
	}
}

// answer replies to a request; body nil is an empty one.
func (p *port) answer(m control.Message, body any) {
	var b []byte
	if body != nil {
		var err error
		if b, err = json.Marshal(body); err != nil {
			p.fail(m, err)
			return
		}
	}
	p.peer.Answer(m, fault.OK, b)
	p.speaks()
}

// fail replies with an error.
func (p *port) fail(m control.Message, err error) {
	p.peer.Answer(m, fault.CodeOf(err), []byte(err.Error()))
	p.speaks()
}

// ask sends a request to a daemon until it is answered.
func (p *port) ask(now time.Time, kind control.Kind, body any, then func(control.Message)) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	id, err := p.peer.Ask(now, kind, b)
	if err != nil {
		return err
	}
	p.asked[id] = then
	p.speaks()
	return nil
}

// speaks says that the port's peer has something to do, which is done at the end of the input.
func (p *port) speaks() {
	if !p.spoken {
		p.spoken = true
		p.talks.ports = append(p.talks.ports, p)
	}
}

// talks are the ports whose peers have something to do.
type talks struct{ ports []*port }

// Port says which blade is behind a port of the switch. A blade that registers there as
// something else is refused with fault.PermissionDenied.
type Port struct {
	// Blade is the blade's name, Kind is control.Compute or control.Memory.
	Blade, Kind string
	// Machine is a memory blade's machine id, 0 for any that is free.
	Machine uint8
	// Capacity is the most that the blade may offer: bytes of memory, or concurrent nodes;
	// 0 for any amount.
	Capacity uint64
}

// String returns what ParsePort reads.
func (p Port) String() string {
	s := p.Blade + ":" + p.Kind
	if p.Machine != 0 || p.Capacity != 0 {
		s += ":" + strconv.Itoa(int(p.Machine))
	}
	if p.Capacity != 0 {
		s += ":" + strconv.FormatUint(p.Capacity, 10)
	}
	return s
}

// ParsePort reads NAME:KIND, NAME:KIND:MACHINE or NAME:KIND:MACHINE:CAPACITY.
func ParsePort(s string) (Port, error) {
	parts := strings.Split(s, ":")
	if len(parts) < 2 || len(parts) > 4 {
		return Port{}, fmt.Errorf("port %q: write NAME:KIND, NAME:KIND:MACHINE or NAME:KIND:MACHINE:CAPACITY", s)
	}
	p := Port{Blade: parts[0], Kind: parts[1]}
	if len(parts) > 2 {
		n, err := strconv.ParseUint(parts[2], 10, 8)
		if err != nil {
			return Port{}, fmt.Errorf("port %q: machine id %q: must be 0 (any) to 255", s, parts[2])
		}
		p.Machine = uint8(n)
	}
	if len(parts) > 3 {
		n, err := strconv.ParseUint(parts[3], 10, 64)
		if err != nil {
			return Port{}, fmt.Errorf("port %q: capacity %q: must be a number of bytes, or of nodes", s, parts[3])
		}
		p.Capacity = n
	}
	return p, nil
}

// checkPorts refuses bindings that make no sense, or contradict each other.
func checkPorts(ports map[uint16]Port) error {
	blades := map[string]uint16{}
	for num, p := range ports {
		if err := checkName("port", p.Blade); err != nil {
			return fmt.Errorf("gatekeeper: port %d: %w", num, err)
		}
		if p.Kind != control.Compute && p.Kind != control.Memory {
			return fmt.Errorf("gatekeeper: port %d: blade %s is of kind %q: must be %s or %s", num, p.Blade, p.Kind, control.Compute, control.Memory)
		}
		if p.Machine != 0 && p.Kind != control.Memory {
			return fmt.Errorf("gatekeeper: port %d: compute blade %s has no machine id", num, p.Blade)
		}
		if o, ok := blades[p.Blade]; ok {
			return fmt.Errorf("gatekeeper: blade %s is bound to ports %d and %d", p.Blade, min(num, o), max(num, o))
		}
		blades[p.Blade] = num
	}
	return nil
}

// bound decides whether the blade behind a port may be what it says it is, and fills in
// the machine id that the port is bound to.
func (c *Config) bound(num uint16, h *control.Hello) error {
	deny := func(format string, args ...any) error {
		return fault.New(fault.PermissionDenied, "hello", format, args...)
	}
	p, ok := c.Ports[num]
	if !ok {
		if !c.Open {
			return deny("port %d of the switch is bound to no blade: bind it with --port %d=%s:%s, or admit every blade with --open", num, num, h.Blade, h.Kind)
		}
		for other, p := range c.Ports {
			if p.Blade == h.Blade {
				return deny("blade %q is bound to port %d, not %d", h.Blade, other, num)
			}
			if p.Machine != 0 && p.Machine == h.Machine {
				return deny("machine id %d is bound to port %d, not %d", h.Machine, other, num)
			}
		}
		return nil
	}
	switch {
	case p.Blade != h.Blade:
		return deny("port %d is bound to blade %q, not %q", num, p.Blade, h.Blade)
	case p.Kind != h.Kind:
		return deny("port %d is bound to a %s blade, and %q is a %s blade", num, p.Kind, h.Blade, h.Kind)
	case p.Machine != 0 && h.Machine != 0 && p.Machine != h.Machine:
		return deny("port %d is bound to memory machine %d, not %d", num, p.Machine, h.Machine)
	case p.Capacity != 0 && h.Capacity > p.Capacity:
		return deny("port %d is bound to a capacity of %d, and blade %q offers %d", num, p.Capacity, h.Blade, h.Capacity)
	}
	if p.Machine != 0 {
		h.Machine = p.Machine
	}
	return nil
}

// evict takes blades of the log out of service whose ports are bound to others by now.
func (c *controller) evict() {
	for _, b := range c.sortedBlades() {
		h := b.hello
		if !b.alive() {
			continue
		}
		if err := c.cfg.bound(b.port.num, &h); err != nil {
			c.takeOut(b, err.Error(), false)
		}
	}
}
