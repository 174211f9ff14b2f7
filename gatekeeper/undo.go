package gatekeeper

import (
	"bytes"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/gatekeeper/execution"
	"github.com/bifrost-rack/bifrost/gatekeeper/lease"
	"github.com/bifrost-rack/bifrost/internal/control"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
)

// What executions do to memory is kept or taken back by the memory blades, all of
// those in service, on our word (dsm/memory/store). One command with many
// executions is out to a blade at a time; what comes up meanwhile goes with the
// next.
//
//	commit(E), rollback(E) ─▶ errand ─▶ each blade's queue ─▶ command ─▶ answered, or the blade has failed
//	                                                                        └─ by all ─▶ then

// undoErrand is a run of an execution that blades are to commit or roll back.
type undoErrand struct {
	run     control.Run
	waiting int // blades that have not answered
	then    func()
}

// undoQueue is what one blade is to commit, or to roll back.
type undoQueue struct {
	kind  control.Kind
	queue []*undoErrand
	out   int // of the queue, how many are in the command that is out
}

// runOf names a run as memory blades know it.
func runOf(r execution.Run) control.Run {
	return control.Run{Execution: control.ExecutionID(r.Execution), Node: r.At.Address, Incarnation: r.At.Incarnation, Main: r.Main, Checkpoint: r.Checkpoint}
}

// commit makes the memory blades keep what a run of an execution did, and then goes on.
func (c *controller) commit(run execution.Run) {
	id := run.Execution
	c.trace(TraceCommitting, id, c.whereabouts(id), 0)
	then := func() {
		c.freeDeferred(id, true, func() {
			c.execute(c.table.Committed(id))
			if at, over := c.table.Over(id); over {
				c.endHoldings(id, at, false)
			} else if run.Checkpoint != 0 {
				c.endOrigins(id, run.Checkpoint)
			}
		})
	}
	if c.changedNothing(id) {
		then()
		return
	}
	c.missSettling(control.KindCommit, runOf(run))
	c.settleMemory(runOf(run), func(b *blade) *undoQueue { return &b.commits }, then)
}

// changedNothing reports whether an execution that has ended cannot have changed any
// memory: it is a call's, and its node has never had control of a region. (The
// runtime knows what became of all its requests when it answers, so each allocation's
// answer has come by here.)
func (c *controller) changedNothing(id rpc.ID) bool {
	v, call := c.table.View(id)
	return call && !c.couldWrite(v.Callee.Address)
}

// rollback makes the memory blades take back what runs of an execution did, and then
// goes on.
func (c *controller) rollback(run execution.Run) {
	id := run.Execution
	c.count.Rollbacks++
	c.missSettling(control.KindRollback, runOf(run))
	c.trace(TraceRollingBack, id, c.whereabouts(id), 0)
	c.settleMemory(runOf(run), func(b *blade) *undoQueue { return &b.rollbacks }, func() {
		c.freeDeferred(id, false, func() {
			c.takeBack(id, func() {
				c.exactEvent(ExecutionRolledBack, id, 0, nil)
				c.trace(TraceRolledBack, id, c.whereabouts(id), 0)
				c.execute(c.table.RolledBack(id))
			})
		})
	})
}

// settleMemory queues an errand with all memory blades in service.
func (c *controller) settleMemory(run control.Run, queue func(*blade) *undoQueue, then func()) {
	e := &undoErrand{run: run, then: then}
	for _, b := range c.servers {
		q := queue(b)
		q.queue = append(q.queue, e)
		e.waiting++
	}
	if e.waiting == 0 {
		then()
		return
	}
	for _, b := range c.servers {
		c.askUndo(b, queue(b))
	}
}

// askUndo gives a blade its next command, if none is out.
func (c *controller) askUndo(b *blade, q *undoQueue) {
	if q.out > 0 || len(q.queue) == 0 || !b.alive() {
		return
	}
	q.out = min(len(q.queue), control.MaxExecutions)
	runs := make([]control.Run, q.out)
	for i, e := range q.queue[:q.out] {
		runs[i] = e.run
	}
	c.command(b, q.kind, undoBody(b, q.kind, runs), func(m control.Message) {
		c.settledRuns(b, m)
		c.undone(b, q)
	})
}

