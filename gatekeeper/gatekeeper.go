package gatekeeper

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
	"github.com/bifrost-rack/bifrost/gatekeeper/trace"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/pairing"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// ErrStopped is returned by methods that need a running Gatekeeper.
var ErrStopped = errors.New("the Gatekeeper is not running")

// errMute is why a session is given up whose switch does not answer.
var errMute = errors.New("the switch does not answer")

// Gatekeeper controls one rack. Its methods may be called concurrently.
type Gatekeeper struct {
	cfg    Config
	client *p4rtclient.Client
	meta   metadata
	turn   turn
	ctl    *controller // of who has the turn
	outbox *outbox     // as well; nil without a log
	writer *writer
	broker broker
	begins bool // the rack does, with no blade on the log: no session has come so far as to have one

	stopped chan struct{} // closed when Run ends
	once    sync.Once
	cancel  context.CancelFunc // ends Run
}

// metadata tells where the fields of the program's packet headers stand.
type metadata struct {
	port, reason   int // packet_in
	hop, outFields int // packet_out
}

// program is Bifröst's P4 program, parsed once.
var program = sync.OnceValues(func() (*p4rtclient.Program, error) { return p4rtclient.ParseProgram(p4.Info, p4.JSON) })

// New makes a Gatekeeper; Run makes it work. With a log it knows what is on it.
func New(cfg Config) (*Gatekeeper, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	ctl := newController(cfg)
	if cfg.Store != nil {
		if err := ctl.restore(cfg.Store); err != nil {
			return nil, fmt.Errorf("gatekeeper: begin with the log: %w", err)
		}
		if err := ctl.logFirst(cfg.Store); err != nil {
			return nil, fmt.Errorf("gatekeeper: begin with the log: %w", err)
		}
		cfg = ctl.cfg
	}
	program, err := program()
	if err != nil {
		return nil, err
	}
	client, err := p4rtclient.New(p4rtclient.Config{
		Conn: cfg.Conn, Program: program, DeviceID: cfg.DeviceID, Log: cfg.Logger,
		Election: p4rtclient.Election{High: cfg.Election.High, Low: cfg.Election.Low},
	})
	if err != nil {
		return nil, err
	}
	g := &Gatekeeper{
		cfg: cfg, client: client, ctl: ctl, writer: newWriter(), cancel: func() {}, stopped: make(chan struct{}),
	}
	g.begins = len(ctl.blades) == 0 && ctl.saved == nil
	if cfg.Store != nil {
		g.outbox = newOutbox(cfg.Store, g.transmit, g.confirm)
	}
	g.meta.port, err = program.PacketInField("ingress_port")
	if err == nil {
		g.meta.reason, err = program.PacketInField("reason")
	}
	if err == nil {
		g.meta.hop, err = program.PacketOutField("hop")
	}
	g.meta.outFields = program.PacketOutFields()
	return g, err
}

// Run works until ctx ends, and then returns nil. It returns an error if another
// Gatekeeper is in charge of the switch (p4rtclient.ErrNotPrimary), or if the
// switch cannot run the P4 program, or if the log fails (log.ErrFailed): what is
// not logged must not happen. It must be called once.
func (g *Gatekeeper) Run(ctx context.Context) error {
	again := true
	g.once.Do(func() { again = false })
	if again {
		return errors.New("gatekeeper: Run was called before")
	}
	ctx, cancel := context.WithCancel(ctx)
	g.cancel = cancel
	defer cancel()
	g.begin()
	err := g.client.Keep(ctx, g.serve)
	if ctx.Err() != nil {
		err = nil
	}
	if failure := g.end(); failure != nil {
		return failure
	}
	return err
}

// Subscribe returns a channel of events from now on; it is closed when ctx ends.
// A subscriber that falls behind loses events, which their sequence numbers tell.
func (g *Gatekeeper) Subscribe(ctx context.Context) <-chan Event { return g.broker.subscribe(ctx) }

// Snapshot copies the state. It fails with ErrStopped if the Gatekeeper does not
// run (any more).
func (g *Gatekeeper) Snapshot(ctx context.Context) (s Snapshot, err error) {
	if err := g.survey(ctx); err != nil {
		return s, err
	}
	err = g.do(ctx, func() { s = g.ctl.snapshot() })
	return s, err
}

