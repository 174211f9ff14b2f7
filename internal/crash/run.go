package crash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/gatekeeper/log"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/crash/gen-go/actor"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
)

// Options of a run.
type Options struct {
	Seed    uint64 // of the network's dice
	Network string // one of Networks
	Crashes Crashes
	// When are crashes that wait for a moment, each of which comes once.
	When []*Moment
	// Policy is that of all calls.
	Policy rpc.Policy
	// Settle is synctest.Wait: runs are in virtual time.
	Settle func()
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

// Report is what a run has come to.
type Report struct {
	Packets int         // that arrived on a link, from the moment when all services were up until all clients had ended
	Crashes int         // that hit somebody
	Nested  int         // of them, those while somebody was not back from another one
	Runs    map[int]int // how often the script of each call and one-way was begun
	Wrong   []string    // what the oracle complains of; none is right
	Took    time.Duration
}

// Bounds of a run; what reaches them is stuck. The longest that must be waited for is
// four blades away for ten seconds each, and a program that is started again with
// growing pauses.
const (
	patience   = 3 * time.Minute // of virtual time
	maxPackets = 30_000          // some hundred times what a program takes
)

// appName is the deployment of a program's services and mains.
const appName = "program"

// Run is one run of a program on a rack of its own.
type Run struct {
	p      *Program
	opt    Options
	rack   *simrack.Rack
	ledger *ledger
	crash  *crasher

	mu     sync.Mutex
	places map[string]place // of programs that have joined
	wire   wire.Impairment  // what links do
	up     map[string]chan struct{}
	over   []chan struct{} // closed when a client has come to its end

	audited map[int]audited // what the services' books say in the end
}

// audited is a service's state in the end.
type audited struct {
	marks []Mark
	bumps uint64
}

// place is where a program runs.
type place struct{ blade, instance string }

// Perform runs a program once and lets the oracle judge. It must be called in a
// testing/synctest bubble.
func Perform(ctx context.Context, p *Program, want *Expectation, opt Options) (*Report, error) {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	r := &Run{p: p, opt: opt, ledger: newLedger(), places: map[string]place{}, up: map[string]chan struct{}{}, audited: map[int]audited{}}
	r.crash = newCrasher(r)
	began := time.Now()
	for range p.Clients {
		r.over = append(r.over, make(chan struct{}))
	}
	for i := range p.Services {
		r.up[ServiceName(i)] = make(chan struct{})
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r.crash.flooded = func() {
		cancel()
		for _, b := range r.blades() {
			r.rack.Host(b.Name).SetLink(false)
		}
	}
	var err error
	r.rack, err = simrack.Start(ctx, simrack.Config{
		Blades: r.blades(), Schedule: &wire.Schedule{Seed: opt.Seed, Settle: opt.Settle}, Impair: Networks["good"],
		Programs: r.programs(), OnFrame: r.crash.onFrame, MTU: 9000, Disk: new(log.Disk), Log: opt.Log,
	})
	if err != nil {
		return nil, err
	}
	err = r.perform(ctx, want)
	r.crash.disarm()
	r.crash.wait()
	err = errors.Join(err, r.rack.Close())
	return &Report{
		Packets: r.crash.packets, Runs: r.ledger.begun(), Crashes: r.crash.hits(), Nested: r.crash.nestedHits(),
		Wrong: r.ledger.complaints(), Took: time.Since(began),
	}, err
}

// blades are one for plain clients, one for each service, and a spare.
func (r *Run) blades() []simrack.Blade {
	bs := []simrack.Blade{{Name: "c1", Kind: control.Compute}}
	n := len(r.p.Services)
	if !r.opt.NoSpare {
		n++
	}
	for i := range n {
		bs = append(bs, simrack.Blade{Name: fmt.Sprint("s", i+1), Kind: control.Compute})
	}
	for _, m := range []string{"m1", "m2"} {
		bs = append(bs, simrack.Blade{Name: m, Kind: control.Memory, Capacity: 16 << 20})
	}
	return bs
}

// spec is the deployment.
func (r *Run) spec() resources.Spec {
	spec := resources.Spec{Name: appName}
	for i, s := range r.p.Services {
		name := ServiceName(i)
		spec.Programs = append(spec.Programs, resources.Program{
			Name: name, Args: []string{name}, Nodes: 1, Blades: r.bladesOf(i),
			Services: []resources.ServiceSpec{{Name: name, Stateful: s.Stateful}},
		})
	}
	return spec
}

// serving are the blades that run programs of deployments.
func (r *Run) serving() (names []string) {
	for _, b := range r.blades() {
		if b.Kind == control.Compute && b.Name != "c1" {
			names = append(names, b.Name)
		}
	}
	return names
}

// bladesOf are the blades that may run a service.
func (r *Run) bladesOf(service int) (names []string) {
	n := len(r.p.Services)
	for i := range n + 1 {
		if i == n && r.opt.NoSpare {
			break
		}
		if !r.p.Apart || i == service || i == n {
			names = append(names, fmt.Sprint("s", i+1))
		}
	}
	return names
}

// mains is the deployment of the durable mains.
func (r *Run) mains() (spec resources.Spec, some bool) {
	spec.Name = appName + "-mains"
	for i, c := range r.p.Clients {
		if name := r.p.clientName(i); c.Main {
			spec.Programs = append(spec.Programs, resources.Program{Name: name, Args: []string{name}, Nodes: 1, Job: true, Blades: r.serving()})
		}
	}
	return spec, len(spec.Programs) > 0
}

// programs are what the blades can start.
func (r *Run) programs() map[string]simrack.Program {
	ps := map[string]simrack.Program{}
	for i := range r.p.Services {
		ps[ServiceName(i)] = func(ctx context.Context, j join.Joiner, s control.Start) error { return r.serve(ctx, i, j, s) }
	}
	for i, c := range r.p.Clients {
		if c.Main {
			ps[r.p.clientName(i)] = func(ctx context.Context, j join.Joiner, s control.Start) error { return r.durable(ctx, i, j, s) }
		}
	}
	return ps
}

// perform starts everything, waits for the clients and closes the books.
func (r *Run) perform(ctx context.Context, want *Expectation) error {
	if err := r.rack.Gatekeeper().Deploy(ctx, r.spec()); err != nil {
		return err
	}
	for i := range r.p.Services {
		if err := r.await(ctx, "service "+ServiceName(i), r.up[ServiceName(i)]); err != nil {
			return err
		}
	}
	if spec, some := r.mains(); some {
		if err := r.rack.Gatekeeper().Deploy(ctx, spec); err != nil {
			return err
		}
	}
	r.impair(Networks[r.opt.Network])
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
	for i := range r.p.Clients {
		if err := r.await(ctx, r.p.clientName(i), r.over[i]); err != nil {
			return err
		}
	}
	<-time.After(r.opt.Linger)
	r.crash.disarm()
	r.impair(Networks["good"])
	r.crash.wait()
	return r.judge(ctx, want)
}

// impair makes the network such a one.
func (r *Run) impair(i wire.Impairment) {
	r.mu.Lock()
	r.wire = i
	r.mu.Unlock()
	for _, b := range r.blades() {
		r.rack.Host(b.Name).Impair(i, i)
	}
}

// network is what impair has made of it.
func (r *Run) network() wire.Impairment {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.wire
}

// errStuck says that something has not come to its end.
var errStuck = errors.New("crash: stuck")

func (r *Run) await(ctx context.Context, what string, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
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

// joined notes where a program runs.
type joiner struct {
	join.Joiner
	run  *Run
	name string
	at   control.Start
	as   *uint32 // the incarnation that it gets
}

// Join implements join.Joiner.
func (j joiner) Join(ctx context.Context, name string) (join.Session, error) {
	s, err := j.Joiner.Join(ctx, name)
	if err == nil {
		j.run.mu.Lock()
		defer j.run.mu.Unlock()
		*j.as = s.Node().Incarnation
		j.run.places[j.name] = place{s.Node().Blade, j.at.Name}
		j.run.crash.back(j.name)
	}
	return s, err
}

// where tells where a program runs, or has run last.
func (r *Run) where(name string) (place, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, ok := r.places[name]
	return p, ok
}

// on are the programs that run on a blade, or have run there last, or may be about
// to join there.
func (r *Run) on(blade string) (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, c := range r.p.Clients {
		if !c.Main && blade == "c1" {
			names = append(names, r.p.clientName(i))
		}
	}
	for name, p := range r.places {
		if p.blade == blade {
			names = append(names, name)
		}
	}
	return names
}

// join makes a program a node, and tells which incarnation.
func (r *Run) join(ctx context.Context, name string, j join.Joiner, s control.Start) (n *rpc.Node, incarnation uint32, err error) {
	n, err = rpc.Join(ctx, rpc.WithName(name), rpc.WithJoiner(joiner{j, r, name, s, &incarnation}), rpc.WithLogger(r.opt.Log))
	return n, incarnation, err
}

// leave ends a node in an orderly way, unless its program was killed.
func leave(ctx context.Context, n *rpc.Node) error {
	if errors.Is(context.Cause(ctx), simrack.ErrKilled) {
		return nil // like a process: not another word
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return n.Close(ctx)
}

// serve is the program of a service.
func (r *Run) serve(ctx context.Context, service int, j join.Joiner, s control.Start) error {
	name := ServiceName(service)
	n, incarnation, err := r.join(ctx, name, j, s)
	if err != nil {
		return err
	}
	a := &performer{run: r, service: service, node: n, incarnation: incarnation}
	var opts []rpc.ExportOption
	if kind := r.p.Services[service]; kind.Stateful {
		a.books = new(books)
		if kind.Deltas {
			opts = append(opts, rpc.WithState(&deltaBooks{books: a.books}))
		} else {
			opts = append(opts, rpc.WithState(a.books))
		}
	}
	if err := n.Export(ctx, name, actor.NewActorProcessor(a), opts...); err != nil {
		return err
	}
	r.once(r.up[name])
	<-ctx.Done()
	return leave(ctx, n)
}

// once closes a channel that may be closed already.
func (r *Run) once(c chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-c:
	default:
		close(c)
	}
}

// plain is the program of a plain client. It runs once.
func (r *Run) plain(ctx context.Context, i int, j join.Joiner, s control.Start) error {
	defer r.once(r.over[i])
	name := r.p.clientName(i)
	n, _, err := r.join(ctx, name, j, s)
	if err == nil {
		err = r.calls(ctx, i, n)
		err = errors.Join(err, leave(ctx, n))
	}
	if err != nil && !r.crash.wasHit(name) {
		r.ledger.complain("%s: %v", name, err)
	}
	return nil // for the rack, it has ended
}

// calls is what a plain client does.
func (r *Run) calls(ctx context.Context, i int, n *rpc.Node) error {
	script := &r.p.Clients[i].Script
	w := &rackWorld{run: r, ctx: ctx, node: n, memory: func(context.Context) *dsm.Client { return n.Memory() }, by: r.ledger.begin(-1-i, 0, 1)}
	out, err := newMachine(script, 0, nil).run(ctx, w, script)
	if err == nil {
		r.ledger.finish(i, out)
	}
	return err
}

// durable is the program of a durable main.
func (r *Run) durable(ctx context.Context, i int, j join.Joiner, s control.Start) error {
	name := r.p.clientName(i)
	n, incarnation, err := r.join(ctx, name, j, s)
	if err != nil {
		return err
	}
	script := &r.p.Clients[i].Script
	err = rpc.Main(ctx, n, name, func(ctx context.Context, state []byte) error {
		m := newMachine(script, 0, nil)
		if state != nil {
			if err := json.Unmarshal(state, m); err != nil {
				return err
			}
		}
		w := &rackWorld{run: r, ctx: ctx, node: n, memory: rpc.Memory, by: r.ledger.begin(-1-i, m.Next, incarnation), durable: true}
		out, err := m.run(ctx, w, script)
		if err == nil {
			r.ledger.finish(i, out)
		}
		return err
	})
	if err != nil {
		r.mainFailed(name, err)
		return err
	}
	err = leave(ctx, n)
	r.once(r.over[i])
	return err
}

// mainFailed judges the error of a durable main. Its program is started again after
// any, so only the end counts; but there are errors that no crash explains.
func (r *Run) mainFailed(name string, err error) {
	switch rpc.CodeOf(err) {
	case rpc.Unavailable, rpc.Canceled, rpc.Stale, rpc.NotFound: // the node is gone, and may not know it yet
		if r.crash.hits() > 0 {
			return
		}
	}
	r.ledger.complain("%s: %v", name, err)
}
