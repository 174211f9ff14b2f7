package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/daemon/output"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/share"
)

// ComputeConfig describes a compute blade.
type ComputeConfig struct {
	Blade
	// Nodes is how many nodes the blade runs at a time.
	Nodes int
	// Runner starts programs; nil refuses to.
	Runner Runner
	// Output keeps what programs print; nil has it in Log.
	Output *output.Store
	// Guard keeps the programs of different users apart; nil lets each use the
	// addresses of all nodes of the blade.
	Guard Guard
}

// Guard gives addresses of the blade to users and to the sockets with a mark: nobody else sends from them. Package
// guard has one. Methods may be called concurrently.
type Guard interface {
	Own(a netip.Addr, uid, mark uint32) error
	// Disown takes an address from its owner; one without is no error.
	Disown(a netip.Addr) error
}

// noGuard is a Guard that keeps nobody apart.
type noGuard struct{}

func (noGuard) Own(netip.Addr, uint32, uint32) error { return nil }
func (noGuard) Disown(netip.Addr) error              { return nil }

// Compute is the daemon of a compute blade. It is a join.Host, and a join.Joiner
// for programs in its own process. Methods may be called concurrently.
type Compute struct {
	cfg      ComputeConfig
	reg      *registrar
	resolver *resolver
	work     context.Context //nolint:containedctx // Run's: what outlives its caller, and the programs
	stopWork context.CancelFunc
	tasks    sync.WaitGroup // of work

	mu         sync.Mutex
	address    netip.Addr // as of the welcome
	rack       control.Rack
	changed    chan struct{} // closed when rack changes
	registered registration  // the present one, or the next
	nodes      map[netip.Addr]*node
	changing   map[netip.Addr]chan struct{} // addresses that are being added or removed; closed when that is over
	programs   map[string]*program
	token      uint64              // of the last join
	unsettled  map[uint64]*request // joins and leaves that are under way, by token
	givenUp    map[*request]bool   // joins whose programs do not wait any more
	policies   policies
	marks      map[uint32]bool // of nodes, also of those that join
	lastMark   uint32
	ended      bool // nothing new begins
	// What the users of the blade share: its nodes, the questions to the Gatekeeper, and those who takes calls.
	nodesOf     *share.Pool[uint32]
	questionsOf *share.Pool[uint32]
	lookupsOf   *share.Pool[uint32]
}

var (
	_ join.Host   = (*Compute)(nil)
	_ join.Joiner = (*Compute)(nil)
)

// NewCompute returns a daemon whose endpoint is open; whoever gets it must Run it.
func NewCompute(cfg ComputeConfig) (*Compute, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if cfg.Nodes < 1 {
		return nil, fmt.Errorf("compute blade %s may run %d nodes: must be 1 at least", cfg.Name, cfg.Nodes)
	}
	if cfg.Guard == nil {
		cfg.Guard = noGuard{}
	}
	c := &Compute{
		cfg: cfg, changed: make(chan struct{}), registered: newRegistration(),
		nodes: map[netip.Addr]*node{}, changing: map[netip.Addr]chan struct{}{},
		programs: map[string]*program{}, unsettled: map[uint64]*request{}, givenUp: map[*request]bool{},
		policies: policies{asking: make(chan struct{}, 1)}, marks: map[uint32]bool{},
		nodesOf: share.New[uint32](uint64(cfg.Nodes)), questionsOf: share.New[uint32](questions),
		lookupsOf: share.New[uint32](lookups),
	}
	c.work, c.stopWork = context.WithCancel(context.Background())
	reg, err := newRegistrar(cfg.Blade, c)
	if err != nil {
		return nil, fmt.Errorf("compute blade %s: %w", cfg.Name, err)
	}
	c.reg = reg
	if err := c.openResolver(); err != nil {
		return nil, errors.Join(fmt.Errorf("compute blade %s: %w", cfg.Name, err), reg.conn.Close())
	}
	return c, nil
}

// Run serves until ctx ends, then ends the programs and lets the nodes leave. It
// returns nil unless the blade cannot be registered or its endpoint fails. It
// must be called once.
func (c *Compute) Run(ctx context.Context) error {
	talking, silence := context.WithCancel(context.WithoutCancel(ctx))
	defer silence()
	ended := make(chan error, 2)
	go func() { ended <- c.reg.run(talking) }()
	go func() { ended <- c.cfg.readAll(c.resolver.conn, c.resolverTakes) }()
	var err error
	select {
	case err = <-ended:
		c.refuseNew()
		silence()
	case <-ctx.Done():
		c.refuseNew()
		c.sayFarewell()
		silence()
	}
	err = errors.Join(err, c.resolver.conn.Close(), <-ended)
	c.mu.Lock()
	c.stopWork()
	c.mu.Unlock()
	for _, n := range c.allNodes() {
		c.forget(n, false)
	}
	c.tasks.Wait()
	return err
}

// refuseNew refuses new nodes and programs from now on.
func (c *Compute) refuseNew() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
}

