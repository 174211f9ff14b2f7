package rpc

import (
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/direct"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// What executions and durable mains do to memory is decided by their node. Before the first change
// on a machine its ledger names the machine (journal), so that the next incarnation takes the change
// back there before it does anything else. At the end done is settled, then the machines
// commit. Regions that the execution frees go after that; so do those that it has got and nobody
// can know any more. The record done names them (owedOfRegions):
//
//	alloc, write ─▶ ... ─▶ done settled ─▶ committed ─▶ REPLY
//	free: noted                                     └─▶ FREE, until it is acknowledged ─▶ over
//
// A call with pointers lends its callee memory: the switch notes that as the call passes, and ends it as the answer
// passes (docs/rights.md). The account of the node (dsmclient) has what it owns and lends:
//
//	CALL  ──switch: lent──▶ callee: reads, lends on
//	REPLY ──switch: not lent any more; the results are the caller's──▶ caller
//
// The first packet of a call that exceeds a packet lists all of its regions. The callee asks the caller for the rest (large.go).
//
// A one-way with pointers hands its receiver memory in the same way: as it passes, the regions become the receiver's. What
// comes back is the acknowledgement (commit.go), or an exception, which gives them back.
//
// An execution that has lent memory is not taken back before its calls are closed in the switch: their callees may
// be reading. The next incarnation of its node asks them (questions.go).
//
// The same holds if an execution lends memory to a call of policy none. The ledger has the call's slot and number before the call
// leaves. The execution's next run makes another call, which has an id of its own. What the first one lends keeps the run
// from writing, so it waits until that call is closed, also if it has nothing to take back.

var _ dsmclient.Decider = (*execution)(nil)

// regions are those that messages name, at the memory client, which has the node's account of them.
type regions struct {
	memory *dsmclient.Client
	stats  *counters
}

// account is what an execution has done with regions, by the pointers to their first bytes; e.mu guards it.
type account struct {
	allocated []dsm.Pointer         // and has not freed
	got       []dsm.Pointer         // by answers and as a one-way, and has not freed
	freed     []dsm.Pointer         // goes at its end
	handed    []dsm.Pointer         // by one-ways
	promised  int                   // for how many regions the record of its end has room
	left      map[place]dsm.Pointer // what former runs have allocated, and this one has not asked for
}

// place names an allocation of an execution, as memory machines do (dsmclient.Scope).
type place struct {
	branch uint64
	index  uint32
}

// inMemory is what memory machines know the execution as.
func (e *execution) inMemory() rpcpacket.ID {
	if e.main != nil {
		return e.main.memory
	}
	return e.call.Call
}

// run is this run of the execution, as memory machines know it; of a durable main, after its last checkpoint.
func (e *execution) run() control.Run {
	r := control.Run{Execution: control.ExecutionID(e.inMemory()), Incarnation: e.node.self.Incarnation}
	if e.main != nil {
		r.Main, r.Checkpoint = e.main.run, e.main.lastCheckpoint()
	}
	return r
}

// takenBack waits until memory machines have taken back what former runs of an execution have done.
// It reports false if the node ends.
func (e *execution) takenBack() bool {
	if !e.resumed {
		return true
	}
	l := e.node.ledger
	owed := l.resumes.memory[e.call.Call]
	if owed == nil {
		return true
	}
	if !owed.over() {
		e.promote()
		if e.node.life.await(e.node.life.base, owed.obeyed) != nil {
			return false
		}
	}
	e.finds(owed.left)
	return true
}

// finds notes what is left of former runs.
func (e *execution) finds(left []dsmclient.Left) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.account.left = make(map[place]dsm.Pointer, len(left))
	for _, r := range left {
		e.account.left[place{r.Branch, r.Index}] = r.Base
		e.node.left.accounts(r.Base)
	}
}

// Changes implements dsmclient.Decider.
func (e *execution) Changes(machine uint8) error {
	if !e.durableAt(machine) {
		return e.whyEnded()
	}
	return nil
}

