package rpc

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/direct"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// A durable main has its checkpoints and its journal in its node's ledger. The Gatekeeper says who may run it, and
// hears when it is over.
//
//	begin ──▶ Gatekeeper
//	journal ─▶ ledger       before a call, and before an effect
//	one-way ─▶ kept until the next checkpoint, which has it
//	memory ──▶ ledger       before the first change of a machine since the last checkpoint
//	checkpoint ─▶ ledger ─settled─▶ memory commits ─▶ Checkpoint returns; one-ways leave; callees forget the calls
//	                                                 before it; the regions go that the run is done with
//	at its end: checkpoint, ended ─▶ ledger ─settled─▶ memory commits ─▶ one-ways with pointers are taken
//	                                                 ─▶ "it is over" ─▶ Gatekeeper
//
// If the ledger has no room for what it does, its run ends, after a while, as no space: the next run goes on from the
// last checkpoint. What a run changed in memory after that is taken back before the next one begins.

// main is what a durable main has beside an execution.
type main struct {
	epoch  atomic.Uint32 // index of the last checkpoint
	begun  atomic.Bool   // there was a checkpoint since the program began
	key    endpoint.Key  // what its calls are named with
	memory rpcpacket.ID  // what memory blades know it as
	run    uint64        // which of its runs this is
	has    [][16]byte
}

// lastCheckpoint is 0 for what is no main.
func (m *main) lastCheckpoint() uint32 {
	if m == nil {
		return 0
	}
	return m.epoch.Load()
}

// Main runs a durable main: an execution that no call has begun, and that goes on
// when its program is started again after a crash. f gets the state of the last
// Checkpoint, nil if there is none, and repeats what came after it: exactly-once
// calls find their answers, and [Now], [Random], [Effect], [WaitAny] and calls
// of [PolicyNone] give what they gave. The name must be unique in the rack, and one
// Main of it run at a time.
//
// Checkpoints are kept in the ledger of the main's node. If all copies of the memory are lost that has the ledger, Main
// fails as [Unavailable]. A main needs the Gatekeeper only at its start and its end, as long as it neither allocates
// memory nor passes pointers.
//
// When f returns nil, the main is over: all that it did is committed, and Main returns nil.
// The program may crash before it knows that. Then the first Main of this name in the
// program's next start returns nil without a call of f, so a crash at the very end repeats
// nothing. Any other Main of this name is a new run, and begins without a state. On another
// node such a new run fails as [BadRequest] until the node of the finished main has left the
// rack or is gone for good.
//
// When f returns an error, so does Main, and the next Main goes on from the last
// checkpoint. When f panics or ends its goroutine, so does Main, and the next Main goes on from there, too. When the ledger has no room for what f does, and
// nothing is forgotten for two seconds, that and all
// that f does then fails as [NoSpace], and so does Main, unless f returns another error. A re-run that does something else than before fails as [Nondeterminism].
// When ctx ends, the run of the main ends: what f learns of that is not kept for the next run, and
// what f does then fails with the context's error.
func Main(ctx context.Context, node *Node, name string, f func(ctx context.Context, state []byte) error) error {
	op := "main " + name
	if err := node.mains.claim(op, name); err != nil {
		return err
	}
	defer node.mains.unclaim(name)
	if err := node.ledger.awaitPlace(ctx, op); err != nil {
		return err
	}
	if err := node.claimID(op, endpoint.MainID(name)); err != nil {
		return err
	}
	was, err := node.session.BeginMain(ctx, control.BeginMain{Name: name})
	if err != nil {
		return coded(op, err)
	}
	e := &execution{node: node, main: &main{key: was.Key, memory: rpcpacket.ID(was.Memory), run: was.Run}, resumed: true}
	e.call.Call, e.trunk.e = endpoint.MainID(name), e
	if was.Over {
		return nil
	}
	past, err := e.past(ctx, was.Index)
	if err != nil {
		return err
	}
	if past.ended {
		return e.isOver(ctx, op, past.index)
	}
	e.trunk.index = past.index
	e.main.epoch.Store(past.index)
	if e.journal, err = newJournal(past.journal, node.life); err != nil {
		return &Error{Code: Internal, Op: op, Msg: "malformed journal", Err: err}
	}
	defer e.keepSent()
	defer e.leaveRoom()
	return e.runMain(ctx, op, past.state, f)
}

