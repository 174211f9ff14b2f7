package crash

import (
	"math/rand/v2"
	"slices"
	"time"
)

// Widen makes a program small or large: several nodes for services without state, regions
// of up to some MiB, tens of clients. It has dice of its own, as Mix has.
func (p *Program) Widen(seed uint64) {
	g := &generator{r: rand.New(rand.NewPCG(seed, 0x71de)), p: p, ops: p.Ops}
	for i := range p.Services {
		if s := &p.Services[i]; !s.Stateful && g.chance(1, 2) {
			if s.Nodes = 1 + g.r.IntN(3); s.Nodes == 3 {
				s.Nodes += int(seed / 50 % 3) //nolint:gosec // up to 5; the seeds of mutants stay what they were
			}
		}
	}
	for i := range p.Clients {
		g.widen(&p.Clients[i].Script, -1, 0)
	}
	if g.chance(1, 12) {
		p.enlarge([]int{8, 32, 128}[g.r.IntN(3)])
	}
	if g.chance(1, 60) {
		g.crowd(8 + g.r.IntN(16))
	}
	p.Ops = g.ops
}

// widen puts calls that are given up into a script of a service, −1 for a client's, and
// exactly-once calls into what is done with policy none.
func (g *generator) widen(s *Script, service, depth int) {
	for i := range s.Ops {
		op := &s.Ops[i]
		in, deeper := service, depth
		if op.executes() {
			in, deeper = op.Service, depth+1
		}
		for j := range op.Body {
			if op.Kind == Try {
				g.exactly(&op.Body[j], op.Service)
				continue
			}
			g.widen(&op.Body[j], in, deeper)
		}
	}
	if up := len(g.p.Services) - 1 - service; up > 0 && depth < 3 && g.chance(1, 5) {
		g.hurry(s, service+1+g.r.IntN(up), depth, service < 0 || !g.p.Services[service].Stateful)
	}
}

// hurry puts a call that its caller gives up into a script. It may be lent a region that its
// caller then leaves to the rack: as long as the call runs, nobody may free it.
func (g *generator) hurry(s *Script, callee, depth int, leave bool) {
	at, op, sizes := g.r.IntN(s.end()+1), Op{Kind: Hurry, Service: callee, Cancel: g.chance(1, 3)}, []int(nil)
	if leave && g.chance(1, 2) {
		size := []int{64, 5000}[g.r.IntN(2)]
		g.ops++
		s.Ops = slices.Insert(s.Ops, at, Op{N: g.ops, Kind: Alloc, Slot: s.Slots, Size: size})
		op.Lend, sizes = []int{s.Slots}, []int{size}
		s.Slots++
		at++
	}
	op.Within = time.Duration(1 + g.r.Int64N(int64([]time.Duration{50 * time.Microsecond, time.Millisecond, 20 * time.Millisecond, 5 * time.Second}[g.r.IntN(4)])))
	c := &composer{generator: g, service: callee, depth: depth + 1, post: true, budget: 5}
	op.Body = []Script{c.compose(sizes, false)}
	g.ops++
	op.N = g.ops
	s.Ops = slices.Insert(s.Ops, at, op)
}

// end is where a script ends: before its failure, if it has one.
func (s *Script) end() int {
	if n := slices.IndexFunc(s.Ops, func(op Op) bool { return op.Kind == Fail }); n >= 0 {
		return n
	}
	return len(s.Ops)
}

// exactly puts an exactly-once call into a script of policy none. It does nothing with
// memory: what is rolled back there, nobody could tell when the script runs twice.
func (g *generator) exactly(s *Script, service int) {
	up := len(g.p.Services) - 1 - service
	if up <= 0 || g.chance(1, 2) {
		return
	}
	callee := service + 1 + g.r.IntN(up)
	body := Script{Result: -1}
	for range 2 + g.r.IntN(3) {
		kinds := []Kind{Look, Effect}
		if g.p.Services[callee].Stateful {
			kinds = append(kinds, Add, Add, Add)
		}
		g.ops++
		body.Ops = append(body.Ops, Op{N: g.ops, Kind: kinds[g.r.IntN(len(kinds))]})
	}
	g.ops++
	op := Op{N: g.ops, Kind: Call, Service: callee, Slot: -1, Body: []Script{body}}
	s.Ops = slices.Insert(s.Ops, g.r.IntN(s.end()+1), op)
}

// mostGenerated is the size in bytes of the largest regions that Generate draws. Larger ones
// are enlarged.
const mostGenerated = 20_000

// largest is the size of a program's largest region.
func (p *Program) largest() (size int) {
	for i := range p.Clients {
		p.Clients[i].Script.each(-1, func(_ int, op *Op) {
			if op.Kind == Alloc {
				size = max(size, op.Size)
			}
		})
	}
	return size
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

// Throng adds clients that do at once what the others do.
func (p *Program) Throng(clients int) {
	g := &generator{p: p, ops: p.Ops}
	g.crowd(clients)
	p.Ops = g.ops
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
