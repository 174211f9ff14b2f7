package rpc

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/direct"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// execution is one run of a handler for one call, or of a durable main. Its trunk
// travels in the handler's context: calls made with that context name it as their
// parent.
type execution struct {
	canceled canceled // by an operator
	node     *Node
	trunk    opSequence
	journal  *journal // nil unless it is exactly-once
	main     *main    // nil for a handler's
	// Of a handler's; of a main, call has only the id.
	export    *export
	entry     *endpoint.Entry
	call      rpcpacket.Message
	buffer    *datagram // what call lies in; nil if it has memory of its own
	from      netip.AddrPort
	claim     uint64 // bytes of a large call, as they count for its sender
	arguments uint64 // of a direct call: their hash
	// reserved is how many bytes of the ledger are kept for it until it is begun or done, and kept how
	// many for its one-ways, until it is done; guarded by the ledger's mutex.
	reserved, kept int
	// deadline is the caller's; the zero Time is none.
	deadline time.Time
	out      [1]netio.Message
	role     role // of the goroutine that runs it

	life life // the handler's context

	// direct: its call came straight from its caller, and the node's ledger decides about
	// it. To end that, a token has to be in enlisting.
	direct    atomic.Bool
	enlisting chan struct{} // holds a token while somebody does
	unproven  error         // the Gatekeeper's, which has refused it; guarded by the token
	ceding    atomic.Bool   // the Gatekeeper decides about memory, or is about to
	resumed   bool          // the ledger has what former runs did
	again     bool          // and that this one has begun
	returns   bool          // the answer of the direct call has pointers
	lost      bool          // the arguments were in the ledger, and that is lost
	takenUp   time.Duration // of a direct call: when, in node time
	lineage                 // of a direct call, and of one of policy none if it is named
	named     bool          // it is known who waits for the call of policy none
	queued    time.Duration // when it began to wait for the slot of a service with state, in node time

	mu       sync.Mutex
	branches *sync.WaitGroup // those opened; nil while there are none
	waiting  int             // nested calls being waited for; the slot is given back while > 0
	open     int32           // branches that have not ended
	begun    bool            // it has had a worker's slot
	keeps    bool            // its slot, until its answer is logged
	recorded recorded        // what the ledger has of it
	account  account         // of regions
	earlier  []byte          // journal of former runs, that the ledger has
	spoilt   bool            // what it has made of the service's state must not be logged
	former   past            // the service's state before it, once that has changed
	change   []byte          // what it has made of a state that is in the ledger
	// unsettled: the ledger does not have that, and the node ends.
	unsettled bool
	oneways   []record.Oneway // that leave when it is done
	owing     int             // bytes of these
	told      bool            // the sender of the direct one-way is told that it has begun, not that it is done
	ended     bool
	headers   []rpcpacket.KeyValue // of the answer

	processed bool      // the processor has got the call
	served    *served   // its method, once that is known
	meter     *meter    // of its method, until it has been counted
	begunAt   time.Time // when the processor got it
}

// allowed refuses calls that would escape the execution's order: after its end,
// to itself, and, with exactly-once, outside of any execution of a server.
func (c *client) allowed(b *opSequence, m *method) error {
	if b == nil {
		if m.policy != PolicyNone && c.node.serves() {
			return fault.New(BadRequest, m.op, "a call of policy %s in a server needs the context of a handler: pass the one that the handler was given, or use policy none", m.policy)
		}
		return nil
	}
	e := b.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.node != c.node {
		return fault.New(BadRequest, m.op, "the context is that of a handler of node %s: use a client of that node", e.node.self.Name)
	}
	if e.ended || b.ended {
		return errEnded(m.op)
	}
	if e.export != nil && e.export.config.stateful() && e.export.name == c.service {
		return fault.New(Deadlock, m.op, "service %s runs one call at a time, so its call to itself would wait for ever", c.service)
	}
	return nil
}

