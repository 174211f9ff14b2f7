package gatekeeper

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// Port says which blade is behind a port of the switch. A blade that registers there as
// something else is refused with fault.PermissionDenied.
type Port struct {
	// Blade is the blade's name, Kind is control.Compute or control.Memory.
	Blade, Kind string
	// Machine is a memory blade's machine id, 0 for any that is free.
	Machine uint8
	// Capacity is the most that the blade may offer: bytes of memory, or concurrent nodes;
	// 0 for any amount.
	Capacity uint64
}

// String returns what ParsePort reads.
func (p Port) String() string {
	s := p.Blade + ":" + p.Kind
	if p.Machine != 0 || p.Capacity != 0 {
		s += ":" + strconv.Itoa(int(p.Machine))
	}
	if p.Capacity != 0 {
		s += ":" + strconv.FormatUint(p.Capacity, 10)
	}
	return s
}

// ParsePort reads NAME:KIND, NAME:KIND:MACHINE or NAME:KIND:MACHINE:CAPACITY.
func ParsePort(s string) (Port, error) {
	parts := strings.Split(s, ":")
	if len(parts) < 2 || len(parts) > 4 {
		return Port{}, fmt.Errorf("port %q: write NAME:KIND, NAME:KIND:MACHINE or NAME:KIND:MACHINE:CAPACITY", s)
	}
	p := Port{Blade: parts[0], Kind: parts[1]}
	if len(parts) > 2 {
		n, err := strconv.ParseUint(parts[2], 10, 8)
		if err != nil {
			return Port{}, fmt.Errorf("port %q: machine id %q: must be 0 (any) to 255", s, parts[2])
		}
		p.Machine = uint8(n)
	}
	if len(parts) > 3 {
		n, err := strconv.ParseUint(parts[3], 10, 64)
		if err != nil {
			return Port{}, fmt.Errorf("port %q: capacity %q: must be a number of bytes, or of nodes", s, parts[3])
		}
		p.Capacity = n
	}
	return p, nil
}

// checkPorts refuses bindings that make no sense, or contradict each other.
func checkPorts(ports map[uint16]Port) error {
	blades := map[string]uint16{}
	for num, p := range ports {
		if err := checkName("port", p.Blade); err != nil {
			return fmt.Errorf("gatekeeper: port %d: %w", num, err)
		}
		if p.Kind != control.Compute && p.Kind != control.Memory {
			return fmt.Errorf("gatekeeper: port %d: blade %s is of kind %q: must be %s or %s", num, p.Blade, p.Kind, control.Compute, control.Memory)
		}
		if p.Machine != 0 && p.Kind != control.Memory {
			return fmt.Errorf("gatekeeper: port %d: compute blade %s has no machine id", num, p.Blade)
		}
		if o, ok := blades[p.Blade]; ok {
			return fmt.Errorf("gatekeeper: blade %s is bound to ports %d and %d", p.Blade, min(num, o), max(num, o))
		}
		blades[p.Blade] = num
	}
	return nil
}

// bound decides whether the blade behind a port may be what it says it is, and fills in
// the machine id that the port is bound to.
func (c *Config) bound(num uint16, h *control.Hello) error {
	deny := func(format string, args ...any) error {
		return fault.New(fault.PermissionDenied, "hello", format, args...)
	}
	p, ok := c.Ports[num]
	if !ok {
		if !c.Open {
			return deny("port %d of the switch is bound to no blade: bind it with --port %d=%s:%s, or admit every blade with --open", num, num, h.Blade, h.Kind)
		}
		for other, p := range c.Ports {
			if p.Blade == h.Blade {
				return deny("blade %q is bound to port %d, not %d", h.Blade, other, num)
			}
			if p.Machine != 0 && p.Machine == h.Machine {
				return deny("machine id %d is bound to port %d, not %d", h.Machine, other, num)
			}
		}
		return nil
	}
	switch {
	case p.Blade != h.Blade:
		return deny("port %d is bound to blade %q, not %q", num, p.Blade, h.Blade)
	case p.Kind != h.Kind:
		return deny("port %d is bound to a %s blade, and %q is a %s blade", num, p.Kind, h.Blade, h.Kind)
	case p.Machine != 0 && h.Machine != 0 && p.Machine != h.Machine:
		return deny("port %d is bound to memory machine %d, not %d", num, p.Machine, h.Machine)
	case p.Capacity != 0 && h.Capacity > p.Capacity:
		return deny("port %d is bound to a capacity of %d, and blade %q offers %d", num, p.Capacity, h.Blade, h.Capacity)
	}
	if p.Machine != 0 {
		h.Machine = p.Machine
	}
	return nil
}

// evict takes blades of the log out of service whose ports are bound to others by now.
func (c *controller) evict() {
	for _, b := range c.sortedBlades() {
		h := b.hello
		if !b.alive() {
			continue
		}
		if err := c.cfg.bound(b.port.num, &h); err != nil {
			c.failed(b, err.Error())
		}
	}
}