// known is what the node's ledger has of a main.
func (e *execution) known() (k record.Execution, last record.Checkpoint) {
	l := e.node.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	if is := l.table.State().Execution(e.call.Call); is != nil {
		k = *is
	}
	if k.Checkpoint != nil {
		last = *k.Checkpoint
	}
	return k, last
}

// mainPast is what a durable main goes on from.
type mainPast struct {
	ended   bool // it has come to its end, and the Gatekeeper does not know that
	index   uint32
	state   []byte
	journal []byte
}

// past is what the node's ledger has of a main, whose last run that is over ended with an index. Memory then has what the
// main did up to its last checkpoint, and nothing else.
func (e *execution) past(ctx context.Context, over uint32) (p mainPast, err error) {
	n := e.node
	known, last := e.known()
	if err := e.settleFormer(ctx, &known, last.Index); err != nil {
		return p, err
	}
	e.recorded = recorded{begun: true, called: slices.Clone(known.Called), sent: n.mains.takeSent(e.call.Call)}
	for _, k := range known.Called {
		if k.Direct() {
			e.recorded.opens(k.ID)
		}
	}
	p.index = over
	switch {
	case last.Index > over && last.Ended:
		p.ended, p.index = true, last.Index
		return p, nil
	case last.Index < over: // the last run was at another node
		e.writeCheckpoint(over, nil, false)
	case last.Index > over:
		p.state, p.index, e.main.has = slices.Concat([]byte{}, last.State), last.Index, last.Has
		fallthrough
	default:
		p.journal = known.Journal
		e.recorded.machines = slices.Clone(known.Machines)
	}
	e.resumed = len(e.recorded.machines) > 0
	return p, nil
}

// settleFormer waits until memory machines have what former runs of a main did up to its last checkpoint, and until
// they have taken back the rest. The calls that have lent it have ended: the Gatekeeper has said that this run may begin.
func (e *execution) settleFormer(ctx context.Context, known *record.Execution, checkpoint uint32) error {
	n := e.node
	if o := n.ledger.resumes.memory[e.call.Call]; !o.over() {
		if err := n.life.await(ctx, o.obeyed); err != nil {
			return coded("main", err)
		}
	}
	for _, k := range known.Called {
		q := n.questions.of[k.ID]
		if q == nil || len(known.Machines) == 0 && k.Direct() {
			continue
		}
		if err := n.life.await(ctx, q.over); err != nil {
			return coded("main", err)
		}
	}
	if len(known.Machines) == 0 {
		return nil
	}
	run := e.run()
	run.Main, run.Checkpoint = run.Main-1, checkpoint // up to here; this run may be taken back, too
	left, err := n.regions.rollBack(ctx, run, known.Machines)
	switch {
	case err == nil:
		e.finds(left)
		return nil
	case ctx.Err() != nil:
		return coded("main", err)
	}
	n.cannotCommit(err)
	return n.life.whyEnded()
}

// keepSent keeps for the node's next run of a main in which call slots this one has sent calls: copies of
// them may be on their way when that has them forgotten.
func (e *execution) keepSent() {
	e.mu.Lock()
	sent := e.recorded.sent
	e.mu.Unlock()
	if len(sent) > 0 {
		e.node.mains.keepSent(e.call.Call, sent)
	}
}

// leaveRoom gives back what is reserved in the ledger for one-ways that no checkpoint has: the main's next run sends
// them again.
func (e *execution) leaveRoom() {
	l := e.node.ledger.lock()
	defer l.unlock()
	l.release(e)
}

// runMain runs f as the trunk of e.
func (e *execution) runMain(ctx context.Context, op string, state []byte, f func(context.Context, []byte) error) error {
	running, cancel := context.WithCancel(context.WithValue(ctx, branchKey{}, &e.trunk))
	defer cancel()
	defer context.AfterFunc(e.node.life.base, cancel)()
	e.life.cancel = cancel
	e.journal.within = ctx
	returned := false
	defer func() {
		if !returned { // it panics, or ends its goroutine: so it goes on in the caller's
			e.join()
			_ = e.trunk.finishMemory()
			e.end()
		}
	}()
	err := f(running, state)
	returned = true
	e.join()
	if full := e.journal.ended(); err == nil && full != nil {
		err = full
	}
	if err != nil || ctx.Err() != nil {
		_ = e.trunk.finishMemory() // what it changes after that, its next run would be charged with
	}
	e.mu.Lock()
	e.trunk.ended = false // for the last checkpoint
	e.mu.Unlock()
	if err == nil && ctx.Err() == nil {
		if diverged := e.journal.close(OK); diverged == nil {
			err = e.checkpoint(running, &e.trunk, true, nil)
		}
	}
	e.end()
	if diverged := e.journal.failure(); diverged != nil {
		return &Error{Code: Nondeterminism, Op: op, Msg: messageOf(diverged)}
	}
	if err != nil {
		return err
	}
	return ctx.Err()
}

