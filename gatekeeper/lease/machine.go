package lease

import (
	"slices"

	"github.com/google/btree"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
)

// Machine is the state of all regions and of all calls that carry some or may
// hand some over.
type Machine struct {
	regions map[dsmpacket.Pointer]*region // by their first byte
	order   *btree.BTreeG[*region]        // the same by address, for people to page through
	calls   map[CallID]*call              // held calls that have not ended
	nodes   map[Node]*node
	lost    map[uint8]uint32 // by memory machine: up to this generation, its regions are lost

	bytes map[uint8]uint64 // by memory machine: how many its regions have

	handled map[key]bool    // events that wait, are parked, or are in transition
	pending int             // how many, those without a key included
	parked  int             // how many of them are replies that wait for nested calls
	moving  map[uint64]*job // transitions in progress
	lastID  uint64
	ready   []*job
	steps   []Step // being collected for the caller
}

// call is a call from its CALL to its reply.
type call struct {
	id             CallID
	caller, callee Node
	leases         []*leased
	// under is the call whose lease this one passes on; nested counts those that
	// pass on this one's.
	under  *call
	nested int
	// parked is the reply, while it waits for the nested calls to end.
	parked *job
	// replied tells that a reply was submitted.
	replied bool
}

// node is a node that is there, with indexes of what it has a part in.
type node struct {
	controls map[*region]struct{}
	calls    map[*call]struct{} // as caller or callee
}

// New returns a Machine that knows no node and no region.
func New() *Machine {
	return &Machine{
		regions: map[dsmpacket.Pointer]*region{}, order: btree.NewG(32, before), calls: map[CallID]*call{}, nodes: map[Node]*node{}, lost: map[uint8]uint32{},
		handled: map[key]bool{}, moving: map[uint64]*job{}, bytes: map[uint8]uint64{},
	}
}

// AddNode makes a node known; events of unknown nodes are refused.
func (m *Machine) AddNode(n Node) {
	if m.nodes[n] == nil && n.IsValid() {
		m.nodes[n] = &node{controls: map[*region]struct{}{}, calls: map[*call]struct{}{}}
	}
}

// RemoveNode says that a node is gone for good, and its identity with it: the
// calls that it serves end, the calls that it has out run on, and the regions it
// controls go after their last lease.
func (m *Machine) RemoveNode(n Node) []Step {
	gone := m.nodes[n]
	if gone == nil {
		return nil
	}
	delete(m.nodes, n)
	for _, c := range sortedCalls(gone.calls) {
		switch {
		case c.callee != n:
		case c.parked != nil:
			m.unpark(c) // it did answer before it went
		case !c.replied:
			m.enqueue(Ended{c.id}, nil)
		}
	}
	for _, r := range sortedRegions(gone.controls) {
		m.enqueue(Orphaned{r.id, n}, nil)
	}
	return m.run()
}

// RemoveMachine says that a memory machine's content is gone: its regions are
// forgotten, whoever holds them. Pointers to regions up to a generation, above which the machine's later
// regions begin, are refused as LostRegion from then on.
func (m *Machine) RemoveMachine(prefix, machine uint8, upTo uint32) []Step {
	m.lost[machine] = upTo
	lost := map[*region]struct{}{}
	for base, r := range m.regions {
		if base.Prefix() == prefix && base.Machine() == machine {
			lost[r] = struct{}{}
		}
	}
	for _, r := range sortedRegions(lost) {
		m.enqueue(Lost{r.id}, nil)
	}
	return m.run()
}

// Abandon says that nobody needs a region any more that a node controls: it goes
// after its last lease.
func (m *Machine) Abandon(r dsmpacket.Region, n Node) []Step {
	m.enqueue(Orphaned{r, n}, nil)
	return m.run()
}

// ControlledBy returns the regions that a node controls, in the order of their
// addresses.
func (m *Machine) ControlledBy(n Node) (all []dsmpacket.Region) {
	if o := m.nodes[n]; o != nil {
		for _, r := range sortedRegions(o.controls) {
			all = append(all, r.id)
		}
	}
	return all
}

// Cut ends a call whose callee has failed, and its leases, as RemoveNode does; tag comes back with the Step that does so. One
// that has been answered runs on: then Cut does nothing, and reports false.
func (m *Machine) Cut(id CallID, tag any) (steps []Step, cut bool) {
	if c := m.calls[id]; c != nil && c.replied {
		return nil, false
	}
	m.enqueue(Ended{id}, tag) // of one that is not known, it lends nothing
	return m.run(), true
}

// Submit hands an event in; tag comes back with its Step. The steps are those of
// all events that could be judged now, which may not include this one: it waits
// if a region is busy, and a reply waits for the calls that pass its leases on.
func (m *Machine) Submit(e Event, tag any) []Step {
	m.enqueue(e, tag)
	return m.run()
}

// Done reports that the switch has applied the rules of a Step, and returns the
// steps that had to wait for it. An unknown id is ignored.
func (m *Machine) Done(id uint64) []Step {
	if j := m.moving[id]; j != nil {
		delete(m.moving, id)
		m.leave(j)
	}
	return m.run()
}

// Bytes is how many bytes the regions of a memory machine have.
func (m *Machine) Bytes(machine uint8) uint64 { return m.bytes[machine] }

// Pending is how many events wait for a region or are in transition. Replies that
// wait for nested calls do not count: only further events let them go on.
func (m *Machine) Pending() int { return m.pending - m.parked }

// Parked is how many replies wait for nested calls.
func (m *Machine) Parked() int { return m.parked }

func sortedCalls(set map[*call]struct{}) []*call {
	s := make([]*call, 0, len(set))
	for c := range set {
		s = append(s, c)
	}
	slices.SortFunc(s, func(a, b *call) int { return slices.Compare(a.id[:], b.id[:]) })
	return s
}

func sortedRegions(set map[*region]struct{}) []*region {
	s := make([]*region, 0, len(set))
	for r := range set {
		s = append(s, r)
	}
	slices.SortFunc(s, func(a, b *region) int { return slices.Compare(a.id.Base[:], b.id.Base[:]) })
	return s
}
