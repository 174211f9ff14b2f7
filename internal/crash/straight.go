package crash

import (
	"math/rand/v2"
	"slices"

	"github.com/bifrost-rack/bifrost/rpc"
)

// Straighten makes most programs ones whose calls go direct (rpc/direct.go): plain clients,
// services without state, no distributed memory but, in half of the services without state, what
// executions allocate and free themselves. In some of them the last service keeps its
// state, so that executions of direct calls are handed over in the middle. Programs whose
// regions Widen has enlarged stay as they are, so that direct racks have large regions, too.
func (p *Program) Straighten(seed uint64) {
	g := &generator{r: rand.New(rand.NewPCG(seed, 0x57a1)), p: p}
	if g.chance(1, 4) || p.largest() > mostGenerated {
		return
	}
	own := make([]bool, len(p.Services))
	for i := range p.Services {
		if s := &p.Services[i]; g.chance(1, 2) {
			s.Stateful, s.Deltas = false, false
		}
		own[i] = g.chance(1, 2) && !p.Services[i].Stateful
	}
	for i := range p.Clients {
		c := &p.Clients[i]
		c.Main = c.Main && g.chance(1, 3)
		c.Script.straighten(p, own, c.Main, -1, true, false)
	}
}

// straighten drops what a script of a service, −1 for a client's, can do with memory and
// state alone. A service that has a state counts in the region that it keeps instead: but for
// the first time, that needs no Gatekeeper. It must not in branches, nor in calls that may be given
// up (surely is false in these). In a service that has memory of its own, what the script
// has allocated itself stays.
func (s *Script) straighten(p *Program, own []bool, main bool, service int, surely, trunk bool) {
	state := service >= 0 && p.Services[service].Stateful
	allocated := map[int]bool{} // slots
	for i := range s.Ops {
		switch op := &s.Ops[i]; op.Kind {
		case Alloc, Write, Read, Free:
			if state && surely && trunk {
				*op = Op{Kind: Bump, N: op.N}
			}
		}
	}
	s.Ops = slices.DeleteFunc(s.Ops, func(op Op) bool {
		switch op.Kind {
		case Alloc:
			allocated[op.Slot] = service >= 0 && own[service]
			return !allocated[op.Slot]
		case Write, Read, Free:
			return !allocated[op.Slot]
		case Add, Bump:
			return !state
		case Checkpoint:
			return !main
		case Post:
			return !p.Services[op.Service].Stateful
		}
		return false
	})
	s.Result = -1
	if len(allocated) == 0 {
		s.Slots = 0
	}
	for i := range s.Ops {
		op := &s.Ops[i]
		op.Lend = nil
		in, of, begins := main, service, op.executes()
		if begins {
			op.Slot = -1
			in, of = false, op.Service
		}
		for j := range op.Body {
			op.Body[j].straighten(p, own, in, of, surely && op.Kind != Try, begins)
		}
	}
}

// takenBack is what a node's Stats.TakenBack counts as.
const takenBack = "nodes taken back for direct calls"

// wentDirect counts what a node has done with direct calls.
func (c *crasher) wentDirect(n *rpc.Node) {
	s := n.Stats()
	c.mu.Lock()
	defer c.mu.Unlock()
	for what, count := range map[string]uint64{
		"direct calls": s.Direct, "direct calls into services with state": s.Serial, "one-ways that went direct": s.Oneways, "one-ways that left with a done": s.Sent, "changes of a state in doubt": s.Doubtful,
		"direct calls and answers in parts": s.Large, "direct calls handed over": s.Enlisted, "direct calls resumed": s.Resumed, "direct calls answered again": s.Recalled,
		"regions allocated by direct executions": s.Allocated, "regions freed at the end of direct executions": s.Freed,
		"memory committed by nodes": s.Committed, "memory taken back by nodes": s.RolledBack,
		"direct calls of mains": s.MainCalls, "checkpoints in ledgers": s.MainCheckpoints, "mains handed over": s.MainsHanded, takenBack: s.TakenBack,
	} {
		if count > 0 {
			c.did[what] += int(count) //nolint:gosec // few
		}
	}
}