// child fills in whose call a header is and returns the id that it must have, with its proof;
// zero, for one of a session. Only an execution that the Gatekeeper has logged can
// answer for exactly-once calls; those of others are its node's own, and name their
// parent because it waits for them.
func (b *opSequence) child(h *rpcpacket.Header, o *operation) (rpcpacket.ID, endpoint.Proof, error) {
	if o != nil {
		h.Parent, h.Branch, h.Index = b.e.call.Call, o.at.branch, o.at.index
		if h.Flags.Exact() {
			h.Floor = uint64(b.e.main.lastCheckpoint()) // a copy that comes after the next checkpoint is too late
			key, err := b.e.key()
			id, proof := endpoint.Child(key, h.Flags.Policy(), h.Parent, h.Branch, h.Index)
			return id, proof, err
		}
		return rpcpacket.ID{}, endpoint.Proof{}, nil
	}
	b.e.mu.Lock()
	b.index++
	h.Parent, h.Branch, h.Index = b.e.call.Call, b.number, b.index
	b.e.mu.Unlock()
	return rpcpacket.ID{}, endpoint.Proof{}, nil
}

// key is what the execution names its calls with. The first calls of a service come while the
// node waits for the answer to its Export, which has the key.
func (e *execution) key() (endpoint.Key, error) {
	if e.main != nil {
		return e.main.key, nil
	}
	select {
	case <-e.export.told:
		return e.export.key, nil
	default:
	}
	e.promote()
	select {
	case <-e.export.told:
		return e.export.key, nil
	case <-e.node.done: // or Export has failed before: the rack takes the execution from this node
		return nil, e.node.whyEnded()
	}
}

// yield gives the worker's slot back while the handler waits for a nested call,
// so that calls which come back to this node find one. A stateful service keeps
// it.
func (e *execution) yield() {
	e.promote()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiting++
	if e.waiting == 1 && e.shares() {
		e.export.pool.release()
	}
}

// resume takes a slot again.
func (e *execution) resume() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiting--
	if e.waiting == 0 && e.shares() {
		e.export.pool.acquire()
	}
}

// shares reports whether the execution has a slot that others may have meanwhile.
func (e *execution) shares() bool {
	return !e.ended && e.export != nil && !e.export.config.stateful()
}

// end closes the execution and reports whether it still has a slot to give back:
// not if the handler has left a goroutine behind that waits for a nested call, or
// if it keeps the slot until its answer is logged.
func (e *execution) end() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended = true
	return !e.keeps && (e.waiting == 0 || e.export.config.stateful())
}

// context is the handler's context.
func (e *execution) context(base context.Context) context.Context {
	e.life.opSequence, e.life.base, e.life.deadline = &e.trunk, base, e.deadline
	return &e.life
}

// giveUp abandons the execution of a call that its caller has given up. One-ways
// are not: nobody waits for them anyway.
func (e *execution) giveUp() {
	if e.call.Type != rpcpacket.Oneway {
		e.abandon()
	}
}

// abandon cancels the handler's context: its answer will be of no use.
func (e *execution) abandon() { e.life.end() }

// close ends the handler's context and gives the call's memory back.
func (e *execution) close() {
	e.life.end()
	e.freeBuffer()
}

// keep gives the call memory of its own size, for it has to wait and the buffer
// that it was received in has room for any datagram.
func (e *execution) keep() {
	if e.buffer == nil {
		return
	}
	e.call.Payload, e.call.Trailer = slices.Clone(e.call.Payload), slices.Clone(e.call.Trailer)
	e.freeBuffer()
}

func (e *execution) freeBuffer() {
	e.node.releaseLarge(e.from.Addr(), e.claim)
	e.claim = 0
	if e.buffer != nil {
		freeDatagram(e.buffer)
		e.buffer = nil
	}
}

// logged reports whether the execution's answer is logged.
func (e *execution) logged() bool { return e.journal != nil && !e.direct.Load() }

// receipted reports whether the call is acknowledged when it is accepted: a
// one-way that nobody writes down. (Of one that is held the completion is reported.)
func (e *execution) receipted() bool {
	return e.call.Type == rpcpacket.Oneway && e.call.Flags&rpcpacket.FlagHeld == 0 && e.journal == nil
}