// durableAt is durable for the first write to a memory machine.
func (e *execution) durableAt(machine uint8) bool {
	if !e.roomForRegion() {
		return false
	}
	e.mu.Lock()
	known := slices.Contains(e.recorded.machines, machine)
	e.mu.Unlock()
	if known {
		return true
	}
	e.promote()
	e.mu.Lock()
	foreseen := slices.Contains(e.recorded.foreseen, machine)
	e.mu.Unlock()
	if !foreseen && !e.writeDown(record.Call{}, machine) {
		return false
	}
	e.mu.Lock()
	last := e.recorded.last
	e.mu.Unlock()
	if !e.node.ledger.settle(last) {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.Contains(e.recorded.machines, machine) {
		e.recorded.machines = append(e.recorded.machines, machine)
	}
	return true
}

// foresee adds to the ledger that the execution will change the memory machines that the method's last
// call has changed: when it does, the ledger has that already. On a machine that it does not change
// after all there is nothing to take back; one of a single copy may be away then, so it is not foretold.
func (e *execution) foresee() {
	if e.resumed || e.journal == nil {
		return
	}
	machines := e.served.changes.Load()
	if machines == nil || !mirrored(e.node.session.Rack().Memories, *machines) {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, written := e.tryWrite(record.Call{}, *machines...); written {
		e.recorded.foreseen = *machines
	}
}

// mirrored reports whether each of some memory machines has two copies.
func mirrored(all []control.MemoryBlade, machines []uint8) bool {
	return !slices.ContainsFunc(machines, func(machine uint8) bool {
		return !slices.ContainsFunc(all, func(m control.MemoryBlade) bool { return m.Machine == machine && m.Copies > 1 })
	})
}

// hasChanged notes for the method's next call which machines the execution has changed.
func (m *served) hasChanged(machines []uint8) {
	switch last := m.changes.Load(); {
	case last == nil && len(machines) == 0 || last != nil && slices.Equal(*last, machines):
	case len(machines) == 0:
		m.changes.Store(nil)
	default:
		m.changes.Store(&machines)
	}
}

// Former implements dsmclient.Decider. What a former run has got, and no memory machine has any more, is lost if the journal has it: else
// nobody knows it.
func (e *execution) Former(branch uint64, index uint32) (base dsm.Pointer, had bool, err error) {
	e.mu.Lock()
	base, had = e.account.left[place{branch, index}]
	e.mu.Unlock()
	if !had && e.journal.hasAllocated(position{uint32(branch), index}) { //nolint:gosec // the upper half is the last checkpoint
		err = fault.New(Unavailable, "alloc", "a former run of the execution has got a region which is lost")
	}
	return base, had, err
}

// Allocated implements dsmclient.Decider.
func (e *execution) Allocated(branch uint64, index uint32, base dsm.Pointer) {
	e.journal.allocated(position{uint32(branch), index}, slices.Clone(base[:])) //nolint:gosec // likewise
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.account.left, place{branch, index})
	e.account.allocated = append(e.account.allocated, base)
	e.node.left.accounts(base)
	e.node.stats.regionsAllocated.Add(1)
}

// HasAllocated implements dsmclient.Decider.
func (e *execution) HasAllocated(p dsm.Pointer) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Contains(e.account.allocated, p.Base())
}

// Free implements dsmclient.Decider.
func (e *execution) Free(p dsm.Pointer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	freed := func(o dsm.Pointer) bool { return o == p.Base() }
	e.account.allocated = slices.DeleteFunc(e.account.allocated, freed)
	e.account.got = slices.DeleteFunc(e.account.got, freed)
	e.account.freed = append(e.account.freed, p.Base())
	e.node.stats.regionsFreed.Add(1)
}

// Freed implements dsmclient.Decider.
func (e *execution) Freed(p dsm.Pointer) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Contains(e.account.freed, p.Base()) || slices.Contains(e.account.handed, p.Base())
}

// gives notes that a one-way hands regions over when the execution has ended. The caller holds e.mu.
func (e *execution) gives(all []dsm.Pointer) {
	for _, p := range all {
		e.account.handed = append(e.account.handed, p.Base())
	}
}

// has reports whether a region is in the execution's account.
func (e *execution) has(p dsm.Pointer) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Contains(e.account.allocated, p) || slices.Contains(e.account.got, p)
}

// owedOfRegions fills in which regions go because the execution is done: those that it has freed, and those that it has got, unless its
// service has state, which may know them. What its answer hands over goes when nobody asks for that any more, if it has not been
// handed over by then. What a former run has allocated, and this one has not asked for, goes with the commit of memory. The caller holds e.mu.
func (e *execution) owedOfRegions(o *record.Owed, answer []dsm.Pointer) {
	a := &e.account
	for _, p := range a.freed {
		o.Frees = append(o.Frees, p)
	}
	if e.export.config.stateful() && !e.spoilt && e.processed {
		return
	}
	for _, p := range slices.Concat(a.allocated, a.got) {
		switch {
		case slices.Contains(answer, p):
			o.Rest = append(o.Rest, p)
		case !slices.Contains(a.handed, p):
			o.Frees = append(o.Frees, p)
		}
	}
}

// regionSize is how many bytes a region takes in the record of an execution's end.
const regionSize = 17

