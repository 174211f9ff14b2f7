package resources

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
)

// A deployment whose programs change is rolled out: its nodes are started again. One node is the first, and is watched for a
// while (Config.Watch). Then follow the others, one of each program after the other. A node gets no new calls, finishes those that it has, and
// stops; the next one has its address and the new program. A node that ends before it has
// finished is started again with the program that it had (Instance.Owes), so no call
// changes its program half-way.
//
//	Deploy ─▶ revision n+1 ─▶ one node runs it, and is ready for a while ─▶ all do ─▶ RolledOut
//	                 │ newNodeFaults failures of new nodes, one not ready in time, or one that cannot read the state
//	                 └─▶ revision n+2, with the programs of the last one that ran ─▶ RolledBack
//
// So is what an operator brings back (Rollback): what ran before comes again if it fails. What has
// come back because another one failed stays, whatever becomes of it.
//
// Numbers of nodes, policies and blades change at once, and make no revision.

// newNodeFaults is how many failures of nodes with a new program end its rollout.
const newNodeFaults = 3

// attempts is how often a node that has to finish calls is started again with its former
// program. After that they have failed.
const attempts = 5

// Revision is what the programs of a deployment were once.
type Revision struct {
	Number int  `json:"number"`
	Spec   Spec `json:"spec"`
	// Proven: there was a time when all its nodes ran and were ready.
	Proven bool `json:"proven,omitempty"`
	// Reads are the versions of states that its programs read, by service, as they have told.
	Reads map[string][]string `json:"reads,omitempty"`
}

// Rollout tells how far a change of a deployment's programs is.
type Rollout struct {
	// Revision is what the nodes are to run. Former is what Rollback would go back to, 0
	// for nothing.
	Revision, Former int
	// Done: all nodes run it and are ready. Ready are those of Nodes.
	Done         bool
	Ready, Nodes int
	Since        time.Time
	// Back is why the deployment has gone back to what it was before; "" if it has not.
	Back string
	// Stuck is why its nodes do not become ready: they fail, and nothing is left to go back to. They
	// are started again all the same. "" while there is no reason.
	Stuck string
	// First is the instance that runs the revision before others do, and is Watched until a time, zero while it is not ready; ""
	// if there is none, or its time is over.
	First string
	Until time.Time
}

// byOperator is the Back of a revision that an operator has brought back.
const byOperator = "by an operator"

// mayGoBack reports whether a deployment whose programs fail goes back to a former revision. One that cannot read what is kept is
// none to go back to.
func (a *deployment) mayGoBack() bool {
	number := a.last()
	return (a.Back == "" || a.Back == byOperator) && number != 0 && a.unreadable(a.former(number)) == ""
}

// outdated reports whether an instance runs another program than it is to run. Jobs are
// left to their end.
func (p *running) outdated(i *Instance) bool {
	return !p.spec.Job && i.Revision != p.app.Revision
}

// free reports whether the next node of an instance may have another program than the last
// one.
func (i *Instance) free() bool { return !i.Owes || i.Tries >= attempts }

// work is the program that an instance runs, or ran last.
func (p *running) work(i *Instance) *Program {
	if i.Revision != p.app.Revision {
		for k := range p.app.Former {
			if f := &p.app.Former[k]; f.Number == i.Revision {
				if q := find(&f.Spec, p.spec.Name); q != nil {
					return q
				}
			}
		}
	}
	return p.spec
}

// modernise lets the next node of an instance have the program of the specification, if the
// last one has left nothing to finish.
func (p *running) modernise(i *Instance) {
	if i.Revision != p.app.Revision && i.free() {
		i.Revision, i.Owes, i.Failures, i.NotBefore = p.app.Revision, false, 0, time.Time{}
	}
	i.Finishes = p.outdated(i)
}

// revise gives the deployment other programs.
func (a *deployment) revise(s Spec, back string, now time.Time) {
	a.Former = append(a.Former, Revision{Number: a.Revision, Spec: a.Spec.clone(), Proven: a.Proven, Reads: a.Reads})
	runs := map[*Instance]Program{}
	for _, p := range a.Programs {
		for _, i := range p.Instances {
			runs[i] = *p.work(i)
		}
	}
	a.update(s)
	a.Revision, a.Proven, a.Since, a.Faults, a.Back = a.Revision+1, false, now, 0, back
	a.First, a.FirstReady, a.Unfit, a.Reads = "", time.Time{}, "", a.knownReads()
	a.Watched = !a.mayGoBack() // what has run before is not watched again when it has to help
	for _, p := range a.Programs {
		for _, i := range p.Instances {
			i.Tries = 0
			if was := runs[i]; was.sameWork(p.spec) {
				i.Revision = a.Revision
			}
		}
	}
	a.forget()
}

