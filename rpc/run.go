package rpc

import (
	"context"
	"encoding/hex"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// run runs a call on a worker and answers it.
func (x *export) run(e *execution) {
	defer e.close()
	if !e.started() || !e.afterSettled() || !e.takenBack() {
		return // the node has ended
	}
	begun := time.Now()
	if e.mayBeAgain() && e.call.Timeout != 0 {
		e.deadline = begun.Add(time.Duration(e.call.Timeout) * time.Millisecond) // it had begun in time
	}
	ctx := e.context(x.node.life.base)
	e.begun = true
	if !e.deadline.IsZero() && !begun.Before(e.deadline) && e.shed() {
		x.answerException(e, Deadline, tooLate)
		return
	}
	if e.canceled.Load() {
		x.answerException(e, Canceled, "an operator has cancelled the call before it began")
		return
	}
	in, out := newCodec(0), newCodec(x.node.large.limit())
	defer in.free()
	defer out.free()
	headers, err := in.takeHeaders(&e.call)
	if err != nil {
		x.answerException(e, BadRequest, err.Error())
		return
	}
	if len(headers) > 0 {
		e.carries(headers)
		ctx = thrift.AddReadTHeaderToContext(ctx, headerMap(headers))
	}
	if refusal := x.open(ctx, e, in); refusal != nil {
		x.answerException(e, refusal.Code, refusal.Msg)
		return
	}
	out.speak(in.protocol)
	x.node.stats.served.Add(1)
	e.processed = true
	e.foresee()
	e.begunAt = begun
	e.meter.requests.add(uint64(len(e.call.Payload)), sizeUnit)
	v := x.process(ctx, e, in, out)
	e.join()
	if unknown := e.trunk.finishMemory(); unknown != nil && v.code == OK {
		v = failed(bare(codedIn(unknown)))
	}
	e.served.took(time.Since(begun))
	if v.broken {
		x.brokeOff(e, v)
		return
	}
	x.answer(ctx, e, out, v)
}

// open reads how the call's Thrift message begins and checks it against the
// header: the rack has routed the call by the method there.
func (x *export) open(ctx context.Context, e *execution, in *codec) *Error {
	o, err := in.open(ctx)
	if err != nil {
		return &Error{Code: BadRequest, Msg: "no Thrift message: " + err.Error()}
	}
	wire, err := rpcpacket.MethodOf(o.name)
	if err != nil || wire != e.call.Method {
		return fault.New(BadRequest, "", "the message is for method %q, its header for %q", o.name, e.call.Method)
	}
	m := x.offer.Load().methods[wire]
	if m == nil {
		m = x.learn(wire)
	}
	if m == nil || m.name != o.name {
		return fault.New(NoSuchMethod, "", "service %s has no method %q", x.name, o.name)
	}
	if o.kind != thrift.CALL && o.kind != thrift.ONEWAY {
		return fault.New(BadRequest, "", "Thrift message type %d is neither a call nor a one-way", o.kind)
	}
	in.opening, in.opened, e.served, e.meter = o, true, m, m.meter
	return nil
}

// answer sends what the processor has written, or says why it cannot.
func (x *export) answer(ctx context.Context, e *execution, out *codec, v verdict) {
	e.details.exception, e.details.text = v.exception, v.why
	if e.journal != nil {
		if diverged := e.journal.close(v.code); diverged != nil {
			x.abandoned(e, diverged)
			return
		}
	}
	if e.call.Type == rpcpacket.Oneway {
		x.meter(e, v.code, 0)
		x.complete(e, v.why)
		return
	}
	_ = out.putHeaders(e.answerHeaders()) // SetAnswerHeader has checked them
	failure := v.failure
	if failure == nil {
		failure = x.check(ctx, out)
	}
	e.returns = len(out.pointers) > 0
	if failure == nil && e.journal != nil {
		if failure = x.prepare(e, out); failure == nil {
			failure = x.seal(e)
		}
		if failure != nil {
			x.node.memory.Kept(out.pointers...)
		}
	}
	if failure != nil {
		x.answerException(e, failure.Code, failure.Msg)
		return
	}
	h := x.node.ports.answerHeader(&e.call)
	h.Type = rpcpacket.Type(out.kind)
	outcome := v.code
	if outcome != OK && out.kind == thrift.REPLY { // the IDL declares it: it is an answer
		outcome = Declared
		h.Code = Declared
	}
	x.meter(e, outcome, out.size()-rpcpacket.HeaderSize)
	datagram := out.datagram(&h)
	if len(datagram) > x.node.ports.budget && e.journal == nil {
		x.replyLarge(e, out)
		return
	}
	x.reply(e, datagram)
}

// prepare has room promised in the ledger for the answer to a direct call, unless the answer is short.
func (x *export) prepare(e *execution, out *codec) *Error {
	size := out.size()
	if size > x.node.ports.budget {
		x.node.stats.largeMessages.Add(1)
	}
	if size <= endAnswer {
		return nil
	}
	l := x.node.ledger
	if !l.reserve(e, l.cost(size+recordSize)-l.cost(endSize)) {
		return x.node.noRoom("", "the node's ledger has no room for an answer of %d bytes: pass it by reference, or give the ledgers more room (bifrost memory --ledger-space)", size)
	}
	return nil
}

// replyLarge sends an answer that exceeds a packet. It is kept before it is sent, for
// the caller may ask for more of it at once.
func (x *export) replyLarge(e *execution, out *codec) {
	first, payload := out.large(x.node.ports.budget, x.node.large.pushTo(e.from.Addr()))
	from := e.from
	x.finish(e, first, payload.Hold())
	x.node.memory.Gave(out.pointers...)
	if err := x.node.large.send(netio.Message{Buf: first, Remote: from}, payload, true); err != nil {
		x.node.log.Debug("rpc: send a large answer", "error", err)
	}
}

// abandoned ends an execution that has not done what it did before. What it has done is taken back.
func (x *export) abandoned(e *execution, diverged *Error) {
	x.takeBackAll(e)
	x.node.log.Error("rpc: a re-run has diverged", "service", x.name, "method", e.call.Method.String(),
		"call", e.call.Call.String(), "attempt", e.call.Attempt, "why", diverged)
	x.answerException(e, Nondeterminism, messageOf(diverged))
}

// check decides whether what the processor has written can be sent: not if the result is no message, or points to memory that is not the node's. The
// switch would refuse that, too. But if the memory became the node's afterwards, a copy of the answer would hand it over. It returns when the memory that
// the result points to is settled.
func (x *export) check(ctx context.Context, out *codec) *Error {
	if out.failed != nil {
		return fault.New(Application, "", "the result cannot be sent: %v", out.failed)
	}
	if tooLong := x.checkSize(out); tooLong != nil {
		return tooLong
	}
	if err := x.node.pass(ctx, out.pointers, x.node.memory.HandOver); err != nil {
		return fault.New(fault.CodeOf(err), "", "the result's memory: %v", err)
	}
	return nil
}

// checkSize refuses an answer that is too long.
func (x *export) checkSize(out *codec) *Error {
	if out.size() <= min(x.node.large.limit(), out.buf.limit) {
		return nil
	}
	return fault.New(BadRequest, "", "%s", x.node.large.tooLongIn("an answer", out))
}

// codedIn returns the coded error in err, or nil.
func codedIn(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	errors.As(err, &e)
	return e
}

// messageOf is what the caller is told beside the code.
func messageOf(e *Error) string {
	if e.Op == "" && e.Err == nil {
		return e.Msg
	}
	return e.Error()
}

// complete ends a one-way call, which has no caller to tell why it has failed, if it has.
func (x *export) complete(e *execution, why string) {
	if why != "" {
		x.node.log.Warn("rpc: a one-way call has failed", "service", x.name, "method", e.call.Method.String(),
			"call", e.call.Call.String(), "error", why)
	}
	if e.receipted() {
		x.finish(e, nil, nil)
		return
	}
	x.sealFailed(e)
	m := rpcpacket.Message{Header: x.node.ports.answerHeader(&e.call)}
	m.Flags |= rpcpacket.FlagDone
	x.reply(e, m.Append(nil))
}

// seal takes what has become of the service's state into the execution's commit.
func (x *export) seal(e *execution) *Error {
	if x.manager == nil || !e.begun || e.spoilt {
		return nil
	}
	former := x.manager.was
	limit, ended := x.node.ledger.limitOf(e)
	if ended != nil {
		return codedIn(ended)
	}
	change, err := x.manager.change(limit)
	if err == nil && len(change) > 0 && !x.node.ledger.awaitState(e, len(change)+recordSize, x.manager.was.size()) {
		x.manager.was = former
		err = x.manager.revert(x.node.noRoom("", "the node's ledger has no room for a change of the service's state by %d bytes", len(change)))
	}
	if err != nil {
		if err.Err != nil {
			x.node.fail(err) // only the ledger knows the state now; the next incarnation reads it
		}
		if err.Code == Internal {
			return x.internal(e, messageOf(err))
		}
		return err
	}
	if len(change) > 0 {
		e.former, e.change = former, change
		x.noteKept()
	}
	return nil
}

// sealFailed is seal for a handler that has failed, or that is a one-way's. What it has made of the state counts.
func (x *export) sealFailed(e *execution) {
	if e.journal == nil {
		return
	}
	if err := x.seal(e); err != nil {
		x.node.log.Error("rpc: a change of state is undone", "service", x.name, "error", err)
	}
}

// endUnbegun ends a call whose handler has not begun, and does not.
func (x *export) endUnbegun(e *execution, code Code, why string) {
	x.answerException(e, code, why)
	e.close()
}

// answerException answers a call with a system exception.
func (x *export) answerException(e *execution, code Code, why string) {
	x.meter(e, code, len(why))
	e.details.exception, e.details.text = "", why
	if e.call.Type == rpcpacket.Oneway && !e.refusable() {
		x.complete(e, why)
		return
	}
	x.node.stats.refused.Add(1)
	x.node.stats.blame.Add(e.from.Addr(), code.String())
	x.sealFailed(e)
	if e.journal != nil && len(why) > endAnswer && !x.node.ledger.mayTake(e, len(why)) {
		why = why[:endAnswer]
	}
	x.reply(e, x.node.ports.exception(&e.call, code, why, !e.processed && (e.journal == nil || e.call.Attempt == 0)))
}

// refusable reports whether a one-way is a direct one that has not begun.
func (e *execution) refusable() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.journal != nil && !e.recorded.begun
}

