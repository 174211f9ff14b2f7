package rpc

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/bits"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/internal/blame"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/join/unixjoin"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/standby"
	"github.com/bifrost-rack/bifrost/rpc/direct"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
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
	conn    netio.Conn // [node]:45100; answers arrive here, and all leaves from here
	budget  int        // bytes of a datagram at most
	limits  Limits
	memory  *dsmclient.Client
	ledger  *ledger
	log     *slog.Logger
	start   time.Time
	stats   counters

	out        outgoing
	in         incoming
	large      large
	directConn netio.Conn                // [node]:45105: calls come here
	nextReader *standby.Post[*reader]    // of these
	running    atomic.Pointer[execution] // what the reader of calls runs, if anything
	onewayRTT  endpoint.RTT              // of one-ways that the ledger has; guarded by out.mu
	callers    callers
	meters     meters
	learned    learned
	servers    servers
	questions  questions     // about calls of former incarnations
	shares     atomic.Uint64 // standing leases that it has given
	borrows    borrows       // and those that it has
	leftMu     sync.Mutex
	left       map[dsm.Pointer]bool // regions of former incarnations that nothing accounts for yet; guarded by leftMu
	owes       atomic.Bool          // the Gatekeeper knows that the node may owe one-ways
	leader     leader
	pulse      pulse
	heir       *heir // nil unless the program is an heir

	base    context.Context // of handlers
	cancel  context.CancelFunc
	done    chan struct{}
	readers sync.WaitGroup

	fates   fates
	turn    chan struct{} // who has it runs an execution alone; see oneByOne
	waits   waits         // what is told of calls that wait for their turn
	pinged  atomic.Bool   // the daemon has asked whether the program is alive
	mu      sync.Mutex
	exports map[string]*export
	mains   map[string]bool // durable mains that run
	// sent are the direct calls of durable mains that run no more, and have not come to a
	// checkpoint since.
	sent    map[rpcpacket.ID][]direct.Item
	err     error // why the node has ended, or is ending
	ended   bool  // done is closed
	closing bool  // Close has been called
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

