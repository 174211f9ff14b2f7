package crash

import "math/rand/v2"

// Widen makes a program small or large: several nodes for services without state, regions
// of up to some MiB, tens of clients. It has dice of its own, as Mix has.
func (p *Program) Widen(seed uint64) {
	g := &generator{r: rand.New(rand.NewPCG(seed, 0x71de)), p: p, ops: p.Ops}
	for i := range p.Services {
		if s := &p.Services[i]; !s.Stateful && g.chance(1, 2) {
			s.Nodes = 1 + g.r.IntN(3)
		}
	}
	if g.chance(1, 12) {
		p.enlarge([]int{8, 32, 128}[g.r.IntN(3)])
	}
	if g.chance(1, 60) {
		g.crowd(8 + g.r.IntN(16))
	}
	p.Ops = g.ops
}

// enlarge makes all regions, and what is written and read of them, larger.
func (p *Program) enlarge(by int) {
	for i := range p.Clients {
		p.Clients[i].Script.each(-1, func(_ int, op *Op) {
			switch op.Kind {
			case Alloc, Write, Read:
				op.Size, op.At = op.Size*by, op.At*by
			}
		})
	}
}

// crowd adds clients that do what the others do.
func (g *generator) crowd(clients int) {
	for n := range clients {
		like := g.p.Clients[n%len(g.p.Clients)]
		g.p.Clients = append(g.p.Clients, Client{Main: like.Main, Script: g.copied(like.Script)})
	}
}

// copied is a script again, with numbers of its own.
func (g *generator) copied(s Script) Script {
	ops := make([]Op, len(s.Ops))
	for i, op := range s.Ops {
		g.ops++
		op.N = g.ops
		var body []Script
		for _, b := range op.Body {
			body = append(body, g.copied(b))
		}
		op.Body = body
		ops[i] = op
	}
	s.Ops = ops
	return s
}