// forget drops the former revisions that nobody needs: no instance runs them, and Rollback
// does not go back to them.
func (a *deployment) forget() {
	back := a.last()
	a.Former = slices.DeleteFunc(a.Former, func(f Revision) bool {
		return f.Number != back && !slices.ContainsFunc(a.Programs, func(p *running) bool {
			return slices.ContainsFunc(p.Instances, func(i *Instance) bool { return i.Revision == f.Number })
		})
	})
}

// last is the newest former revision that has run, 0 for none.
func (a *deployment) last() (number int) {
	for _, f := range a.Former {
		if f.Proven {
			number = max(number, f.Number)
		}
	}
	return number
}

// goBack gives the deployment the programs of a former revision. Programs that came since
// then stop.
func (a *deployment) goBack(number int, why string, now time.Time) {
	f := a.former(number)
	s := f.Spec.clone()
	f.Proven = false // it is what comes now
	for i := range a.Spec.Programs {
		if p := a.Spec.Programs[i]; find(&s, p.Name) == nil {
			p.Nodes, p.Spares = 0, 0
			s.Programs = append(s.Programs, p)
		}
	}
	a.revise(s, why, now)
}

// former returns a former revision, nil if it is not known any more.
func (a *deployment) former(number int) *Revision {
	for k := range a.Former {
		if a.Former[k].Number == number {
			return &a.Former[k]
		}
	}
	return nil
}

// Rollback gives a deployment the programs and numbers that it had before its programs
// changed last, and rolls that out. It fails with NotFound if they have not changed, or
// never ran before.
func (r *Registry) Rollback(name string, now time.Time) ([]Action, error) {
	op := "rollback " + name
	a, err := r.deployed(op, name)
	if err != nil {
		return nil, err
	}
	number := a.last()
	if number == 0 {
		return nil, fault.New(fault.NotFound, op, "there is nothing to go back to: its programs have not changed since they ran")
	}
	if why := a.unreadable(a.former(number)); why != "" {
		return nil, fault.New(fault.Unavailable, op, "%s: deploy a program that reads it", why)
	}
	a.goBack(number, byOperator, now)
	r.version++
	r.converge(now)
	return r.flush(), nil
}

// Paused says that a node is about to leave whose durable main is not over: the main goes on
// from its last checkpoint, with another program if there is one.
func (r *Registry) Paused(node netip.Addr) {
	if _, i := r.instanceAt(node); i != nil {
		i.Paused = true
		r.version++
	}
}

// deployed returns a deployment that is to stay.
func (r *Registry) deployed(op, name string) (*deployment, error) {
	a := r.apps[name]
	switch {
	case a == nil:
		return nil, fault.New(fault.NotFound, op, "no deployment is called %q", name)
	case a.Removed:
		return nil, fault.New(fault.Unavailable, op, "it is being undeployed")
	}
	return a, nil
}

// Restart has all nodes of a deployment that run stopped and started again, one of each program
// after the other: each finishes its calls, and the next one waits until it is ready again with
// its address and its next incarnation. Jobs are left to their end.
func (r *Registry) Restart(name string, now time.Time) ([]Action, error) {
	a, err := r.deployed("restart "+name, name)
	if err != nil {
		return nil, err
	}
	for _, p := range a.Programs {
		for _, i := range p.Instances {
			i.Renew = !p.spec.Job && i.wanted() && (i.Status == Running || i.Status == Starting)
		}
	}
	r.version++
	r.converge(now)
	return r.flush(), nil
}

// follow looks how far the rollout of a deployment is, and rolls it back if it fails.
func (r *Registry) follow(a *deployment, now time.Time) {
	if a.Proven || a.Removed {
		return
	}
	a.watch(r, now)
	if o := a.rollout(r); o.Ready == o.Nodes && (a.First == "" || a.Watched) {
		a.Proven, a.Faults = true, 0
		a.forget()
		r.version++
		if a.Revision > 1 {
			r.emit(RolledOut{App: a.Spec.Name, Revision: a.Revision})
		}
		return
	}
	if why := r.broken(a, now); why != "" && a.mayGoBack() {
		number := a.last()
		a.goBack(number, why, now)
		r.version++
		r.emit(RolledBack{App: a.Spec.Name, Revision: a.Revision, Former: number, Cause: why})
	}
}

// watch looks at the first node that runs a revision.
func (a *deployment) watch(r *Registry, now time.Time) {
	if a.First == "" || a.Watched {
		return
	}
	switch p, i := r.instance(a.First); {
	case i == nil || !i.wanted(): // another one is first then
		a.First, a.FirstReady = "", time.Time{}
	case p.outdated(i) || i.empties() || !r.ready(p, i):
		a.FirstReady = time.Time{}
		return
	case a.FirstReady.IsZero():
		a.FirstReady = now
		a.Watched = r.cfg.Watch == 0
	case now.Before(a.FirstReady.Add(r.cfg.Watch)):
		return
	default:
		a.Watched = true
	}
	r.version++
}

