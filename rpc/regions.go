package rpc

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/rpc/record"
)

// What executions of direct calls do to memory is decided by their node. Before the first change
// on a machine its ledger names the machine (journal), so that the next incarnation takes the change
// back there before it does anything else. At the end done is settled, then the machines
// commit. Regions that the execution frees go after that, by the word of the Gatekeeper,
// which knows who may do what with them; so do those that it has allocated and nobody
// can know any more:
//
//	alloc, write ─▶ ... ─▶ done settled ─▶ committed ─▶ REPLY
//	free: noted                                     └─▶ Gatekeeper: these regions go ─▶ over

var _ dsmclient.Decider = (*execution)(nil)

// account is what an execution has done with regions while its node decided about it; e.mu guards
// it.
type account struct {
	allocated []dsmpacket.Region // and has not freed
	freed     []dsmpacket.Region // Class 0 if it is not known how large it is
	ever      bool               // it has allocated some, or freed some
	over      bool               // the Gatekeeper decides by now
}

// decider is who decides about what the execution does to memory.
func (e *execution) decider() dsmclient.Decider {
	if e.main != nil {
		return ofMain{e}
	}
	return e
}

// ofMain hands a durable main over before it changes memory: the Gatekeeper has the machines commit
// what it has done up to each checkpoint.
type ofMain struct{ *execution }

// Direct implements dsmclient.Decider.
func (ofMain) Direct() bool { return false }

// Changes implements dsmclient.Decider.
func (m ofMain) Changes(dsmpacket.Op, uint8) (direct bool, err error) { return false, m.enlist() }

// takenBack has memory machines take back what former runs of an execution have done, unless that
// is done before the node does anything: calls of a direct one have had leases then; one that had
// been handed over to the Gatekeeper after that is not known to have been taken back. It
// reports false if the node ends.
func (e *execution) takenBack() bool {
	if !e.resumed || len(e.recorded.machines) == 0 || e.direct.Load() && !e.node.ledger.waitsForLoans(e.call.Call) {
		return true
	}
	e.promote()
	if !e.node.awaitLoans(e.call.Call) {
		return false
	}
	err := e.node.rollBack(e.node.base, e.call.Call, e.recorded.machines)
	if err != nil {
		e.node.cannotCommit(err)
	}
	return err == nil
}

// Direct implements dsmclient.Decider.
func (e *execution) Direct() bool { return e.direct.Load() }

// Changes implements dsmclient.Decider. An execution of a direct call stays direct while it changes
// machines with two copies. (A machine with one copy may be away, and come back with what the
// execution did: the Gatekeeper then tells it what became of that.)
func (e *execution) Changes(_ dsmpacket.Op, machine uint8) (direct bool, err error) {
	if !e.direct.Load() {
		return false, nil
	}
	if e.node.copies(machine) < 2 {
		return false, e.enlist()
	}
	if !e.durableAt(machine) {
		return false, e.node.whyEnded()
	}
	return e.direct.Load(), nil
}

// copies is how many copies a memory machine has: as its last answer to this node has said, or the
// Gatekeeper.
func (n *Node) copies(machine uint8) int {
	if known := n.memory.Copies(machine); known > 0 {
		return known
	}
	memories := n.session.Rack().Memories
	i := slices.IndexFunc(memories, func(m control.MemoryBlade) bool { return m.Machine == machine })
	if i < 0 {
		return 0
	}
	return memories[i].Copies
}

// Changed implements dsmclient.Decider.
func (e *execution) Changed(machine uint8) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Contains(e.recorded.machines, machine)
}

// Allocated implements dsmclient.Decider.
func (e *execution) Allocated(r dsmpacket.Region) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.account.ever = true
	e.account.allocated = append(e.account.allocated, r)
	e.node.stats.allocated.Add(1)
}

// Allocation implements dsmclient.Decider.
func (e *execution) Allocation(p dsm.Pointer) (dsmpacket.Region, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return regionIn(e.account.allocated, p)
}

