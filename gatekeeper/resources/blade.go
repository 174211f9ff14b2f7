package resources

import (
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
)

// Hello is how a blade announces itself.
type Hello struct {
	Blade     string
	Kind      Kind
	Capacity  uint64 // nodes that a compute blade may run at once
	Restarted bool   // the blade's daemon has started since its last hello
}

// Hello registers a blade, or renews its registration: after a restart of its
// daemon, or after it had been given up. What it ran or held before
// a restart is gone. A blade that the operator marked failed stays so: until it is
// returned, its hello is refused with code Unavailable.
func (r *Registry) Hello(h Hello, now time.Time) ([]Action, error) {
	op := "hello of " + h.Blade
	if err := checkHello(op, &h); err != nil {
		return nil, err
	}
	b := r.blades[h.Blade]
	switch {
	case b == nil:
		b = &Blade{Name: h.Blade, Kind: h.Kind}
		r.blades[b.Name] = b
	case b.Kind != h.Kind:
		return nil, fault.New(fault.BadRequest, op, "it is a %s blade, not %s", b.Kind, h.Kind)
	case b.Mark == Failed:
		return nil, fault.New(fault.Unavailable, op, "marked failed: %s", b.Cause)
	case h.Restarted:
		r.clear(b, "blade "+b.Name+" started anew", now)
	}
	b.Capacity, b.Down = h.Capacity, false
	if b.Mark == "" {
		b.Cause = ""
	}
	r.version++
	r.converge(now)
	return r.flush(), nil
}

// checkHello refuses what makes no sense in itself.
func checkHello(op string, h *Hello) error {
	if err := checkName("blade", h.Blade); err != nil {
		return err
	}
	if h.Kind != Compute && h.Kind != Memory {
		return fault.New(fault.BadRequest, op, "kind %q: must be %s or %s", h.Kind, Compute, Memory)
	}
	return nil
}

// Used says how much of a memory blade is in use: it is drained when nothing is.
func (r *Registry) Used(blade string, much uint64) []Action {
	if b := r.blades[blade]; b != nil && b.Kind == Memory {
		r.checkDrained(b, much == 0)
	}
	return r.flush()
}

// up reports whether the blade is in service, draining included.
func (b *Blade) up() bool { return !b.Down && b.Mark != Failed }

// placeable reports whether the blade takes new nodes or regions.
func (b *Blade) placeable() bool { return !b.Down && b.Mark == "" }

// hostedBy counts the nodes on a blade and the programs that start there.
func (r *Registry) hostedBy(blade string) (count int) {
	for _, n := range r.nodes {
		if n.Blade == blade {
			count++
		}
	}
	for _, a := range r.apps {
		for _, p := range a.Programs {
			for _, i := range p.Instances {
				if i.hosted() && i.Blade == blade {
					count++
				}
			}
		}
	}
	return count
}
