package resources

import (
	"net/netip"
	"slices"
	"time"
)

// Knows reports whether a blade has said hello.
func (r *Registry) Knows(blade string) bool { return r.blades[blade] != nil }

// Adopt takes over a node that is there already, from a time before this Registry:
// address, incarnation, name and blade are taken as they are. It belongs to
// no deployment.
func (r *Registry) Adopt(n Node, now time.Time) error {
	if _, err := r.known("adopt "+n.Name, n.Blade); err != nil {
		return err
	}
	if r.nodes[n.Address] != nil {
		return nil
	}
	r.nodes[n.Address] = &Node{Address: n.Address, Incarnation: n.Incarnation, Name: n.Name, Blade: n.Blade}
	r.version++
	return nil
}

// HasNode reports whether a node is there, those included that are ending.
func (r *Registry) HasNode(a netip.Addr) bool { return r.nodes[a] != nil }

// GoesOn reports whether a node is to have a successor with its address when it
// ends: it belongs to a deployment that still wants it, or has calls to finish as far
// as the registry knows.
func (r *Registry) GoesOn(a netip.Addr) bool {
	p, i := r.instanceAt(a)
	return i != nil && (i.goesOn() || p.owes(i))
}

// Wants reports whether a deployment still wants a node to go on, which is there or is to come back: one that
// only has calls to finish is not wanted.
func (r *Registry) Wants(a netip.Addr) bool {
	_, i := r.holder(a)
	return i != nil && i.goesOn()
}

// TakenBack reports whether the deployment is taken back of a node, which is there or is to come back.
func (r *Registry) TakenBack(a netip.Addr) bool {
	p, i := r.holder(a)
	return i != nil && p.app.Removed
}

// Forget gives up an heir, wherever it is. It reports false if the node at the address is none, and is to have none now.
func (r *Registry) Forget(a netip.Addr, now time.Time) (actions []Action, ok bool) {
	p, i := r.holder(a)
	if i == nil || !p.app.Removed || i.Status == Running && !i.Heir {
		return nil, false
	}
	i.Tries = attempts
	if i.Status == Running {
		i.Stopped = true
		r.emit(StopNode{Blade: i.Blade, Instance: i.Name})
	}
	r.version++
	r.converge(now)
	return r.flush(), true
}

// holder returns the instance that has an address: its node is there, or the address is kept for its next node. It returns
// nil if there is none.
func (r *Registry) holder(a netip.Addr) (of *running, holder *Instance) {
	if r.nodes[a] != nil {
		return r.instanceAt(a)
	}
	r.eachInstance(func(p *running, i *Instance) {
		if i.Keep.Address == a && a.IsValid() {
			of, holder = p, i
		}
	})
	return of, holder
}

// instanceAt returns the instance that a node is, nil if it is none.
func (r *Registry) instanceAt(a netip.Addr) (*running, *Instance) {
	n := r.nodes[a]
	if n == nil {
		return nil, nil
	}
	return r.instance(n.Instance)
}

// ProgramAt names the program of a deployment that the node at an address runs, "" if it
// belongs to none.
func (r *Registry) ProgramAt(a netip.Addr) (app, program string) {
	if _, i := r.instanceAt(a); i != nil {
		return i.App, i.Program
	}
	return "", ""
}

// Keeps reports whether an address belongs to a node, or is kept for the next node of
// an instance.
func (r *Registry) Keeps(a netip.Addr) bool {
	p, i := r.holder(a)
	return i != nil && (i.goesOn() || p.owes(i))
}

// Lost says that a blade has failed, and why. One that is unknown or has failed
// before is no error.
func (r *Registry) Lost(blade, cause string, now time.Time) []Action {
	if b := r.blades[blade]; b != nil && b.up() {
		r.takeDown(b, cause, now)
	}
	r.converge(now)
	return r.flush()
}

// Started says that a blade's daemon runs an instance now, though it has not
// joined yet.
func (r *Registry) Started(instance, blade string) {
	if _, i := r.instance(instance); i != nil && i.Status == Starting && i.Blade == blade {
		i.Begun = true
	}
}

// Programs says which programs a blade runs, as its daemon reports: an instance
// that was started there, has not joined, and is not among them, has ended.
func (r *Registry) Programs(blade string, names []string, now time.Time) []Action {
	changed := false
	r.eachInstance(func(_ *running, i *Instance) {
		if i.Status == Starting && i.Begun && i.Blade == blade && !slices.Contains(names, i.Name) {
			r.giveUpStart(i, "it ended before it had joined the rack", now)
			changed = true
		}
	})
	if !changed {
		return nil
	}
	r.version++
	r.converge(now)
	return r.flush()
}

// Deadline is when Tick has something to do next, which may have
// been some time ago; false means not before something else happens.
func (r *Registry) Deadline() (at time.Time, ok bool) {
	for _, a := range r.apps {
		if until := a.watchedUntil(r); !until.IsZero() && !a.Removed && (!ok || until.Before(at)) {
			at, ok = until, true
		}
	}
	r.eachInstance(func(p *running, i *Instance) {
		due := i.NotBefore
		until, impatient := r.patience(p, i)
		ready, unready := r.readyBy(p, i)
		switch {
		case unready:
			due = ready
		case impatient:
			due = until
		case i.Status == Starting:
			due = i.Since.Add(r.cfg.StartTimeout + 1)
		case i.Status != Waiting || !due.After(r.converged): // it waits for a blade
			return
		}
		if !ok || due.Before(at) {
			at, ok = due, true
		}
	})
	return at, ok
}