// meter counts a call that a handler has served, and is answered now.
func (x *export) meter(e *execution, code Code, size int) {
	e.details.answer = max(size, 0)
	if e.meter != nil && e.processed {
		e.meter.took(code, time.Since(e.begunAt))
		e.meter.answers.add(uint64(max(size, 0)), sizeUnit) //nolint:gosec // not negative
		e.meter = nil
	}
}

// reply sends an answer, of an exactly-once call when the ledger has it.
func (x *export) reply(e *execution, datagram []byte) {
	if e.journal != nil {
		x.replyDirect(e, datagram)
		return
	}
	x.replyVolatile(e, datagram)
}

// pool runs an export's calls on a bounded number of workers, and keeps a bounded
// number waiting, first come, first served. A worker is whatever goroutine holds
// one of the slots. One that comes back from a nested call goes before calls that
// have not begun: it finishes something.
type pool struct {
	run func(*execution) // runs one call to its end

	mu        sync.Mutex
	free      int        // slots nobody has
	holder    *execution // of a service with state: what has the slot
	started   int        // calls begun and not ended
	begun     uint64     // calls begun
	judged    uint64     // of them, as of the last stalled
	most      int        // of started
	queue     fifo[*execution]
	limit     int  // of queue
	closed    bool // nothing more is admitted
	returning fifo[chan struct{}]
	calls     sync.WaitGroup // started
}

