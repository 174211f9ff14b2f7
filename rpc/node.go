package rpc

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
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
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Node is this program as the rack sees it: a logical processor with an address
// of its own, which calls services and exports its own. Its methods may be
// called concurrently.
type Node struct {
	session join.Session
	self    join.Identity
	stack   netio.Stack
	conn    netio.Conn // [node]:45100; answers arrive here, and all leaves from here
	budget  int        // bytes of a datagram at most
	logged  int        // bytes of an exactly-once message at most
	limits  Limits
	memory  *dsmclient.Client
	ledger  *ledger // nil in a rack without ledgers
	log     *slog.Logger
	start   time.Time
	stats   counters

	out   outgoing
	in    incoming
	large large
	// directConn is [node]:45105; nil where exactly-once calls do not go direct.
	directConn netio.Conn
	enlistRTT  endpoint.RTT // guarded by outgoing.mu
	enlists    enlists
	callers    callers
	meters     meters
	servers    servers
	leader     leader
	pulse      pulse

	base    context.Context // of handlers
	cancel  context.CancelFunc
	done    chan struct{}
	readers sync.WaitGroup

	pinged  atomic.Bool // the daemon has asked whether the program is alive
	mu      sync.Mutex
	exports map[string]*export
	mains   map[string]bool // durable mains that run
	err     error           // why the node has ended, or is ending
	ended   bool            // done is closed
	closing bool            // Close has been called
}

// Join makes the program a node of the rack that its machine is a blade of.
func Join(ctx context.Context, opts ...JoinOption) (*Node, error) {
	config := joinConfig{
		name: filepath.Base(os.Args[0]), logger: slog.Default(), maxMessage: DefaultMaxMessage,
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
		_ = session.Close(context.WithoutCancel(ctx))
		return nil, coded("join", err)
	}
	return n, nil
}

func newNode(ctx context.Context, session join.Session, config *joinConfig) (*Node, error) {
	n := &Node{
		session: session, self: session.Node(), stack: session.Stack(), log: config.logger, start: time.Now(),
		done: make(chan struct{}), exports: make(map[string]*export), mains: make(map[string]bool),
	}
	n.limits = config.limits
	n.out.init(n.self.Address, n.limits.Detached)
	n.in.core = endpoint.NewCallee(n.self.Incarnation, n.limits.callee())
	n.in.drained = make(chan struct{}, 1)
	if n.budget = budgetOf(session); n.budget < minMTU-netio.Overhead {
		return nil, fault.New(BadRequest, "join", "the rack's MTU leaves %d bytes for a datagram; IPv6 asks for %d", n.budget, minMTU-netio.Overhead)
	}
	n.logged = loggedOf(session)
	conn, err := n.stack.ListenUDP(netip.AddrPortFrom(n.self.Address, rackaddr.PortRPC))
	if err != nil {
		return nil, &Error{Code: Unavailable, Op: "join", Msg: "listen", Err: err}
	}
	n.conn = conn
	if err := n.openLarge(config.maxMessage); err != nil {
		_ = conn.Close()
		return nil, &Error{Code: Unavailable, Op: "join", Msg: "listen", Err: err}
	}
	n.memory, err = dsmclient.NewClient(dsmclient.Config{
		Stack: n.stack, Address: n.self.Address, Incarnation: n.self.Incarnation, Rack: session.Rack, Keep: true, Limits: dsmclient.Limits(config.limits.Memory),
	})
	if err != nil {
		_ = conn.Close()
		_ = n.large.conn.Close()
		return nil, err
	}
	n.base, n.cancel = context.WithCancel(context.Background())
	n.ledger = newLedger(n)
	if err := n.openLedger(ctx); err != nil {
		n.cancel()
		_ = conn.Close()
		_ = n.large.conn.Close()
		_ = n.memory.Close()
		return nil, err
	}
	n.leader = leader{vacant: make(chan struct{}, 1), reader: newReader(conn)}
	n.leader.vacant <- struct{}{}
	n.pulse.timer = time.AfterFunc(time.Hour, n.goOff)
	n.standIn()
	n.readers.Add(1)
	go n.readLarge(&largeReader{conn: n.large.conn, size: 1})
	if n.directConn != nil {
		n.readers.Add(1)
		go n.readDirect(newReader(n.directConn))
	}
	n.resume()
	n.readers.Go(n.watch)
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

// loggedOf is how large an exactly-once message may be: what every runtime takes, or
// what the rack's log has room for if that is less.
func loggedOf(s join.Session) int {
	if most := s.Rack().MaxLogged; most > 0 {
		return min(most, rpcpacket.MaxWhole)
	}
	return rpcpacket.MaxWhole
}

// now is the time that the cores go by.
func (n *Node) now() time.Duration { return time.Since(n.start) }

// Name is what people call the node.
func (n *Node) Name() string { return n.self.Name }

// Address is the node's IPv6 address.
func (n *Node) Address() netip.Addr { return n.self.Address }

// Done is closed when the node is no longer one: it has been closed, stopped or
// fenced, or its blade's daemon is gone. Calls then fail as [Unavailable].
func (n *Node) Done() <-chan struct{} { return n.done }

// watch ends the node when its session ends.
func (n *Node) watch() {
	select {
	case <-n.session.Done():
		n.fail(&Error{Code: Unavailable, Op: "node " + n.self.Name, Msg: "the node has lost its identity"})
	case <-n.done:
	}
}

// failure is why the node has ended.
func (n *Node) failure() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.err
}

