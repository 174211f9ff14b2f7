package lease

// Adopt makes a region known as it was before a restart, Leases aside: these come
// back with their calls. A controller that is no known node counts as gone. It
// reports false if the region's place is taken.
//
// Adopt and Resume are for a Machine that has not judged anything yet; their
// rules are part of Rules, and they cause no Step.
func (m *Machine) Adopt(v Region) bool {
	if m.find(v.Region.Base) != nil {
		return false
	}
	r := &region{id: v.Region, owner: v.Owner, freeing: v.Freeing}
	m.index(r)
	m.bytes[v.Region.Base.Machine()] += v.Region.Size()
	m.control(r, v.Controller)
	return true
}

// Resume makes a call known that was under way before a restart, with its leases.
// Its nodes must be known, and its parent, if that is under way too, must have
// been resumed before; a region that is gone is left out. It reports false if a
// node is missing.
func (m *Machine) Resume(e Call) bool {
	if m.calls[e.ID] != nil || m.nodes[e.Caller] == nil || m.nodes[e.Callee] == nil {
		return false
	}
	k := &call{id: e.ID, caller: e.Caller, callee: e.Callee}
	for _, r := range m.named(nil, e.Pointers) {
		r.lend(k)
	}
	m.follow(k, e.Parent)
	return true
}

// Sweep ends the regions that nobody controls and no call leases any more: they were
// about to go when the restart came. It is called when all else has been made known.
func (m *Machine) Sweep() []Step {
	nobody := map[*region]struct{}{}
	for _, r := range m.regions {
		if !r.controller.IsValid() && len(r.leases) == 0 {
			nobody[r] = struct{}{}
		}
	}
	for _, r := range sortedRegions(nobody) {
		m.enqueue(Orphaned{r.id, Node{}}, nil)
	}
	return m.run()
}