// undoBody is a command of the kind for a blade's present start.
func undoBody(b *blade, kind control.Kind, runs []control.Run) any {
	if kind == control.KindRollback {
		return control.Rollback{Boot: b.hello.Boot, Runs: runs}
	}
	return control.Commit{Boot: b.hello.Boot, Runs: runs}
}

// undone takes a blade's answer.
func (c *controller) undone(b *blade, q *undoQueue) {
	done := q.queue[:q.out]
	q.queue, q.out = q.queue[q.out:], 0
	if len(q.queue) == 0 {
		q.queue = nil
	}
	c.askUndo(b, q)
	for _, e := range done {
		e.answered()
	}
}

func (e *undoErrand) answered() {
	if e.waiting--; e.waiting == 0 {
		e.then()
	}
}

// excuse waits no longer for a memory blade that has failed or begun anew: what it
// had of executions is gone, or is settled when it is back.
func (c *controller) excuse(b *blade) {
	waiting := []undoQueue{b.commits, b.rollbacks}
	b.commits, b.rollbacks = newUndoQueues()
	for _, o := range b.commands {
		if f, ok := o.body.(control.Fence); ok {
			b.missed.fence(f)
		}
	}
	b.commands = nil
	for _, q := range waiting {
		for _, e := range q.queue {
			if _, call := c.table.View(rpc.ID(e.run.Execution)); !call || q.kind == control.KindRollback {
				b.missed.settle(q.kind, e.run)
			}
		}
	}
	c.keepMissed(b)
	for _, q := range waiting {
		for _, e := range q.queue {
			e.answered()
		}
	}
}

func newUndoQueues() (commits, rollbacks undoQueue) {
	return undoQueue{kind: control.KindCommit}, undoQueue{kind: control.KindRollback}
}

// mayWrite notes that a node has, or is about to have, control of a region.
func (c *controller) mayWrite(a netip.Addr) {
	if n := c.nodeOrFallen(a); n != nil {
		n.writes = true
	}
}

// couldWrite reports whether a node has had control of a region.
func (c *controller) couldWrite(a netip.Addr) bool {
	n := c.nodeOrFallen(a)
	return n == nil || n.writes
}

func (c *controller) nodeOrFallen(a netip.Addr) *node {
	if n := c.nodes[a]; n != nil {
		return n
	}
	return c.fallen[a]
}

// deferFree notes that a memory blade has marked a region to be freed when an
// execution commits.
func (c *controller) deferFree(id rpc.ID, r packet.Region) {
	c.deferred[id] = appendRegion(c.deferred[id], r)
}

// freeDeferred ends the frees of an execution that was committed or rolled back:
// the regions go with their last rules, or get their rules back. Then it goes on.
func (c *controller) freeDeferred(id rpc.ID, gone bool, then func()) {
	regions := c.deferred[id]
	delete(c.deferred, id)
	if !gone {
		for p, f := range c.frees { // also those whose answer has not come
			if f.execution == id {
				if r, ok := c.leases.Find(p); ok && r.Freeing {
					regions = appendRegion(regions, r.Region)
				}
			}
		}
		slices.SortFunc(regions, func(a, b packet.Region) int { return bytes.Compare(a.Base[:], b.Base[:]) })
	}
	left := len(regions)
	if left == 0 {
		then()
		return
	}
	for _, r := range regions {
		delete(c.frees, r.Base)
		c.submit(lease.Freed{Region: r, OK: gone}, verdict(func(s lease.Step, _ error) {
			if s.Outcome == lease.Done && gone {
				c.count.Frees++
				c.event(Event{Kind: RegionFreed, Region: r.String()})
			}
			if left--; left == 0 {
				then()
			}
		}))
	}
}

func appendRegion(all []packet.Region, r packet.Region) []packet.Region {
	if slices.Contains(all, r) {
		return all
	}
	return append(all, r)
}
