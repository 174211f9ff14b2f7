package gatekeeper

import (
	"fmt"
	"maps"
	"slices"
)

// MachineState is a memory machine, the number in a pointer: one blade serves it, or
// two of which each holds a copy.
type MachineState struct {
	Machine uint8    `json:"machine"`
	Blades  []string `json:"blades"`
	// Copies are the blades with a complete copy; the first one answers reads.
	Copies []string `json:"copies"`
	// Incarnations are those of Copies, in the same order: a blade whose copy was lost and
	// filled again has a later one. None for a machine with one blade.
	Incarnations []uint32 `json:"incarnations,omitempty"`
	// InService is how many of them are in service; with none, the machine's regions are
	// unavailable.
	InService int    `json:"in_service"`
	Epoch     uint32 `json:"epoch,omitempty"` // of these copies; 0 for a machine with one blade
	Why       string `json:"why,omitempty"`   // there are not two
	// Filling is how far the second copy is filled, nil if none is.
	Filling *FillState `json:"filling,omitempty"`
	// Capacity and Used are bytes. A machine with two copies has what the smaller one has.
	Capacity uint64 `json:"capacity"`
	Used     uint64 `json:"used"`
}

// machineStates lists the memory machines by their ids.
func (c *controller) machineStates() (all []MachineState) {
	states := map[uint8]MachineState{}
	for id, m := range c.mirrors {
		states[id] = c.mirrorState(m)
	}
	for name, b := range c.blades {
		if b.memory() && b.mirror == nil {
			s := MachineState{Machine: b.hello.Machine, Blades: []string{name}, Copies: []string{name}, Why: unpaired(name)}
			states[b.hello.Machine] = c.counted(s)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(states)) {
		all = append(all, states[id])
	}
	return all
}

// unpaired is why a blade's machine has one copy that is not meant to have two.
func unpaired(blade string) string {
	return fmt.Sprintf("blade %s is not paired with another one", blade)
}

func (c *controller) mirrorState(m *mirror) MachineState {
	s := MachineState{Machine: m.machine, Blades: slices.Clone(m.blades), Copies: []string{}, Epoch: m.epoch, Why: m.why, Filling: m.filling.state(c.now)}
	for _, o := range m.copies {
		s.Copies, s.Incarnations = append(s.Copies, o.Blade), append(s.Incarnations, o.Incarnation)
	}
	return c.counted(s)
}

// counted adds up what the blades of a machine with complete copies tell.
func (c *controller) counted(s MachineState) MachineState {
	for i, name := range s.Copies {
		b := c.blades[name]
		if b == nil {
			continue
		}
		if b.alive() {
			s.InService++
		}
		if i == 0 || b.hello.Capacity < s.Capacity {
			s.Capacity = b.hello.Capacity
		}
		s.Used = max(s.Used, b.used)
	}
	return s
}

// warnUnpaired tells the operator of a rack with pairs of a blade that has no partner.
func (c *controller) warnUnpaired(b *blade) {
	if b.mirror != nil || len(c.cfg.Machines) == 0 {
		return
	}
	c.event(Event{
		Kind: MachineUnmirrored, Blade: b.hello.Blade, Message: fmt.Sprintf("machine %d has one copy: %s", b.hello.Machine, unpaired(b.hello.Blade)),
	})
	c.logger.Warn("memory machine has one copy", "machine", b.hello.Machine, "copy", b.hello.Blade, "reason", unpaired(b.hello.Blade))
}