// admission is what a pool does with a call.
type admission uint8

const (
	begun   admission = iota // it has a slot: whoever asked must work on it
	waiting                  // it will be run by a worker
	refused                  // there is no room
)

// admit finds a slot for a call or lets it wait.
func (p *pool) admit(e *execution) admission {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return refused
	case p.free > 0 && p.started < p.most:
		p.free--
		p.begin(e)
		return begun
	case p.queue.len() >= p.limit && !e.resumed: // which has no sender that would send it again
		return refused
	}
	e.keep()
	p.queue.push(e)
	return waiting
}

// begin counts a call that has a slot. The caller holds the lock.
func (p *pool) begin(e *execution) {
	p.holder = e
	p.started++
	p.begun++
	p.calls.Add(1)
}

// work runs a call that has a slot and then, on the same slot, those that wait.
func (p *pool) work(e *execution) {
	for e != nil {
		p.run(e)
		e = p.end(e)
	}
}

// end ends a call and returns the one to run next on its slot, if it has one: a
// handler may have left a goroutine behind that gave it away.
func (p *pool) end(e *execution) *execution {
	slot := e.end()
	defer p.calls.Done()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started--
	if !slot {
		return nil
	}
	if p.returning.len() == 0 && p.queue.len() > 0 {
		next := p.queue.pop()
		p.begin(next)
		return next
	}
	p.give()
	return nil
}