// life is a handler's context. Most handlers never wait for its end, so what that takes
// (a channel, a place among the children of the node's context) is made when somebody
// first asks for it. It ends when the handler has returned, when the caller gives the
// call up, when its deadline passes, and with the node.
type life struct {
	opSequence *opSequence     // the handler's trunk
	base       context.Context //nolint:containedctx // the node's
	deadline   time.Time       // zero: none

	mu     sync.Mutex
	inner  context.Context //nolint:containedctx // nil until asked for
	cancel context.CancelFunc
	over   bool
}

var _ context.Context = (*life)(nil)

// Value finds the opSequence; the rest is the node's.
func (l *life) Value(key any) any {
	if key == (branchKey{}) {
		return l.opSequence
	}
	l.mu.Lock()
	inner := l.inner
	l.mu.Unlock()
	if inner == nil {
		inner = l.base
	}
	return inner.Value(key) // of inner, so that contexts derived from l know it as one of the library's
}

// Deadline is the caller's.
func (l *life) Deadline() (time.Time, bool) {
	if !l.deadline.IsZero() {
		return l.deadline, true
	}
	return l.base.Deadline()
}

// Done is closed when the context ends.
func (l *life) Done() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.whole().Done()
}

// Err is why it has ended.
func (l *life) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inner == nil && !l.over && l.deadline.IsZero() {
		return l.base.Err()
	}
	return l.whole().Err()
}

// whole makes what the context lacks. The caller holds the lock.
func (l *life) whole() context.Context {
	if l.inner != nil {
		return l.inner
	}
	if l.deadline.IsZero() {
		l.inner, l.cancel = context.WithCancel(l.base)
	} else {
		l.inner, l.cancel = context.WithDeadline(l.base, l.deadline)
	}
	if l.over {
		l.cancel()
	}
	return l.inner
}

// end ends the context.
func (l *life) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	if l.cancel != nil {
		l.cancel()
	}
}

// An execution of a direct call that needs the Gatekeeper, because it is about
// to pass pointers on, or to make a call that cannot go direct, is handed
// over: the ledger says so, and then the Gatekeeper logs its call as one that runs here. From
// then on it is as one that the Gatekeeper has delivered; copies of its call are passed on.
//
//	begun, journal, handed settled ─▶ ENLIST ─▶ logged ─▶ acknowledged ─▶ memory knows ─▶ goes on, held

// enlistPlace is where in an execution no operation is: that of its enlistment.
const enlistPlace = 1<<32 - 1

// enlist hands an execution over to the Gatekeeper, unless that decides about it already (a durable
// main by handOver).
// The error says that the node has ended, or that the Gatekeeper refuses the execution.
func (e *execution) enlist() error {
	if !e.direct.Load() {
		return nil
	}
	e.enlisting <- struct{}{}
	defer func() { <-e.enlisting }()
	if !e.direct.Load() || e.unproven != nil {
		return e.unproven
	}
	n, l := e.node, e.node.ledger
	e.promote()
	if e.main != nil {
		return e.handOver()
	}
	e.mu.Lock()
	written := e.write(append(e.unwritten(nil), &record.Handed{Execution: e.call.Call})...)
	last := e.recorded.last
	e.mu.Unlock()
	if !written {
		return fault.New(Unavailable, "enlist", "nobody waits for the call any more")
	}
	l.mu.Lock()
	l.leave(e.call.Call)
	l.mu.Unlock()
	if !l.settle(last) {
		return n.whyEnded()
	}
	n.stats.enlisted.Add(1)
	n.in.mu.Lock() // before it is logged: another Gatekeeper may deliver it as soon as it is
	e.entry = n.in.core.Adopt(e.call.Call)
	e.entry.Tag = e
	n.in.mu.Unlock()
	if err := n.tellEnlisted(e.from.Addr(), &e.call, true); err != nil {
		if n.base.Err() == nil {
			e.notHanded(err)
		}
		return err
	}
	e.call.Flags |= rpcpacket.FlagHeld | rpcpacket.FlagEnlist
	if err := e.cede(); err != nil {
		return err
	}
	if err := e.handOneways(); err != nil {
		return err
	}
	l.write(&record.Logged{Execution: e.call.Call})
	l.noteHanded(e)
	return e.freeNow()
}