// Checkpoint makes a state the one from which a durable main goes on after a
// crash, and commits all that it has done so far: its one-ways leave, what it has
// freed is reclaimed. It returns when the ledger has it, and when all memory that the main has changed has committed. Only the main's own context
// will do, and no branches may be open. The state has the limit that [State] names: a larger one is refused as NoSpace, and the main may go on
// from the former one. On any other error the state may or may not be the new one.
func Checkpoint(ctx context.Context, state []byte) error {
	const op = "checkpoint"
	b := branchOf(ctx)
	if b == nil || b.e.main == nil {
		return fault.New(BadRequest, op, "the context is not a durable main's")
	}
	return b.e.checkpoint(ctx, b, false, state)
}

// checkpoint makes a checkpoint, the last one if the main has ended, and waits until it is settled
// in the ledger and, of the last one, until the Gatekeeper knows that the main is over.
func (e *execution) checkpoint(ctx context.Context, b *opSequence, ended bool, state []byte) error {
	const op = "checkpoint"
	e.mu.Lock()
	open := e.open
	e.mu.Unlock()
	if open > 0 {
		return fault.New(BadRequest, op, "%d branches have not ended: wait for them first", open)
	}
	o, err := b.begin(op)
	if err != nil {
		return err
	}
	defer o.end()
	if e.trunk.client != nil {
		if err := e.trunk.client.Settle(ctx); err != nil {
			return coded(op, err)
		}
	}
	if err := e.recordCheckpoint(o, ended, state); err != nil {
		return err
	}
	if ended {
		if err := e.isOver(ctx, op, o.at.index); err != nil {
			return err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.main.epoch.Store(o.at.index)
	e.main.begun.Store(true)
	e.trunk.client = nil
	return nil
}

// recordCheckpoint has the ledger keep a checkpoint, and memory commit what the main has changed.
func (e *execution) recordCheckpoint(o *operation, ended bool, state []byte) error {
	n := e.node
	limit, err := n.ledger.limitOf(e)
	if err != nil {
		return err
	}
	if len(state) > limit {
		return tooLarge(o.op, "main", len(state), limit)
	}
	if !e.mayCheckpoint(len(state)) {
		e.hasNoRoom(fmt.Sprintf("for a checkpoint of %d bytes and the one-ways before it", len(state)))
		return e.whyEnded()
	}
	e.journal.begin() // the checkpoint stands for what there is
	r, last := e.writeCheckpoint(o.at.index, slices.Clone(state), ended)
	k := checkpointOf(r, e.main.run)
	if !n.ledger.settle(last) || !n.ledger.commit(n.life.base, k) {
		return n.life.whyEnded()
	}
	b := n.ledger.lock()
	leave := b.committed(k)
	n.reports.newRoom() // its states may have another size
	b.unlock()
	n.oneways.send(leave)
	n.stats.checkpoints.Add(1)
	return nil
}

// mayCheckpoint waits for room for a checkpoint whose state has so many bytes. Its one-ways have room already.
func (e *execution) mayCheckpoint(state int) bool {
	l := e.node.ledger
	e.mu.Lock()
	rest := recordSize + e.owing + calledSize*len(e.recorded.called)
	e.mu.Unlock()
	l.mu.Lock()
	missing := l.cost(rest) - e.promise.left
	l.mu.Unlock()
	return (missing <= 0 || l.reserve(e, missing)) && (state == 0 || l.awaitState(e, state, state))
}

// writeCheckpoint has the callees forget the calls before a checkpoint. The main's one-ways are in its record, and leave
// when that is settled and memory has committed. It returns the record and its number.
func (e *execution) writeCheckpoint(index uint32, state []byte, ended bool) (r *record.Checkpoint, last uint64) {
	r = &record.Checkpoint{Main: e.call.Call, Index: index, State: state, Ended: ended, Memory: e.main.memory}
	e.mu.Lock()
	sent := e.recorded.sent
	r.Owed = record.Owed{Called: e.recorded.leaves(), Oneways: e.oneways}
	e.owedOfMemory(r)
	e.recorded = recorded{begun: true, last: e.recorded.last}
	e.account, e.resumed = account{promised: e.account.promised}, false
	e.oneways, e.owing = nil, 0
	e.mu.Unlock()
	l := e.node.ledger.lock()
	defer l.unlock()
	r.Owed.Called = append(l.table.Owing(e.call.Call), r.Owed.Called...)
	r.Owed.Frees = append(slices.Clone(l.table.Unfreed(e.call.Call)), r.Owed.Frees...)
	l.putInPlace(r.Owed.Oneways)
	folds := e.promise.folds
	l.release(e)
	last = l.write(folds, r)
	for _, i := range sent {
		l.table.Sent(i)
	}
	return r, last
}

// owedOfMemory fills in what a main owes because of what it has done to memory since its last checkpoint, and which regions it has. Those go when it has
// ended. The caller holds e.mu.
func (e *execution) owedOfMemory(r *record.Checkpoint) {
	o, a := &r.Owed, &e.account
	o.Machines = slices.Clone(e.recorded.machines)
	if len(o.Machines) > 0 {
		o.Run = e.node.self.Incarnation
	}
	for _, p := range a.freed {
		o.Frees = append(o.Frees, p)
	}
	has := slices.Clone(e.main.has)
	for _, p := range slices.Concat(a.allocated, a.got) {
		has = append(has, p)
	}
	has = slices.DeleteFunc(has, func(p [16]byte) bool { return slices.Contains(a.freed, p) || slices.Contains(a.handed, p) })
	if r.Has = has; r.Ended {
		r.Has, o.Frees = nil, append(o.Frees, has...)
	}
	e.main.has = r.Has
}

// isOver tells the Gatekeeper that a main is over, whose end is in the ledger, when others have what its one-ways hand
// over. It waits until that is logged.
func (e *execution) isOver(ctx context.Context, op string, index uint32) error {
	n := e.node
	if err := n.ledger.awaitTaken(ctx, e.call.Call); err != nil {
		return coded(op, err)
	}
	err := n.session.Calls(ctx, control.NodeCalls{Main: &control.EndedMain{Execution: control.ExecutionID(e.call.Call), Index: index}})
	switch {
	case err == nil:
		return nil
	case n.life.base.Err() != nil:
		return n.life.whyEnded()
	}
	return coded(op, err)
}

// leastMainRoom is how many bytes are kept for a durable main's next checkpoint before it makes a call or an effect, or changes memory.
const leastMainRoom = 16 << 10

// claimID has the node take no call with the id of a main. A call of a stranger that has it would make the ledger
// one that cannot be read.
func (n *Node) claimID(op string, id rpcpacket.ID) error {
	l := n.ledger.lock()
	defer l.unlock()
	r, free := l.table.Claim(id)
	if r != nil {
		l.add(r)
	}
	if !free {
		return fault.New(Unavailable, op, "a call that runs here has the main's id: begin the main when the call has ended")
	}
	return nil
}

// mains are the durable mains of a node.
type mains struct {
	life    *lifetime
	mu      sync.Mutex
	running map[string]bool // by name
	// sent are the direct calls of mains that run no more, and have not come to a
	// checkpoint since.
	sent map[rpcpacket.ID][]direct.Item
}

// claim keeps a main's name for one run.
func (m *mains) claim(op, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.life.failure(); err != nil {
		return err
	}
	if m.running[name] {
		return fault.New(BadRequest, op, "a main of this name runs on this node already")
	}
	m.running[name] = true
	return nil
}

func (m *mains) unclaim(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.running, name)
}

// takeSent returns, once, what a main has sent that runs again.
func (m *mains) takeSent(main rpcpacket.ID) []direct.Item {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer delete(m.sent, main)
	return m.sent[main]
}

// keepSent keeps what a main has sent that runs no more.
func (m *mains) keepSent(main rpcpacket.ID, all []direct.Item) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sent[main] = all
}
