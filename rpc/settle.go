package rpc

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/rpc/direct"
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
// So it is with each checkpoint of a durable main, which goes on after the commit. The node's next incarnation goes on with it. It serves meanwhile. The machines give nobody what
// is in doubt.

// owed is a commit or rollback of what an earlier incarnation did. nil is none.
type owed struct {
	execution *record.Execution
	commit    *commit               // nil: it is to be taken back
	lent      []control.ExecutionID // calls that may have leases still: it is not taken back before they end
	service   uint64                // whose execution it is
	obeyed    chan struct{}         // closed when all machines have
}

// commit is an execution that is done, or what a durable main did up to a checkpoint: what is to be done because of it.
type commit struct {
	run          control.Run // as memory machines know it
	owed         record.Owed
	id           rpcpacket.ID
	lane, number uint64 // of the call
	gaveUp       []direct.Item
}

// commitOf is the commit that a done execution is.
func commitOf(d *record.Done) *commit {
	return &commit{
		run: control.Run{Execution: control.ExecutionID(d.Execution), Incarnation: d.Owed.Run}, owed: d.Owed, id: d.Execution, lane: d.Lane, number: d.Number,
	}
}

// checkpointOf is the commit that a durable main's checkpoint is. The run is one of those of the main
// in its incarnation.
func checkpointOf(r *record.Checkpoint, run uint64) *commit {
	return &commit{
		run: control.Run{Execution: control.ExecutionID(r.Memory), Incarnation: r.Owed.Run, Main: run, Checkpoint: r.Index}, owed: r.Owed, id: r.Main,
	}
}

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

// await waits for the end of what earlier incarnations have left.
func (l *ledger) await(ctx context.Context, over <-chan struct{}) error {
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-l.node.base.Done():
		return l.node.whyEnded()
	}
}

// oweMemory finds out what earlier incarnations have left. Of what is to be committed nobody gets the
// answer yet.
func (n *Node) oweMemory() {
	l := n.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	if n.heir == nil {
		l.resumes.Resumption = l.table.Resume()
	} else {
		l.resumes.Resumption = l.table.Inherit()
	}
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
		o := &owed{execution: e, lent: lentBy(e.Called, len(e.Machines) > 0), obeyed: make(chan struct{})}
		if m, err := rpcpacket.Parse(e.Begun.Call); err == nil {
			o.service = m.Service
		}
		l.resumes.memory[e.ID] = o
	}
}

