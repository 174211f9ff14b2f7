package share

import (
	"encoding/binary"
	"net/netip"
)

// Stranger stands for the owner of a node of which nobody has said whose it is. Strangers are charged each for itself, and share among them what one
// blade may have: to be unknown gains nothing.
func Stranger(node netip.Addr) Owner {
	a := node.As16()
	return Owner{User: binary.BigEndian.Uint32(a[12:])}
}

// Known reports whether it is known who the owner is.
func (o Owner) Known() bool { return o.Port != 0 }

// Nodes is a total that nodes hold, each charged to its owner (Owners). Its methods must not be called concurrently.
type Nodes struct {
	owners *Owners
	of     func(node netip.Addr) Owner
	nodes  map[netip.Addr]holding
}

// holding is what a node holds, and who is charged for it.
type holding struct {
	owner Owner
	units uint64
}

// NewNodes returns a total of so many units, below 1<<60, of which nobody holds any. It asks a function, which must not
// call it back, who the owner is of a node that holds nothing yet; nil stands for Stranger.
func NewNodes(total uint64, of func(node netip.Addr) Owner) *Nodes {
	if of == nil {
		of = Stranger
	}
	return &Nodes{owners: NewOwners(total), of: of, nodes: map[netip.Addr]holding{}}
}

// Used is how many units all nodes hold.
func (s *Nodes) Used() uint64 { return s.owners.Used() }

// Held is how many units a node holds.
func (s *Nodes) Held(node netip.Addr) uint64 { return s.nodes[node].units }

// SetFree changes the total: so many units are free.
func (s *Nodes) SetFree(units uint64) { s.owners.ports.total = min(s.Used()+units, most) }

// Crowded reports whether more is used than the reserve has. Before that, nobody is refused for what others hold, and it does not
// matter who owns what.
func (s *Nodes) Crowded() bool { return s.Used() > s.owners.Total()/part }

// Room is how many units a node may take now.
func (s *Nodes) Room(node netip.Addr) uint64 { return s.owners.Room(s.ownerOf(node)) }

func (s *Nodes) ownerOf(node netip.Addr) Owner {
	if h, holds := s.nodes[node]; holds {
		return h.owner
	}
	return s.of(node)
}

// Take takes units for a node, all or none, and reports whether it has.
func (s *Nodes) Take(node netip.Addr, units uint64) bool {
	if units > s.Room(node) {
		return false
	}
	s.Force(node, units)
	return true
}

// Force takes units for a node whether there is room or not.
func (s *Nodes) Force(node netip.Addr, units uint64) {
	if units == 0 {
		return
	}
	h := holding{s.ownerOf(node), s.nodes[node].units + units}
	s.nodes[node] = h
	s.owners.Force(h.owner, units)
}

// Release gives units of a node back. It panics if the node does not hold them.
func (s *Nodes) Release(node netip.Addr, units uint64) {
	h := s.nodes[node]
	s.owners.Release(h.owner, units)
	if h.units -= units; h.units == 0 {
		delete(s.nodes, node)
		return
	}
	s.nodes[node] = h
}

// Refuse counts that a node's owner was refused something, which is the caller's own decision.
func (s *Nodes) Refuse(node netip.Addr) { s.owners.Refuse(s.ownerOf(node)) }

// Refusals counts what was refused to each of the owners.
func (s *Nodes) Refusals() *Refusals[Owner] { return s.owners.Refusals() }

// Learn has what a node holds charged to its owner from now on, whom it asks for anew.
func (s *Nodes) Learn(node netip.Addr) {
	h, holds := s.nodes[node]
	if o := s.of(node); holds && o != h.owner {
		s.owners.Release(h.owner, h.units)
		s.owners.Force(o, h.units)
		s.nodes[node] = holding{o, h.units}
	}
}

// Reset releases all.
func (s *Nodes) Reset() { *s = *NewNodes(s.owners.Total(), s.of) }
