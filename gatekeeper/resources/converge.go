package resources

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

// converge brings deployments closer to what they should be, as far as blades
// allow. It looks at states, not at what has just happened, so it is run after
// whatever might matter, and after a restart.
func (r *Registry) converge(now time.Time) {
	r.converged = now
	if len(r.apps) == 0 {
		return
	}
	s := r.survey(nil)
	for _, a := range r.sortedApps() {
		r.convergeApp(s, a, now)
	}
}

// convergeApp does so for one deployment; the survey is kept up to date.
func (r *Registry) convergeApp(s *survey, a *deployment, now time.Time) {
	r.follow(a, now)
	for _, p := range a.Programs {
		r.evacuate(s, p, now)
		r.interrupt(p, now)
		r.adjust(p, now)
		r.start(s, p, now)
		r.relieve(p, now)
		r.renew(p, now)
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

// evacuate makes nodes on draining blades leave. One that others can stand in for
// waits for its successor (relieve); another one, of which there can be only one, is
// emptied as soon as there is room elsewhere, which is kept for it.
func (r *Registry) evacuate(s *survey, p *running, now time.Time) {
	for _, i := range slices.Clone(p.Instances) {
		b := r.blades[i.Blade]
		draining := b != nil && b.up() && b.Mark == Draining
		switch {
		case i.Stopped || i.Done:
		case draining && i.Status == Starting:
			r.emit(StopNode{Blade: i.Blade, Instance: i.Name})
			i.set(Waiting, now)
		case i.empties() || i.Retired:
		case !draining:
			i.Leaving = false
			if i.Status == Running {
				i.NoRoom = time.Time{}
			}
		case i.Status != Running:
		case !p.spec.moves():
			i.Leaving = true
		default:
			if m, ok := s.choose(p, i); ok {
				p.unreserve(m)
				i.Next, i.NoRoom = m.blade.Name, time.Time{}
				s.host(i.Next, p.spec)
				r.empty(i, now)
			} else {
				i.homeless(now)
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
		if !p.revive() {
			p.add(now)
		}
	}
	for ; count > want; count-- {
		r.retire(p, p.surplus(), now)
	}
	if p.app.Removed {
		for _, i := range slices.Clone(p.Instances) {
			if i.Leaving && !i.Retired || i.Status == Waiting || i.Status == Starting {
				r.retire(p, i, now)
			}
		}
	}
}

// revive wants the newest instance back that was not wanted any more and has not ended yet, if
// the program's nodes are such that nobody can stand in for one: a second one beside it would
// have the same state, or the same mains. It goes on as one that moves: it finishes the calls
// that it has, and has another node then.
func (p *running) revive() bool {
	if !p.spec.moves() {
		return false
	}
	for _, i := range slices.Backward(p.Instances) {
		if i.Retired && !i.Done {
			if i.Retired = false; i.Status != Running {
				i.Draining = time.Time{}
			}
			return true
		}
	}
	return false
}

// surplus is the instance that is missed least: one that never had a node, else the
// newest that runs, else one that comes back from a failure, for which calls may wait.
func (p *running) surplus() (least *Instance) {
	rank := func(i *Instance) int {
		switch {
		case i.Status == Running:
			return 1
		case i.Keep.Address.IsValid() || i.Status == Ending:
			return 2
		}
		return 0
	}
	for _, i := range p.Instances {
		if i.wanted() && (least == nil || rank(i) <= rank(least)) {
			least = i
		}
	}
	return least
}

// retire ends an instance that is not wanted any more. One that has to finish calls
// does that first, also if its node has failed; an heir does it, if the deployment is taken back.
func (r *Registry) retire(p *running, i *Instance, now time.Time) {
	i.Retired = true
	if i.Status != Running && !i.empties() && (i.Status == Ending || i.Keep.Address.IsValid()) {
		i.Draining = now
	}
	switch {
	case i.Status == Running:
		r.empty(i, now)
	case i.Status == Ending:
	case i.Keep.Address.IsValid() && p.owes(i):
		if p.app.Removed && i.Status == Starting && !i.Heir {
			r.emit(StopNode{Blade: i.Blade, Instance: i.Name})
			i.set(Waiting, now)
		}
	case i.Status == Starting:
		r.emit(StopNode{Blade: i.Blade, Instance: i.Name})
		r.drop(p, i)
	default:
		r.drop(p, i)
	}
}

// drop forgets an instance that has no node.
func (r *Registry) drop(p *running, i *Instance) {
	if i.Keep.Address.IsValid() {
		r.emit(GiveUp{i.Keep.Address})
	}
	p.Instances = slices.DeleteFunc(p.Instances, func(o *Instance) bool { return o == i })
	r.version++
}

// empty lets a running instance finish its calls, without new ones.
func (r *Registry) empty(i *Instance, now time.Time) {
	if i.empties() || i.Stopped {
		return
	}
	i.Draining = now
	r.emptyNode(i)
}

func (r *Registry) emptyNode(i *Instance) {
	if n := r.nodes[i.Node]; n != nil {
		r.emit(EmptyNode{Node: *n, Moves: i.goesOn()})
	}
}

// Emptied answers EmptyNode: the node has finished its calls.
func (r *Registry) Emptied(node netip.Addr, incarnation uint32, now time.Time) []Action {
	n := r.nodes[node]
	if n == nil || n.Incarnation != incarnation || n.Ending {
		return nil
	}
	if _, i := r.instance(n.Instance); i != nil && i.empties() && !i.Stopped && !i.Heir {
		i.Draining, i.Owes = time.Time{}, false
		r.stop(i)
		r.converge(now)
	}
	return r.flush()
}

// stop tells a running instance's daemon to stop it.
func (r *Registry) stop(i *Instance) {
	i.Stopped = true
	r.emit(StopNode{Blade: i.Blade, Instance: i.Name, Grace: r.cfg.StopGrace})
}

// impatient stops the instances that have not finished their calls in time, if there
// is somebody who waits for that: a blade that drains, or a deployment that was taken
// back.
func (r *Registry) impatient(now time.Time) {
	r.eachInstance(func(p *running, i *Instance) {
		if due, ok := r.patience(p, i); ok && !now.Before(due) {
			r.stop(i)
		}
	})
}

// patience is until when a running instance may finish its calls; false for as long as
// that takes.
func (r *Registry) patience(p *running, i *Instance) (until time.Time, ok bool) {
	b := r.blades[i.Blade]
	if i.Status != Running || i.Stopped || i.Heir || !i.empties() || !p.app.Removed && (b == nil || b.Mark != Draining) {
		return until, false
	}
	since := i.Draining
	if i.Since.After(since) {
		since = i.Since // it goes on with the calls of a node that has failed
	}
	return since.Add(r.cfg.DrainPatience), true
}

// start places what waits and may be started.
func (r *Registry) start(s *survey, p *running, now time.Time) {
	for _, i := range p.Instances {
		if i.Status != Waiting || i.NotBefore.After(now) {
			continue
		}
		m, ok := s.choose(p, i)
		if !ok {
			i.homeless(now)
			continue
		}
		if i.Next == "" {
			p.unreserve(m)
			s.host(m.blade.Name, p.spec)
		}
		i.Blade, i.Next, i.NoRoom = m.blade.Name, "", time.Time{}
		if i.Heir = p.app.Removed; !i.Heir {
			p.modernise(i)
		}
		i.set(Starting, now)
		r.emit(p.startNode(i))
	}
}

// homeless notes since when no blade has room for an instance.
func (i *Instance) homeless(now time.Time) {
	if i.NoRoom.IsZero() {
		i.NoRoom = now
	}
}

func (p *running) startNode(i *Instance) StartNode {
	work := p.work(i)
	s := StartNode{
		Blade: i.Blade, Instance: i.Name, Args: slices.Concat(work.Args, i.Args), Env: maps.Clone(work.Env), Binary: work.Binary,
		Address: i.Keep.Address, After: i.Keep.After, Liveness: work.Liveness.WithDefaults(), Heir: i.Heir,
	}
	if i.Heir {
		s.Liveness = Liveness{}.WithDefaults() // it exports nothing
	}
	for _, v := range work.Services {
		s.Services = append(s.Services, v.Name)
	}
	return s
}

// relieve empties instances on draining blades whose successors are ready.
func (r *Registry) relieve(p *running, now time.Time) {
	ready := 0
	for _, i := range p.Instances {
		if i.wanted() && r.ready(p, i) {
			ready++
		}
	}
	for _, i := range p.Instances {
		if i.leaves() {
			if ready+p.leaving() <= p.spec.Nodes {
				return
			}
			r.empty(i, now)
		}
	}
}

// leaves reports whether the instance serves on a draining blade until its successor
// does.
func (i *Instance) leaves() bool {
	return i.Leaving && !i.empties() && !i.Stopped && i.Status == Running
}

// leaving counts the instances that still serve on draining blades.
func (p *running) leaving() (count int) {
	for _, i := range p.Instances {
		if i.leaves() {
			count++
		}
	}
	return count
}

// ready reports whether an instance exports all it should.
func (r *Registry) ready(p *running, i *Instance) bool {
	n := r.nodes[i.Node]
	return i.Status == Running && n != nil && !slices.ContainsFunc(p.work(i).Services, func(s ServiceSpec) bool {
		return !r.rack.Exports(n.Address, n.Incarnation, s.Name)
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