// settleOwed begins to have memory machines obey. Executions that have changed the same machines
// follow each other. The caller holds l.mu.
func (l *ledger) settleOwed() {
	lists := map[string][]*owed{}
	for _, e := range l.resumes.Commit {
		o := l.resumes.memory[e.ID]
		lists[string(o.commit.owed.Machines)] = append(lists[string(o.commit.owed.Machines)], o)
	}
	for _, e := range l.resumes.Rollback {
		o := l.resumes.memory[e.ID]
		if len(o.lent) > 0 {
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
	if l.node.awaitLoans(o.lent) {
		l.settleList(o.execution.Machines, []*owed{o})
	}
}

func (l *ledger) settleList(machines []uint8, list []*owed) {
	n := l.node
	for _, o := range list {
		if o.commit == nil {
			if err := n.rollBack(n.base, n.formerRuns(o.execution.ID), machines); err != nil {
				n.cannotCommit(err)
				return
			}
		} else {
			if err := n.commitRun(n.base, o.commit); err != nil {
				n.cannotCommit(err)
				return
			}
			l.mu.Lock()
			leave := l.committed(o.commit)
			l.mu.Unlock()
			n.sendOneways(leave)
		}
		close(o.obeyed)
	}
}

// committed goes on when memory has what was changed before a commit. It returns the one-ways that
// leave now. What the Gatekeeper is not told of regions here tellLater tells. The caller holds l.mu.
func (l *ledger) committed(k *commit) (leave []record.Oneway) {
	l.add(l.table.Committed(k.id)...)
	l.tellLater()
	leave = l.mayLeave(k.id)
	delete(l.settling, k.id)
	if k.owed.Told() && !k.owed.Later && (k.run.Main != 0 || !k.owed.Hands()) { // no region of a main goes unless it says so
		l.tellRegions(k)
	}
	return leave
}

// undoubted waits until what earlier incarnations did is taken back at the machines of regions that are
// passed on: others read them there. What has leases is read anyhow.
func (n *Node) undoubted(ctx context.Context, ptrs []dsm.Pointer) error {
	for _, o := range n.ledger.resumes.memory { // nobody changes it any more
		there := func(p dsm.Pointer) bool { return slices.Contains(o.execution.Machines, p.Machine()) }
		if o.commit != nil || len(o.lent) > 0 || !slices.ContainsFunc(ptrs, there) {
			continue
		}
		if err := n.ledger.await(ctx, o.obeyed); err != nil {
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
		if o.service != x.hash || len(o.lent) > 0 {
			continue
		}
		if err := l.await(ctx, o.obeyed); err != nil {
			return err
		}
	}
	return nil
}

// commitRun has the memory machines commit what an execution has changed. It is done, or has made a checkpoint, and the
// ledger says so.
func (n *Node) commitRun(ctx context.Context, k *commit) error {
	for _, m := range k.owed.Machines {
		if err := n.memory.Commit(ctx, m, k.run); err != nil {
			return err
		}
	}
	if len(k.owed.Machines) > 0 {
		n.stats.committed.Add(1)
	}
	return nil
}

// cannotCommit ends the node, unless it has ended, since a memory machine refuses its word: only a
// machine that takes the node for fenced does that. The next incarnation settles what this one has
// written.
func (n *Node) cannotCommit(why error) {
	if n.base.Err() == nil {
		n.resign(&Error{Code: Unavailable, Op: "node " + n.self.Name, Msg: "commit an execution", Err: why})
	}
}

// formerRuns are the runs of a call's execution in earlier incarnations.
func (n *Node) formerRuns(id rpcpacket.ID) control.Run {
	return control.Run{Execution: control.ExecutionID(id), Incarnation: n.self.Incarnation - 1}
}

// rollBack has memory machines take back what a run of an execution did, and those before it. A copy
// of the request that comes late changes nothing: it names no later run.
func (n *Node) rollBack(ctx context.Context, run control.Run, machines []uint8) error {
	for _, m := range machines {
		if err := n.memory.Rollback(ctx, m, run); err != nil {
			return err
		}
	}
	n.stats.rolledBack.Add(1)
	return nil
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
		l.answer(e, d, l.commit(n.base, k))
		return
	}
	short, cancel := context.WithTimeout(n.base, commitPatience)
	defer cancel()
	if err := n.commitRun(short, k); err == nil {
		l.answer(e, d, true)
	} else {
		go func() { l.answer(e, d, l.commit(n.base, k)) }() // a machine is away
	}
}

// commit is commitRun, and ends the node if that fails: the next incarnation then commits, and
// answers.
func (l *ledger) commit(ctx context.Context, k *commit) bool {
	err := l.node.commitRun(ctx, k)
	if err != nil {
		l.node.cannotCommit(err)
	}
	return err == nil
}

// answer sends the answer to a direct call, if that is settled.
func (l *ledger) answer(e *execution, d *record.Done, settled bool) {
	answer := d.Answer
	var leave []record.Oneway
	l.mu.Lock()
	if settled {
		leave = l.committed(commitOf(d))
		if known := l.table.State().Execution(d.Execution); known != nil {
			answer = answerOf(known)
		}
	} else {
		delete(l.settling, d.Execution)
	}
	l.ended(e, codeIn(d.Answer))
	l.mu.Unlock()
	l.node.sendOneways(leave)
	if settled && !e.told {
		l.node.sendRecorded(e.from, answer, serviceHash(e.from.Addr()))
	}
}
