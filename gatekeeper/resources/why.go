package resources

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// What people ask of an instance that is not where it should be: what it waits for, and whether that comes by itself.

// AppState says whether somebody has to look after a deployment.
type AppState string

// The states; of those that hold, the first one counts.
const (
	AppStuck      AppState = "stuck"       // its programs fail again and again, and there is nothing to go back to
	AppRolledBack AppState = "rolled back" // what it was to be last has failed: it is what it was before
	AppBlocked    AppState = "blocked"     // an instance needs somebody's help
	AppWell       AppState = "well"
)

// AppStates are all of them.
func AppStates() []AppState { return []AppState{AppStuck, AppRolledBack, AppBlocked, AppWell} }

// State is the deployment's.
func (d *Deployment) State() AppState {
	switch o := &d.Rollout; {
	case o.Stuck != "":
		return AppStuck
	case o.Back != "" && o.Back != byOperator:
		return AppRolledBack
	case slices.ContainsFunc(d.Instances, func(i Instance) bool { return !i.Blocked.IsZero() }):
		return AppBlocked
	}
	return AppWell
}

// settle tells in a copy of an instance whether it is what it is to be, and what it waits for. One that cannot leave a draining
// blade is what it is to be, and waits.
func (r *Registry) settle(p *running, i *Instance) Instance {
	out := *i
	if out.Settled = r.settled(p, i); !out.Settled || !i.NoRoom.IsZero() {
		out.Why, out.Blocked = r.why(p, i)
	}
	return out
}

// settled reports whether an instance is what it is to be: it runs what the deployment says and serves, or it is a job that
// runs or is done.
func (r *Registry) settled(p *running, i *Instance) bool {
	switch {
	case !i.wanted() || i.Renew || i.Stopped || i.empties():
		return false
	case p.spec.Job:
		return i.Status == Running || i.Status == Finished
	}
	return !p.outdated(i) && r.ready(p, i)
}

// why says what an instance waits for, and since when somebody has to help; zero if nobody has to.
func (r *Registry) why(p *running, i *Instance) (text string, blocked time.Time) {
	switch i.Status {
	case Waiting:
		return r.whyWaiting(p, i)
	case Starting:
		if i.Begun {
			return "its program runs, and has not joined the rack yet", blocked
		}
		return fmt.Sprintf("blade %s has been told to start it", i.Blade), blocked
	case Ending:
		return "its node has ended, and is cut off from the rack", blocked
	case Finished:
		return "", blocked
	case Running:
	}
	return r.whyRunning(p, i)
}

func (r *Registry) whyWaiting(p *running, i *Instance) (text string, blocked time.Time) {
	switch {
	case i.NotBefore.After(r.converged):
		return "it pauses after a failure", blocked
	case !i.NoRoom.IsZero():
		return "no blade has room for it: " + r.lacks(p), i.NoRoom
	}
	return "it is started next", blocked
}

func (r *Registry) whyRunning(p *running, i *Instance) (text string, blocked time.Time) {
	switch {
	case i.Heir:
		return "an heir answers for it until no caller asks any more", blocked
	case i.Stopped:
		return "its program has been told to end", blocked
	case i.empties():
		return "it finishes its calls", blocked
	case i.Leaving:
		return r.whyStays(p)
	case !r.ready(p, i):
		return "it does not export " + strings.Join(r.unexported(p, i), " and ") + " yet", blocked
	case p.outdated(i) && p.app.First != "" && !p.app.Watched:
		return fmt.Sprintf("it waits for its turn: %s is the first, and is watched", p.app.First), blocked
	case i.Renew || p.outdated(i):
		return "it waits for its turn", blocked
	case !i.NoRoom.IsZero():
		return "no other blade has room for it: " + r.lacks(p), i.NoRoom
	}
	return "", blocked
}

// whyStays says why an instance on a draining blade still serves: its successor does not.
func (r *Registry) whyStays(p *running) (text string, blocked time.Time) {
	for _, o := range p.Instances {
		if o.wanted() && !r.ready(p, o) {
			text, blocked = r.why(p, o)
			return fmt.Sprintf("it serves until its successor %s does: %s", o.Name, text), blocked
		}
	}
	return "it serves until its successor does", blocked
}

// unexported lists the services that a running instance is still to export.
func (r *Registry) unexported(p *running, i *Instance) (missing []string) {
	n := r.nodes[i.Node]
	for _, s := range p.work(i).Services {
		if n == nil || !r.rack.Exports(n.Address, n.Incarnation, s.Name) {
			missing = append(missing, s.Name)
		}
	}
	return missing
}

// mostReasons bounds the blades that lacks names.
const mostReasons = 4

// lacks says of the compute blades why none of them can run a program now.
func (r *Registry) lacks(p *running) string {
	s, need := r.survey(nil), p.needs()
	var all []string
	for _, b := range r.sortedBlades() {
		if b.Kind != Compute || len(need.Blades) > 0 && !slices.Contains(need.Blades, b.Name) {
			continue
		}
		if why := s.rooms[b.Name].lacks(need); why != "" {
			all = append(all, why)
		}
	}
	if len(all) == 0 {
		return "there is no compute blade for it"
	}
	if n := len(all) - mostReasons; n > 0 {
		all = append(all[:mostReasons], fmt.Sprintf("and so on for %d others", n))
	}
	return strings.Join(all, ", ")
}

// lacks says why a blade cannot run a program; "" if it can.
func (m *room) lacks(p *Program) string {
	name := m.blade.Name
	switch {
	case m.blade.Mark == Failed || m.blade.Down:
		return name + " is out of service"
	case m.blade.Mark == Draining:
		return name + " is draining"
	}
	for _, s := range p.Services {
		if m.serves(s.Name) {
			return name + " has a node of " + s.Name
		}
	}
	if m.full() {
		return fmt.Sprintf("%s is full (%d of %d nodes)", name, m.used, m.blade.Capacity)
	}
	return ""
}