// notHanded notes that the Gatekeeper does not decide about an execution: its caller has not proven
// that the call is its own. So the execution stays direct, and what needs the Gatekeeper fails.
func (e *execution) notHanded(why error) {
	n := e.node
	n.foreign(e.from.Addr())
	n.in.mu.Lock()
	n.in.core.Forget(e.entry)
	e.entry = nil
	n.in.mu.Unlock()
	e.unproven = why
}

// whyEnded is why the execution can do nothing any more: the run of a durable main has ended for want of room, or the node has
// ended.
func (e *execution) whyEnded() error {
	if e.journal != nil {
		if full := e.journal.ended(); full != nil {
			return full
		}
	}
	return e.node.whyEnded()
}

// whyEnded is why the node can do nothing any more.
func (n *Node) whyEnded() error {
	if err := n.failure(); err != nil {
		return err
	}
	return fault.New(Unavailable, "node "+n.self.Name, "the node has ended")
}

// enlists numbers the messages that hand executions over, so that the Gatekeeper can tell
// late copies of them.
type enlists struct {
	mu   sync.Mutex
	last uint64
	open map[uint64]bool // those that are not acknowledged
}

// begin returns the number of the next message.
func (l *enlists) begin() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		l.open = map[uint64]bool{}
	}
	l.last++
	l.open[l.last] = true
	return l.last
}

func (l *enlists) end(number uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, number)
}

// floor is the number below which all are acknowledged.
func (l *enlists) floor() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	floor := l.last + 1
	for n := range l.open {
		floor = min(floor, n)
	}
	return floor
}

// enlistment is the message that has the Gatekeeper decide about a direct call of a node: its
// payload is the caller's address (16 bytes), 1 if the call runs here or 0 (1), the call's origin (24),
// and the CALL.
// The CALL's trailer is left out, and so are its arguments if the message exceeded a packet, or was a one-way with
// pointers: the ledger has them. The message's parent is the execution that the Gatekeeper
// knows of which the call was made, as far as that is known. The header's order is the message's number, 0 for a copy that
// nobody waits for.
func (n *Node) enlistment(caller netip.Addr, call *rpcpacket.Message, runs bool, number uint64) []byte {
	h := rpcpacket.Header{
		Type: rpcpacket.Call, Flags: (rpcpacket.FlagHeld | rpcpacket.FlagEnlist).WithPolicy(PolicyRecover), CallerIncarnation: n.self.Incarnation,
		Call: endpoint.ChildID(nil, call.Call, enlistPlace, enlistPlace), Service: call.Service, Order: number, Floor: n.enlists.floor(),
	}
	from, l, _ := originIn(call.Trailer)
	h.Parent = l.ancestor
	a := caller.As16()
	payload := append(a[:], 0)
	if runs {
		payload[len(a)] = 1
	}
	payload = append(payload, from...)
	inner := rpcpacket.Message{Header: call.Header, Pointers: call.Pointers, Payload: call.Payload}
	if call.Flags&rpcpacket.FlagMore != 0 || len(payload)+2*rpcpacket.HeaderSize+len(dsm.Pointer{})*len(call.Pointers)+len(call.Payload) > n.budget {
		inner.Payload = nil
	}
	if inner.Type == rpcpacket.Oneway && len(inner.Pointers) > 0 {
		inner.Pointers, inner.Payload = nil, nil // it has no leases, and the ledger has the call
	}
	inner.Type = rpcpacket.Call // a one-way, too: it runs, and its sender has its acknowledgement
	inner.Flags = inner.Flags&^rpcpacket.FlagMore | rpcpacket.FlagHeld | rpcpacket.FlagEnlist
	inner.Attempt, inner.Order, inner.Floor = 0, 0, 0
	return (&rpcpacket.Message{Header: h, Payload: inner.Append(payload)}).Append(nil)
}

