package rpc

import (
	"context"
	"encoding/binary"
	"reflect"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// Branch is a part of an execution that runs beside others; see [Go].
type Branch struct {
	opSequence
	done chan struct{}
	err  error // valid once done is closed
}

// opSequence is a branch's line of operations, which are numbered in it. The trunk,
// which is what the handler itself does, is one as well. It travels in contexts.
type opSequence struct {
	e      *execution // nil outside of any
	number uint32     // 0 for the trunk

	// Guarded by e.mu.
	index  uint32            // of the last operation
	client *dsmclient.Client // for memory operations; nil until asked for
	busy   bool              // an operation is under way
	ended  bool
}

// branchKey is where a context keeps its opSequence.
type branchKey struct{}

// branchOf returns the opSequence that a context belongs to, or nil.
func branchOf(ctx context.Context) *opSequence {
	b, _ := ctx.Value(branchKey{}).(*opSequence)
	return b
}

// journalled reports whether what the opSequence does is part of an exactly-once
// execution.
func (b *opSequence) journalled() bool { return b != nil && b.e.journal != nil }

// Go runs f beside the rest of the execution that ctx belongs to. An execution
// that has to be deterministic may do several things at a time only in branches:
// each has a context of its own, whose calls are numbered apart. The order in
// which branches end is seen by [WaitAny] alone, which journals it.
//
// A handler's answer waits until its branches have ended. If f panics or ends its goroutine, the branch fails as [Internal].
// Outside of any execution Go is just a goroutine with a result.
func Go(ctx context.Context, f func(ctx context.Context) error) *Branch {
	parent := branchOf(ctx)
	b := &Branch{done: make(chan struct{})}
	if parent == nil {
		b.err = errGoexit
		go func() {
			defer close(b.done)
			b.err = f(ctx)
		}()
		return b
	}
	b.e = parent.e
	if b.err = parent.fork(b); b.err != nil {
		close(b.done)
		return b
	}
	b.e.promote() // the reader must not run a handler that waits for branches
	go b.run(context.WithValue(ctx, branchKey{}, &b.opSequence), f)
	return b
}

// fork numbers a new branch of b.
func (b *opSequence) fork(child *Branch) error {
	e := b.e
	if e.journal != nil {
		o, err := b.begin("rpc.Go")
		if err != nil {
			return err
		}
		child.number = endpoint.ChildBranch(b.number, o.at.index)
		o.end()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended || b.ended {
		return errEnded("rpc.Go")
	}
	if e.journal != nil && !e.journal.claim(child.number) {
		return e.journal.fail("rpc.Go", "two branches of the execution have number %#x; open them from the trunk", child.number)
	}
	if e.branches == nil {
		e.branches = new(sync.WaitGroup)
	}
	e.open++
	e.branches.Add(1)
	return nil
}

// run is the branch's goroutine.
func (b *Branch) run(ctx context.Context, f func(context.Context) error) {
	defer b.e.branches.Done()
	defer close(b.done)
	returned := false
	defer func() {
		if !returned {
			b.err = b.e.brokenBranch(recover())
		}
		if unknown := b.finishMemory(); unknown != nil && b.err == nil {
			b.err = unknown
		}
		b.e.mu.Lock()
		defer b.e.mu.Unlock()
		b.ended = true
		b.e.open--
	}()
	b.err = f(ctx)
	returned = true
}

// errGoexit is what a branch fails with that ends its goroutine.
var errGoexit = fault.New(Internal, "rpc.Go", "the branch %s", escape(nil))

// brokenBranch is the error of a branch that has panicked with a value, or, if that is nil, has ended its goroutine.
func (e *execution) brokenBranch(panicked any) error {
	why := "a branch " + escape(panicked)
	e.node.log.Error("rpc: branch is faulty", "execution", e.call.Call.String(), "why", why, "stack", string(debug.Stack()))
	if e.main != nil {
		return fault.New(Internal, "rpc.Go", "%s", why)
	}
	return e.export.internal(e, why)
}

// join waits until all branches have ended. The trunk can open no more meanwhile.
func (e *execution) join() {
	e.mu.Lock()
	e.trunk.ended = true
	branches := e.branches
	e.mu.Unlock()
	if branches != nil {
		branches.Wait()
	}
}

// Wait waits until the branch has ended and returns what its function returned.
// It may be called as often as one likes.
func (b *Branch) Wait() error {
	<-b.done
	return b.err
}

// operation is one step of an exactly-once execution: a call, a look at the
// clock.
type operation struct {
	b  *opSequence
	op string // for errors
	at position
	// known is what a former attempt has journalled for it, or nil.
	known       *trailer.Section
	fingerprint uint64 // of a call
	// expired is why a call is given up as soon as it is made: a former run has sent it, and its time is over.
	expired error
}

// begin begins an operation that makes journal entries of the types wanted. The
// branch must be journalled, and the operation be ended.
func (b *opSequence) begin(op string, wanted ...trailer.Type) (*operation, error) {
	at, err := b.next(op)
	if err != nil {
		return nil, err
	}
	o := &operation{b: b, op: op, at: at}
	known, diverged := b.e.journal.recall(op, at, wanted...)
	if diverged != nil {
		o.end()
		b.e.abandon()
		return nil, diverged
	}
	o.known = known
	return o, nil
}

// next finds the operation's place. Two at a time in one branch would have their
// places by chance.
func (b *opSequence) next(op string) (position, error) {
	e := b.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended || b.ended {
		return position{}, errEnded(op)
	}
	if b.busy {
		err := e.journal.fail(op, "two goroutines use one context of an exactly-once execution at a time: start them with rpc.Go")
		e.abandon()
		return position{}, err
	}
	b.busy = true
	b.index++
	return position{b.number, b.index}, nil
}

func (o *operation) end() {
	o.b.e.mu.Lock()
	defer o.b.e.mu.Unlock()
	o.b.busy = false
}

// record journals what came out of the operation, unless that is known.
func (o *operation) record(t trailer.Type, data []byte) {
	if o.known == nil {
		o.b.e.journal.add(t, o.at, data)
	}
}

// diverged fails the execution: the operation is not the one it was before.
func (o *operation) diverged(format string, args ...any) error {
	err := o.b.e.journal.fail(o.op, format, args...)
	o.b.e.abandon()
	return err
}

func errEnded(op string) error {
	return fault.New(BadRequest, op, "the handler or branch that was given this context has returned")
}

// WaitAny waits until one of the branches has ended or ctx ends. It returns the
// index of the one that has, with what its [Branch.Wait] returns; -1 if none has. Which one
// an execution sees first is journalled, so a re-run sees the same. A branch that
// has been seen is not taken off the list: that is up to the caller.
func WaitAny(ctx context.Context, branches ...*Branch) (int, error) {
	const op = "rpc.WaitAny"
	if len(branches) == 0 {
		return -1, fault.New(BadRequest, op, "no branches to wait for")
	}
	b := branchOf(ctx)
	if !b.journalled() {
		return anyOf(ctx, op, branches)
	}
	o, err := b.begin(op, trailer.Order, trailer.Outcome)
	if err != nil {
		return -1, err
	}
	defer o.end()
	if o.known != nil {
		return o.sameOf(branches)
	}
	b.e.promote()
	i, err := anyOf(ctx, op, branches)
	if i < 0 {
		failure := plain(op, err)
		o.record(trailer.Outcome, outcome{code: failure.Code, message: failure.Msg}.encode())
		return i, failure
	}
	o.record(trailer.Order, binary.BigEndian.AppendUint32(nil, branches[i].number))
	return i, err
}

// sameOf waits for the branch that was seen when the execution ran before.
func (o *operation) sameOf(branches []*Branch) (int, error) {
	if o.known.Type == trailer.Outcome {
		out, err := parseOutcome(o.known.Data)
		if err != nil {
			return -1, o.diverged("%v", err)
		}
		return -1, &Error{Code: out.code, Op: o.op, Msg: out.message}
	}
	if len(o.known.Data) != 4 {
		return -1, o.diverged("an order entry of %d bytes", len(o.known.Data))
	}
	number := binary.BigEndian.Uint32(o.known.Data)
	i := slices.IndexFunc(branches, func(b *Branch) bool { return b.number == number })
	if i < 0 {
		return -1, o.diverged("branch %d ended first when the execution ran before, and is not waited for now", number)
	}
	return i, branches[i].Wait()
}

// anyOf waits for whichever branch ends first.
func anyOf(ctx context.Context, op string, branches []*Branch) (int, error) {
	for i, b := range branches {
		select {
		case <-b.done:
			return i, b.err
		default:
		}
	}
	cases := make([]reflect.SelectCase, 0, len(branches)+1)
	for _, b := range branches {
		cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(b.done)})
	}
	cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(ctx.Done())})
	if i, _, _ := reflect.Select(cases); i < len(branches) {
		return i, branches[i].err
	}
	return -1, fault.FromContext(op, ctx.Err())
}