// sayFarewell stops the programs and lets all nodes leave, within a time.
func (c *Compute) sayFarewell() {
	var wg sync.WaitGroup
	stopping, cancel := context.WithTimeout(c.work, programFarewell)
	defer cancel()
	for _, p := range c.allPrograms() {
		wg.Go(func() { p.stop(stopping) })
	}
	wg.Wait()
	leaving, cancel := context.WithTimeout(c.work, nodeFarewell)
	defer cancel()
	for _, n := range c.allNodes() {
		wg.Go(func() { _ = n.end(leaving, control.Leave{Reason: "the daemon stops"}) }) // logged there
	}
	wg.Wait()
}

// task runs f as part of the daemon's work, if that goes on.
func (c *Compute) task(f func(ctx context.Context)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.work.Err() != nil {
		return false
	}
	c.tasks.Go(func() { f(c.work) })
	return true
}

// allNodes returns the nodes as of now.
func (c *Compute) allNodes() []*node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return sortedValues(c.nodes, netip.Addr.Compare)
}

func (c *Compute) hello() control.Hello {
	return control.Hello{
		Blade: c.cfg.Name, Kind: control.Compute, MAC: c.cfg.MAC.String(), Capacity: uint64(c.cfg.Nodes),
		Spec: c.cfg.Spec, Boot: c.cfg.Boot,
	}
}

func (c *Compute) heartbeat() control.Heartbeat {
	h := control.Heartbeat{Blade: c.cfg.Name, Boot: c.cfg.Boot}
	for _, p := range c.allPrograms() {
		h.Programs = append(h.Programs, p.start.Name)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for _, n := range sortedValues(c.nodes, netip.Addr.Compare) {
		h.Nodes, h.Incarnations = append(h.Nodes, n.identity.Address), append(h.Incarnations, n.identity.Incarnation)
		h.Named, h.Bound = append(h.Named, agoIn(now, n.named)), append(h.Bound, agoIn(now, n.bound))
	}
	h.Used = uint64(len(h.Nodes))
	h.Token, h.Unsettled = c.token, slices.Sorted(maps.Keys(c.unsettled))
	return h
}

// agoIn is how long ago something was, for a heartbeat.
func agoIn(now, at time.Time) uint32 {
	if at.IsZero() || now.Sub(at) > control.MostAgo {
		return 0
	}
	return 1 + uint32(now.Sub(at).Milliseconds()) //nolint:gosec // MostAgo at most
}

// welcomed lets programs join.
func (c *Compute) welcomed(_ context.Context, w control.Welcome) error {
	if err := c.cfg.Stack.AddAddress(w.Address); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.address = w.Address
	c.setRack(w.Rack)
	close(c.registered.made)
	return nil
}

// updated brings what the nodes know up to date. Those that the Gatekeeper does not
// know end; the next incarnation of one may have joined since.
func (c *Compute) updated(sent control.Heartbeat, r control.HeartbeatReply) {
	c.mu.Lock()
	c.setRack(r.Rack)
	var gone []*node
	for _, a := range r.Gone {
		k := slices.Index(sent.Nodes, a)
		if n := c.nodes[a]; n != nil && k >= 0 && n.identity.Incarnation == sent.Incarnations[k] {
			gone = append(gone, n)
		}
	}
	c.mu.Unlock()
	for _, n := range gone {
		c.disown(n, "the Gatekeeper has fenced it")
	}
}

// lost ends all nodes: nobody knows them any more.
func (c *Compute) lost() {
	c.mu.Lock()
	close(c.registered.over)
	c.registered = newRegistration()
	c.mu.Unlock()
	for _, n := range c.allNodes() {
		c.disown(n, "the Gatekeeper does not know the blade any more")
	}
}

// disown ends a node without a word to the Gatekeeper, and its program if it was
// started here.
func (c *Compute) disown(n *node, why string) {
	c.reg.log.Warn("node has lost its identity", "node", n.identity.Address, "name", n.identity.Name, "reason", why)
	c.forget(n, false)
	if p := n.started; p != nil {
		c.task(func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, programFarewell)
			defer cancel()
			p.stop(ctx)
		})
	}
}

// setRack publishes a new view of the rack, if it is another one. The caller holds c.mu.
func (c *Compute) setRack(r control.Rack) {
	if r = c.withPolicies(r); reflect.DeepEqual(r, c.rack) {
		return // as most heartbeats say: no program needs to wake up
	}
	c.rack = r
	close(c.changed)
	c.changed = make(chan struct{})
}

// registration is a time during which the Gatekeeper knows the blade.
type registration struct {
	made chan struct{} // closed when it begins
	over chan struct{} // closed when the blade has heard of its end
}

func newRegistration() registration {
	return registration{made: make(chan struct{}), over: make(chan struct{})}
}

// awaitRegistration waits until the Gatekeeper knows the blade.
func (c *Compute) awaitRegistration(ctx context.Context) (registration, error) {
	c.mu.Lock()
	r := c.registered
	c.mu.Unlock()
	select {
	case <-r.made:
		return r, nil
	case <-ctx.Done():
		return r, fault.FromContext("join", ctx.Err())
	case <-c.work.Done():
		return r, stopping("join")
	}
}