// release gives a slot back while its worker waits.
func (p *pool) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.give()
}

// give hands a slot on. The caller holds the lock.
func (p *pool) give() {
	switch {
	case p.returning.len() > 0:
		close(p.returning.pop())
	case p.queue.len() > 0 && p.started < p.most:
		next := p.queue.pop()
		p.begin(next)
		go p.work(next)
	default:
		p.free++
		p.holder = nil
	}
}

// acquire takes a slot again, waiting for one if need be.
func (p *pool) acquire() {
	p.mu.Lock()
	if p.free > 0 {
		p.free--
		p.mu.Unlock()
		return
	}
	turn := make(chan struct{})
	p.returning.push(turn)
	p.mu.Unlock()
	<-turn
}

// heldBy reports whether one of these executions has the slot of a service with state.
func (p *pool) heldBy(ids []rpcpacket.ID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.holder != nil && slices.Contains(ids, p.holder.call.Call)
}

// waiting lists what waits for the slot of a service with state, the oldest first, and what has
// the slot; nil if nothing does.
func (p *pool) waiting() (queue []*execution, holder *execution) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.queue.items[p.queue.first:]), p.holder
}

// withdraw takes a call out of the queue. It reports false if it does not wait there.
func (p *pool) withdraw(e *execution) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queue.remove(e)
}

// isClosed reports whether no more calls are admitted.
func (p *pool) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// shut admits no more calls; those that wait are run.
func (p *pool) shut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
}

// close admits no more calls and returns those that have not begun, except
// one-ways: their callers have been told that they are accepted.
func (p *pool) close() (calls []*execution) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for range p.queue.len() {
		if e := p.queue.pop(); e.receipted() {
			p.queue.push(e)
		} else {
			calls = append(calls, e)
		}
	}
	return calls
}

// fifo is a queue; the zero fifo is empty.
type fifo[T comparable] struct {
	items []T
	first int
}

func (q *fifo[T]) len() int { return len(q.items) - q.first }

// remove takes a value out, wherever it is. It reports false if it is not there.
func (q *fifo[T]) remove(v T) bool {
	i := slices.Index(q.items[q.first:], v)
	if i < 0 {
		return false
	}
	q.items = slices.Delete(q.items, q.first+i, q.first+i+1)
	return true
}

func (q *fifo[T]) push(v T) {
	if len(q.items) == cap(q.items) && q.first > len(q.items)/2 {
		n := copy(q.items, q.items[q.first:])
		clear(q.items[n:])
		q.items, q.first = q.items[:n], 0
	}
	q.items = append(q.items, v)
}

// pop takes the oldest value out; the queue must not be empty.
func (q *fifo[T]) pop() T {
	v := q.items[q.first]
	clear(q.items[q.first : q.first+1])
	q.first++
	if q.first == len(q.items) {
		q.items, q.first = q.items[:0], 0
	}
	return v
}

// An operator may cancel a call where it runs: its handler's context ends, and what the handler
// then returns is the answer, as ever. So an exactly-once call ends once, whoever crashes
// meanwhile; a re-run of one that was cut short is not cancelled. A call that has not begun is
// answered with Canceled in the place of its handler.

// canceled says whether an operator has cancelled an execution.
type canceled struct{ atomic.Bool }

// heedCancels has calls cancelled, or refused, that the daemon names, if it names any.
func (n *Node) heedCancels() {
	if s, ok := n.session.(join.Canceller); ok {
		s.OnCancel(n.cancelServed)
	}
	n.giveAccounts()
}

// cancelServed cancels a call that this node runs, or has queued; one that would wait for itself
// is refused, if it is queued. Another one is none of ours any more.
func (n *Node) cancelServed(call, deadlock string) {
	var id rpcpacket.ID
	if b, err := hex.DecodeString(call); err != nil || copy(id[:], b) != len(id) || len(b) != len(id) {
		return
	}
	switch e := n.reports.underWay(id); {
	case e == nil:
	case deadlock == "":
		e.canceled.Store(true)
		e.abandon()
	case e.export != nil && e.export.pool.withdraw(e):
		go e.export.refuseWaiting(e, deadlock)
	}
}