// roomForRegion waits for room for one region more in the record of the execution's end. It reports false if there is none, and the run of the execution has ended,
// or if the node has.
func (e *execution) roomForRegion() bool {
	l, a := e.node.ledger, &e.account
	e.mu.Lock()
	n := len(a.allocated) + len(a.got) + len(a.freed) + 1
	if e.main != nil {
		n += len(e.main.has)
	}
	more := 0
	if n > a.promised+fewRegions {
		more = max(n, 2*a.promised) - a.promised
	}
	a.promised += more
	e.mu.Unlock()
	if more == 0 {
		return true
	}
	bytes := l.cost(regionSize * more)
	if !e.needsRoom(bytes, "for the regions that it has") {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e.promise.end += min(bytes, e.promise.left)
	return true
}

// fewRegions is for how many regions there is room in any outcome.
const fewRegions = 4

// frees are the regions that are to be freed. The ledger's mutex guards them.
type frees struct {
	waiting []direct.Free
	due     time.Duration // when that begins, in node time
	freeing bool          // others are being freed
}

const (
	// freesAfter is how long regions that go are gathered: nobody waits for that.
	freesAfter = 20 * time.Millisecond
	// freesAgain is how long the node waits until it asks again for what could not be freed.
	freesAgain = 250 * time.Millisecond
)

// free has regions freed.
func (l lockedLedger) free(all ...direct.Free) {
	if len(all) == 0 {
		return
	}
	if len(l.frees.waiting) == 0 && !l.frees.freeing {
		l.frees.due = l.node.pulse.now() + freesAfter
		l.node.pulse.wakeAt(l.frees.due)
	}
	l.frees.waiting = append(l.frees.waiting, all...)
}

// freeDue has those regions freed that are to go now.
func (l lockedLedger) freeDue() {
	l.free(l.table.Frees()...)
	if l.table.Owes() {
		l.forgets.hurry(l.node)
	}
}

// tickFrees has freed what is due, and returns when it has to be called next.
func (n *Node) tickFrees(now time.Duration) (next time.Duration, ok bool) {
	l := n.ledger.lock()
	defer l.unlock()
	f := &l.frees
	if f.freeing || len(f.waiting) == 0 {
		return 0, false
	}
	if now < f.due {
		return f.due, true
	}
	all := f.waiting
	f.waiting, f.freeing = nil, true
	running := n.reports.all()
	for i := range all {
		if all[i].Rest && l.handsOver(all[i].Owner) {
			all[i].Regions = nil
		}
	}
	go func() {
		for i := range all {
			if all[i].Rest { // what an execution has got again stays
				all[i].Regions = slices.DeleteFunc(slices.Clone(all[i].Regions), func(p [16]byte) bool {
					return slices.ContainsFunc(running, func(e *execution) bool { return e.has(p) })
				})
			}
		}
		left := n.regions.free(n.life.base, all)
		l := n.ledger.lock()
		defer l.unlock()
		f.freeing = false
		f.due = n.pulse.now() + freesAfter
		if len(left) > 0 { // the next incarnation frees them, if the node ends
			f.waiting, f.due = append(left, f.waiting...), n.pulse.now()+freesAgain
		}
		for i := range all {
			if !slices.ContainsFunc(left, all[i].Same) {
				if k, heard := l.heard[all[i].Owner]; heard && all[i].Heard {
					delete(l.heard, k.ID)
					n.out.unhold(k.Slot, k.Number, int(k.Slots))
				}
				if all[i].Rest {
					delete(l.denied, all[i].Owner)
				}
				l.add(l.table.Freed(&all[i])...)
			}
		}
		if len(f.waiting) > 0 {
			n.pulse.wakeAt(f.due)
		}
	}()
	return 0, false
}

// results are the pointers in an answer.
func (r *regions) results(answer []byte) []dsm.Pointer {
	m, err := rpcpacket.Parse(answer)
	if err != nil || m.Type != rpcpacket.Reply {
		return nil
	}
	return r.of(&m)
}

// of are those to the regions that a message names.
func (r *regions) of(m *rpcpacket.Message) []dsm.Pointer {
	if len(m.Lists) == 0 {
		return nil
	}
	return m.Bases(r.memory.Prefix())
}

// gains notes that a call is answered, now or when a former run made it, and has handed regions over to the execution that has made it.
func (o *operation) gains(p *pending) {
	e := o.b.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if p.of != nil {
		e.recorded.answered(p.ID)
	}
	if p.err == nil && len(p.answer.Lists) > 0 {
		got := e.node.regions.of(&p.answer)
		e.account.got = append(e.account.got, got...)
		e.node.left.accounts(got...)
		l := e.node.ledger
		l.mu.Lock()
		delete(l.brought, p.ID)
		l.mu.Unlock()
	}
}