// Config is what a Gatekeeper needs. Conn is required, and Ports or Open.
type Config struct {
	// Conn leads to the switch's P4Runtime server.
	Conn grpc.ClientConnInterface
	// DeviceID is the switch's P4Runtime device id; 0 means 1.
	DeviceID uint64
	// Election decides among several Gatekeepers: the highest one rules. Zero
	// means the present time in nanoseconds, so the one that started last. With a
	// log, one that is not above the last one's becomes the next one after it.
	Election control.Election
	// Boot tells this start of the Gatekeeper from all others, for the daemons; 0
	// draws it at random.
	Boot uint64
	// Secret is what the ids of calls that executions make follow from, in a rack that begins;
	// one that goes on from a log has the log's. Zero draws it at random.
	Secret endpoint.Secret
	// DSMPrefix is byte 4 of every global pointer; 0 means the default plan's.
	DSMPrefix uint8
	// MTU is the rack's largest IPv6 packet in bytes; 0 means the default plan's.
	MTU int
	// Heartbeat is how often daemons report; one that is silent for three times as
	// long has failed. 0 means a second.
	Heartbeat time.Duration
	// MAC is the source address of the frames that the switch sends to blades; zero
	// means 02:b1:f0:00:00:01.
	MAC frame.MAC
	// Store is the log: what the Gatekeeper decides is on it before anybody is told,
	// and a Gatekeeper that begins with it goes on where another one was cut off. It
	// must not be closed before Run has returned. Nil means no log: what the
	// Gatekeeper knows ends with it, and blades and nodes begin anew.
	Store *wal.Log
	// Over, if set, is told of every call that is over, and of the outermost call on
	// whose behalf it was made, in the middle of an input, which it must not hold up.
	Over func(call trace.Call, root rpcpacket.ID)
	// Machines are the memory machines that two blades serve, by the blades' names. Every
	// other memory blade is a machine of its own.
	Machines [][]string
	// PairByNumber pairs memory blades that Machines does not name: m1 with m2, m3 with m4
	// (pairing.ByNumber). One that asks for a machine id of its own stays alone.
	PairByNumber bool
	// Ports bind ports of the switch to blades. Open admits blades at other ports, too,
	// under names and machine ids that no port is bound to; without it a blade registers
	// at its own port only. One of the two is required.
	Ports map[uint16]Port
	Open  bool
	// Rates bound what one port of the switch may cause the Gatekeeper.
	Rates Rates
	// TCP are the blades between which TCP may pass, by name; "*" stands for all. Without it
	// the switch drops TCP.
	TCP []string
	// ShareExports lets programs that nobody has deployed export a service together.
	// Without it a service belongs to the one that exports it first.
	ShareExports bool
	// FillRate is how many bytes a second a memory blade sends at most to one that it
	// fills; 0 means 64 MiB.
	FillRate uint64
	// Log receives what happens; nil discards it.
	Logger *slog.Logger
}

// missedHeartbeats is after how many heartbeats' silence a blade has failed.
const missedHeartbeats = 3

// defaultFillRate leaves most of a memory blade's time to its clients: it copies 1 GiB in
// 16 s.
const defaultFillRate = 64 << 20