// fail ends the node at once: what is out fails, handlers are cancelled, and the
// endpoints close.
func (n *Node) fail(err error) {
	n.mu.Lock()
	if n.ended {
		n.mu.Unlock()
		return
	}
	n.ended = true
	if n.err == nil {
		n.err = err
	}
	if err = n.err; !n.closing {
		n.log.Error("rpc: the node has ended", "node", n.self.Name, "why", err)
	}
	var published []*export
	for _, x := range n.exports {
		if x.ready {
			published = append(published, x)
		}
	}
	n.mu.Unlock()
	n.ledger.end(err)
	// First, so that no answer leaves of a handler that is cut off: the call runs again
	// elsewhere, or fails as Unavailable.
	_ = n.conn.Close()
	_ = n.large.conn.Close()
	if n.directConn != nil {
		_ = n.directConn.Close()
	}
	n.cancel()
	n.failCalls(err)
	n.pulse.stop()
	for _, x := range published {
		x.close()
	}
	_ = n.memory.Close()
	close(n.done)
}

// failCalls ends every call that is out, and all that would begin.
func (n *Node) failCalls(err error) {
	o := &n.out
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err = err
	for _, call := range o.core.All(nil) {
		o.core.End(call)
		p := call.Tag.(*pending)
		if p.detached {
			n.release(p)
			continue
		}
		p.err = err
		p.ready <- struct{}{}
	}
}

// Close ends the node in an orderly way: the rack sends it no more calls, those that
// it has got and one-ways on their way finish until ctx ends, the rest is cancelled,
// and it leaves the rack. The error says what was cut off. A second Close does nothing.
func (n *Node) Close(ctx context.Context) error {
	n.mu.Lock()
	if n.closing {
		n.mu.Unlock()
		return nil
	}
	n.closing = true
	if n.err == nil {
		n.err = &Error{Code: Unavailable, Op: "node " + n.self.Name, Msg: "closed"}
	}
	exports := slices.Collect(maps.Values(n.exports))
	n.mu.Unlock()
	n.withdraw(ctx, exports)
	for _, x := range exports {
		x.pool.shut()
	}
	cut := n.quiesce(ctx, exports)
	if cut == nil && len(exports) > 0 {
		n.tellOver(ctx)
	}
	turnAway(exports) // what has not begun in time
	n.fail(nil)
	n.readers.Wait()
	<-n.leader.vacant // whoever led has been told
	n.leader.watch.Clear()
	n.leader.vacant <- struct{}{}
	if err := n.session.Close(ctx); cut == nil {
		cut = err
	}
	if cut != nil {
		return coded("close", cut)
	}
	return nil
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
	if _, err := n.session.Export(ctx, control.Export{Withdraw: true}); err != nil {
		n.log.Warn("rpc: calls may still come while the node closes", "node", n.self.Name, "err", err)
	}
}

// quiesce waits until no handler runs, every answer that has to be is logged, and
// no one-way or call that lends memory is on its way.
func (n *Node) quiesce(ctx context.Context, exports []*export) error {
	idle := make(chan struct{})
	go func() {
		defer close(idle)
		for _, x := range exports {
			x.pool.calls.Wait()
		}
		n.drain()
		n.drainDirect(ctx)
		for range cap(n.out.detached) {
			select {
			case n.out.detached <- struct{}{}:
			case <-n.done:
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
		n.wakeAt(n.now())
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
	n.mu.Lock()
	defer n.mu.Unlock()
	stalled := false
	for _, x := range n.exports {
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