// registrationEnded asks whether the Gatekeeper knows the blade no more, or has forgotten
// it meanwhile, and returns when the blade has drawn its conclusions.
func (c *Compute) registrationEnded(ctx context.Context, r registration) bool {
	var reply control.HeartbeatReply
	if err := c.reg.ask.Ask(ctx, control.KindHeartbeat, c.heartbeat(), &reply); err == nil && !reply.Known {
		select {
		case <-r.over: // the registrar's next heartbeat has told it
		case <-ctx.Done():
		}
	}
	select {
	case <-r.over:
		return true
	default:
		return false
	}
}

// stopping is the error of everything that comes too late.
func stopping(op string) error {
	return fault.New(fault.Unavailable, op, "the compute daemon is stopping")
}

// handle carries out a command of the Gatekeeper's.
func (c *Compute) handle(ctx context.Context, m control.Message) (any, error) {
	switch m.Kind {
	case control.KindStart:
		var s control.Start
		if err := m.Decode(&s); err != nil {
			return nil, err
		}
		return nil, c.start(ctx, s)
	case control.KindCheck:
		var s control.Start
		if err := m.Decode(&s); err != nil {
			return nil, err
		}
		return nil, c.check(s)
	case control.KindStop:
		var s control.Stop
		if err := m.Decode(&s); err != nil {
			return nil, err
		}
		return nil, c.stopProgram(ctx, s)
	case control.KindCancelCall:
		var q control.CancelCall
		if err := m.Decode(&q); err != nil {
			return nil, err
		}
		return nil, c.cancelCall(q)
	case control.KindGiveAccount:
		var q control.GiveAccount
		if err := m.Decode(&q); err != nil {
			return nil, err
		}
		return nil, c.giveAccount(q)
	case control.KindOutput:
		var q control.Output
		if err := m.Decode(&q); err != nil {
			return nil, err
		}
		return c.printed(q)
	}
	return nil, fault.New(fault.Unsupported, m.Kind.String(), "a compute blade does not take this command")
}

// OnCancel implements join.Canceller.
func (n *node) OnCancel(f func(call, deadlock string)) {
	n.daemon.mu.Lock()
	defer n.daemon.mu.Unlock()
	n.cancel = f
}

// cancelCall has a node cancel a call that it runs, or refuse one that waits for its turn.
func (c *Compute) cancelCall(q control.CancelCall) error {
	n := c.node(q.Node)
	if n == nil {
		return fault.New(fault.NotFound, "cancel", "no node %s runs on blade %s", q.Node, c.cfg.Name)
	}
	c.mu.Lock()
	cancel := n.cancel
	c.mu.Unlock()
	if cancel == nil {
		return fault.New(fault.Unsupported, "cancel", "the program of node %s takes no cancellations", q.Node)
	}
	cancel(q.Call, q.Deadlock)
	return nil
}

// giveAccount has a node give its account. One whose program gives none is fenced, and joins again.
func (c *Compute) giveAccount(q control.GiveAccount) error {
	n := c.node(q.Node)
	if n == nil || n.identity.Incarnation != q.Incarnation {
		return fault.New(fault.NotFound, "account", "no node %s of that incarnation runs on blade %s", q.Node, c.cfg.Name)
	}
	c.mu.Lock()
	account := n.account
	c.mu.Unlock()
	if account == nil {
		return fault.New(fault.Unsupported, "account", "the program of node %s gives no accounts", q.Node)
	}
	account(q.Rebuild)
	return nil
}

// outputOf is where a program prints: what the blade keeps of it, or else the daemon's log.
func (c *Compute) outputOf(program string) io.WriteCloser {
	if c.cfg.Output != nil {
		return c.cfg.Output.Writer(program)
	}
	return &output.Lines{Each: func(line []byte) { c.reg.log.Info(string(line), "program", program) }}
}

// printed answers what programs have printed.
func (c *Compute) printed(q control.Output) (control.OutputPart, error) {
	if c.cfg.Output == nil {
		return control.OutputPart{}, fault.New(fault.Unsupported, "output", "blade %s keeps no output of programs", c.cfg.Name)
	}
	ask := output.Query{Name: q.Program, Last: q.Last, Max: min(max(q.Max, 0), control.OutputPartSize)}
	if q.After > 0 {
		ask.After = time.Unix(0, q.After)
	}
	lines, more, err := c.cfg.Output.Read(ask)
	if err != nil {
		return control.OutputPart{}, &fault.Error{Code: fault.Internal, Op: "output", Err: err}
	}
	part := control.OutputPart{More: more, Dropped: c.cfg.Output.Dropped()}
	for _, l := range lines {
		part.Lines = append(part.Lines, control.OutputLine{Program: l.Program, Time: l.Time.UnixNano(), Text: l.Text})
	}
	return part, nil
}
