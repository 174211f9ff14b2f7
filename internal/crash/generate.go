package crash

import "math/rand/v2"

// Generate makes a program of a seed.
func Generate(seed uint64) *Program {
	g := &generator{r: rand.New(rand.NewPCG(seed, 0x9406a3)), p: &Program{}}
	for range 2 + g.r.IntN(2) {
		s := Service{Stateful: g.chance(2, 3)}
		s.Deltas = s.Stateful && g.chance(1, 2)
		g.p.Services = append(g.p.Services, s)
	}
	last := &g.p.Services[len(g.p.Services)-1]
	last.Stateful = true // there is something to be counted
	clients := 1 + g.r.IntN(2)
	for range clients {
		main := g.chance(1, 2)
		c := &composer{generator: g, service: -1, main: main, budget: 24 / clients}
		g.p.Clients = append(g.p.Clients, Client{Main: main, Script: c.compose(nil, false)})
	}
	g.p.Ops, g.p.Apart = g.ops, g.chance(2, 3)
	return g.p
}

type generator struct {
	r   *rand.Rand
	p   *Program
	ops int
}

func (g *generator) chance(n, of int) bool { return g.r.IntN(of) < n }

// composer makes one script.
type composer struct {
	*generator
	service int // whose execution it is; −1 for a client's
	depth   int // of calls
	main    bool
	branch  bool // of a script; no state there
	post    bool // nobody gets its outcome
	try     bool // of policy none: whatever it does may happen, or not, or again
	budget  int  // operations, those of nested scripts included

	out  Script
	have []slot
}

// slot is what is in a slot at this point of the script.
type slot struct {
	size int // 0: nothing
	own  bool
}

// compose makes the script of an execution that is lent, or given, regions of such
// sizes.
func (c *composer) compose(lent []int, given bool) Script {
	for _, size := range lent {
		c.have = append(c.have, slot{size, given})
	}
	c.out.Result = -1
	for n := min(c.budget, 2+c.r.IntN(5)); n > 0 && c.budget > 0; n-- {
		c.next()
	}
	c.end()
	c.out.Slots = len(c.have)
	return c.out
}

// put appends an operation.
func (c *composer) put(op Op) {
	c.ops++
	op.N = c.ops
	c.out.Ops = append(c.out.Ops, op)
	c.budget--
}

// next appends an operation that makes sense here.
func (c *composer) next() {
	kinds := []Kind{Alloc, Look, Effect, Call, Call, Call, Post, Fork, Race, Write, Write, Read, Read, Free}
	if c.stateful() && !c.branch {
		kinds = append(kinds, Add, Add, Add, Bump, Bump)
	}
	if c.main && !c.branch {
		kinds = append(kinds, Checkpoint, Checkpoint)
	}
	if c.try {
		kinds = []Kind{Alloc, Look, Effect, Effect, Write, Read, Read, Free}
	}
	switch k := kinds[c.r.IntN(len(kinds))]; k {
	case Alloc:
		size := []int{64, 300, 5000, mostGenerated}[c.r.IntN(4)]
		c.put(Op{Kind: Alloc, Slot: c.slot(slot{size, true}), Size: size})
	case Write, Read, Free:
		c.access(k)
	case Call:
		c.call()
	case Post:
		c.oneway()
	case Fork, Race:
		c.fork(k)
	default:
		c.put(Op{Kind: k})
	}
}

func (c *composer) stateful() bool { return c.service >= 0 && c.p.Services[c.service].Stateful }

// slot returns a new slot that holds s.
func (c *composer) slot(s slot) int {
	c.have = append(c.have, s)
	return len(c.have) - 1
}

// some picks a slot that holds a region, −1 if there is none.
func (c *composer) some(own bool) int {
	var of []int
	for i, s := range c.have {
		if s.size > 0 && (s.own || !own) {
			of = append(of, i)
		}
	}
	if len(of) == 0 {
		return -1
	}
	return of[c.r.IntN(len(of))]
}

