package resources

import (
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/suggest"
)

// Deploy makes a deployment what the specification says. A new one is taken as a
// whole or not at all: if there is no room for all its nodes and spares, it is
// refused with code Overloaded. For one that exists, numbers, policies and
// blades may change, and programs may come and go; as many nodes as have room
// start at once, and Short tells about the rest. A change of what programs run is
// rolled out; Deployments tells how far that is. A job that is finished, and whose command changes, runs again. Another command for a job that is not finished, and one that makes a
// service another program's, or gives it state or takes that away, is refused: undeploy it first.
func (r *Registry) Deploy(s Spec, now time.Time) ([]Action, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	op := "deploy " + s.Name
	if err := r.checkBlades(op, &s); err != nil {
		return nil, err
	}
	a := r.apps[s.Name]
	if a == nil {
		return r.deployNew(op, s.clone(), now)
	}
	if a.Removed {
		return nil, fault.New(fault.Unavailable, op, "it is still being undeployed")
	}
	changed, err := a.compare(op, &s)
	if err != nil {
		return nil, err
	}
	jobs := a.changedJobs(&s)
	if why := a.knownUnreadable(&s); changed && why != "" {
		return nil, fault.New(fault.Unavailable, op, "%s: deploy a program that reads it", why)
	}
	if changed {
		a.revise(s.clone(), "", now)
	} else {
		a.update(s.clone())
	}
	for _, p := range jobs {
		p.again(nil, now)
	}
	r.version++
	r.converge(now)
	return r.flush(), nil
}

// changedJobs are the jobs that have another command in another specification. Another content of the file alone runs no job again.
func (a *deployment) changedJobs(s *Spec) (jobs []*running) {
	for _, p := range a.Programs {
		if q := find(s, p.spec.Name); q != nil && q.Job && p.spec.Job && !q.sameCommand(p.spec) {
			jobs = append(jobs, p)
		}
	}
	return jobs
}

// checkBlades refuses a specification that names blades that cannot run programs.
func (r *Registry) checkBlades(op string, s *Spec) error {
	for i := range s.Programs {
		for _, name := range s.Programs[i].Blades {
			switch b := r.blades[name]; {
			case b == nil:
				return fault.New(fault.BadRequest, op, "program %s: no blade is called %q%s; bifrost blades lists them", s.Programs[i].Name, name, suggest.Text(name, r.computeBlades()))
			case b.Kind != Compute:
				return fault.New(fault.BadRequest, op, "program %s: %s is a %s blade: programs run on compute blades", s.Programs[i].Name, name, b.Kind)
			}
		}
	}
	return nil
}

// computeBlades are the names of the compute blades, in order.
func (r *Registry) computeBlades() (names []string) {
	for _, b := range r.sortedBlades() {
		if b.Kind == Compute {
			names = append(names, b.Name)
		}
	}
	return names
}

// Fresh returns the programs of a specification that are to be started somewhere: those that are new, have changed, or are to
// have more nodes than now.
func (r *Registry) Fresh(s Spec) (fresh []*Program) {
	a := r.apps[s.Name]
	for i := range s.Programs {
		p := &s.Programs[i]
		if a != nil {
			if was := find(&a.Spec, p.Name); was != nil && was.sameWork(p) && p.Nodes+p.Spares <= was.Nodes+was.Spares {
				continue
			}
		}
		if p.Nodes+p.Spares > 0 {
			fresh = append(fresh, p)
		}
	}
	return fresh
}

// Candidates are the blades in service that may run a program, whether they have room or not.
func (r *Registry) Candidates(p *Program) (names []string) {
	for _, name := range r.computeBlades() {
		if r.blades[name].placeable() && (len(p.Blades) == 0 || slices.Contains(p.Blades, name)) {
			names = append(names, name)
		}
	}
	return names
}

// compare reports whether another specification changes what programs run, and refuses one
// that cannot be rolled out.
func (a *deployment) compare(op string, s *Spec) (changed bool, err error) {
	for _, p := range a.Programs {
		q := find(s, p.spec.Name)
		switch {
		case q == nil && len(p.Instances) > 0 && p.spec.Nodes > 0:
			return false, fault.New(fault.BadRequest, op, "program %s is missing: give it 0 nodes to stop it", p.spec.Name)
		case q == nil || q.sameWork(p.spec):
			continue
		case q.Job != p.spec.Job:
			return false, fault.New(fault.BadRequest, op, "program %s was a job, or is to be one: undeploy %s first", q.Name, s.Name)
		case q.Job && !q.sameCommand(p.spec) && !p.finished():
			return false, fault.New(fault.BadRequest, op, "job %s is not finished: change it when it is, or undeploy %s first", q.Name, s.Name)
		}
		changed = changed || !q.Job
	}
	for i := range s.Programs {
		for _, v := range s.Programs[i].Services {
			was, now := a.Spec.offers(v.Name), s.Programs[i].Name
			if was.program != "" && (was.program != now || was.stateful != v.Stateful) {
				return false, fault.New(fault.BadRequest, op, "service %s was program %s's, with state: %t, and is to be %s's, with state: %t: undeploy %s first",
					v.Name, was.program, was.stateful, now, v.Stateful, s.Name)
			}
		}
	}
	return changed, nil
}

