package torture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/join/unixjoin"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/netio/linux"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rack/internal/kernel"
	"github.com/bifrost-rack/bifrost/rack/plan"
)

// With Config.Hostile a program that knows everything (it reads the admin API) attacks the
// rack while mains and clients call:
//
//	h1  root, raw sockets, and a node of its own: rows 1 to 7 and 9 to 11 of docs/security.md
//	h2  the same for control packets: its daemon's are among them, so that it may fail itself
//	c2  a user without privileges beside the clients, and a node of its: rows 8 and 20, and the sockets of 12 and 13; and what
//	    it takes of what all share (greed.go)
//
// None of it may be answered with success, no other blade may fail, and verify holds the counts
// and the memory against what they must be, as ever.

const (
	hostileBlade = "h1"
	wildBlade    = "h2"
	stranger     = 60002 // the user without privileges
	freePort     = 40000
	ownBlocks    = 16 // of call slots: the calls of its attacks stay open where they are not answered
)

// attacker is the hostile program. It belongs to one goroutine.
type attacker struct {
	t       *torture
	random  *rand.Rand
	raw     *rawSocket            // of h1
	wild    *rawSocket            // of h2
	blade   *kernel.Namespace     // h1
	callers *kernel.Namespace     // c2
	session join.Session          // its node
	blocks  []uint32              // of its call slots
	number  uint64                // how far its calls have counted
	guest   join.Session          // the node of the user without privileges
	sockets map[uint16]netio.Conn // of the guest
	known   known
	turns   []int // what is left of this round of assaults
}

// known is what the attacker knows of the rack.
type known struct {
	nodes   []api.Node
	regions []api.Region   // others'
	calls   []api.Timeline // the latest, also such that are over
	recent  []api.Timeline // those of plain clients
}

// infiltration is how long infiltrate may take after the first of the durable mains has begun.
const infiltration = 10 * time.Second

// infiltrate makes the attacker, and waits until the durable mains call: the name of one is whose program uses it first. That
// is no part of the time to attack.
func (t *torture) infiltrate(ctx context.Context) (*attacker, error) {
	t.report.Sent = map[string]int{}
	a := &attacker{t: t, random: rand.New(rand.NewPCG(t.cfg.Seed, 0xe71))}
	if err := a.open(ctx); err != nil {
		return nil, err
	}
	begin, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	if err := t.until(begin, a.tellersCall()); err != nil {
		return nil, errors.Join(fmt.Errorf("the durable mains do not begin: %w", err), a.close())
	}
	return a, nil
}

