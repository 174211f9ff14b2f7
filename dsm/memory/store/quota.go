package store

import "net/netip"

// Quota is what one node may take of a machine, so that none takes it all. 0 is no
// bound. What exceeds it is refused to that node alone: an allocation as NoSpace, a
// change that must be possible to undo as Overloaded, until others of its changes are
// committed.
type Quota struct {
	// Bytes of the regions that the node has allocated, as long as they live, whoever
	// controls them, and how many of these Regions there are.
	Bytes, Regions uint64
	// Undo is the bytes that the undo of its executions takes.
	Undo uint64
}

// account is what the regions take that one node has allocated.
type account struct{ bytes, regions uint64 }

// accounts are those of all nodes that have regions.
type accounts struct {
	of      map[netip.Addr]account
	refused uint64 // allocations, for a quota
}

// may reports whether a node may have another region of the class.
func (t *accounts) may(node netip.Addr, class uint8, q Quota) bool {
	a := t.of[node]
	if q.Bytes > 0 && a.bytes+1<<class > q.Bytes || q.Regions > 0 && a.regions >= q.Regions {
		t.refused++
		return false
	}
	return true
}

// charge notes that a node has a region.
func (t *accounts) charge(node netip.Addr, class uint8) {
	if t.of == nil {
		t.of = map[netip.Addr]account{}
	}
	a := t.of[node]
	t.of[node] = account{a.bytes + 1<<class, a.regions + 1}
}

// release notes that a region of a node is gone.
func (t *accounts) release(node netip.Addr, class uint8) {
	a := t.of[node]
	if a.regions == 1 {
		delete(t.of, node)
		return
	}
	t.of[node] = account{a.bytes - 1<<class, a.regions - 1}
}

// QuotaStats counts what quotas have refused.
type QuotaStats struct {
	// Allocations were refused for bytes or regions, Changes for undo.
	Allocations, Changes uint64
}

// Quotas returns the quotas' numbers.
func (s *Store) Quotas() QuotaStats { return QuotaStats{s.held.refused, s.undo.overQuota} }
