package rpc

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/join/unixjoin"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/standby"
	"github.com/bifrost-rack/bifrost/p4switch/shared/loglimit"
	"github.com/bifrost-rack/bifrost/rpc/direct"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Node is this program as the rack sees it: a logical processor with an address
// of its own, which calls services and exports its own. Its methods may be
// called concurrently.
type Node struct {
	session join.Session
	self    join.Identity
	stack   netio.Network
	sharers sharers
	limits  Limits
	memory  *dsmclient.Client
	ledger  *ledger
	log     *slog.Logger
	lines   *loglimit.Handler // of log, which is bounded
	stats   counters
	life    *lifetime
	pulse   pulse
	ports   ports

	out       outgoing
	in        incoming
	large     large
	calls     callReader
	regions   regions
	callers   callers
	meters    meters
	learned   learned
	reports   reports
	servers   servers
	questions questions // about calls of former incarnations
	oneways   oneways
	shares    atomic.Uint64 // standing leases that it has given
	borrows   borrows       // and those that it has
	left      leftovers
	audit     audit       // of the regions that it owns
	owes      atomic.Bool // the Gatekeeper knows that the node may owe one-ways
	leader    leader
	heir      *heir // nil unless the program is an heir

	fates   fates
	turn    chan struct{} // who has it runs an execution alone; see oneByOne
	waits   waits         // what is told of calls that wait for their turn
	pinged  atomic.Bool   // the daemon has asked whether the program is alive
	exports exports
	mains   mains
}

// Join makes the program a node of the rack that its machine is a blade of.
func Join(ctx context.Context, opts ...JoinOption) (*Node, error) {
	config := joinConfig{
		name: join.DefaultName(os.Getenv(join.ProgramVariable), os.Args[0]), logger: slog.Default(), maxMessage: DefaultMaxMessage,
	}
	for _, o := range opts {
		o.applyJoin(&config)
	}
	var err error
	if config.limits, err = config.limits.withDefaults(); err != nil {
		return nil, err
	}
	session, err := join.FromContext(ctx, unixjoin.Joiner{}).Join(ctx, config.name)
	if err != nil {
		return nil, coded("join", err)
	}
	n, err := newNode(ctx, session, &config)
	if err != nil {
		session.Crash(fmt.Sprintf("the program could not join: %v", err)) // the ledger may have what is to be done
		return nil, coded("join", err)
	}
	return n, nil
}

// assembled is a node whose objects know each other, but which has no endpoints, memory and ledger yet.
func assembled(session join.Session, config *joinConfig) *Node {
	n := &Node{
		session: session, self: session.Node(), stack: session.Stack(), lines: loglimit.New(config.logger.Handler()), limits: config.limits, heir: config.heir,
		turn: make(chan struct{}, 1), pulse: pulse{start: time.Now()},
	}
	n.log = slog.New(n.lines)
	n.life = newLifetime(n.self.Name)
	n.exports = exports{life: n.life, all: map[string]*export{}}
	n.mains = mains{life: n.life, running: map[string]bool{}, sent: map[rpcpacket.ID][]direct.Item{}}
	n.ports = ports{self: &n.self, stats: &n.stats}
	n.sharers = sharers{life: n.life, pulse: &n.pulse, asks: session.Sharing, news: n.learnOwner}
	n.large = large{
		self: &n.self, ports: &n.ports, pulse: &n.pulse, stats: &n.stats, log: n.log,
		uses: largeUses{n.receiveFirst, n.payloadOf, n.in.settle, n.out.postpone, n.sharers.seekOwner, n.readFailed},
	}
	n.out = outgoing{
		self: &n.self, ports: &n.ports, pulse: &n.pulse, life: n.life, leader: &n.leader, large: &n.large, regions: &n.regions, stats: &n.stats, log: n.log, blocks: session.Blocks,
	}
	n.out.init(n.limits.Detached)
	n.questions = questions{out: &n.out, life: n.life}
	n.servers = servers{life: n.life, pulse: &n.pulse, asks: session.Serving}
	n.callers = callers{pulse: &n.pulse, asks: session.Who}
	n.calls = callReader{pulse: &n.pulse, life: n.life, take: n.receiveDirect, failed: n.readFailed, next: standby.New[*reader]()}
	n.in.core = direct.NewVolatile(n.self.Incarnation, n.limits.callee(), n.sharers.ownerOf)
	return n
}