// turn reports whether an instance may get the program of the revision now in the place of a former one.
func (a *deployment) turn(i *Instance) bool {
	if a.First == "" && !a.Watched {
		a.First = i.Name
	}
	return a.Watched || a.First == i.Name
}

// failing says that nodes with the programs of a deployment's revision fail, "" if they have not
// failed often.
func (a *deployment) failing() string {
	if a.Unfit != "" {
		return a.Unfit
	}
	if a.Faults < newNodeFaults {
		return ""
	}
	return fmt.Sprintf("nodes with these programs have failed %d times, last %s", a.Faults, a.Faulty)
}

// broken says why the rollout of a deployment cannot go on.
func (r *Registry) broken(a *deployment, now time.Time) string {
	if why := a.failing(); why != "" {
		return why
	}
	for _, p := range a.Programs {
		for _, i := range p.Instances {
			if due, ok := r.readyBy(p, i); ok && !now.Before(due) {
				return fmt.Sprintf("%s runs, but was not ready after %v", i.Name, due.Sub(i.Since))
			}
		}
	}
	return ""
}

// readyBy is until when a node with a new program has to be ready.
func (r *Registry) readyBy(p *running, i *Instance) (due time.Time, ok bool) {
	if a := p.app; a.Proven || a.Removed || !a.mayGoBack() {
		return due, false
	}
	if p.spec.Job || p.outdated(i) || !i.wanted() || i.Status != Running || r.ready(p, i) {
		return due, false
	}
	return i.Since.Add(r.cfg.ReadyTimeout), true
}

// faulty counts a failure of an instance against the rollout of its program.
func (r *Registry) faulty(i *Instance) {
	if p, _ := r.instance(i.Name); p != nil && !p.app.Proven && !p.outdated(i) {
		p.app.Faults++
		p.app.Faulty = i.Name + ": " + i.Failure
	}
}

// watchedUntil is until when the first node is watched; zero if it is not ready, or its time is over.
func (a *deployment) watchedUntil(r *Registry) time.Time {
	if a.First == "" || a.Watched || a.Proven || a.FirstReady.IsZero() {
		return time.Time{}
	}
	return a.FirstReady.Add(r.cfg.Watch)
}

// rollout tells how far a deployment's rollout is.
func (a *deployment) rollout(r *Registry) Rollout {
	o := Rollout{Revision: a.Revision, Former: a.last(), Done: a.Proven, Since: a.Since, Back: a.Back}
	if !a.Proven && !a.Removed && !a.mayGoBack() {
		if o.Stuck = a.failing(); o.Stuck != "" && a.last() != 0 {
			if why := a.unreadable(a.former(a.last())); why != "" {
				o.Stuck += "; what ran before cannot go on, either: " + why
			}
		}
	}
	if a.First != "" && !a.Watched && !a.Proven {
		o.First, o.Until = a.First, a.watchedUntil(r)
	}
	for _, p := range a.Programs {
		if p.spec.Job {
			continue
		}
		o.Nodes += p.spec.Nodes
		for _, i := range p.Instances {
			if i.wanted() && !p.outdated(i) && r.ready(p, i) {
				o.Ready++
			}
		}
	}
	return o
}

// interrupt takes nodes out of service that have the wrong program and do not serve: those
// that start or run without being ready, unless they have to finish calls of a former one.
func (r *Registry) interrupt(p *running, now time.Time) {
	for _, i := range p.Instances {
		switch {
		case !p.outdated(i) || !i.wanted() || i.Stopped || i.empties():
		case i.Status == Waiting:
			p.modernise(i)
		case i.Status == Starting && i.free():
			r.emit(StopNode{Blade: i.Blade, Instance: i.Name})
			i.set(Waiting, now)
			p.modernise(i)
			r.version++
		case i.Status == Running && !i.Finishes && !r.ready(p, i):
			r.empty(i, now)
			r.version++
		}
	}
}

// renew stops the next instance of a program that is to be started again, or has another
// program, if all others are ready.
func (r *Registry) renew(p *running, now time.Time) {
	for _, i := range p.Instances {
		idle := i.Status == Waiting && i.Failures == 0 && !i.Keep.Address.IsValid() // no blade has room for it
		if i.wanted() && !idle && (!r.ready(p, i) || i.empties() || i.Stopped) {
			return
		}
	}
	for _, i := range p.Instances {
		if i.Renew || p.outdated(i) && i.wanted() && p.app.turn(i) {
			i.Renew = false
			r.version++
			if i.wanted() {
				r.empty(i, now)
				return
			}
		}
	}
}
