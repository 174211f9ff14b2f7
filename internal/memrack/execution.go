package memrack

import (
	"slices"
	"sync"

	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/internal/control"
)

// Execution is an execution of a node, with what the node's ledger would have of it.
type Execution struct {
	ID [16]byte

	mu        sync.Mutex
	machines  []uint8 // that some run has changed
	allocated []dsmclient.Pointer
	freed     []dsmclient.Pointer
	left      []dsmclient.Left // by former runs
}

var _ dsmclient.Decider = (*Execution)(nil)

// Changes implements dsmclient.Decider.
func (e *Execution) Changes(machine uint8) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.Contains(e.machines, machine) {
		e.machines = append(e.machines, machine)
	}
	return nil
}

// Former implements dsmclient.Decider.
func (e *Execution) Former(branch uint64, index uint32) (base dsmclient.Pointer, had bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	i := slices.IndexFunc(e.left, func(l dsmclient.Left) bool { return l.Branch == branch && l.Index == index })
	if i < 0 {
		return base, false, nil
	}
	return e.left[i].Base, true, nil
}

// Allocated implements dsmclient.Decider.
func (e *Execution) Allocated(_ uint64, _ uint32, base dsmclient.Pointer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.allocated = append(e.allocated, base)
}

// HasAllocated implements dsmclient.Decider.
func (e *Execution) HasAllocated(p dsmclient.Pointer) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Contains(e.allocated, p.Base())
}

// Free implements dsmclient.Decider.
func (e *Execution) Free(p dsmclient.Pointer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.freed = append(e.freed, p)
}

// Freed implements dsmclient.Decider.
func (e *Execution) Freed(p dsmclient.Pointer) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Contains(e.freed, p.Bare())
}

// run is the execution's run by an incarnation of its node.
func (e *Execution) run(incarnation uint32) control.Run {
	return control.Run{Execution: e.ID, Incarnation: incarnation}
}

// Commit does what a node does when an execution of its present incarnation is done, and what the Gatekeeper
// does then with the regions that the execution has freed.
func (r *Rack) Commit(c *dsmclient.Client, incarnation uint32, e *Execution) {
	r.T.Helper()
	for _, machine := range e.machines {
		r.must(c.Commit(r.Ctx, machine, e.run(incarnation)))
	}
	for _, p := range e.freed {
		m := r.Memories[p.Machine()-1]
		list, err := m.Regions(control.Regions{From: p.ID(), Max: 1})
		r.must(err)
		answer, err := m.Reclaim(control.Reclaim{Regions: list.Regions})
		if r.must(err); len(list.Regions) != 1 || list.Regions[0].ID != p.ID() || len(answer.Refused) > 0 {
			r.T.Errorf("free %s: %+v, %+v", p, list, answer)
		}
	}
}

// Rollback does what a node's next incarnation does with an execution that is not done: it can run again
// after that.
func (r *Rack) Rollback(c *dsmclient.Client, former uint32, e *Execution) {
	r.T.Helper()
	e.allocated, e.freed, e.left = nil, nil, nil
	for _, machine := range e.machines {
		left, err := c.Rollback(r.Ctx, machine, e.run(former))
		r.must(err)
		e.left = append(e.left, left...)
	}
}
