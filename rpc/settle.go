package rpc

import (
	"context"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// What a direct execution has changed in memory is committed when it is done, or taken back. A
// machine with one copy may be away then, and be back with what it had: its node tells it until it
// has obeyed. One that has begun anew obeys at once, since it has nothing of the execution. The
// answer waits for that, and so does what the execution owes:
//
//	done settled ─▶ commit at each machine ─▶ REPLY, one-ways ─▶ regions ─▶ over
//
// The node's next incarnation goes on with it. It serves meanwhile. The machines give nobody what
// is in doubt.

// owed is a commit or rollback of what an earlier incarnation did. nil is none.
type owed struct {
	execution *record.Execution
	done      *record.Done          // that is to be committed; nil to be taken back
	lent      []control.ExecutionID // calls that may have leases still: it is not taken back before they end
	service   uint64                // whose execution it is
	obeyed    chan struct{}         // closed when all machines have
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
	if !n.goesDirect() {
		return
	}
	l := n.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	l.resumes.Resumption = l.table.Resume()
	l.resumes.memory = map[rpcpacket.ID]*owed{}
	for _, e := range l.resumes.Commit {
		l.settling[e.ID] = true
		l.resumes.memory[e.ID] = &owed{execution: e, done: e.Done, service: e.Done.Service, obeyed: make(chan struct{})}
	}
	for _, e := range l.resumes.Rollback {
		o := &owed{execution: e, lent: lentBy(e), obeyed: make(chan struct{})}
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
		lists[string(o.done.Owed.Machines)] = append(lists[string(o.done.Owed.Machines)], o)
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
		if o.done == nil {
			if err := n.rollBack(n.base, o.execution.ID, machines); err != nil {
				n.cannotCommit(err)
				return
			}
		} else {
			if err := n.commitRun(n.base, o.done); err != nil {
				n.cannotCommit(err)
				return
			}
			l.mu.Lock()
			leave := l.committed(o.done)
			l.mu.Unlock()
			n.sendOneways(leave)
		}
		close(o.obeyed)
	}
}

// committed goes on when memory has what a done execution has changed. It returns the one-ways that
// leave now. What the Gatekeeper is not told of regions here tellLater tells. The caller holds l.mu.
func (l *ledger) committed(d *record.Done) (leave []record.Oneway) {
	l.add(l.table.Committed(d.Execution)...)
	l.tellLater()
	leave = l.mayLeave(d.Execution)
	delete(l.settling, d.Execution)
	if d.Owed.Told() && !d.Owed.Later && !d.Owed.Hands() {
		l.tellRegions(d)
	}
	return leave
}

// undoubted waits until what earlier incarnations did is taken back at the machines of regions that are
// passed on: others read them there. What has leases is read anyhow.
func (n *Node) undoubted(ctx context.Context, ptrs []dsm.Pointer) error {
	if !n.goesDirect() {
		return nil
	}
	for _, o := range n.ledger.resumes.memory { // nobody changes it any more
		there := func(p dsm.Pointer) bool { return slices.Contains(o.execution.Machines, p.Machine()) }
		if o.done != nil || len(o.lent) > 0 || !slices.ContainsFunc(ptrs, there) {
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
	if !x.inLedger() {
		return nil
	}
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

// commitRun has the memory machines commit what an execution has changed. It is done, and the
// ledger says so.
func (n *Node) commitRun(ctx context.Context, d *record.Done) error {
	for _, m := range d.Owed.Machines {
		if err := n.memory.Commit(ctx, m, d.Execution, d.Owed.Run); err != nil {
			return err
		}
	}
	n.stats.committed.Add(1)
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

// rollBack has memory machines take back what earlier incarnations did for an execution. A copy
// of the request that comes late changes nothing: it names no later incarnation.
func (n *Node) rollBack(ctx context.Context, id rpcpacket.ID, machines []uint8) error {
	for _, m := range machines {
		if err := n.memory.Rollback(ctx, m, id, n.self.Incarnation-1); err != nil {
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
	if e.export.manager != nil {
		l.answer(e, d, l.commit(n.base, d))
		return
	}
	short, cancel := context.WithTimeout(n.base, commitPatience)
	defer cancel()
	if err := n.commitRun(short, d); err == nil {
		l.answer(e, d, true)
	} else {
		go func() { l.answer(e, d, l.commit(n.base, d)) }() // a machine is away
	}
}

// commit is commitRun, and ends the node if that fails: the next incarnation then commits, and
// answers.
func (l *ledger) commit(ctx context.Context, d *record.Done) bool {
	err := l.node.commitRun(ctx, d)
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
		leave = l.committed(d)
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