// Memory returns the node's client of the distributed memory, for a program that
// is no handler: its operations are on behalf of the node alone.
func (n *Node) Memory() *dsm.Client { return (*dsm.Client)(n.memory) }

// Memory returns the client of the distributed memory for a handler or one of its
// branches: its operations are on behalf of the execution that ctx belongs to, so
// that they can be undone and repeated with it. It panics if ctx is not a
// handler's, as an operation in a server that belongs to no call is a mistake in
// the program.
func Memory(ctx context.Context) *dsm.Client {
	b := branchOf(ctx)
	if b == nil {
		panic("rpc.Memory: the context is not one that a handler was given, nor derived from one")
	}
	return (*dsm.Client)(b.memory())
}

// memory makes the branch's client when it is first asked for, so that handlers
// which need none do not pay.
func (b *opSequence) memory() *dsmclient.Client {
	e := b.e
	e.promote() // memory takes its time
	e.mu.Lock()
	defer e.mu.Unlock()
	if b.client == nil {
		b.client = e.node.memory.With(b.scope(), e)
	}
	return b.client
}

// scope is on whose behalf the branch's memory operations are. Those of an
// execution that is not exactly-once are final at once: nobody will commit it.
func (b *opSequence) scope() dsmclient.Scope {
	e := b.e
	if e.journal == nil {
		return dsmclient.Scope{By: e.readsBy}
	}
	return dsmclient.Scope{
		Execution: e.inMemory(), Branch: uint64(e.main.lastCheckpoint())<<32 | uint64(b.number), By: e.readsBy,
	}
}

