package rpc

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/rpc/bulk"
	"github.com/bifrost-rack/bifrost/rpc/direct"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// A handler's execution begins with the packet of a call. An exactly-once call comes in in direct.go, one of policy none in
// volatile.go. The execution then takes a worker's slot, or waits for one (export.accept), and runs (run.go).

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
	entry     *direct.Entry // of a call of policy none
	call      rpcpacket.Message
	buffer    *datagram // what call lies in; nil if it has memory of its own
	from      netip.AddrPort
	claim     uint64 // bytes of a large call, as they count for its sender
	arguments uint64 // of a direct call: their hash
	promise   promise
	// deadline is the caller's; the zero Time is none.
	deadline time.Time
	out      [1]netio.Message
	role     role // of the goroutine that runs it

	life life // the handler's context

	resumed  bool          // the ledger has what former runs did
	again    bool          // and that this one has begun
	alone    *alone        // it runs alone until this ends; nil if it does not
	failures uint32        // after which the node gives it up; 0: it does not
	givenUp  bool          // the first copy of the call that came says that its caller gives it up
	returns  bool          // the answer of the exactly-once call has pointers
	takenUp  time.Duration // of an exactly-once call: when, in node time
	// reported says that the Gatekeeper was told that it is under way; guarded by reports.mu.
	reported bool
	details  details
	lineage
	queued time.Duration // when it began to wait for the slot of a service with state, in node time

	mu       sync.Mutex
	branches *sync.WaitGroup // those opened; nil while there are none
	waiting  int             // nested calls being waited for; the slot is given back while > 0
	open     int32           // branches that have not ended
	begun    bool            // it has had a worker's slot
	recorded recorded        // what the ledger has of it
	account  account         // of regions
	spoilt   bool            // what it has made of the service's state must not be kept
	former   past            // the service's state before it, once that has changed
	change   []byte          // what it has made of a state that is in the ledger
	oneways  []record.Oneway // that leave when it is done
	owing    int             // bytes of these
	accepted bool            // it has a slot, or waits for one: its call has come whole
	promised bool            // its caller, which gives it up, is told that it has begun: its handler runs
	expired  bool            // its handler does not run, since its time was over before
	told     bool            // the sender of the exactly-once one-way is told that it has begun, not that it is done
	ended    bool
	headers  []rpcpacket.KeyValue // of the answer

	processed bool      // the processor has got the call
	served    *served   // its method, once that is known
	meter     *meter    // of its method, until it has been counted
	begunAt   time.Time // when the processor got it
}

