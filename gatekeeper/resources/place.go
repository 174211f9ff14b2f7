package resources

import (
	"cmp"
	"math/bits"
	"slices"
)

// survey is what the blades host and keep room for at one moment.
type survey struct {
	rooms map[string]*room
}

// room is one blade's share of it.
type room struct {
	blade *Blade
	rack  Rack
	// used counts nodes, programs that start, and reservations.
	used     uint64
	nodes    []*Node
	programs []*Program // that start there, or will
}

// survey counts anew, without one node (nil for with all).
func (r *Registry) survey(except *Node) *survey {
	s := &survey{rooms: map[string]*room{}}
	for _, b := range r.blades {
		s.rooms[b.Name] = &room{blade: b, rack: r.rack}
	}
	for _, n := range r.nodes {
		if n == except {
			continue
		}
		s.host(n.Blade, nil)
		at := s.rooms[n.Blade]
		at.nodes = append(at.nodes, n)
	}
	r.eachInstance(func(p *running, i *Instance) {
		switch {
		case i.Status == Starting:
			s.host(i.Blade, p.spec)
		case i.Node.IsValid() && (except == nil || except.Address != i.Node):
			s.offer(i.Blade, p.spec)
		}
		if i.Next != "" {
			s.host(i.Next, p.spec)
		}
	})
	for _, a := range r.apps {
		for _, p := range a.Programs {
			for _, name := range p.Spares {
				s.host(name, nil)
			}
		}
	}
	return s
}

// host notes one more node on a blade, with the services of its program.
func (s *survey) host(blade string, p *Program) {
	s.rooms[blade].used++
	s.offer(blade, p)
}

func (s *survey) offer(blade string, p *Program) {
	if p != nil {
		s.rooms[blade].programs = append(s.rooms[blade].programs, p)
	}
}

// serves reports whether a node or a program on the blade has a service.
func (m *room) serves(service string) bool {
	return slices.ContainsFunc(m.nodes, func(n *Node) bool {
		return m.rack.Exports(n.Address, n.Incarnation, service)
	}) || slices.ContainsFunc(m.programs, func(p *Program) bool {
		return slices.ContainsFunc(p.Services, func(s ServiceSpec) bool { return s.Name == service })
	})
}

// fits reports whether the blade may run the program, its capacity aside.
func (m *room) fits(p *Program) bool {
	return m.blade.Kind == Compute && m.blade.placeable() &&
		(len(p.Blades) == 0 || slices.Contains(p.Blades, m.blade.Name)) &&
		!slices.ContainsFunc(p.Services, func(s ServiceSpec) bool { return m.serves(s.Name) })
}

// full reports whether the blade has no place left.
func (m *room) full() bool { return m.used >= m.blade.Capacity }

// choose returns the best blade for an instance: the one kept for it; else one
// that did not fail to start it, the one it ran on before, the first that the
// specification names, the one with the lowest load; and only if there is no
// other, one of its program's spares.
func (s *survey) choose(p *running, i *Instance) (*room, bool) {
	if m := s.rooms[i.Next]; m != nil {
		return m, true
	}
	var best *room
	for _, m := range s.rooms {
		spare := slices.Contains(p.Spares, m.blade.Name)
		if !m.fits(p.needs()) || m.full() && (!spare || m.used > m.blade.Capacity) {
			continue
		}
		if best == nil || p.better(i, m, best) {
			best = m
		}
	}
	return best, best != nil
}

// needs is what a blade must have for the program's next node. An heir may run on any.
func (p *running) needs() *Program {
	if !p.app.Removed {
		return p.spec
	}
	anywhere := *p.spec
	anywhere.Blades = nil
	return &anywhere
}

// lighter orders blades by load, then by name.
func (m *room) lighter(o *room) bool {
	// used/capacity, compared without rounding
	mh, ml := bits.Mul64(m.used, o.blade.Capacity)
	oh, ol := bits.Mul64(o.used, m.blade.Capacity)
	return cmp.Or(cmp.Compare(mh, oh), cmp.Compare(ml, ol), cmp.Compare(m.blade.Name, o.blade.Name)) < 0
}

// better orders blades for an instance, as choose says.
func (p *running) better(i *Instance, a, b *room) bool {
	prefer := []func(*room) bool{
		func(m *room) bool { return !slices.Contains(p.Spares, m.blade.Name) },
		func(m *room) bool { return m.blade.Name != i.Avoid },
		func(m *room) bool { return m.blade.Name == i.Blade },
	}
	for _, good := range prefer {
		if good(a) != good(b) {
			return good(a)
		}
	}
	if x, y := slices.Index(p.spec.Blades, a.blade.Name), slices.Index(p.spec.Blades, b.blade.Name); x != y {
		return x < y
	}
	return a.lighter(b)
}

// chooseSpare returns the best blade on which to keep room for a program: none
// that has a node of it or a spare already.
func (s *survey) chooseSpare(p *running) (*room, bool) {
	var best *room
	for _, m := range s.rooms {
		if !m.fits(p.spec) || m.full() || slices.Contains(p.Spares, m.blade.Name) || p.on(m.blade.Name) {
			continue
		}
		if best == nil || m.lighter(best) {
			best = m
		}
	}
	return best, best != nil
}

// on reports whether the program has a node on a blade, or is to have one.
func (p *running) on(blade string) bool {
	return slices.ContainsFunc(p.Instances, func(i *Instance) bool {
		return i.Blade == blade && (i.Status == Starting || i.Node.IsValid()) || i.Next == blade
	})
}