// attack attacks until the time is over, and packets of each attack have left. It gives up when ctx ends.
func (a *attacker) attack(ctx, until context.Context) (err error) {
	defer func() { err = errors.Join(err, a.close()) }()
	latest := time.Now().Add(settleTimeout)
	for round := 0; ctx.Err() == nil && (until.Err() == nil || len(a.unsent()) > 0 && time.Now().Before(latest)); round++ {
		if round%20 == 0 {
			if err := errors.Join(a.learn(ctx), a.ask(ctx), a.trespass()); err != nil {
				return err
			}
		}
		if err := a.assault(); err != nil {
			return err
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return a.judged(context.WithoutCancel(ctx))
}

// judged waits until judge has no objection: what daemons and nodes have counted comes with their next reports.
func (a *attacker) judged(ctx context.Context) (objection error) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	err := a.t.until(ctx, func(ctx context.Context) error {
		err := a.judge(ctx)
		if ctx.Err() == nil || objection == nil { // else the time is over within a question
			objection = err
		}
		return err
	})
	if err == nil {
		return nil
	}
	return objection
}

// unsent are the attacks of which no packet has left yet.
func (a *attacker) unsent() (names []string) {
	for _, w := range assaults {
		if a.t.report.Sent[w.name] == 0 {
			names = append(names, w.name)
		}
	}
	return names
}

// open enters the blades.
func (a *attacker) open(ctx context.Context) (err error) {
	if a.blade, err = kernel.OpenNamespace(plan.Namespace(a.t.cfg.Name, hostileBlade)); err != nil {
		return err
	}
	if a.callers, err = kernel.OpenNamespace(plan.Namespace(a.t.cfg.Name, "c2")); err != nil {
		return err
	}
	wild, err := kernel.OpenNamespace(plan.Namespace(a.t.cfg.Name, wildBlade))
	if err != nil {
		return err
	}
	if err := a.visit(ctx); err != nil {
		return errors.Join(err, wild.Close())
	}
	err = wild.Do(func() (err error) {
		a.wild, err = openRaw(plan.Interface)
		return err
	})
	if err = errors.Join(err, wild.Close()); err != nil {
		return err
	}
	return a.blade.Do(func() (err error) {
		if a.raw, err = openRaw(plan.Interface); err != nil {
			return err
		}
		if a.session, err = (unixjoin.Joiner{}).Join(ctx, "hostile"); err != nil {
			return err
		}
		a.blocks, err = a.session.Blocks(ctx, ownBlocks)
		return err
	})
}

// visit makes a program of the user without privileges a node of c2.
func (a *attacker) visit(ctx context.Context) (err error) {
	if a.guest, err = joinAs(ctx, a.callers, stranger); err != nil {
		return err
	}
	a.sockets = map[uint16]netio.Conn{}
	for _, port := range rackaddr.NodePorts {
		c, err := a.guest.Stack().ListenUDP(netip.AddrPortFrom(a.guest.Node().Address, port))
		if err != nil {
			return err
		}
		a.sockets[port] = c
	}
	return nil
}

func (a *attacker) close() error {
	ending, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, c := range a.sockets {
		_ = c.Close() // nothing is awaited there
	}
	return errors.Join(a.session.Close(ending), a.guest.Close(ending), a.raw.close(), a.wild.close(), a.blade.Close(), a.callers.Close())
}

// tellersCall objects until each teller has been seen to call.
func (a *attacker) tellersCall() func(context.Context) error {
	seen := map[netip.Addr]bool{}
	return func(ctx context.Context) error {
		if err := a.learn(ctx); err != nil {
			return err
		}
		for _, c := range a.known.calls {
			seen[c.Caller] = true
		}
		begun := 0
		for _, n := range a.known.nodes {
			if n.Blade == "c1" && seen[n.Address] {
				begun++
			}
		}
		if begun < tellers {
			return fmt.Errorf("%d of %d call", begun, tellers)
		}
		return nil
	}
}

// learn reads what there is from the admin API.
func (a *attacker) learn(ctx context.Context) (err error) {
	a.known = known{}
	if a.known.nodes, err = a.t.admin.Nodes(ctx); err != nil {
		return unlessOver(ctx, err)
	}
	for r, err := range a.t.admin.Regions(ctx, client.RegionFilter{}) {
		if err != nil {
			return unlessOver(ctx, err)
		}
		if r.Owner != a.itself() {
			a.known.regions = append(a.known.regions, r)
		}
	}
	if a.known.calls, err = a.latest(ctx, client.TimelineFilter{}, 64); err == nil {
		a.known.recent, err = a.latest(ctx, client.TimelineFilter{Roots: true}, 16)
	}
	return unlessOver(ctx, err)
}

// latest are the latest calls, so many at most.
func (a *attacker) latest(ctx context.Context, which client.TimelineFilter, most int) (all []api.Timeline, err error) {
	for l, err := range a.t.admin.Timelines(ctx, which) {
		if err != nil {
			return all, err
		}
		if all = append(all, l); len(all) == most {
			break
		}
	}
	return all, nil
}

// unlessOver is err, unless the time is over.
func unlessOver(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// ask asks as a node for what is others', and for names with escapes: rows 3, 6 and 17.
func (a *attacker) ask(ctx context.Context) (all error) {
	refusedAs := func(want fault.Code, what string, err error) {
		a.t.done[what]++
		if code := fault.CodeOf(err); code != want && ctx.Err() == nil {
			all = errors.Join(all, fmt.Errorf("a stranger %s: %w", what, errors.Join(errAdmitted, err)))
		}
	}
	refused := func(what string, err error) { refusedAs(fault.PermissionDenied, what, err) }
	for _, service := range []string{"Counter", "Front"} {
		_, err := a.session.Export(ctx, control.Export{Service: service, Methods: []control.Method{{Name: "add"}}})
		refused("exports "+service, err)
	}
	_, err := a.session.BeginMain(ctx, control.BeginMain{Name: "t0"})
	refused("begins the main t0", err)
	_, err = a.session.Export(ctx, control.Export{Service: "Evil", Methods: []control.Method{{Name: "\x1b[2J\n"}}})
	refusedAs(fault.BadRequest, "exports a method with escapes", err)
	_, err = a.session.Export(ctx, control.Export{Service: "Evil", Methods: []control.Method{{Name: "a"}}, IDL: "// \x1b[2J"})
	refusedAs(fault.BadRequest, "exports an IDL with escapes", err)
	return all
}

// errAdmitted is what an attack that was not refused comes to.
var errAdmitted = errors.New("it was not refused")

// trespass is what the user without privileges does on c2: rows 8 and 20, and the sockets of rows
// 12 and 13.
func (a *attacker) trespass() error {
	leave, err := controlPacket(control.KindLeave, control.Leave{Reason: "forged", Crashed: true})
	if err != nil {
		return err
	}
	type packet struct {
		from, to netip.AddrPort
		content  []byte
	}
	packets := []packet{
		{netip.AddrPortFrom(rackaddr.Blade(2), rackaddr.PortControl), netip.AddrPortFrom(rackaddr.Gatekeeper, rackaddr.PortControl), leave},
		{netip.AddrPortFrom(rackaddr.Gatekeeper, rackaddr.PortControl), netip.AddrPortFrom(rackaddr.Blade(2), rackaddr.PortControl), leave},
	}
	for _, n := range a.known.nodes {
		if n.Blade != "c2" || n.Name == nodeOf(stranger) {
			continue
		}
		for _, r := range a.known.regions {
			to, content := a.memory(r, a.operation())
			packets = append(packets, packet{netip.AddrPortFrom(n.Address, rackaddr.PortDSM), netip.AddrPortFrom(to, rackaddr.PortDSM), content})
		}
	}
	for _, p := range packets {
		c := a.sockets[p.from.Port()]
		if c == nil {
			c = a.sockets[rackaddr.PortRPC]
		}
		a.t.done["packet by a node's socket"]++
		if _, err := c.WriteBatch([]netio.Message{{Buf: p.content, Remote: p.to, Local: p.from.Addr()}}); !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("a node of a user without privileges sends from %s to %s: %w", p.from, p.to, errors.Join(errAdmitted, err))
		}
	}
	return a.callers.DoAs(stranger, func() error {
		for _, p := range packets {
			if p.from.Port() != rackaddr.PortControl {
				p.from = netip.AddrPortFrom(p.from.Addr(), freePort) // the ports of nodes are for their sockets alone
			}
			a.t.done["unprivileged packet"]++
			if err := send(p.from, p.to, p.content); !errors.Is(err, unix.EPERM) {
				return fmt.Errorf("a user without privileges sends from %s to %s: %w", p.from, p.to, errors.Join(errAdmitted, err))
			}
		}
		for _, port := range rackaddr.NodePorts {
			at := netip.AddrPortFrom(netip.IPv6Unspecified(), port)
			a.t.done["port of nodes"]++
			c, err := linux.Listen(at, rackaddr.DefaultMTU)
			if err == nil {
				return errors.Join(fmt.Errorf("a user without privileges binds %s: %w", at, errAdmitted), c.Close())
			}
			if !errors.Is(err, unix.EADDRINUSE) {
				return err
			}
		}
		for _, socket := range []string{a.t.cfg.Host.AdminSocket(a.t.cfg.Name), a.t.cfg.Host.SwitchSocket(a.t.cfg.Name)} {
			a.t.done["socket"]++
			c, err := net.Dial("unix", socket)
			if err == nil {
				return errors.Join(fmt.Errorf("a user without privileges opens %s: %w", socket, errAdmitted), c.Close())
			}
		}
		return nil
	})
}

// send sends a datagram from any address that the kernel allows. No client is started
// meanwhile: it would have the socket, too, until it is another program, and the next send
// would find the port in use.
func send(from, to netip.AddrPort, content []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	c, err := linux.Listen(netip.AddrPortFrom(netip.IPv6Loopback(), from.Port()), rackaddr.DefaultMTU)
	if err != nil {
		return err
	}
	_, err = c.WriteBatch([]netio.Message{{Buf: content, Remote: to, Local: from.Addr()}})
	return errors.Join(err, c.Close())
}

// controlPacket is a request to the Gatekeeper as it stands in a datagram.
func controlPacket(kind control.Kind, body any) ([]byte, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	p := control.NewPeer(control.PeerConfig{Boot: 666})
	if _, err := p.Ask(time.Now(), kind, b); err != nil {
		return nil, err
	}
	return p.Ready().Send[0], nil
}

// assault does one of the attacks with raw sockets, and looks at what has come back.
func (a *attacker) assault() error {
	if len(a.turns) == 0 {
		a.turns = a.random.Perm(len(assaults))
	}
	w := assaults[a.turns[0]]
	a.turns = a.turns[1:]
	a.t.done[w.name]++
	from := a.raw
	if w.wild {
		from = a.wild
	}
	for _, f := range w.frames(a) {
		left, err := from.send(f)
		if err != nil {
			return fmt.Errorf("attack %s: %w", w.name, err)
		}
		if left {
			a.t.report.Sent[w.name]++
		}
	}
	return errors.Join(a.raw.received(a.answered), a.wild.received(a.answered))
}

// judge says whether the rack has stood the attacks.
func (a *attacker) judge(ctx context.Context) error {
	blades, err := a.t.admin.Blades(ctx)
	if err != nil {
		return err
	}
	for _, b := range blades {
		if b.Status == "failed" && b.Name != wildBlade {
			err = errors.Join(err, fmt.Errorf("blade %s has failed: %s", b.Name, b.Cause))
		}
	}
	if unsent := a.unsent(); len(unsent) > 0 {
		err = errors.Join(err, fmt.Errorf("no packet has left of the attacks %q", unsent))
	}
	apps, e := a.t.admin.Apps(ctx)
	for _, app := range apps {
		for _, i := range app.Instances {
			if i.Failures > 0 {
				err = errors.Join(err, fmt.Errorf("%s has failed %d times", i.Name, i.Failures))
			}
		}
	}
	status, s := a.t.admin.Status(ctx)
	if err = errors.Join(err, e, s, a.judgeMethods(ctx)); err != nil {
		return err
	}
	c := status.Counters
	a.t.report.Refused = map[string]uint64{"denied": c.Denied, "refused": c.Refused, "malformed": c.Malformed, "foreign": c.Foreign}
	for _, reason := range []string{"denied", "refused", "malformed"} {
		if a.t.report.Refused[reason] == 0 {
			err = errors.Join(err, fmt.Errorf("nothing was counted as %s", reason))
		}
	}
	return err
}

// judgeMethods: the calls of made-up methods have reached their callees, and have no figures of their own.
func (a *attacker) judgeMethods(ctx context.Context) error {
	methods, err := a.t.admin.Methods(ctx)
	unknown := 0
	for _, m := range methods {
		if strings.HasPrefix(m.Method, "(") {
			unknown++
		}
	}
	const mostOwn = 16 // of the services of the rack
	if err == nil && (unknown == 0 || len(methods) > unknown+mostOwn) {
		err = fmt.Errorf("calls of made-up methods have %d of %d rows of figures", unknown, len(methods))
	}
	return err
}