// allowed refuses calls that would escape the execution's order: after its end,
// to itself, and, with exactly-once, outside of any execution of a server.
func (c *client) allowed(b *opSequence, m *method) error {
	if b == nil {
		if m.policy != PolicyNone && !c.config.plain && len(c.node.exports.list()) > 0 {
			return fault.New(BadRequest, m.op, "a call of policy %s in a server needs the context of a handler: pass the one that the handler was given, or use policy none or rpc.WithPlainCalls", m.policy)
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

// child fills in whose call a header is and returns the id that it must have; zero, for a plain
// one. Only an exactly-once execution can answer for exactly-once calls; those of others are its
// node's own, and name their parent because it waits for them.
func (b *opSequence) child(h *rpcpacket.Header, o *operation) (rpcpacket.ID, error) {
	if o != nil {
		h.Parent, h.Branch, h.Index = b.e.call.Call, o.at.branch, o.at.index
		if h.Flags.Exact() {
			key, err := b.e.key()
			return endpoint.ChildID(key, h.Parent, h.Branch, h.Index), err
		}
		return rpcpacket.ID{}, nil
	}
	b.e.mu.Lock()
	b.index++
	h.Parent, h.Branch, h.Index = b.e.call.Call, b.number, b.index
	b.e.mu.Unlock()
	return rpcpacket.ID{}, nil
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
	case <-e.node.life.done: // or Export has failed before: the rack takes the execution from this node
		return nil, e.node.life.whyEnded()
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
	e.alone.end()
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
// not if the handler has left a goroutine behind that waits for a nested call.
func (e *execution) end() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended = true
	e.alone.end()
	return e.waiting == 0 || e.export.config.stateful()
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
	e.node.large.release(e.from.Addr(), e.claim)
	e.claim = 0
	if e.buffer != nil {
		freeDatagram(e.buffer)
		e.buffer = nil
	}
}

// receipted reports whether the call is acknowledged when it is accepted: a one-way of policy none.
func (e *execution) receipted() bool { return e.call.Type == rpcpacket.Oneway && e.journal == nil }

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

// whyEnded is why the execution can do nothing any more: the run of a durable main has ended for want of room, or the node has
// ended.
func (e *execution) whyEnded() error {
	if e.journal != nil {
		if full := e.journal.ended(); full != nil {
			return full
		}
	}
	return e.node.life.whyEnded()
}

// acceptLarge begins to fetch the rest of a new call of so many bytes so far. It
// returns the execution that the goroutine is to run, if any.
func (x *export) acceptLarge(e *execution, size int) *execution {
	m := e.call
	e.call.Payload, e.call.Trailer = nil, slices.Clone(m.Trailer) // the buffer is the reader's
	t, v := x.node.large.begin(e.from.Addr(), &m, false, size, e)
	switch v {
	case bulk.Taken:
	case bulk.Whole:
		return x.wholeCall(e, t)
	case bulk.TooLong:
		o, _ := m.Opening()
		why := x.node.large.tooLong("a message", o.Total)
		if e.journal != nil {
			go x.answerException(e, BadRequest, why) // it waits for the ledger
		} else {
			x.answerException(e, BadRequest, why)
		}
	case bulk.Malformed:
		x.node.stats.countMalformed(e.from.Addr())
		x.forget(e)
	default:
		x.drop(e)
	}
	return nil
}

// wholeCall goes on with a call that has come whole. It returns the execution that the
// goroutine is to run, if any.
func (x *export) wholeCall(e *execution, t *bulk.Transfer) *execution {
	x.node.reports.changes(func() { e.call.Flags &^= rpcpacket.FlagMore })
	e.call.Payload, e.claim = t.Body(), t.Size()
	return x.accept(e)
}

// accept finds a slot for a new call. It returns the execution that the goroutine is to run, if any. Of a one-way it
// tells the caller's runtime that it need not be sent again.
func (x *export) accept(e *execution) (run *execution) {
	x.accepting.Lock()
	defer x.accepting.Unlock()
	to, receipt := e.from, x.receipt(e) // a call that waits may be over before it is acknowledged
	var reply []byte
	if e.call.Type == rpcpacket.Oneway && e.journal != nil {
		reply = x.node.ports.accepts(&e.call)
	}
	e.queued = x.node.pulse.now()
	switch x.pool.admit(e) {
	case begun:
		run = e
	case refused:
		x.turnAway(e)
		return nil
	default: // waiting: it runs in its turn
		x.watchWaits()
	}
	if e.journal != nil {
		e.mu.Lock()
		e.accepted = true
		e.mu.Unlock()
	}
	switch {
	case receipt != nil:
		x.node.ports.send(to, receipt)
	case e.givenUp:
		x.node.tellBegun(to, &e.call, e)
	case reply != nil:
		x.beginOneway(e, reply)
	}
	return run
}

// drop forgets a call that there is no room for; it will come again.
func (x *export) drop(e *execution) {
	x.node.stats.full.Add(1)
	x.forget(e)
}

// forget undoes a call that has not run.
func (x *export) forget(e *execution) {
	defer e.freeBuffer()
	if e.journal != nil {
		l := x.node.ledger
		b := l.lock()
		defer b.unlock()
		l.table.Drop(e.call.Call)
		x.node.reports.leave(e.call.Call)
		b.release(e)
		return
	}
	x.node.in.forget(e)
}

// turnAway refuses a call of policy none for which there is no room, or no time any more. A
// one-way, whose caller has nobody to tell, is forgotten instead, as is an exactly-once call: it will be sent again.
func (x *export) turnAway(e *execution) {
	if e.receipted() || e.journal != nil {
		x.drop(e)
		return
	}
	defer e.freeBuffer()
	if x.node.life.failure() != nil {
		x.answerException(e, Unavailable, "the node is closing")
		return
	}
	x.answerException(e, Overloaded, "all workers are busy and the queue is full")
}

// whole goes on with a large call that has come whole.
func (e *execution) whole(t *bulk.Transfer) {
	if run := e.export.wholeCall(e, t); run != nil {
		go run.export.pool.work(run)
	}
}

// lost forgets a large call that does not come whole.
func (e *execution) lost() { e.export.drop(e) }
