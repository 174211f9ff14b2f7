package resources

import (
	"maps"
	"slices"
	"time"
)

// settle brings deployments closer to what they should be, as far as blades
// allow. It looks at states, not at what has just happened, so it is run after
// whatever might matter, and after a restart.
func (r *Registry) settle(now time.Time) {
	if len(r.apps) == 0 {
		return
	}
	s := r.survey(nil)
	for _, a := range r.sortedApps() {
		r.settleApp(s, a, now)
	}
}

// settleApp does so for one deployment; the survey is kept up to date.
func (r *Registry) settleApp(s *survey, a *deployment, now time.Time) {
	for _, p := range a.Programs {
		r.evacuate(s, p, now)
		r.adjust(p, now)
		r.start(s, p, now)
		r.relieve(p)
		r.reserve(s, p)
		r.tellShort(p, now)
	}
	if a.Removed && a.empty() {
		delete(r.apps, a.Spec.Name)
		r.version++
	}
}

func (a *deployment) empty() bool {
	return !slices.ContainsFunc(a.Programs, func(p *running) bool { return len(p.Instances) > 0 })
}

// evacuate makes nodes on draining blades leave. A stateless one waits for its
// successor (relieve); a stateful one, of which there can be only one, is
// stopped as soon as there is room elsewhere, which is kept for it.
func (r *Registry) evacuate(s *survey, p *running, now time.Time) {
	for _, i := range slices.Clone(p.Instances) {
		b := r.blades[i.Blade]
		draining := b != nil && b.up() && b.Mark == Draining
		switch {
		case i.Stopped || i.Retired || i.Done:
		case !draining:
			i.Leaving = false
		case i.Status == Starting:
			r.emit(StopNode{Blade: i.Blade, Instance: i.Name})
			i.set(Waiting, now)
		case i.Status != Running:
		case !p.spec.stateful():
			i.Leaving = true
		default:
			if m, ok := s.choose(p, i); ok {
				p.unreserve(m)
				i.Next = m.blade.Name
				s.host(i.Next, p.spec)
				r.stop(i)
			}
		}
	}
}

// adjust makes the number of wanted instances what the specification says.
func (r *Registry) adjust(p *running, now time.Time) {
	want := p.spec.Nodes
	if p.app.Removed {
		want = 0
	}
	count := 0
	for _, i := range p.Instances {
		if i.wanted() {
			count++
		}
	}
	for ; count < want; count++ {
		p.add(now)
	}
	for ; count > want; count-- {
		r.retire(p, p.surplus())
	}
	if p.app.Removed {
		for _, i := range slices.Clone(p.Instances) {
			if i.Leaving && !i.Retired {
				r.retire(p, i)
			}
		}
	}
}

// surplus is the instance that is missed least: one without a node, else the
// newest.
func (p *running) surplus() (least *Instance) {
	for _, i := range p.Instances {
		if i.wanted() && (least == nil || i.Status != Running || least.Status == Running) {
			least = i
		}
	}
	return least
}

// retire ends an instance that is not wanted any more.
func (r *Registry) retire(p *running, i *Instance) {
	i.Retired = true
	switch i.Status {
	case Waiting, Finished:
		r.drop(p, i)
	case Starting:
		r.emit(StopNode{Blade: i.Blade, Instance: i.Name})
		r.drop(p, i)
	case Running:
		r.stop(i)
	}
}

// drop forgets an instance that has no node.
func (r *Registry) drop(p *running, i *Instance) {
	if i.Keep.Hop != 0 {
		r.hops.giveBack(uint16(i.Keep.Hop))
	}
	p.Instances = slices.DeleteFunc(p.Instances, func(o *Instance) bool { return o == i })
	r.version++
}

// stop tells a running instance's daemon to stop it, after its routes are gone.
func (r *Registry) stop(i *Instance) {
	if i.Stopped {
		return
	}
	i.Stopped = true
	if n := r.nodes[i.Node]; n != nil {
		r.withdraw(n)
	}
	r.emit(StopNode{Blade: i.Blade, Instance: i.Name, Grace: r.cfg.StopGrace})
}

// start places what waits and may be started.
func (r *Registry) start(s *survey, p *running, now time.Time) {
	for _, i := range p.Instances {
		if i.Status != Waiting || i.NotBefore.After(now) {
			continue
		}
		m, ok := s.choose(p, i)
		if !ok {
			continue
		}
		if i.Next == "" {
			p.unreserve(m)
			s.host(m.blade.Name, p.spec)
		}
		i.Blade, i.Next = m.blade.Name, ""
		i.set(Starting, now)
		r.emit(p.startNode(i))
	}
}

func (p *running) startNode(i *Instance) StartNode {
	return StartNode{
		Blade: i.Blade, Instance: i.Name, Args: slices.Clone(p.spec.Args), Env: maps.Clone(p.spec.Env),
		Address: i.Keep.Address, Incarnation: i.Keep.Incarnation,
	}
}

// relieve stops instances on draining blades whose successors are ready.
func (r *Registry) relieve(p *running) {
	ready := 0
	for _, i := range p.Instances {
		if i.wanted() && r.ready(p, i) {
			ready++
		}
	}
	for _, i := range p.Instances {
		if i.Leaving && !i.Stopped && i.Status == Running {
			if ready+p.leaving() <= p.spec.Nodes {
				return
			}
			r.stop(i)
		}
	}
}

// leaving counts the instances that still run on draining blades.
func (p *running) leaving() (count int) {
	for _, i := range p.Instances {
		if i.Leaving && !i.Stopped && i.Status == Running {
			count++
		}
	}
	return count
}

// ready reports whether an instance exports all it should.
func (r *Registry) ready(p *running, i *Instance) bool {
	n := r.nodes[i.Node]
	return i.Status == Running && n != nil && !slices.ContainsFunc(p.spec.Services, func(s ServiceSpec) bool {
		return !slices.Contains(n.Services, s.Name)
	})
}

// reserve keeps the reservations that are still good and makes the missing ones.
func (r *Registry) reserve(s *survey, p *running) {
	want := p.spec.Spares
	if p.app.Removed {
		want = 0
	}
	for _, name := range slices.Clone(p.Spares) {
		m := s.rooms[name]
		if len(p.Spares) > want || !m.fits(p.spec) || m.used > m.blade.Capacity || p.on(name) {
			p.unreserve(m)
			r.version++
		}
	}
	for len(p.Spares) < want {
		m, ok := s.chooseSpare(p)
		if !ok {
			return
		}
		p.Spares = append(p.Spares, m.blade.Name)
		m.used++
		r.version++
	}
}

// unreserve gives up the program's reservation on a blade, if it has one.
func (p *running) unreserve(m *room) {
	if k := slices.Index(p.Spares, m.blade.Name); k >= 0 {
		p.Spares = slices.Delete(p.Spares, k, k+1)
		m.used--
	}
}

// missing is how many nodes wait for a blade and how many spares are not there.
func (p *running) missing(now time.Time) (m [2]int) {
	for _, i := range p.Instances {
		if i.Status == Waiting && !i.NotBefore.After(now) {
			m[0]++
		}
	}
	if !p.app.Removed {
		m[1] = p.spec.Spares - len(p.Spares)
	}
	return m
}

func (r *Registry) tellShort(p *running, now time.Time) {
	if m := p.missing(now); m != p.Short {
		p.Short = m
		r.emit(Short{App: p.app.Spec.Name, Program: p.spec.Name, Nodes: m[0], Spares: m[1]})
	}
}