// Free implements dsmclient.Decider.
func (e *execution) Free(ctx context.Context, p dsm.Pointer) error {
	if e.noteFree(p) {
		return e.node.memory.FreeFor(ctx, e.call.Call, p)
	}
	return nil
}

// noteFree notes that a region goes at the end of the execution. It reports true if the execution
// has been handed over meanwhile.
func (e *execution) noteFree(p dsm.Pointer) (handed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.account.over {
		return true
	}
	r, own := regionIn(e.account.allocated, p)
	if own {
		e.account.allocated = slices.DeleteFunc(e.account.allocated, func(o dsmpacket.Region) bool { return o == r })
	} else {
		r = dsmpacket.Region{Base: p}
	}
	e.account.ever = true
	e.account.freed = append(e.account.freed, r)
	e.node.stats.freed.Add(1)
	return false
}

// Freed implements dsmclient.Decider.
func (e *execution) Freed(p dsm.Pointer) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, freed := regionIn(e.account.freed, p)
	return freed
}

// regionIn finds the region that a pointer points into.
func regionIn(all []dsmpacket.Region, p dsm.Pointer) (dsmpacket.Region, bool) {
	i := slices.IndexFunc(all, func(r dsmpacket.Region) bool { return r.Contains(p.Bare()) })
	if i < 0 {
		return dsmpacket.Region{}, false
	}
	return all[i], true
}

// owedOfRegions fills in what is owed because of regions. A run before this one may have
// allocated some whose pointers it never saw. The caller holds e.mu.
func (e *execution) owedOfRegions(o *record.Owed) {
	for _, r := range e.account.freed {
		o.Frees = append(o.Frees, r.Base)
	}
	switch may := e.account.ever || e.resumed && len(e.recorded.machines) > 0; {
	case !may:
	case e.export.config.stateful():
		o.Regions = record.RegionsKept
	default:
		o.Regions = record.RegionsFreed
	}
}

// freeNow has memory machines free, when the Gatekeeper commits the execution, what was to be freed
// at its end: it has been handed over.
func (e *execution) freeNow() error {
	e.mu.Lock()
	freed := e.account.freed
	e.account = account{over: true}
	e.mu.Unlock()
	for _, r := range freed {
		if err := e.node.memory.FreeFor(e.node.base, e.call.Call, r.Base); err != nil {
			return err
		}
	}
	return nil
}

// tellRegions tells the Gatekeeper what becomes of the regions of an execution that is done, until
// it knows.
func (l *ledger) tellRegions(d *record.Done) {
	n := l.node
	for {
		err := n.tellEnded(d)
		if err == nil {
			break
		}
		if n.base.Err() != nil {
			return // the next incarnation tells it
		}
		n.log.Debug("rpc: the Gatekeeper does not know yet what becomes of regions", "node", n.self.Name, "err", err)
		select {
		case <-time.After(regionsAgain):
		case <-n.base.Done():
			return
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(l.table.Told(d.Execution)...)
}

// regionsAgain is how long the node waits until it tells the Gatekeeper again.
const regionsAgain = 250 * time.Millisecond

func (n *Node) tellEnded(d *record.Done) error {
	frees := make([]netip.Addr, len(d.Owed.Frees))
	for i, p := range d.Owed.Frees {
		frees[i] = dsm.Pointer(p).Addr()
	}
	for {
		some := frees[:min(len(frees), control.MaxEndedRegions)]
		frees = frees[len(some):]
		r := control.EndedRegions{
			Execution: control.ExecutionID(d.Execution), Frees: some,
			Ended: len(frees) == 0 && d.Owed.Regions != record.RegionsNone, Kept: d.Owed.Regions == record.RegionsKept,
		}
		if err := n.session.Calls(n.base, control.NodeCalls{Regions: []control.EndedRegions{r}}); err != nil || len(frees) == 0 {
			return err
		}
	}
}
