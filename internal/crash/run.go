package crash

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/daemon"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/disk"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
)

// Options of a run.
type Options struct {
	Seed    uint64 // of the network's dice
	Network string // one of Networks
	Setting Setting
	Crashes Crashes
	// When are crashes that wait for a moment, each of which comes once.
	When []*Moment
	// Late is a packet of which another copy arrives later; nil for none.
	Late *Late
	// Policy is that of all calls.
	Policy rpc.Policy
	// Quiesce is synctest.Wait: runs are in virtual time.
	Quiesce func()
	// Linger is how much longer than the clients the run lasts, for what comes late.
	Linger time.Duration
	// NoSpare leaves out the blades that nothing needs while nothing fails.
	NoSpare bool
	// Log receives what the rack says; nil discards it.
	Log *slog.Logger
}

// Moment is when to crash what.
type Moment struct {
	// Crash is what crashes; its At counts for nothing.
	Crash Crash
	// Is reports whether a packet is the one; it is asked before it arrives, or
	// after with Crash.After, in one goroutine.
	Is func(wire.Frame) bool
	// Came is set when the moment has come, and is read after the run.
	Came bool
}

// Late is a packet of which another copy arrives later.
type Late struct {
	// Is reports whether a packet to a blade is the one; it is asked until it has said so.
	Is func(wire.Frame) bool
	// At is the packet after which the copy arrives.
	At int

	blade string
	copy  []byte // nil: it has not come yet, or the copy has arrived
}

// Report is what a run has come to.
type Report struct {
	Packets int            // that arrived on a link, from the moment when all services were up until all clients had ended
	Crashes int            // that hit somebody
	Nested  int            // of them, those while somebody was not back from another one
	Runs    map[int]int    // how often the script of each call and one-way was begun
	Wrong   []string       // what the oracle complains of; none is right
	Did     map[string]int // how often what has happened to whom
	// Deadlocks is how many calls have failed because services wait for each other.
	Deadlocks int
	Lost      bool          // memory was lost, or what was logged
	Ended     time.Duration // of virtual time, until all clients had come to their ends
	Took      time.Duration // until all was back and judged
}

// Bounds of a run; what reaches them is stuck. The longest that must be waited for is
// four blades away for ten seconds each, and a program that is started again with
// growing pauses.
const (
	patience   = 3 * time.Minute // of virtual time
	maxPackets = 30_000          // some hundred times what a program takes

	packetsOfLarge   = 30_000 // more, where answers and states are large: a copy of the memory that was away gets them all again
	copiesOfLarge    = 200    // how often one of the largest is sent, and written to ledgers
	packetsPerClient = 3_000  // more, where there are many
	packetsPerSecond = 30     // of heartbeats, while the rack is idle
	packetsPerCall   = 60     // of a chorus
	timePerCall      = 20 * time.Millisecond

	usualMTU = 5_000 // for which these are enough: smaller packets are more
)

// appName is the deployment of a program's services and mains.
const appName = "program"

// Run is one run of a program on a rack of its own.
type Run struct {
	p      *Program
	opt    Options
	rack   *simrack.Rack
	began  time.Time
	lasted time.Duration // when all clients have
	disk   *wal.Disk     // of the Gatekeeper's log
	ledger *ledger
	crash  *crasher

	mu           sync.Mutex
	places       map[string]place          // of programs that have joined
	begun        map[string]bool           // durable mains that have
	links        string                    // the network, as the links are now
	incarnations []begun                   // of nodes, as they began
	halted       time.Time                 // until when the disk is
	lost         map[string]bool           // machines whose regions are lost, or everything
	ledgers      map[string]map[uint8]bool // machines that have had a program's ledger, by the program's name
	machines     map[string]uint8          // of memory blades; it does not change
	away         bool                      // a machine was, so long that the rack may have noticed
	pair         pair                      // the copies, if the memory blades are a pair
	void         chan struct{}             // closed when everything is lost
	wall         *rand.Rand                // for clocks that jump
	up           map[string]chan struct{}
	twins        []daemon.Process // second runs of durable mains
	over         []chan struct{}  // closed when a client has come to its end
	hands        hands
	shares       shares
	sung         [voices]uint64 // how many calls each voice has made

	audited map[int]audited // what the services' books say in the end
}

