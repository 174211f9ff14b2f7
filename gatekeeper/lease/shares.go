package lease

import (
	"github.com/bifrost-rack/bifrost/internal/share"
)

// A region is charged to the owner of whoever controls it: a user of a blade, who may have many nodes (package share). The memory of each machine is
// divided among owners, and so are the switch's access rules, which all regions of the rack share. An allocation beyond the owner's share is refused.
// A region that is handed over is charged to the owner of its next controller, as far as that one has room. Beyond it, the controller gets the
// region, and whoever was charged stays so. Otherwise two owners could take all memory, by handing on what one of them allocates.

// shares is who is charged for what regions take.
type shares struct {
	memory  map[uint8]*share.Nodes // by memory machine: bytes of those whose size is known
	regions *share.Nodes           // of the rack, each one unit; nil is no bound
	owners  map[Node]share.Owner
}

func newShares() shares {
	return shares{memory: map[uint8]*share.Nodes{}, owners: map[Node]share.Owner{}}
}

// ownerOf is whose a node is, as far as is known.
func (s *shares) ownerOf(n Node) share.Owner {
	if o, known := s.owners[n]; known || !n.IsValid() {
		return o
	}
	return share.Stranger(n)
}

// each calls a function for each total that regions of a machine are charged to, with the units of a region.
func (s *shares) each(r *region, f func(total *share.Nodes, units uint64)) {
	if total := s.memory[r.id.Base.Machine()]; total != nil {
		f(total, r.id.Size())
	}
	if s.regions != nil {
		f(s.regions, 1)
	}
}

// SetMemory says how many bytes a memory machine has. The regions of a machine of which nobody has said that are charged to nobody.
func (m *Machine) SetMemory(machine uint8, bytes uint64) {
	total := m.shares.memory[machine]
	if total == nil {
		total = share.NewNodes(bytes, m.shares.ownerOf)
		m.shares.memory[machine] = total
		for _, r := range m.regions {
			if !r.dead && r.id.Base.Machine() == machine {
				total.Force(r.payer, r.id.Size())
			}
		}
	}
	total.SetFree(bytes - min(bytes, total.Used()))
}

// SetRegions says how many regions there may be in the rack; before, there is no bound.
func (m *Machine) SetRegions(regions uint64) {
	if m.shares.regions == nil {
		m.shares.regions = share.NewNodes(regions, m.shares.ownerOf)
		for _, r := range m.regions {
			if !r.dead {
				m.shares.regions.Force(r.payer, 1)
			}
		}
	}
	m.shares.regions.SetFree(regions - min(regions, m.shares.regions.Used()))
}

// Charge says who is charged for a node from now on. Before, it is a stranger (share.Stranger).
func (m *Machine) Charge(n Node, to share.Owner) {
	m.shares.owners[n] = to
	for _, total := range m.shares.memory {
		total.Learn(n)
	}
	if m.shares.regions != nil {
		m.shares.regions.Learn(n)
	}
}

// Room is how many bytes of a memory machine a node may allocate more, for the sake of others; most if the machine's size is not known.
func (m *Machine) Room(n Node, machine uint8, most uint64) uint64 {
	if regions := m.shares.regions; regions != nil && regions.Room(n) == 0 {
		return 0
	}
	if total := m.shares.memory[machine]; total != nil {
		most = min(most, total.Room(n))
	}
	return most
}

// Bytes is how many bytes the regions of a memory machine have whose size is known.
func (m *Machine) Bytes(machine uint8) uint64 {
	if total := m.shares.memory[machine]; total != nil {
		return total.Used()
	}
	return 0
}

// MayHave reports whether a node may allocate so many bytes of a memory machine, and counts a refusal.
func (m *Machine) MayHave(n Node, machine uint8, bytes uint64) bool {
	may := m.Room(n, machine, bytes) >= bytes
	if !may {
		m.refusals.Add(m.shares.ownerOf(n))
	}
	return may
}

// Refused tells how often owners were refused an allocation: each owner's figure, in any order. It returns that of the owners beyond
// share.MaxOwners.
func (m *Machine) Refused(each func(owner share.Owner, n uint64)) (others uint64) {
	return m.refusals.Each(each)
}

// pay charges a new region.
func (m *Machine) pay(r *region, n Node) {
	r.payer = n
	m.shares.each(r, func(total *share.Nodes, units uint64) { total.Force(n, units) })
}

// repay charges a region to its controller, as far as that one's owner has room.
func (m *Machine) repay(r *region) {
	n, same := r.controller, m.shares.ownerOf(r.controller) == m.shares.ownerOf(r.payer)
	if n == r.payer || !same && m.Room(n, r.id.Base.Machine(), r.id.Size()) < r.id.Size() {
		return
	}
	m.unpay(r)
	m.pay(r, n)
}

// unpay charges nobody for a region any more.
func (m *Machine) unpay(r *region) {
	m.shares.each(r, func(total *share.Nodes, units uint64) { total.Release(r.payer, units) })
	r.payer = Node{}
}