// offer is which program has a service, and whether the service has state.
type offer struct {
	program  string
	stateful bool
}

// offers finds the program that has a service.
func (s *Spec) offers(service string) offer {
	for i := range s.Programs {
		for _, v := range s.Programs[i].Services {
			if v.Name == service {
				return offer{s.Programs[i].Name, v.Stateful}
			}
		}
	}
	return offer{}
}

// deployNew places a new deployment, or takes it back; others are not touched.
func (r *Registry) deployNew(op string, s Spec, now time.Time) ([]Action, error) {
	a := &deployment{Revision: 1, Since: now}
	a.update(s)
	r.convergeApp(r.survey(nil), a, now)
	for _, p := range a.Programs {
		if m := p.missing(now); m != [2]int{} {
			r.out = nil
			return nil, fault.New(fault.Overloaded, op, "program %s: no blade for %d of %d nodes and %d of %d spares",
				p.spec.Name, m[0], p.spec.Nodes, m[1], p.spec.Spares)
		}
	}
	r.apps[s.Name] = a
	r.version++
	return r.flush(), nil
}

// update installs a specification and ties its programs to what runs.
func (a *deployment) update(s Spec) {
	a.Spec = s
	var programs []*running
	for i := range a.Spec.Programs {
		p := &running{}
		spec := &a.Spec.Programs[i]
		if k := slices.IndexFunc(a.Programs, func(o *running) bool { return o.spec.Name == spec.Name }); k >= 0 {
			p = a.Programs[k]
		}
		p.app, p.spec = a, spec
		programs = append(programs, p)
	}
	a.Programs = programs
}

func find(s *Spec, program string) *Program {
	for i := range s.Programs {
		if s.Programs[i].Name == program {
			return &s.Programs[i]
		}
	}
	return nil
}

// Undeploy stops a deployment; it is gone when its last node is. A node that does not finish its calls is stopped after a
// while. It gets an heir then, as a node does that has failed.
func (r *Registry) Undeploy(name string, now time.Time) ([]Action, error) {
	a := r.apps[name]
	if a == nil {
		return nil, fault.New(fault.NotFound, "undeploy", "no deployment is called %q", name)
	}
	if !a.Removed {
		a.Removed = true
		for _, p := range a.Programs {
			for _, i := range p.Instances {
				i.Tries, i.Failures, i.NotBefore = 0, 0, time.Time{} // an heir is another program
			}
		}
	}
	r.version++
	r.converge(now)
	return r.flush(), nil
}

// StartFailed says that a blade's daemon could not run an instance, and why. It is tried
// again after a pause, on another blade if there is one.
func (r *Registry) StartFailed(instance, blade, cause string, now time.Time) []Action {
	_, i := r.instance(instance)
	if i == nil || i.Status != Starting || i.Blade != blade {
		return nil
	}
	r.giveUpStart(i, cause, now)
	r.version++
	r.converge(now)
	return r.flush()
}

func (r *Registry) giveUpStart(i *Instance, cause string, now time.Time) {
	r.failed(i, cause, now)
	if i.Finishes || i.Heir {
		i.Tries++ // the former program may be gone
	}
	i.Avoid = i.Blade
	i.set(Waiting, now)
}

// Deployment is an app as it is now.
type Deployment struct {
	Spec      Spec       `json:"spec"`
	Removed   bool       `json:"removed,omitempty"`
	Instances []Instance `json:"instances"`
	// Spares are the blades on which room is kept, by program.
	Spares map[string][]string `json:"spares,omitempty"`
	// Rollout tells how far a change of the programs is.
	Rollout Rollout `json:"-"`
}

// Deployments returns all deployments, ordered by name.
func (r *Registry) Deployments() []Deployment {
	var all []Deployment
	for _, a := range r.sortedApps() {
		d := Deployment{Spec: a.Spec.clone(), Removed: a.Removed, Spares: map[string][]string{}, Rollout: a.rollout(r)}
		for _, p := range a.Programs {
			for _, i := range p.Instances {
				d.Instances = append(d.Instances, r.settle(p, i))
			}
			if len(p.Spares) > 0 {
				d.Spares[p.spec.Name] = slices.Clone(p.Spares)
			}
		}
		all = append(all, d)
	}
	return all
}

// Declaring lists the deployments that declare a service, in order.
func (r *Registry) Declaring(service string) (apps []string) {
	for _, a := range r.sortedApps() {
		declares := func(p Program) bool {
			return slices.ContainsFunc(p.Services, func(s ServiceSpec) bool { return s.Name == service })
		}
		if !a.Removed && slices.ContainsFunc(a.Spec.Programs, declares) {
			apps = append(apps, a.Spec.Name)
		}
	}
	return apps
}