// audited is a service's state in the end.
type audited struct {
	marks   []Mark
	bumps   uint64
	unknown bool // the service cannot tell: what it needs is lost
}

// place is where a program runs.
type place struct{ blade, instance string }

// Perform runs a program once and lets the oracle judge. It must be called in a
// testing/synctest bubble.
func Perform(ctx context.Context, p *Program, want *Expectation, opt Options) (*Report, error) {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	r := &Run{p: p, opt: opt, ledger: newLedger(p.tried()), places: map[string]place{}, begun: map[string]bool{}, lost: map[string]bool{}, ledgers: map[string]map[uint8]bool{}, machines: map[string]uint8{}, pair: pair{gone: map[string]uint32{}, away: map[string]int{}, since: map[string]time.Time{}}, void: make(chan struct{}), hands: hands{rest: make(chan struct{})}, wall: rand.New(rand.NewPCG(opt.Seed, 3)), up: map[string]chan struct{}{}, audited: map[int]audited{}}
	r.ledger.outer = p.outer()
	r.newShares()
	<-time.After(opt.Setting.Age)
	r.crash = newCrasher(r)
	r.began, r.ledger.began = time.Now(), time.Now()
	for range p.Clients {
		r.over = append(r.over, make(chan struct{}))
	}
	for i := range p.Services {
		r.up[ServiceName(i)] = make(chan struct{})
	}
	r.up[chorusName] = make(chan struct{})
	ctx, cancel := context.WithTimeout(ctx, patience+opt.Setting.Idle+time.Duration(opt.Setting.Calls)*timePerCall)
	defer cancel()
	r.crash.flooded = func() {
		cancel()
		for _, b := range r.blades() {
			r.rack.Host(b.Name).SetLink(false)
		}
	}
	pauses := newPauses(opt.Seed, 2)
	r.disk = &wal.Disk{Pause: func() time.Duration { return r.diskPause(pauses) }}
	cfg := simrack.Config{
		Blades: r.blades(), Schedule: &wire.Schedule{Seed: opt.Seed, Quiesce: opt.Quiesce}, Impair: Networks["good"],
		Programs: r.programs(), OnFrame: r.crash.onFrame, MTU: opt.Setting.mtu(), Disk: r.disk, Clock: r.clock,
		LogOptions: wal.Options{Limit: uint64(opt.Setting.LogLimit), Sync: opt.Setting.Sync}, //nolint:gosec // not negative
		Log:        opt.Log, MemoryLimits: opt.Setting.memoryLimits(), LedgerSpace: opt.Setting.space(p),
	}
	if opt.Setting.Pairs {
		cfg.Machines = [][]string{memoryBlades}
	}
	if opt.Setting.Disks {
		cfg.LedgerDisks = map[string]*disk.Memory{}
		for i, name := range memoryBlades {
			cfg.LedgerDisks[name] = &disk.Memory{Pause: newPauses(opt.Seed, uint64(4+i)).next} //nolint:gosec // few
		}
	}
	if opt.Network == slow {
		cfg.Pause = newPauses(opt.Seed, 1).next
	}
	var err error
	r.rack, err = simrack.Start(ctx, cfg)
	if err != nil {
		return nil, err
	}
	err = r.perform(ctx, want)
	r.crash.disarm()
	r.crash.wait()
	r.endHands()
	err = errors.Join(err, r.rack.Close())
	for what, n := range map[string]int{"reads by standing leases": r.shares.reads, "reads of what a lessee passes on": r.shares.passed, "reads refused by standing leases": r.shares.refused} {
		if n > 0 {
			r.crash.did[what] += n
		}
	}
	return &Report{
		Packets: r.crash.packets, Runs: r.ledger.begun(), Crashes: r.crash.hits(), Nested: r.crash.nestedHits(),
		Wrong: r.ledger.complaints(), Ended: r.lasted, Took: time.Since(r.began), Did: r.crash.did, Lost: len(r.lost) > 0, Deadlocks: r.deadlocks(),
	}, err
}