// tellEnlisted sends an enlistment until the Gatekeeper has logged it.
func (n *Node) tellEnlisted(caller netip.Addr, call *rpcpacket.Message, runs bool) error {
	number := n.enlists.begin()
	defer n.enlists.end(number)
	datagram := n.enlistment(caller, call, runs, number)
	p := n.out.pendings.Get().(*pending)
	p.RTT, p.Logged, p.to = &n.enlistRTT, true, netio.Message{Remote: gatekeeperRPC}
	p.datagram = slices.Clone(datagram)
	o := &n.out
	o.mu.Lock()
	err := o.err
	if err == nil && !o.core.BeginAs(n.now(), &p.Call, rpcpacket.ID(datagram[24:40])) {
		err = fault.New(Internal, "enlist", "call %s is being handed over to the Gatekeeper already", call.Call)
	}
	if err == nil {
		n.wakeAt(p.Due())
	}
	o.mu.Unlock()
	if err != nil {
		n.release(p)
		return err
	}
	n.send(gatekeeperRPC, p.datagram)
	if !n.await(n.base, p) {
		n.end(p)
		return n.whyEnded() // p is the core's to forget
	}
	defer n.release(p)
	switch {
	case p.err != nil:
		return p.err
	case p.answer.Type == rpcpacket.Exception:
		n.log.Error("rpc: the Gatekeeper refuses an execution", "call", call.Call.String(), "why", string(p.answer.Payload))
		return fault.Remote(p.answer.Code, "enlist", "%s", p.answer.Payload)
	}
	return nil
}

// askedToEnlist takes the Gatekeeper's word that a call of an execution is answered with
// pointers: the execution has to be enlisted first, or nobody would own what they point to. If
// nobody waits for the call any more, the Gatekeeper is told so.
func (n *Node) askedToEnlist(call, parent rpcpacket.ID) {
	l := n.ledger
	n.out.mu.Lock()
	var waits *execution
	if k := n.out.core.Out(call); k != nil {
		waits = k.Tag.(*pending).of
	}
	n.out.mu.Unlock()
	l.mu.Lock()
	if waits == nil {
		waits = l.reports.running[parent] // it has given the call up
	}
	e := l.table.State().Execution(parent)
	over := e == nil || e.Done != nil || e.Main() && !slices.ContainsFunc(e.Called, func(k record.Call) bool { return k.ID == call })
	l.mu.Unlock()
	switch {
	case waits != nil:
		go func() { _ = waits.enlist() }() // it fails if the node has ended
	case over:
		n.sendSettled(n.appendForgets(nil, rackaddr.Gatekeeper, []direct.Item{{ID: call}}))
	}
}

// handedBefore makes an execution whose call the Gatekeeper delivers go on from what it did
// while it was direct.
func (n *Node) handedBefore(e *execution) {
	if !n.goesDirect() {
		return
	}
	l := n.ledger
	l.mu.Lock()
	known := l.table.State().Execution(e.call.Call)
	handed := known != nil && known.Handed
	if handed {
		l.table.Resumes(e.call.Call)
	}
	l.mu.Unlock()
	if !handed {
		e.lost = len(e.call.Payload) == 0 && e.call.Flags&rpcpacket.FlagEnlist != 0
		return
	}
	e.remember(known)
	if m, err := rpcpacket.Parse(known.Begun.Call); err == nil {
		e.call.Payload, e.call.Pointers = m.Payload, m.Pointers
		e.call.Flags |= m.Flags & rpcpacket.FlagTainted
		_, e.lineage, _ = originIn(m.Trailer)
	}
	l.noteHanded(e)
	b := slices.Clone(known.Journal)
	if replays(&e.call.Header) && !trailer.IsSpilled(e.call.Trailer) {
		b = append(b, e.call.Trailer...)
	}
	j, err := newJournal(b)
	if err != nil {
		n.log.Error("rpc: the ledger's journal of a call is not the Gatekeeper's", "call", e.call.Call.String(), "err", err)
		return
	}
	e.journal = j
}