func newNode(ctx context.Context, session join.Session, config *joinConfig) (*Node, error) {
	n := assembled(session, config)
	if n.ports.budget = budgetOf(session); n.ports.budget < minMTU-netio.Overhead {
		return nil, fault.New(BadRequest, "join", "the rack's MTU leaves %d bytes for a datagram, and IPv6 needs %d: raise the MTU", n.ports.budget, minMTU-netio.Overhead)
	}
	conn, err := n.stack.ListenUDP(netip.AddrPortFrom(n.self.Address, rackaddr.PortRPC))
	if err != nil {
		return nil, &Error{Code: Unavailable, Op: "join", Msg: "listen", Err: err}
	}
	n.ports.rpc = conn
	if err := n.large.open(n.stack, config.maxMessage, n.sharers.ownerOf); err != nil {
		_ = conn.Close()
		return nil, &Error{Code: Unavailable, Op: "join", Msg: "listen", Err: err}
	}
	n.memory, err = dsmclient.NewClient(dsmclient.Config{
		Stack: n.stack, Address: n.self.Address, Incarnation: n.self.Incarnation, Rack: session.Rack, Batches: session.Batches, Keep: true, Limits: dsmclient.Limits(config.limits.Memory),
	})
	if err != nil {
		_ = conn.Close()
		_ = n.ports.bulk.Close()
		return nil, err
	}
	n.borrows.memory = n.memory
	n.memory = n.memory.With(dsmclient.Scope{By: n.borrows.use}, nil)
	n.regions = regions{n.memory, &n.stats}
	n.ledger = newLedger(n)
	n.reports = reports{life: n.life, pulse: &n.pulse, log: n.log, tells: session.Calls, room: n.ledger.tellRoom}
	n.oneways = oneways{
		ledger: n.ledger, out: &n.out, questions: &n.questions, servers: &n.servers, regions: &n.regions, life: n.life, pulse: &n.pulse, log: n.log,
		service: session.Service,
	}
	if err := n.whileItIsOne(ctx, n.openLedger); err != nil {
		n.life.cancel()
		_ = conn.Close()
		_ = n.ports.bulk.Close()
		_ = n.memory.Close()
		return nil, err
	}
	n.leader = leader{
		conn: conn, pulse: &n.pulse, life: n.life, take: n.receiveAnswer, failed: n.readFailed,
		vacant: make(chan struct{}, 1), reader: newReader(conn),
	}
	n.leader.vacant <- struct{}{}
	n.pulse.timer = time.AfterFunc(time.Hour, n.goOff)
	n.leader.standIn()
	n.life.readers.Go(func() { n.large.read(&largeReader{conn: n.ports.bulk, size: 1}) })
	n.life.readers.Add(1)
	go n.calls.read(newReader(n.ports.direct))
	n.questions.ask()
	n.resume()
	n.ledger.freeLeft()
	if n.heir != nil {
		go n.endBegun()
	}
	if !n.ledger.placed() {
		n.life.readers.Go(n.seekLedger)
	}
	n.life.readers.Go(n.watch)
	n.listenForPings()
	n.heedCancels()
	return n, nil
}

// budgetOf is how large a datagram may be: the rack's word, or the stack's if it
// is less.
func budgetOf(s join.Session) int {
	mtu := s.Stack().MTU()
	if m := s.Rack().MTU; m > 0 {
		mtu = min(m, mtu)
	}
	return min(mtu-netio.Overhead, maxDatagram)
}

// Name is what people call the node.
func (n *Node) Name() string { return n.self.Name }

// Address is the node's IPv6 address.
func (n *Node) Address() netip.Addr { return n.self.Address }

// Done is closed when the node is no longer one: it has been closed, stopped or
// fenced, or its blade's daemon is gone. Calls then fail as [Unavailable].
func (n *Node) Done() <-chan struct{} { return n.life.done }

// whileItIsOne does a part of joining, which fails if the session ends.
func (n *Node) whileItIsOne(ctx context.Context, f func(context.Context) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		select {
		case <-n.session.Done():
			stop()
		case <-ctx.Done():
		}
	}()
	err := f(ctx)
	if err == nil {
		return nil // watch looks for the session's end from now on
	}
	select {
	case <-n.session.Done():
		return n.identityLost()
	default:
		return err
	}
}

func (n *Node) identityLost() error {
	return &Error{Code: Unavailable, Op: "node " + n.self.Name, Msg: "the node has lost its identity"}
}

// watch ends the node when its session ends.
func (n *Node) watch() {
	select {
	case <-n.session.Done():
		n.fail(n.identityLost())
	case <-n.life.done:
	}
}

// fail ends the node at once: what is out fails, handlers are cancelled, and the
// endpoints close.
func (n *Node) fail(err error) {
	unexpected, first, err := n.life.end(err)
	if !first {
		return
	}
	if unexpected {
		n.log.Error("rpc: the node has ended", "node", n.self.Name, "why", err)
	}
	n.ledger.end(err)
	// First, so that no answer leaves of a handler that is cut off: the call runs again
	// elsewhere, or fails as Unavailable.
	_ = n.ports.rpc.Close()
	_ = n.ports.bulk.Close()
	_ = n.ports.direct.Close()
	n.life.cancel()
	n.out.fail(err)
	n.pulse.stop()
	if e := n.calls.running.Load(); e != nil {
		e.promote() // its handler may not return, and somebody has to see that the endpoint is closed
	}
	_ = n.memory.Close()
	n.lines.Flush()
	close(n.life.done)
}