// withDefaults fills in what is left out and checks the rest.
func (c Config) withDefaults() (Config, error) {
	if c.Conn == nil {
		return c, errors.New("gatekeeper: Config.Conn is required")
	}
	if c.DeviceID == 0 {
		c.DeviceID = 1
	}
	if c.Election == (control.Election{}) {
		c.Election.Low = uint64(time.Now().UnixNano()) //nolint:gosec // after 1970
	}
	for c.Boot == 0 {
		c.Boot = rand.Uint64()
	}
	if c.Secret == (endpoint.Secret{}) {
		_, _ = crand.Read(c.Secret[:]) // it never fails
	}
	if c.DSMPrefix == 0 {
		c.DSMPrefix = rackaddr.DefaultDSMPrefix
	}
	if c.MTU == 0 {
		c.MTU = rackaddr.DefaultMTU
	}
	if c.MTU < 1280 || c.MTU > netio.MaxDatagram+8 {
		return c, fmt.Errorf("gatekeeper: MTU of %d bytes: IPv6 needs 1280, and %d is the most", c.MTU, netio.MaxDatagram+8)
	}
	if c.Heartbeat == 0 {
		c.Heartbeat = time.Second
	}
	if c.Heartbeat < time.Millisecond || c.Heartbeat > time.Hour {
		return c, fmt.Errorf("gatekeeper: heartbeat of %s: want a millisecond to an hour", c.Heartbeat)
	}
	if err := pairing.Check(c.Machines); err != nil {
		return c, fmt.Errorf("gatekeeper: %w", err)
	}
	for _, blades := range c.Machines {
		for _, name := range blades {
			if err := checkName("machine", name); err != nil {
				return c, fmt.Errorf("gatekeeper: %w", err)
			}
		}
	}
	if len(c.Ports) == 0 && !c.Open {
		return c, errors.New("gatekeeper: no port of the switch is bound to a blade, so none could register: bind ports (--port), or admit every blade (--open)")
	}
	if err := checkPorts(c.Ports); err != nil {
		return c, err
	}
	if c.MAC.IsZero() {
		c.MAC = frame.MAC{0x02, 0xb1, 0xf0, 0, 0, 1}
	}
	if c.FillRate == 0 {
		c.FillRate = defaultFillRate
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// Bounds of what a Gatekeeper keeps and does. What goes beyond is refused with an error or, where its sender will try again anyway,
// dropped and counted.
const (
	// scanned is how many calls are looked at in a turn for somebody who lists
	// them, before other inputs have theirs: some hundred microseconds.
	scanned = 1024
	// maxBlades bounds the names of blades ever seen, several for each port.
	maxBlades = 4096
	// maxNodes bounds the nodes of a rack; the switch's identity table has 4096
	// rows, of which blades take some.
	maxNodes = 3500
	// maxServices is from how many services on those are forgotten that no node
	// exports any more; calling one that is remembered is Unavailable, not
	// NoSuchMethod.
	maxServices = 4096
	// maxClaims bounds the names of services and durable mains of one owner, maxOwners those
	// of all: beyond, names of which nothing is left are forgotten.
	maxClaims = 1024
	maxOwners = 1 << 16
	// maxMethods bounds the methods of one service on one node, maxRoutes those of all
	// services of a node, maxBladeRoutes those of all nodes of a blade: the switch's table
	// has 65,536 rows.
	maxMethods     = 1024
	maxRoutes      = 4096
	maxBladeRoutes = 16384
	// maxName bounds the names of blades, programs and services, in bytes.
	maxName = 255
	// maxBatch is how many updates the writer puts into one Write, if it can
	// choose: one P4Runtime message of some 100 KiB.
	maxBatch = 1024
	// maxFixes is how often a plan turns insertions into modifications or back,
	// because the switch says so, until it gives up.
	maxFixes = 4
	// maxDenied is how many denied accesses are remembered for people.
	maxDenied = 256
	// tellFull is how often people are told at most that the log is nearly full.
	tellFull = time.Minute
	// eventQueue is how far a subscriber may lag behind before it loses events.
	eventQueue = 1024
)

// serve works with one session: it makes the switch's tables what they should
// be, and then writes plans until the session ends.
func (g *Gatekeeper) serve(_ context.Context, s *p4rtclient.Session) error {
	ctx := s.Context()
	repaired, err := g.prepare(ctx)
	if err != nil {
		return err
	}
	if err := g.do(ctx, func() { g.ctl.rule(control.Election(g.client.Election())); g.attach(s, repaired) }); err != nil {
		return err
	}
	s.Receive(g.packetIn, g.digest, g.port)
	err = g.writer.run(ctx, g.client.Write, func(plans []*plan) { _ = g.input(func() { conclude(plans) }) })
	_ = g.input(g.detach)
	return err
}

// prepare makes the switch run the program and gives its tables what they should
// have, and returns how many entries that took.
func (g *Gatekeeper) prepare(ctx context.Context) (repaired int, err error) {
	fresh := g.begins
	if fresh { // registers that another rack has left are not this one's
		err = g.client.ResetPipeline(ctx)
	} else {
		fresh, err = g.client.SetPipeline(ctx)
	}
	if err != nil {
		return 0, err
	}
	g.begins = false
	g.cfg.Logger.Info("connected to the switch", "device", g.cfg.DeviceID, "new pipeline", fresh)
	if err := g.client.EnableDigest(ctx, deniedDigest, p4rtclient.Batch{}); err != nil {
		return 0, err
	}
	if err := g.takeHalfUsed(ctx); err != nil {
		return 0, err
	}
	if err := g.setRates(ctx); err != nil {
		return 0, err
	}
	return g.repair(ctx, nil) // plans that were cut off are written again
}

// conclude goes on with what has waited for plans.
func conclude(plans []*plan) {
	for _, p := range plans {
		if p.then != nil {
			p.then(p.err)
		}
	}
}

// attach lets packets go to a session.
func (g *Gatekeeper) attach(s *p4rtclient.Session, repaired int) {
	g.turn.session = s
	g.ctl.connect()
	g.ctl.ready()
	g.ctl.count.Reconciled += uint64(repaired) //nolint:gosec // a length
	g.ctl.event(Event{Kind: SwitchConnected})
}

// detach ends that.
func (g *Gatekeeper) detach() {
	g.turn.session = nil
	g.ctl.disconnect()
	g.ctl.event(Event{Kind: SwitchLost})
}

// Reconcile reads the switch's tables back, makes them what they should be, and
// returns how many entries that took. What is on its way to the switch meanwhile
// is no difference. It fails with ErrNoSwitch while the switch is away, and with
// ErrStopped if the Gatekeeper does not run.
func (g *Gatekeeper) Reconcile(ctx context.Context) (repaired int, err error) {
	connected, err := g.Connected(ctx)
	if err != nil {
		return 0, err
	}
	if !connected {
		return 0, ErrNoSwitch
	}
	failed := g.writer.between(ctx, g.stopped, func(session context.Context) error {
		var err error
		repaired, err = g.repair(session, g.writer.pending)
		return err
	})
	if failed != nil {
		return repaired, failed
	}
	return repaired, g.do(ctx, func() {
		g.ctl.count.Reconciled += uint64(repaired) //nolint:gosec // a length
		g.ctl.event(Event{Kind: SwitchReconciled})
	})
}

// repair reads the tables back and writes what is wrong, all revocations before
// the first grant. Nobody else writes meanwhile. The entries that except names, if
// it is not nil, are left as they are.
func (g *Gatekeeper) repair(ctx context.Context, except func() map[string]bool) (repaired int, err error) {
	found, err := g.client.Read(ctx)
	if err != nil {
		return 0, err
	}
	groups, err := g.client.Groups(ctx)
	if err != nil {
		return 0, err
	}
	found = append(found, groups...)
	var wanted base
	var left map[string]bool
	err = g.do(ctx, func() {
		wanted = maps.Clone(g.ctl.base)
		if except != nil {
			left = except()
		}
	})
	if err != nil {
		return 0, err
	}
	revoke, grant := reconcile(wanted, found)
	revoke, grant = revoke.without(left), grant.without(left)
	return len(revoke) + len(grant), g.write(ctx, revoke, grant)
}

// write writes phases one after the other, in batches.
func (g *Gatekeeper) write(ctx context.Context, phases ...phase) error {
	var b batcher
	for _, p := range phases {
		for len(p) > 0 {
			n := min(len(p), maxBatch)
			b.submit(&plan{phases: []phase{p[:n]}, ordered: true})
			p = p[n:]
		}
	}
	for !b.idle() {
		if err := b.answer(g.client.Write(ctx, b.next())); err != nil {
			return err
		}
		for _, p := range b.done() {
			if p.err != nil {
				g.cfg.Logger.Error("the switch refuses a rule", "error", p.err)
			}
		}
	}
	return nil
}

// without leaves out the updates of some entries.
func (p phase) without(keys map[string]bool) (rest phase) {
	for _, u := range p {
		if !keys[u.Entry.Key()] {
			rest = append(rest, u)
		}
	}
	return rest
}

// task is something to be done while nothing is being written.
type task struct {
	do   func(session context.Context) error
	done chan error
}

// between has f carried out by the writer, between two batches, and waits for it.
func (w *writer) between(ctx context.Context, stopped <-chan struct{}, f func(session context.Context) error) error {
	e := task{f, make(chan error, 1)}
	select {
	case w.tasks <- e:
	case <-stopped:
		return ErrStopped
	case <-ctx.Done():
		return ctx.Err()
	}
	return <-e.done // the session's end ends it, too
}

// pending returns the keys of all entries that plans are still to write. None may
// be out.
func (w *writer) pending() map[string]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	keys := map[string]bool{}
	for _, plans := range [][]*plan{w.b.revokes, w.b.grants, w.b.ordered} {
		for _, p := range plans {
			p.each(func(u *p4rtclient.Update) { keys[u.Entry.Key()] = true })
		}
	}
	return keys
}

// each visits the updates that the plan has still to write.
func (p *plan) each(visit func(*p4rtclient.Update)) {
	for _, f := range p.phases {
		for i := range f {
			visit(&f[i])
		}
	}
}
