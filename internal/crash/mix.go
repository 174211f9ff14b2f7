package crash

import (
	"math/rand/v2"
	"slices"

	"github.com/bifrost-rack/bifrost/rpc"
)

// Mix gives some calls of a program other policies than the run's, and puts calls of
// policy none between the others. It has dice of its own: what Generate makes of the seed
// stays.
func (p *Program) Mix(seed uint64) {
	g := &generator{r: rand.New(rand.NewPCG(seed, 0x9011c1e5)), p: p, ops: p.Ops}
	for i := range p.Clients {
		g.mix(&p.Clients[i].Script, -1)
	}
	p.Ops = g.ops
}

// mix does it in a script of a service, −1 for a client's.
func (g *generator) mix(s *Script, service int) {
	for i := range s.Ops {
		op := &s.Ops[i]
		in := service
		if op.executes() {
			in = op.Service
			op.Policy = []rpc.Policy{rpc.PolicyFateShare, rpc.PolicyTainted, 9: rpc.PolicyNone}[g.r.IntN(10)]
		}
		for j := range op.Body {
			g.mix(&op.Body[j], in)
		}
	}
	if up := len(g.p.Services) - 1 - service; up > 0 && g.chance(1, 4) {
		g.try(s, service+1+g.r.IntN(up))
	}
}

// try puts a call of policy none into a script. It may be lent what was allocated just
// before.
func (g *generator) try(s *Script, callee int) {
	at, op, sizes := g.r.IntN(len(s.Ops)+1), Op{Kind: Try, Service: callee}, []int(nil)
	if at > 0 && s.Ops[at-1].Kind == Alloc {
		op.Lend, sizes = []int{s.Ops[at-1].Slot}, []int{s.Ops[at-1].Size}
	}
	c := &composer{generator: g, service: callee, try: true, budget: 5}
	op.Body = []Script{c.compose(sizes, false)}
	g.ops++
	op.N = g.ops
	s.Ops = slices.Insert(s.Ops, at, op)
}
