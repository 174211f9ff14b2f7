package rpc

import (
	"context"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// What an exactly-once execution has changed in memory is committed when it is done, or taken back. A
// machine with one copy may be away then, and be back with what it had: its node tells it until it
// has obeyed. One that has begun anew obeys at once, since it has nothing of the execution. The
// answer waits for that, and so does what the execution owes:
//
//	done settled ─▶ commit at each machine ─▶ REPLY, one-ways ─▶ regions ─▶ over
//
// So it is with each checkpoint of a durable main, which goes on after the commit. If the node ends before that, its next
// incarnation goes on with the commit, and serves meanwhile. The machines give nobody what is in doubt.
//
// One-ways that executions and mains send are part of their commit: done, or the next checkpoint, has
// them whole, and they leave when it is settled (rpc/direct/oneways.go).
//
//	Client.Call ─▶ execution.oneways ── done, checkpoint ──▶ ledger, settled ─▶ ONEWAY to the receiver's node
//
// A one-way with pointers hands regions over: they become its receiver's as it passes the switch (regions.go). So an execution has
// what its one-ways hand over until its end. A durable main has it until its next checkpoint, and is over
// when its one-ways with pointers are delivered.

// commit is an execution that is done, or what a durable main did up to a checkpoint: what is to be done because of it.
type commit struct {
	run  control.Run // as memory machines know it
	owed record.Owed
	id   rpcpacket.ID
}

// commitOf is the commit that a done execution is.
func commitOf(d *record.Done) *commit {
	return &commit{
		run: control.Run{Execution: control.ExecutionID(d.Execution), Incarnation: d.Owed.Run}, owed: d.Owed, id: d.Execution,
	}
}

// checkpointOf is the commit that a durable main's checkpoint is. The run is one of those of the main
// in its incarnation.
func checkpointOf(r *record.Checkpoint, run uint64) *commit {
	return &commit{
		run: control.Run{Execution: control.ExecutionID(r.Memory), Incarnation: r.Owed.Run, Main: run, Checkpoint: r.Index}, owed: r.Owed, id: r.Main,
	}
}

// owed is a commit or rollback of what an earlier incarnation did. nil is none.
type owed struct {
	execution *record.Execution
	commit    *commit          // nil: it is to be taken back
	lent      []rpcpacket.ID   // calls that may be open in the switch: it is not taken back before they are over
	shared    bool             // standing leases of former incarnations, too
	service   uint64           // whose execution it is
	left      []dsmclient.Left // what it has allocated; written before obeyed is closed
	obeyed    chan struct{}    // closed when all machines have
}

// read reports whether others may read what is to be taken back.
func (o *owed) read() bool { return len(o.lent) > 0 || o.shared }

// over reports whether nothing is owed.
func (o *owed) over() bool {
	if o == nil {
		return true
	}
	select {
	case <-o.obeyed:
		return true
	default:
		return false
	}
}

// oweMemory finds out what earlier incarnations have left. Of what is to be committed nobody gets the
// answer yet.
func (n *Node) oweMemory(h *control.Holdings) {
	l := n.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	l.resumes.Resumption = l.table.Resume()
	n.questions.begin(h.Slots, l.table)
	n.left.all = n.regions.unaccounted(l.table.State(), h.Regions)
	bases := make([]dsm.Pointer, 0, len(h.Regions))
	for _, a := range h.Regions {
		bases = append(bases, a.As16())
	}
	n.memory.Received(bases...)
	l.resumes.memory = map[rpcpacket.ID]*owed{}
	for _, e := range l.resumes.Commit {
		l.settling[e.ID] = true
		o := &owed{execution: e, obeyed: make(chan struct{})}
		if e.Done != nil {
			o.commit, o.service = commitOf(e.Done), e.Done.Service
		} else {
			o.commit = checkpointOf(e.Checkpoint, math.MaxUint64) // no later run of that incarnation has changed anything
		}
		l.resumes.memory[e.ID] = o
	}
	for _, e := range l.resumes.Rollback {
		o := &owed{execution: e, lent: n.questions.unheardOf(e.Called, len(e.Machines) > 0), shared: h.Shared && len(e.Machines) > 0, obeyed: make(chan struct{})}
		if m, err := rpcpacket.Parse(e.Begun.Call); err == nil {
			o.service = m.Service
		}
		l.resumes.memory[e.ID] = o
	}
}

// settleOwed begins to have memory machines obey. Executions that have changed the same machines
// follow each other.
func (l lockedLedger) settleOwed() {
	lists := map[string][]*owed{}
	for _, e := range l.resumes.Commit {
		o := l.resumes.memory[e.ID]
		lists[string(o.commit.owed.Machines)] = append(lists[string(o.commit.owed.Machines)], o)
	}
	for _, e := range l.resumes.Rollback {
		o := l.resumes.memory[e.ID]
		if o.read() {
			go l.settleLent(o) // nothing else waits for it
			continue
		}
		lists[string(e.Machines)] = append(lists[string(e.Machines)], o)
	}
	for machines, list := range lists {
		go l.settleList([]byte(machines), list)
	}
}

// settleLent takes back what an execution did when nobody may read it any more.
func (l *ledger) settleLent(o *owed) {
	if l.node.questions.await(o.lent) && (!o.shared || l.node.awaitUnshared()) {
		l.settleList(o.execution.Machines, []*owed{o})
	}
}

func (l *ledger) settleList(machines []uint8, list []*owed) {
	n := l.node
	for _, o := range list {
		if o.commit == nil {
			var err error
			if o.left, err = n.regions.rollBack(n.life.base, n.formerRuns(o.execution.ID), machines); err != nil {
				n.cannotCommit(err)
				return
			}
		} else {
			if err := n.regions.commit(n.life.base, o.commit); err != nil {
				n.cannotCommit(err)
				return
			}
			b := l.lock()
			leave := b.committed(o.commit)
			b.unlock()
			n.oneways.send(leave)
		}
		close(o.obeyed)
	}
}

// committed goes on when memory has what was changed before a commit. It returns the one-ways that
// leave now.
func (l lockedLedger) committed(k *commit) (leave []record.Oneway) {
	l.add(l.table.Committed(k.id)...)
	l.freeDue()
	leave = l.mayLeave(k.id)
	delete(l.settling, k.id)
	return leave
}

// undoubted waits until what earlier incarnations did is taken back at the machines of regions that are
// passed on: others read them there. What has leases is read anyhow.
func (n *Node) undoubted(ctx context.Context, ptrs []dsm.Pointer) error {
	for _, o := range n.ledger.resumes.memory { // nobody changes it any more
		there := func(p dsm.Pointer) bool { return slices.Contains(o.execution.Machines, p.Machine()) }
		if o.commit != nil || o.read() || !slices.ContainsFunc(ptrs, there) {
			continue
		}
		if err := n.life.await(ctx, o.obeyed); err != nil {
			return err
		}
	}
	return nil
}

// settled waits until memory machines have obeyed what is owed of the service's executions: its next
// call may read what they have changed. An execution that has lent memory waits for that when it
// has its turn: its callees may wait for the service.
func (x *export) settled(ctx context.Context) error {
	l := x.node.ledger
	for _, o := range l.resumes.memory { // nobody changes it any more
		if o.service != x.hash || o.read() {
			continue
		}
		if err := l.node.life.await(ctx, o.obeyed); err != nil {
			return err
		}
	}
	return nil
}

// commit has the memory machines commit what an execution has changed. It is done, or has made a checkpoint, and the
// ledger says so.
func (r *regions) commit(ctx context.Context, k *commit) error {
	for _, m := range k.owed.Machines {
		if err := r.memory.Commit(ctx, m, k.run); err != nil {
			return err
		}
	}
	if len(k.owed.Machines) > 0 {
		r.stats.committed.Add(1)
	}
	return nil
}

// cannotCommit ends the node, unless it has ended, since a memory machine refuses its word: only a
// machine that takes the node for fenced does that. The next incarnation settles what this one has
// written.
func (n *Node) cannotCommit(why error) {
	if n.life.base.Err() == nil {
		n.resign(&Error{Code: Unavailable, Op: "node " + n.self.Name, Msg: "commit an execution", Err: why})
	}
}

// formerRuns are the runs of a call's execution in earlier incarnations.
func (n *Node) formerRuns(id rpcpacket.ID) control.Run {
	return control.Run{Execution: control.ExecutionID(id), Incarnation: n.self.Incarnation - 1}
}

// rollBack has memory machines take back what a run of an execution did, and those before it. A copy
// of the request that comes late changes nothing: it names no later run. rollBack returns what the runs have allocated.
func (r *regions) rollBack(ctx context.Context, run control.Run, machines []uint8) (left []dsmclient.Left, err error) {
	for _, m := range machines {
		some, err := r.memory.Rollback(ctx, m, run)
		if err != nil {
			return nil, err
		}
		left = append(left, some...)
	}
	r.stats.rolledBack.Add(1)
	return left, nil
}

// commitPatience is how long an execution keeps its worker while its memory is committed. A
// service without state goes on then.
const commitPatience = time.Second

// tell sends the answer to a direct call when the ledger has it as the record last, and memory has
// what the execution changed.
func (l *ledger) tell(e *execution, d *record.Done, last uint64) {
	n := l.node
	settled := l.settle(last)
	if !settled || len(d.Owed.Machines) == 0 {
		l.answer(e, d, settled)
		return
	}
	k := commitOf(d)
	if e.export.manager != nil {
		l.answer(e, d, l.commit(n.life.base, k))
		return
	}
	short, cancel := context.WithTimeout(n.life.base, commitPatience)
	defer cancel()
	if err := n.regions.commit(short, k); err == nil {
		l.answer(e, d, true)
	} else {
		go func() { l.answer(e, d, l.commit(n.life.base, k)) }() // a machine is away
	}
}

// commit commits what an execution has changed, and ends the node if that fails: the next incarnation then commits, and
// answers.
func (l *ledger) commit(ctx context.Context, k *commit) bool {
	err := l.node.regions.commit(ctx, k)
	if err != nil {
		l.node.cannotCommit(err)
	}
	return err == nil
}

// answer sends the answer to a direct call, if that is settled.
func (l *ledger) answer(e *execution, d *record.Done, settled bool) {
	answer := d.Answer
	var leave []record.Oneway
	b := l.lock()
	if settled {
		leave = b.committed(commitOf(d))
		if known := l.table.State().Execution(d.Execution); known != nil {
			answer = known.Done.Answer
		}
	} else {
		delete(l.settling, d.Execution)
	}
	l.node.reports.end(e, codeIn(d.Answer))
	b.unlock()
	if e.resumed {
		l.freeLeft()
	}
	l.node.oneways.send(leave)
	if settled && !e.told {
		l.node.large.sendRecorded(e.from, answer, l.node.large.pushTo(e.from.Addr()))
	}
}

// maxOwing is how many bytes of one-ways an execution sends at most: they are in one record.
const maxOwing = 32 << 20

// owe keeps a one-way until its execution is done. It is for the node that takes calls of the method now.
func (c *client) owe(o *operation, p *pending, to netip.Addr, m *method, codec *codec, h rpcpacket.Header, id rpcpacket.ID) error {
	e := o.b.e
	h.Call = id
	size := codec.size()
	e.mu.Lock()
	e.owing += size
	all := e.owing
	e.mu.Unlock()
	if all > maxOwing || !e.reserveOneway(size+len(c.service)+len(m.name)) {
		return c.node.noRoom(m.op, "no room for a one-way of %d bytes: the node's ledger needs room for it, and an execution sends %d bytes of one-ways at most", size, maxOwing)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.oneways = append(e.oneways, record.Oneway{
		ID: id, Node: to.As16(), Service: []byte(c.service), Method: []byte(m.name), Message: slices.Clone(codec.datagram(&h)),
	})
	e.gives(codec.pointers)
	p.kept = true
	return nil
}

// reserveOneway has room promised for a one-way, which is in the outcome of the execution. It waits for a
// while, and reports whether there is room.
func (e *execution) reserveOneway(size int) bool {
	l := e.node.ledger
	bytes := l.cost(size + recordSize)
	if !l.reserve(e, bytes) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e.promise.end += min(bytes, e.promise.left) // less if the execution is done meanwhile
	return true
}

// putInPlace gives the one-ways of a commit that is about to be written their place among those of the
// node.
func (l lockedLedger) putInPlace(all []record.Oneway) {
	place := l.table.Place()
	for i := range all {
		all[i].Place = place
	}
}

// mayLeave returns the one-ways that leave now that an execution's may.
func (l lockedLedger) mayLeave(id rpcpacket.ID) []record.Oneway {
	l.table.Leave(id)
	return l.table.Next()
}

// awaitTaken waits until nothing of a durable main is handed over any more: it is over when others have what it gave them.
func (l *ledger) awaitTaken(ctx context.Context, main rpcpacket.ID) error {
	l.mu.Lock()
	if !l.table.Hands(main) {
		l.mu.Unlock()
		return nil
	}
	taken := make(chan struct{})
	if l.hands == nil {
		l.hands = map[rpcpacket.ID]chan struct{}{}
	}
	l.hands[main] = taken
	l.mu.Unlock()
	return l.node.life.await(ctx, taken)
}

// tookAll lets the durable mains go on whose regions have been taken.
func (l lockedLedger) tookAll() {
	for main, taken := range l.hands {
		if !l.table.Hands(main) {
			close(taken)
			delete(l.hands, main)
		}
	}
}

// A direct one-way is acknowledged when the receiver's ledger has it, so that its sender need not
// wait for its turn: the receiver writes begun when it accepts the one-way, not when it must.
//
//	sender ── ONEWAY ──▶ accepted ── begun ──▶ ledger
//	sender ◀── REPLY ──────── settled ◀──────────┘       copies are answered alike
//
// One that is refused before that is answered with an exception, which gives its regions back as it passes the switch.

// beginOneway writes down that a direct one-way has begun, which it may not have yet, and then
// acknowledges it; not if it has ended meanwhile, or is run again. The reply is the acknowledgement.
func (x *export) beginOneway(e *execution, reply []byte) {
	e.mu.Lock()
	if e.recorded.begun {
		e.mu.Unlock()
		return
	}
	_, e.told = e.tryWrite(record.Call{})
	told := e.told
	e.mu.Unlock()
	if told {
		x.node.ledger.whenSettled(func() { x.node.ports.send(e.from, reply) })
	}
}
