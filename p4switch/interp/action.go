package interp

import (
	"math/big"
	"slices"
	"sync"

	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// action is a compiled action. A long one is compiled when it is run first: few switches run all of a program.
type action struct {
	def   *v1model.Action
	later sync.Once
	of    *compiler // nil once it is compiled
	steps []step
	jumps bool
	// locks are the registers the action touches, in a fixed order.
	locks []*register
	// argAt is where each argument begins in the words of a call.
	argAt []int
	words int
}

// bound is an action with arguments.
type bound struct {
	*action
	args []uint64
}

func (c *compiler) action(def *v1model.Action) *action {
	a := &action{def: def}
	for _, p := range def.Params {
		a.argAt = append(a.argAt, a.words)
		a.words += wordsFor(p.Width)
	}
	for _, r := range def.Registers {
		a.locks = append(a.locks, c.registers[r.Index])
	}
	slices.SortFunc(a.locks, func(x, y *register) int { return x.def.Index - y.def.Index })
	if a.of = c; len(def.Body) <= longAction {
		a.compile()
	}
	return a
}

// longAction is how many statements an action has at most that is compiled at once.
const longAction = 50

// compile compiles the statements.
func (a *action) compile() {
	c := a.of
	c.mu.Lock()
	defer c.mu.Unlock()
	c.argAt = a.argAt
	for _, st := range a.def.Body {
		switch st.(type) {
		case v1model.Jump, v1model.JumpIfZero:
			a.jumps = true
		}
		a.steps = append(a.steps, c.stmt(st))
	}
	c.argAt = nil
	a.of = nil
}

// bind packs arguments, each as wide as its parameter.
func (a *action) bind(args []*big.Int) *bound {
	b := &bound{action: a, args: make([]uint64, a.words)}
	for i, v := range args {
		w := a.def.Params[i].Width
		putBig(b.args[a.argAt[i]:][:wordsFor(w)], v, w)
	}
	return b
}

// run executes the action.
func (b *bound) run(s *state) {
	if len(b.def.Body) > longAction {
		b.later.Do(b.compile)
	}
	for _, r := range b.locks {
		r.mu.Lock()
	}
	s.args = b.args
	if b.jumps {
		b.runJumps(s)
	} else {
		for _, f := range b.steps {
			f(s)
		}
	}
	for _, r := range b.locks {
		r.mu.Unlock()
	}
}

// maxSteps is how many statements an action with jumps may execute; 65,536 take about
// a millisecond. A packet whose action wants more is lost.
const maxSteps = 1 << 16

func (b *bound) runJumps(s *state) {
	for pc, n := 0, 0; pc < len(b.steps); n++ {
		if n == maxSteps {
			s.lost, s.exit = endlessLoop, true
			return
		}
		s.pc = pc + 1
		b.steps[pc](s)
		pc = s.pc
	}
}

// step is a statement.
type step func(*state)

// assign compiles the writing of a number to a field, wrapped to its width.
func (c *compiler) assign(dst, src v1model.Expr) step {
	find, fixed, sl, _ := c.locate(dst)
	if sl.width > 64 {
		return c.assignWide(find, fixed, sl, src)
	}
	x := c.num(src)
	mask := mask64(sl.width)
	if fixed < 0 {
		return func(s *state) {
			v := x(s) & mask
			if at := find(s); at >= 0 {
				s.w[at] = v
			}
		}
	}
	if k, ok := src.(v1model.Const); ok {
		v := low64(k.Value) & mask
		return func(s *state) { s.w[fixed] = v }
	}
	if sp := v1model.SpanOf(src); !sp.Signed && sp.Bits <= sl.width {
		return func(s *state) { s.w[fixed] = x(s) }
	}
	return func(s *state) { s.w[fixed] = x(s) & mask }
}

func (c *compiler) assignWide(find locator, fixed int, sl slot, src v1model.Expr) step {
	if sl.width > 128 {
		return c.assignBig(find, sl, src)
	}
	x, mask := c.wide(src), mask128(sl.width)
	if fixed >= 0 {
		return func(s *state) {
			v := x(s)
			s.w[fixed], s.w[fixed+1] = v.hi&mask.hi, v.lo
		}
	}
	return func(s *state) {
		v := x(s)
		if at := find(s); at >= 0 {
			s.w[at], s.w[at+1] = v.hi&mask.hi, v.lo
		}
	}
}

func (c *compiler) assignBig(find locator, sl slot, src v1model.Expr) step {
	if f, ok := src.(v1model.FieldValue); ok && !isVarbit(src) && f.Ref.Width() == sl.width {
		from := c.lay.slot(f.Ref).at
		return func(s *state) {
			if at := find(s); at >= 0 {
				copy(s.w[at:at+sl.n], s.w[from:from+sl.n])
			}
		}
	}
	x := c.big(src)
	return func(s *state) {
		var z big.Int
		x(s, &z)
		if at := find(s); at >= 0 {
			putBig(s.w[at:at+sl.n], &z, sl.width)
		}
	}
}

// assignUint compiles the writing of what an object yields.
func (c *compiler) assignUint(dst v1model.Expr) func(*state, uint64) {
	find, _, sl, _ := c.locate(dst)
	mask := mask64(sl.width)
	return func(s *state, v uint64) {
		at := find(s)
		if at < 0 {
			return
		}
		clear(s.w[at : at+sl.n-1])
		s.w[at+sl.n-1] = v & mask
	}
}

func (c *compiler) assignVarbit(st v1model.AssignVarbit) step {
	to, _, _, dst := c.locate(st.Dst)
	from, _, _, src := c.locate(st.Src)
	return func(s *state) {
		i, j := dst(s), src(s)
		if i < 0 || j < 0 {
			return
		}
		s.varbit[i] = append(s.varbit[i][:0], s.varbit[j]...)
		s.w[to(s)] = s.w[from(s)]
	}
}

// setValid compiles setValid or setInvalid.
func (c *compiler) setValid(st v1model.SetValid) step {
	h, _ := c.header(st.Header)
	if !st.Valid {
		return func(s *state) {
			if i := h(s); i >= 0 && s.w[c.lay.bases[i]] != 0 {
				s.length -= c.headerBytes(s, i)
				c.makeInvalid(s, i)
			}
		}
	}
	return func(s *state) {
		if i := h(s); i >= 0 && s.w[c.lay.bases[i]] == 0 {
			clear(s.w[c.lay.bases[i]:][:c.lay.heads[i].words])
			s.varbit[i] = s.varbit[i][:0]
			c.makeValid(s, i)
			s.length += c.headerBytes(s, i)
		}
	}
}

// makeValid marks a header valid and the others of its union invalid.
func (c *compiler) makeValid(s *state, i int) {
	if u := c.prog.Headers[i].Union; u != nil {
		for _, h := range u.Headers {
			if h.Index != i {
				c.makeInvalid(s, h.Index)
			}
		}
	}
	s.w[c.lay.bases[i]] = 1
}

// makeInvalid marks a header invalid. Its fields can still be read.
func (c *compiler) makeInvalid(s *state, i int) { s.w[c.lay.bases[i]] = 0 }

// headerBytes is a header's length on the wire.
func (c *compiler) headerBytes(s *state, i int) uint64 {
	return uint64(c.lay.heads[i].Bits/8 + len(s.varbit[i]))
}

// copyHeader copies a header with its validity.
func (c *compiler) copyHeader(s *state, dst, src int) {
	to := c.lay.bases[dst]
	if src < 0 || s.w[c.lay.bases[src]] == 0 {
		c.makeInvalid(s, dst)
		return
	}
	copy(s.w[to+1:to+c.lay.heads[dst].words], s.w[c.lay.bases[src]+1:])
	s.varbit[dst] = append(s.varbit[dst][:0], s.varbit[src]...)
	c.makeValid(s, dst) // last, since the source may be of the same union
}

// swapHeaders swaps two headers of the same type with their validity.
func (c *compiler) swapHeaders(s *state, i, j int) {
	a, b := s.w[c.lay.bases[i]:][:c.lay.heads[i].words], s.w[c.lay.bases[j]:]
	for k := range a {
		a[k], b[k] = b[k], a[k]
	}
	s.varbit[i], s.varbit[j] = s.varbit[j], s.varbit[i]
}