// Close ends the node in an orderly way: the rack sends it no more calls, those that
// it has got and one-ways on their way finish until ctx ends, the rest is cancelled,
// and it leaves the rack. The error says what was cut off. A second Close does nothing.
func (n *Node) Close(ctx context.Context) error {
	if !n.life.close() {
		return nil
	}
	exports := n.exports.list() // no others begin any more
	n.withdraw(ctx, exports)
	for _, x := range exports {
		x.pool.shut()
	}
	cut := n.quiesce(ctx, exports)
	if cut == nil && (len(exports) > 0 || n.heir != nil) {
		n.tellOver(ctx)
	}
	turnAway(exports) // what has not begun in time
	owes := cut != nil && n.owesAnswers()
	n.fail(nil)
	n.life.readers.Wait()
	<-n.leader.vacant // whoever led has been told
	n.leader.watch.Clear()
	n.leader.vacant <- struct{}{}
	if owes {
		n.session.Crash("the node has left, and has not finished its calls: " + cut.Error()) // its next incarnation does
	} else if err := n.session.Close(ctx); cut == nil {
		cut = err
	}
	if cut != nil {
		return coded("close", cut)
	}
	return nil
}

// owesAnswers reports whether somebody may ask for an answer to a direct call, or something is owed, and the rack has a next
// incarnation for that: not if the program was started by hand, and leaves by itself.
func (n *Node) owesAnswers() bool {
	l := n.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	return n.deployed() && l.lost == nil && !l.table.Idle()
}

// turnAway refuses the calls that have not begun, and all that come.
func turnAway(exports []*export) {
	for _, x := range exports {
		for _, e := range x.pool.close() {
			x.turnAway(e)
		}
	}
}

// withdraw has the rack send new calls elsewhere. Until then the node takes calls.
func (n *Node) withdraw(ctx context.Context, exports []*export) {
	if len(exports) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, withdrawPatience)
	defer cancel()
	n.reports.flush(ctx)
	if _, err := n.session.Export(ctx, control.Export{Withdraw: true}); err != nil {
		n.log.Warn("rpc: calls may still come while the node closes", "node", n.self.Name, "err", err)
	}
}

// quiesce waits until no handler runs, nobody asks for an answer any more, and
// no one-way or call that lends memory is on its way.
func (n *Node) quiesce(ctx context.Context, exports []*export) error {
	idle := make(chan struct{})
	go func() {
		defer close(idle)
		for _, x := range exports {
			x.pool.calls.Wait()
		}
		n.drainDirect(ctx)
		for range cap(n.out.detached) {
			select {
			case n.out.detached <- struct{}{}:
			case <-n.life.done:
				return
			}
		}
	}()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A program's daemon asks now and then whether it still works. The answer comes from the
// node's pulse, which everything depends on that is to happen after a while, and after it
// has had each of the node's locks. So a program that is stopped or deadlocked does not answer.

// listenForPings has the daemon's questions answered, if it asks any.
func (n *Node) listenForPings() {
	p, ok := n.session.(join.Pinged)
	if !ok {
		return
	}
	p.OnPing(func() {
		n.pinged.Store(true)
		n.pulse.wakeAt(n.pulse.now())
	})
}

// answerPing answers the daemon's question, if there is one.
func (n *Node) answerPing() {
	if !n.pinged.Swap(false) {
		return
	}
	n.out.mu.Lock()
	n.out.mu.Unlock() //nolint:staticcheck // that it could be had is the point
	n.in.mu.Lock()
	n.in.mu.Unlock() //nolint:staticcheck // as above
	stalled := false
	for _, x := range n.exports.list() {
		stalled = x.pool.stalled() || stalled
	}
	n.session.(join.Pinged).Alive(stalled)
}

// stalled reports whether calls wait, and none has been taken up since the last time that
// this was asked.
func (p *pool) stalled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.judged
	p.judged = p.begun
	return p.queue.len() > 0 && p.begun == before
}

// Thrift's generated servers start a goroutine and a ticker for every call, to see
// whether the caller's connection is still open. There are no connections here,
// and it would double the time of a short call, so importing this package turns
// it off. A program that also serves Thrift over TCP and wants handlers cancelled
// when their client disconnects sets the interval again in main; then every call
// pays for it.
func init() { thrift.ServerConnectivityCheckInterval = 0 }