// perform starts everything, waits for the clients and closes the books.
func (r *Run) perform(ctx context.Context, want *Expectation) error {
	if err := r.noteMachines(ctx); err != nil {
		return err
	}
	if err := r.rack.Gatekeeper().Deploy(ctx, r.spec("")); err != nil {
		return err
	}
	if err := r.deployApart(ctx); err != nil {
		return err
	}
	r.keepServices()
	for i := range r.p.Services {
		if err := r.await(ctx, "service "+ServiceName(i), r.up[ServiceName(i)]); err != nil {
			return err
		}
	}
	if r.opt.Setting.Calls > 0 {
		if err := r.await(ctx, "service "+chorusName, r.up[chorusName]); err != nil {
			return err
		}
	}
	if spec, some := r.mains(); some {
		if err := r.rack.Gatekeeper().Deploy(ctx, spec); err != nil {
			return err
		}
	}
	r.keepMains()
	r.impair(r.opt.Network)
	r.crash.arm()
	for i, c := range r.p.Clients {
		if c.Main {
			continue
		}
		name := r.p.clientName(i)
		if _, err := r.rack.Run("c1", name, func(ctx context.Context, j join.Joiner, s control.Start) error {
			return r.plain(ctx, i, j, s)
		}); err != nil {
			return err
		}
	}
	sung, err := r.sing(ctx)
	if err != nil {
		return err
	}
	lent := make(chan struct{})
	if r.opt.Setting.Leases == 0 {
		close(lent)
	} else if _, err = r.rack.Run("c1", lenderName, func(ctx context.Context, j join.Joiner, s control.Start) error {
		defer close(lent)
		return r.lend(ctx, j, s)
	}); err != nil {
		return err
	}
	for i := range r.p.Clients {
		if err = r.await(ctx, r.p.clientName(i), r.over[i]); err != nil {
			break
		}
	}
	if err == nil {
		err = r.await(ctx, "the chorus", sung)
	}
	if err == nil {
		err = r.await(ctx, "the lender", lent)
	}
	if err != nil && !errors.Is(err, errVoid) {
		return err
	}
	r.lasted = time.Since(r.began)
	<-time.After(r.opt.Linger)
	r.crash.disarm()
	r.impair("good")
	r.crash.wait()
	return r.judge(ctx, want)
}

// impair makes the network one of the Networks.
func (r *Run) impair(network string) {
	r.mu.Lock()
	r.links = network
	r.mu.Unlock()
	for _, b := range r.blades() {
		i := r.link(b.Name)
		r.rack.Host(b.Name).Impair(i, i)
	}
}

// link is what impair has made of a blade's link.
func (r *Run) link(blade string) wire.Impairment {
	r.mu.Lock()
	defer r.mu.Unlock()
	return linkOf(r.links, blade, r.opt.Seed)
}

// errVoid says that nobody may come to an end, because what was logged is lost.
var errVoid = errors.New("crash: everything is lost")

// errStuck says that something has not come to its end.
var errStuck = errors.New("crash: stuck")

func (r *Run) await(ctx context.Context, what string, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-r.void:
		return errVoid
	case <-ctx.Done():
		return fmt.Errorf("%w: %s: %s", errStuck, what, r.describe())
	}
}

// describe tells what the Gatekeeper knows.
func (r *Run) describe() string {
	gk := r.rack.Gatekeeper()
	if gk == nil {
		return "there is no Gatekeeper"
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := gk.Snapshot(ctx)
	if err != nil {
		return err.Error()
	}
	d, _ := gk.Deployments(ctx)
	return fmt.Sprintf("nodes %+v, services %d, regions %+v, calls %+v, deployments %+v", s.Nodes, len(s.Services), s.Regions, s.Calls, d)
}
