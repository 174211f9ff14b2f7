package resources

import (
	"maps"
	"net/netip"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/frame"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// Hello is how a blade announces itself.
type Hello struct {
	Blade string
	Kind  Kind
	MAC   frame.MAC
	// Machine is the id that a memory blade asks for, 0 for any.
	Machine  Machine
	Capacity uint64
	Spec     map[string]string
	Boot     uint64
}

// Hello registers a blade, or renews its registration: after a restart of its
// daemon (another Boot), on another port, or after it had been given up. What it
// ran or held before a restart is gone. The port is where the hello came in.
//
// Names and ports belong to the blades that have them until those are silent, and
// a blade that the operator marked failed stays so: until then the hello is
// refused with code Unavailable. A machine id that another blade has is refused
// with BadRequest.
func (r *Registry) Hello(h Hello, port Port, now time.Time) (Blade, []Action, error) {
	op := "hello of " + h.Blade
	if err := checkHello(op, &h); err != nil {
		return Blade{}, nil, err
	}
	if o, taken := r.BladeAt(port); taken && o.Name != h.Blade {
		return Blade{}, nil, fault.New(fault.Unavailable, op, "port %d belongs to blade %s", port, o.Name)
	}
	b := r.blades[h.Blade]
	switch {
	case b == nil:
		var err error
		if b, err = r.newBlade(op, h, port); err != nil {
			return Blade{}, nil, err
		}
	case b.Kind != h.Kind:
		return Blade{}, nil, fault.New(fault.BadRequest, op, "it is a %s blade, not %s", b.Kind, h.Kind)
	case h.Machine != 0 && h.Machine != b.Machine:
		return Blade{}, nil, fault.New(fault.BadRequest, op, "it has machine id %d, not %d", b.Machine, h.Machine)
	case b.Mark == Failed:
		b.LastSeen = now
		return Blade{}, nil, fault.New(fault.Unavailable, op, "marked failed: %s", b.Cause)
	case b.Port != port && b.up():
		return Blade{}, nil, fault.New(fault.Unavailable, op, "port %d has a blade of that name", b.Port)
	case b.Boot != h.Boot:
		r.restarted(b, now)
	}
	b.Port, b.MAC, b.Capacity, b.Spec, b.Boot = port, h.MAC, h.Capacity, maps.Clone(h.Spec), h.Boot
	b.Down, b.LastSeen = false, now
	if b.Mark == "" {
		b.Cause = ""
	}
	r.emit(BladeUp{r.view(b)})
	r.settle(now)
	return r.view(b), r.flush(), nil
}

// checkHello refuses what makes no sense in itself.
func checkHello(op string, h *Hello) error {
	if err := checkName("blade", h.Blade); err != nil {
		return err
	}
	switch {
	case h.Kind != Compute && h.Kind != Memory:
		return fault.New(fault.BadRequest, op, "kind %q: must be %s or %s", h.Kind, Compute, Memory)
	case h.Kind == Compute && h.Machine != 0:
		return fault.New(fault.BadRequest, op, "a compute blade has no machine id")
	case h.MAC.IsZero() || h.MAC.Multicast():
		return fault.New(fault.BadRequest, op, "%s is not a blade's Ethernet address", h.MAC)
	case h.Boot == 0:
		return fault.New(fault.BadRequest, op, "boot must not be 0")
	}
	return nil
}

// newBlade gives a blade its address, hop and machine id.
func (r *Registry) newBlade(op string, h Hello, port Port) (*Blade, error) {
	b := &Blade{Name: h.Blade, Kind: h.Kind, Address: r.bladeAddress(port), Boot: h.Boot}
	hop, ok := r.hops.take()
	if !ok {
		return nil, fault.New(fault.Overloaded, op, "all %d hops are in use", r.cfg.MaxHops)
	}
	b.Hop = Hop(hop)
	if h.Kind == Memory {
		id, ok := uint16(h.Machine), true
		if id == 0 {
			id, ok = r.machines.take()
		} else if !r.machines.claim(id) {
			r.hops.giveBack(hop)
			return nil, fault.New(fault.BadRequest, op, "machine id %d belongs to another blade", id)
		}
		if !ok {
			r.hops.giveBack(hop)
			return nil, fault.New(fault.Overloaded, op, "all 255 machine ids are in use")
		}
		b.Machine = Machine(id)
	}
	r.blades[b.Name] = b
	return b, nil
}

// bladeAddress is the one with the port's number, unless that is 0 or somebody
// has it: then one beyond all ports.
func (r *Registry) bladeAddress(port Port) netip.Addr {
	taken := map[netip.Addr]bool{}
	for _, b := range r.blades {
		taken[b.Address] = true
	}
	n := uint64(port)
	for n == 0 || taken[rackaddr.Blade(n)] {
		n = max(n+1, 1<<16)
	}
	return rackaddr.Blade(n)
}

// restarted ends what a blade's former daemon ran or held.
func (r *Registry) restarted(b *Blade, now time.Time) {
	r.clear(b, "blade "+b.Name+" started anew", now)
	if b.Kind == Memory {
		b.Used = 0
		r.emit(MemoryLost{b.Machine})
	}
}

// Heartbeat says that a blade is alive, what it uses (bytes; a compute blade's
// use is known here) and which nodes it runs. Known is false if the blade must
// say hello again.
func (r *Registry) Heartbeat(blade string, boot, used uint64, nodes []netip.Addr, now time.Time) (known bool, actions []Action) {
	b := r.blades[blade]
	if b == nil || b.Boot != boot || !b.up() {
		return false, nil
	}
	b.LastSeen = now
	if b.Kind == Memory {
		b.Used = used
		r.checkDrained(b)
		return true, r.flush()
	}
	for _, a := range nodes {
		if n := r.nodes[a]; n == nil || n.Blade != blade {
			r.emit(Stray{Blade: blade, Node: a})
		}
	}
	return true, r.flush()
}

// up reports whether the blade is in service, draining included.
func (b *Blade) up() bool { return !b.Down && b.Mark != Failed }

// placeable reports whether the blade takes new nodes or regions.
func (b *Blade) placeable() bool { return !b.Down && b.Mark == "" }

// Free is how many bytes, or nodes, the blade still has room for.
func (b *Blade) Free() uint64 { return b.Capacity - min(b.Used, b.Capacity) }

// view is a copy with what is derived filled in.
func (r *Registry) view(b *Blade) Blade {
	v := *b
	v.Spec = maps.Clone(b.Spec)
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
