package gatekeeper

import (
	"maps"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/pairing"
)

// estate is the blades that have ever said hello, and the memory machines that they serve. It answers questions
// about them, and chooses machines and pairs; it tells nobody, and writes nothing down.
type estate struct {
	blades   map[string]*blade   // by name
	machines [256]*blade         // memory blades in service, by machine id: the first copies
	mirrors  map[uint8]*mirror   // machines with two blades
	servers  []*blade            // memory blades in service, by address
	fleet    *resources.Registry // who runs where, deployments, and what operators have said of blades

	prefix      uint8      // of global pointers
	pairs       [][]string // configured machines
	pairNumbers bool       // Config.PairByNumber
	tcp         []string   // Config.TCP
}

func newEstate(cfg *Config) estate {
	return estate{
		blades: map[string]*blade{}, mirrors: map[uint8]*mirror{}, prefix: cfg.DSMPrefix, pairs: cfg.Machines, pairNumbers: cfg.PairByNumber, tcp: cfg.TCP,
	}
}

// sortedBlades returns all blades in the order of their addresses.
func (e *estate) sortedBlades() []*blade {
	return slices.SortedFunc(maps.Values(e.blades), func(x, y *blade) int { return x.address.Compare(y.address) })
}

// generations is at least the generation of each region of the rack: a machine may have had other blades before.
func (e *estate) generations() (highest uint32) {
	for _, b := range e.blades {
		highest = max(highest, b.reserved)
	}
	return highest
}

// machine returns the memory blade of a pointer, nil if there is none in service.
func (e *estate) machine(p dsmpacket.Pointer) *blade {
	if !p.InPrefix(e.prefix) {
		return nil
	}
	return e.machines[p.Machine()]
}

// chooseMachine gives a memory blade the machine id that it asks for, had
// before, or the lowest free one.
func (e *estate) chooseMachine(b *blade, h *control.Hello) error {
	taken := map[uint8]string{}
	for name, o := range e.blades {
		if o != b && o.memory() && o != e.partner(h.Blade) {
			taken[o.hello.Machine] = name
		}
	}
	if h.Machine == 0 {
		h.Machine = b.hello.Machine
	}
	if o := e.partner(h.Blade); o != nil {
		if h.Machine != 0 && h.Machine != o.hello.Machine {
			return fault.New(fault.BadRequest, "hello", "blade %q serves machine %d together with %q, not machine %d", h.Blade, o.hello.Machine, o.hello.Blade, h.Machine)
		}
		h.Machine = o.hello.Machine
	}
	if b.anew && taken[h.Machine] != "" {
		h.Machine = 0 // an operator has given the machine to other blades
	}
	if name := taken[h.Machine]; h.Machine != 0 && name != "" {
		return fault.New(fault.BadRequest, "hello", "machine id %d belongs to blade %q", h.Machine, name)
	}
	if had := b.hello.Machine; had != 0 && had != h.Machine {
		return fault.New(fault.BadRequest, "hello", "blade %q has machine id %d, not %d", h.Blade, had, h.Machine)
	}
	for id := 1; h.Machine == 0; id++ {
		if id > 255 {
			return fault.New(fault.NoSpace, "hello", "all 255 machine ids are taken")
		}
		if taken[uint8(id)] == "" {
			h.Machine = uint8(id)
		}
	}
	return nil
}

// mirrorFor returns the mirrored machine that a blade belongs to, nil for none. The
// blade's machine id must be known.
func (e *estate) mirrorFor(h *control.Hello) *mirror {
	if m := e.mirrors[h.Machine]; m != nil && slices.Contains(m.blades, h.Blade) {
		return m
	}
	pair := e.pairOf(h.Blade)
	if pair == nil {
		return nil
	}
	m := &mirror{machine: h.Machine, blades: pair, why: "the other blade has not said hello"}
	e.mirrors[h.Machine] = m
	return m
}

// claimed returns the mirrored machine that a blade is known to belong to, nil for none.
func (e *estate) claimed(blade string) *mirror {
	for _, m := range e.mirrors {
		if slices.Contains(m.blades, blade) {
			return m
		}
	}
	return nil
}

// pairOf returns the configured blades of a blade's machine if there are two, and an
// operator has not given the other one to another machine.
func (e *estate) pairOf(blade string) []string {
	for _, blades := range e.pairs {
		if len(blades) < 2 || !slices.Contains(blades, blade) {
			continue
		}
		for _, name := range blades {
			if m := e.claimed(name); m != nil && !slices.Contains(m.blades, blade) {
				return nil
			}
		}
		return blades
	}
	if e.pairNumbers && !e.named(blade) {
		return e.pairByNumber(blade)
	}
	return nil
}

