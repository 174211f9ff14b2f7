package resources

import (
	"maps"
	"net/netip"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// Hello is how a blade announces itself.
type Hello struct {
	Blade string
	Kind  Kind
	MAC   MAC
	// Machine is the id that a memory blade had before, 0 for none.
	Machine  Machine
	Capacity uint64
	Spec     map[string]string
	Boot     uint64
}

// Hello registers a blade, or renews its registration: after a restart of its
// daemon (another Boot), on another port, or after it had been given up. What it
// ran or held before a restart is gone. The port is where the hello came in.
//
// A name belongs to the blade that has it, until that one is silent: another
// boot on another port is refused with code Stale. A blade that the operator
// marked failed is refused with code Unavailable.
func (r *Registry) Hello(h Hello, port Port, now time.Time) (Blade, []Action, error) {
	op := "hello of " + h.Blade
	if err := checkName("blade", h.Blade); err != nil {
		return Blade{}, nil, err
	}
	if (h.Kind != Compute && h.Kind != Memory) || h.Capacity == 0 || port == 0 {
		return Blade{}, nil, fault.New(fault.BadRequest, op, "kind %q, capacity %d, port %d", h.Kind, h.Capacity, port)
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
	case b.Mark == Failed:
		b.LastSeen = now
		return Blade{}, nil, fault.New(fault.Unavailable, op, "marked failed: %s", b.Cause)
	case b.Boot != h.Boot && b.Port != port && b.up():
		return Blade{}, nil, fault.New(fault.Stale, op, "port %d has a blade of that name", b.Port)
	case b.Boot != h.Boot:
		r.restarted(b, now)
	}
	r.displace(b, port, now)
	b.Port, b.MAC, b.Capacity, b.Spec, b.Boot = port, h.MAC, h.Capacity, maps.Clone(h.Spec), h.Boot
	b.Down, b.LastSeen = false, now
	if b.Mark == "" {
		b.Cause = ""
	}
	r.emit(BladeUp{r.view(b)})
	r.settle(now)
	return r.view(b), r.flush(), nil
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
		id := uint16(h.Machine)
		if !r.machines.claim(id) {
			if id, ok = r.machines.take(); !ok {
				r.hops.giveBack(hop)
				return nil, fault.New(fault.Overloaded, op, "all 255 machine ids are in use")
			}
		}
		b.Machine = Machine(id)
	}
	r.blades[b.Name] = b
	return b, nil
}

// bladeAddress is the one with the port's number if nobody has it, else one
// beyond all ports.
func (r *Registry) bladeAddress(port Port) netip.Addr {
	taken := map[netip.Addr]bool{}
	for _, b := range r.blades {
		taken[b.Address] = true
	}
	n := uint64(port)
	for taken[rackaddr.Blade(n)] {
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

// displace takes down whatever was on a port before: there is one blade at the
// end of a cable.
func (r *Registry) displace(b *Blade, port Port, now time.Time) {
	for _, other := range r.sortedBlades() {
		if other != b && other.Port == port && other.up() {
			r.takeDown(other, "its port has blade "+b.Name, now)
		}
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
