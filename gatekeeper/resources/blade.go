package resources

import (
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
)

// Hello is how a blade announces itself.
type Hello struct {
	Blade    string
	Kind     Kind
	Capacity uint64 // bytes of memory, or concurrent nodes
	Boot     uint64 // drawn by the blade's daemon when it starts
}

// Hello registers a blade, or renews its registration: after a restart of its
// daemon (another Boot), or after it had been given up. What it ran or held before
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
		b = &Blade{Name: h.Blade, Kind: h.Kind, Boot: h.Boot}
		r.blades[b.Name] = b
	case b.Kind != h.Kind:
		return nil, fault.New(fault.BadRequest, op, "it is a %s blade, not %s", b.Kind, h.Kind)
	case b.Mark == Failed:
		return nil, fault.New(fault.Unavailable, op, "marked failed: %s", b.Cause)
	case b.Boot != h.Boot:
		r.restarted(b, now)
	}
	b.Capacity, b.Boot, b.Down = h.Capacity, h.Boot, false
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
	switch {
	case h.Kind != Compute && h.Kind != Memory:
		return fault.New(fault.BadRequest, op, "kind %q: must be %s or %s", h.Kind, Compute, Memory)
	case h.Boot == 0:
		return fault.New(fault.BadRequest, op, "boot must not be 0")
	}
	return nil
}

// restarted ends what a blade's former daemon ran or held.
func (r *Registry) restarted(b *Blade, now time.Time) {
	r.clear(b, "blade "+b.Name+" started anew", now)
	if b.Kind == Memory {
		b.Used = 0
	}
}

// Used says how many bytes of a memory blade are taken.
func (r *Registry) Used(blade string, bytes uint64) []Action {
	if b := r.blades[blade]; b != nil && b.up() && b.Kind == Memory {
		b.Used = bytes
		r.checkDrained(b)
	}
	return r.flush()
}

// up reports whether the blade is in service, draining included.
func (b *Blade) up() bool { return !b.Down && b.Mark != Failed }

// placeable reports whether the blade takes new nodes or regions.
func (b *Blade) placeable() bool { return !b.Down && b.Mark == "" }

// view is a copy with what is derived filled in.
func (r *Registry) view(b *Blade) Blade {
	v := *b
	if b.Kind == Compute {
		v.Used = uint64(r.hostedBy(b.Name))
	}
	switch {
	case !b.up():
		v.Status = Failed
	case b.Mark == Draining:
		v.Status = Draining
	case v.Used > 0:
		v.Status = InUse
	default:
		v.Status = Idle
	}
	return v
}

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