// named reports whether the configuration says who serves a machine together with a blade.
func (e *estate) named(blade string) bool {
	return slices.ContainsFunc(e.pairs, func(m []string) bool { return slices.Contains(m, blade) })
}

// pairByNumber is pairOf for a blade that the configuration does not name. Blades that have
// served different machines before stay alone.
func (e *estate) pairByNumber(blade string) []string {
	pair, machine := pairing.ByNumber(blade), uint8(0)
	for _, name := range pair {
		b := e.blades[name]
		if m := e.claimed(name); e.named(name) || m != nil && !slices.Contains(m.blades, blade) || b != nil && (b.chosen || !b.memory()) {
			return nil
		}
		if b == nil || b.hello.Machine == 0 {
			continue
		}
		if machine != 0 && machine != b.hello.Machine {
			return nil
		}
		machine = b.hello.Machine
	}
	return pair
}

// partner returns the other blade of a blade's machine, nil if there is none or it has
// not said hello.
func (e *estate) partner(blade string) *blade {
	for _, name := range e.pairOf(blade) {
		if b := e.blades[name]; name != blade && b != nil {
			return b
		}
	}
	return nil
}

// other returns the blade with the other copy of a machine that has two, or whose second
// one is being completed; nil for other machines.
func (e *estate) other(b *blade) *blade {
	if b.mirror == nil {
		return nil
	}
	for _, name := range b.mirror.receivers() {
		if name != b.hello.Blade && (b.two() || b.mirror.completing()) {
			return e.blades[name]
		}
	}
	return nil
}

// mark reports whether an operator wants a blade empty or out of service.
func (e *estate) mark(b *blade) bool {
	status, _ := e.bladeStatus(b)
	return status == StatusDraining || status == StatusFailed
}

// memoryBlade finds a memory blade by name.
func (e *estate) memoryBlade(op, name string) (*blade, error) {
	b := e.blades[name]
	switch {
	case b == nil:
		return nil, refuseMirror(fault.NotFound, op, ErrUnknownBlade, "blade %q has never said hello; bifrost blades lists those that have", name)
	case !b.memory():
		return nil, refuseMirror(fault.NotFound, op, ErrUnknownBlade, "blade %q is a %s blade", name, b.hello.Kind)
	}
	return b, nil
}

// second returns the blade that a machine with one copy is to be mirrored onto: nil for none.
func (e *estate) second(m *mirror) *blade {
	for _, name := range m.blades {
		if b := e.blades[name]; b != nil && !m.has(b) {
			return b
		}
	}
	return nil
}

// source returns the blade with the first copy of a machine, nil if it is not known.
func (e *estate) source(m *mirror) *blade {
	if len(m.copies) == 0 {
		return nil
	}
	return e.blades[m.copies[0].Blade]
}

// hasRegions reports whether a memory machine has regions.
func (e *estate) hasRegions(machine uint8) bool {
	b := e.machines[machine]
	return b != nil && b.used > 0
}

// bladeStatus is what a blade is good for now, and why if it is not in service.
func (e *estate) bladeStatus(b *blade) (status, cause string) {
	if r, ok := e.fleet.Blade(b.hello.Blade); ok {
		cause = r.Cause
		switch {
		case r.Mark == resources.Failed:
			return StatusFailed, cause
		case b.alive() && r.Mark == resources.Draining && !r.Down:
			return StatusDraining, cause
		}
	}
	switch {
	case !b.alive():
		return StatusFailed, cause
	case len(b.nodes) > 0 || b.used > 0:
		return StatusInUse, ""
	}
	return StatusFree, ""
}

// open reports whether the machine of a memory blade takes new regions: one of its blades
// is neither draining nor failed. If it is the one that the copy moves to, new regions move
// with it.
func (e *estate) open(b *blade) bool {
	if b.mirror == nil {
		return !e.mark(b)
	}
	return slices.ContainsFunc(b.mirror.blades, func(name string) bool {
		o := e.blades[name]
		return o != nil && !e.mark(o)
	})
}

// copiesOf are the blades that have a complete copy of a machine and are in service.
func (e *estate) copiesOf(machine uint8) (copies []*blade) {
	for _, b := range e.sortedBlades() {
		if b.memory() && b.alive() && b.hello.Machine == machine && b.holds() {
			copies = append(copies, b)
		}
	}
	return copies
}

// birthOf is a machine's birth number, 0 if it is not known.
func (e *estate) birthOf(machine uint8) uint64 {
	b := e.machines[machine]
	switch {
	case b == nil:
		return 0
	case b.mirror != nil:
		return b.mirror.birth
	}
	return b.hello.Birth
}

// absent yields the memory blades that are out of service.
func (e *estate) absent(yield func(*blade) bool) {
	for _, b := range e.sortedBlades() {
		if b.memory() && !b.alive() && b.holds() && !yield(b) {
			return
		}
	}
}