// lender tells by which use of a slot who calls has a region; nil if all are its own.
func (s *borrows) lender(b *opSequence) func(rpcpacket.Region) rpcpacket.Ref {
	switch {
	case b != nil && len(b.e.call.Lists) > 0:
		return b.e.lentBy
	case s.now.Load() != nil:
		return s.lease
	}
	return nil
}

// lentBy is the use of a slot in which the execution's call has lent it a region, or a standing lease of its node has; the zero Ref if neither has. A one-way hands its regions
// over.
func (e *execution) lentBy(r rpcpacket.Region) rpcpacket.Ref {
	i := slices.IndexFunc(e.call.Lists, func(l rpcpacket.List) bool { return slices.Contains(l.Of(), r) })
	if i < 0 || e.call.Type != rpcpacket.Call {
		return e.node.borrows.lease(r)
	}
	return rpcpacket.Ref{Slot: e.call.Slot + rpcpacket.Slot(i), Number: e.call.Number} //nolint:gosec // at most MaxLists
}

// readsBy is lentBy for a read.
func (e *execution) readsBy(p dsm.Pointer) dsmpacket.Use {
	by := e.lentBy(rpcpacket.RegionOf(p))
	return dsmpacket.Use{Slot: uint32(by.Slot), Number: uint64(by.Number)}
}

// pass makes regions ready to be passed on, by a method of the memory client: Lend, HandOver or PassOn.
func (n *Node) pass(ctx context.Context, ptrs []dsm.Pointer, by func(context.Context, ...dsm.Pointer) error) error {
	if len(ptrs) == 0 {
		return nil
	}
	if err := n.undoubted(ctx, ptrs); err != nil {
		return err
	}
	return by(ctx, ptrs...)
}

// finishTime bounds the wait for the fate of a branch's last memory operations. A
// blade that says nothing for so long has failed, and its regions with it.
const finishTime = 5 * time.Second

// finishMemory ends the branch's memory operations: after it none takes effect,
// so the execution can be committed.
func (b *opSequence) finishMemory() error {
	b.e.mu.Lock()
	client := b.client
	b.e.mu.Unlock()
	if client == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(b.e.node.life.base, finishTime)
	defer cancel()
	return client.Finish(ctx)
}

// GlobalPointer is a pointer as Thrift structs carry it. The rack lends or hands
// over the region that it points to when a call, or its answer, carries it.
func GlobalPointer(p dsm.Pointer) *bifrost.GlobalPointer {
	if p.IsNil() {
		return &bifrost.GlobalPointer{Address: []byte{}}
	}
	return &bifrost.GlobalPointer{Address: p[:]}
}

// PointerOf returns the pointer that a Thrift struct carries; nil for one that is
// absent or empty. What is no global pointer is refused as [BadRequest].
func PointerOf(g *bifrost.GlobalPointer) (dsm.Pointer, error) {
	if g == nil || len(g.Address) == 0 {
		return dsm.Pointer{}, nil
	}
	p, err := dsmpacket.FromBytes(g.Address)
	if err != nil {
		return p, &Error{Code: BadRequest, Op: "pointer", Err: err}
	}
	return p, nil
}