func newNode(ctx context.Context, session join.Session, config *joinConfig) (*Node, error) {
	n := &Node{
		session: session, self: session.Node(), stack: session.Stack(), log: config.logger, start: time.Now(),
		done: make(chan struct{}), exports: make(map[string]*export), mains: make(map[string]bool), heir: config.heir,
		turn: make(chan struct{}, 1),
	}
	n.limits = config.limits
	n.out.init(&n.self, n.limits.Detached, n.slotFree)
	n.in.core = direct.NewVolatile(n.self.Incarnation, n.limits.callee(), n.ownerOf)
	if n.budget = budgetOf(session); n.budget < minMTU-netio.Overhead {
		return nil, fault.New(BadRequest, "join", "the rack's MTU leaves %d bytes for a datagram, and IPv6 needs %d: raise the MTU", n.budget, minMTU-netio.Overhead)
	}
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
		Stack: n.stack, Address: n.self.Address, Incarnation: n.self.Incarnation, Rack: session.Rack, Batches: session.Batches, Keep: true, Limits: dsmclient.Limits(config.limits.Memory),
	})
	if err != nil {
		_ = conn.Close()
		_ = n.large.conn.Close()
		return nil, err
	}
	n.memory = n.memory.With(dsmclient.Scope{By: n.readsBorrowed}, nil)
	n.base, n.cancel = context.WithCancel(context.Background())
	n.ledger = newLedger(n)
	if err := n.whileItIsOne(ctx, n.openLedger); err != nil {
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
	n.readers.Add(1)
	go n.readCalls(newReader(n.directConn))
	n.askQuestions()
	n.resume()
	n.freeLeft()
	if n.heir != nil {
		go n.endBegun()
	}
	if !n.ledger.placed() {
		n.readers.Go(n.seekLedger)
	}
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

// now is the time that the cores go by.
func (n *Node) now() time.Duration { return time.Since(n.start) }

// Name is what people call the node.
func (n *Node) Name() string { return n.self.Name }

// Address is the node's IPv6 address.
func (n *Node) Address() netip.Addr { return n.self.Address }

// Done is closed when the node is no longer one: it has been closed, stopped or
// fenced, or its blade's daemon is gone. Calls then fail as [Unavailable].
func (n *Node) Done() <-chan struct{} { return n.done }

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
	n.mu.Unlock()
	n.ledger.end(err)
	// First, so that no answer leaves of a handler that is cut off: the call runs again
	// elsewhere, or fails as Unavailable.
	_ = n.conn.Close()
	_ = n.large.conn.Close()
	_ = n.directConn.Close()
	n.cancel()
	n.failCalls(err)
	n.pulse.stop()
	if e := n.running.Load(); e != nil {
		e.promote() // its handler may not return, and somebody has to see that the endpoint is closed
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
	fail := func(call *endpoint.Call, alone bool) {
		p := call.Tag.(*pending)
		if alone {
			n.release(p)
			return
		}
		p.err = err
		p.ready <- struct{}{}
	}
	for _, call := range o.core.Abandon() {
		fail(call, call.Tag.(*pending).owed != nil)
	}
	for _, call := range o.core.All(nil) {
		o.core.End(call)
		fail(call, call.Tag.(*pending).detached)
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
	if cut == nil && (len(exports) > 0 || n.heir != nil) {
		n.tellOver(ctx)
	}
	turnAway(exports) // what has not begun in time
	owes := cut != nil && n.owesAnswers()
	n.fail(nil)
	n.readers.Wait()
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

// Stats counts what a node has done with packets since it joined.
type Stats struct {
	Calls      uint64 // calls and one-ways begun by this node
	Resent     uint64 // datagrams sent again: calls, and answers to duplicates
	Waited     uint64 // calls that have waited for a call slot
	Served     uint64 // handlers run
	Duplicates uint64 // calls and answers dropped because they are known already or settled
	Refused    uint64 // calls answered with a system exception
	Malformed  uint64 // datagrams dropped because they are no message for this node
	Foreign    uint64 // calls dropped because they are another node's than the sender's
	Full       uint64 // calls dropped for lack of room, or not whole in time; they will be sent again
	Stale      uint64 // calls dropped because they were meant for another incarnation
	Parts      uint64 // parts of large messages sent

	RefsInMessages uint64 // values by reference (Ref) that this node has sent inside calls and answers
	RefsInRegions  uint64 // values by reference that it has put into memory for a call or an answer

	LeasesGiven uint64 // standing leases that it has given

	// Of exactly-once calls and one-ways, at the node that serves them:
	Accepted           uint64 // calls and one-ways accepted
	Stateful           uint64 // of Accepted, those of services with state
	Lending            uint64 // of Accepted, calls that lend regions
	Oneways            uint64 // of Accepted, one-ways
	OnewaysWithRegions uint64 // of Oneways, those that hand regions over
	LargeMessages      uint64 // calls, one-ways and answers larger than a packet
	AnsweredFromLedger uint64 // copies of calls that the ledger had the answer to
	NoRoom             uint64 // of Full, those for which the node's ledger has no room
	LedgerRoom         uint64 // bytes that new calls may take in the node's ledger; 0 before it has one, too

	// Of exactly-once executions, and of durable mains:
	Resumed          uint64 // executions that earlier incarnations had begun, and this one has run again or ended
	GivenUp          uint64 // of those, calls given up since the program had ended too often while they ran
	Committed        uint64 // executions and checkpoints whose changes in memory the node has had committed
	RolledBack       uint64 // executions and runs of mains whose changes in memory it has had taken back
	RegionsAllocated uint64 // regions allocated
	RegionsFreed     uint64 // regions freed; they go when the execution is done, or at the next checkpoint
	OnewaysSent      uint64 // one-ways that left because the execution was done, or the checkpoint settled
	MainCalls        uint64 // exactly-once calls begun by durable mains
	MainCheckpoints  uint64 // checkpoints of durable mains

	TakenBack uint64 // 1 if the node has asked to be started anew, since it shares the fate of another one
}

type counters struct {
	calls, resent, waited, served, duplicates, refused, malformed, foreign, full, stale, parts, refsInMessages, refsInRegions, leasesGiven atomic.Uint64

	accepted, stateful, lending, oneways, onewaysWithRegions, largeMessages, answeredFromLedger, noRoom                     atomic.Uint64
	resumed, committed, rolledBack, regionsAllocated, regionsFreed, onewaysSent, mainCalls, checkpoints, takenBack, givenUp atomic.Uint64

	blame blame.Counts // by sender: what was refused
}

// Refused calls f with how many packets of each node were refused: as malformed, as foreign, for
// its quota, or with an exception of the system. The zero Addr stands for further nodes than
// 256.
func (n *Node) Refused(f func(from netip.Addr, reason string, packets uint64)) {
	for _, c := range n.stats.blame.All() {
		f(c.From, c.Reason, c.Packets)
	}
}

// malformed counts a packet of a node that makes no sense.
func (n *Node) malformed(from netip.Addr) {
	n.stats.malformed.Add(1)
	n.stats.blame.Add(from, "malformed")
}

// foreign counts a packet of a node that names what is another node's.
func (n *Node) foreign(from netip.Addr) {
	n.stats.foreign.Add(1)
	n.stats.blame.Add(from, "foreign")
}

// Stats returns the node's counters.
func (n *Node) Stats() Stats {
	c := &n.stats
	n.ledger.mu.Lock()
	room, _ := n.ledger.bytesLeft()
	n.ledger.mu.Unlock()
	return Stats{
		LedgerRoom: room,
		Calls:      c.calls.Load(), Resent: c.resent.Load(), Waited: c.waited.Load(), Served: c.served.Load(), Duplicates: c.duplicates.Load(),
		Refused: c.refused.Load(), Malformed: c.malformed.Load(), Foreign: c.foreign.Load(), Full: c.full.Load(), Stale: c.stale.Load(),
		Parts: c.parts.Load(),

		RefsInMessages: c.refsInMessages.Load(), RefsInRegions: c.refsInRegions.Load(), LeasesGiven: c.leasesGiven.Load(),
		Accepted: c.accepted.Load(), Stateful: c.stateful.Load(), Lending: c.lending.Load(), Oneways: c.oneways.Load(), OnewaysWithRegions: c.onewaysWithRegions.Load(),
		LargeMessages: c.largeMessages.Load(), AnsweredFromLedger: c.answeredFromLedger.Load(), NoRoom: c.noRoom.Load(),
		Resumed: c.resumed.Load(), GivenUp: c.givenUp.Load(), Committed: c.committed.Load(), RolledBack: c.rolledBack.Load(),
		RegionsAllocated: c.regionsAllocated.Load(), RegionsFreed: c.regionsFreed.Load(), OnewaysSent: c.onewaysSent.Load(),
		MainCalls: c.mainCalls.Load(), MainCheckpoints: c.checkpoints.Load(), TakenBack: c.takenBack.Load(),
	}
}

// MethodStats is what a node has seen of the calls to one method since it joined: those
// that it has made, or (Server) those that its handlers have served.
type MethodStats struct {
	Service, Method string
	Server          bool
	// Times is how long calls took, in seconds, by how they ended: on the calling side from
	// the call to its answer, retries included; on the serving side the handler's time. An
	// exception that the IDL declares is an answer like any: its code is OK.
	Times map[Code]Histogram
	// Requests and Answers are the sizes of the Thrift messages, in bytes, headers
	// included. A call that got no answer has none.
	Requests, Answers Histogram
}

// Histogram is a distribution. Counts[i] are the values of at most Bounds[i] and above the
// bound before; the last count is of those above all bounds.
type Histogram struct {
	Bounds []float64
	Counts []uint64
	Sum    float64
}

// Methods is what the node has seen of calls, by service, method and side. Package rpc/prom
// gives it to Prometheus.
func (n *Node) Methods() []MethodStats {
	var all []MethodStats
	n.meters.Range(func(key, value any) bool {
		k, m := key.(meterKey), value.(*meter)
		s := MethodStats{Service: k.service, Method: k.method, Server: k.server, Times: make(map[Code]Histogram)}
		for code := range m.times {
			if h := m.times[code].Load(); h != nil {
				s.Times[Code(code)] = h.histogram(timeUnit, float64(time.Second/time.Microsecond)) //nolint:gosec // below fault.Codes
			}
		}
		s.Requests, s.Answers = m.requests.histogram(sizeUnit, 1), m.answers.histogram(sizeUnit, 1)
		all = append(all, s)
		return true
	})
	slices.SortFunc(all, func(a, b MethodStats) int {
		side := func(s MethodStats) int {
			if s.Server {
				return 1
			}
			return 0
		}
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Method, b.Method), side(a)-side(b))
	})
	return all
}

// meterKey names a method on one side.
type meterKey struct {
	service, method string
	server          bool
}

// meter counts the calls to a method on one side.
type meter struct {
	times             [fault.Codes]atomic.Pointer[counts] // in microseconds, by code
	requests, answers counts
}

// meter is the node's for a method; it is kept.
func (n *Node) meter(service, method string, server bool) *meter {
	key := meterKey{service, method, server}
	if m, ok := n.meters.Load(key); ok {
		return m.(*meter)
	}
	m, _ := n.meters.LoadOrStore(key, new(meter))
	return m.(*meter)
}

// took counts a call that has ended after d.
func (m *meter) took(code Code, d time.Duration) {
	t := &m.times[min(int(code), fault.Codes-1)]
	h := t.Load()
	if h == nil {
		t.CompareAndSwap(nil, new(counts))
		h = t.Load()
	}
	h.add(uint64(max(d.Microseconds(), 0)), timeUnit) //nolint:gosec // not negative
}

// buckets is how many bounds a histogram has: powers of two (times, from 1 µs to 16 s) or of
// four (sizes, from 16 bytes to beyond 1 GiB).
const buckets = 25

const (
	timeUnit = 1 // log2 from one bound to the next
	sizeUnit = 2
)

// counts is a histogram that is being filled.
type counts struct {
	n   [buckets + 1]atomic.Uint64
	sum atomic.Uint64
}

func (c *counts) add(v uint64, unit int) {
	i := 0
	if v > 1 {
		i = (bits.Len64(v-1) + unit - 1) / unit // the first bound, a power of 1<<unit, that is not below v
	}
	c.n[min(i, buckets)].Add(1)
	c.sum.Add(v)
}

func (c *counts) histogram(unit int, scale float64) Histogram {
	h := Histogram{Bounds: make([]float64, buckets), Counts: make([]uint64, buckets+1), Sum: float64(c.sum.Load()) / scale}
	for i := range h.Bounds {
		h.Bounds[i] = float64(uint64(1)<<(unit*i)) / scale
	}
	for i := range h.Counts {
		h.Counts[i] = c.n[i].Load()
	}
	return h
}

// meters are a node's.
type meters = sync.Map