// access does something to a region's bytes.
func (c *composer) access(k Kind) {
	s := c.some(k != Read)
	if s < 0 {
		return
	}
	if k == Free {
		c.free(s)
		return
	}
	at := c.r.IntN(c.have[s].size)
	c.put(Op{Kind: k, Slot: s, At: at, Size: 1 + c.r.IntN(c.have[s].size-at)})
}

func (c *composer) free(s int) {
	c.put(Op{Kind: Free, Slot: s})
	c.have[s] = slot{}
}

// lend picks regions to pass on, at most two.
func (c *composer) lend(own bool) (lend, sizes []int) {
	for range c.r.IntN(3) {
		s := c.some(own)
		if s < 0 || len(lend) > 0 && (own || lend[0] == s) {
			continue
		}
		lend, sizes = append(lend, s), append(sizes, c.have[s].size)
	}
	return lend, sizes
}

// callee picks a service that this one may call: calls go up, so that no service
// ever waits for itself.
func (c *composer) callee() int {
	first := c.service + 1
	if c.depth >= 3 || first >= len(c.p.Services) {
		return -1
	}
	return first + c.r.IntN(len(c.p.Services)-first)
}

func (c *composer) call() {
	callee := c.callee()
	if callee < 0 {
		return
	}
	lend, sizes := c.lend(false)
	op := Op{Kind: Call, Service: callee, Lend: lend, Slot: -1}
	in := &composer{generator: c.generator, service: callee, depth: c.depth + 1, budget: c.budget / 2}
	body := in.compose(sizes, false)
	if body.Result >= 0 {
		op.Slot = c.slot(slot{in.have[body.Result].size, true})
	}
	op.Body = []Script{body}
	c.budget -= len(body.Ops)
	c.put(op)
}

// oneway sends to a service with state: else nobody could tell that it arrived.
func (c *composer) oneway() {
	callee := c.callee()
	if callee < 0 || !c.p.Services[callee].Stateful {
		return
	}
	lend, sizes := c.lend(true)
	in := &composer{generator: c.generator, service: callee, depth: c.depth + 1, budget: min(3, c.budget/2), post: true}
	body := in.compose(sizes, true)
	for _, s := range lend {
		c.have[s] = slot{}
	}
	c.budget -= len(body.Ops)
	c.put(Op{Kind: Post, Service: callee, Lend: lend, Body: []Script{body}})
}

func (c *composer) fork(k Kind) {
	if c.branch {
		return
	}
	lend, sizes := c.lend(false)
	op := Op{Kind: k, Lend: lend}
	for range 2 + c.r.IntN(2) {
		in := &composer{generator: c.generator, service: c.service, depth: c.depth, budget: max(2, c.budget/4), branch: true}
		op.Body = append(op.Body, in.compose(sizes, false))
		c.budget -= len(op.Body[len(op.Body)-1].Ops)
	}
	c.put(op)
}

// end tidies up. A service that keeps state keeps what it leaves, so it leaves
// nothing; a stateless one may, for the rack to free. A client looks at all that it
// has.
func (c *composer) end() {
	answers := c.service >= 0 && !c.branch && !c.post && !c.try
	if answers && c.chance(1, 2) {
		if s := c.some(true); s >= 0 {
			c.out.Result = s
		}
	}
	leave := c.service >= 0 && !c.stateful() && !c.try && c.chance(1, 2)
	for s := range c.have {
		if !c.have[s].own || c.have[s].size == 0 || s == c.out.Result {
			continue
		}
		if c.service < 0 {
			c.put(Op{Kind: Read, Slot: s, Size: c.have[s].size})
		}
		if !leave {
			c.free(s)
		}
	}
	if answers && c.out.Result < 0 && c.chance(1, 8) {
		c.put(Op{Kind: Fail})
	}
	if c.post && c.stateful() {
		c.put(Op{Kind: Add})
	}
}
