package interp

import (
	"math/big"
	"slices"

	"github.com/bifrost-rack/bifrost/p4/v1model"
)

// action is a compiled action.
type action struct {
	def   *v1model.Action
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
	c.argAt = a.argAt
	for _, st := range def.Body {
		switch st.(type) {
		case v1model.Jump, v1model.JumpIfZero:
			a.jumps = true
		}
		a.steps = append(a.steps, c.stmt(st))
	}
	c.argAt = nil
	for _, r := range def.Registers {
		a.locks = append(a.locks, c.registers[r.Index])
	}
	slices.SortFunc(a.locks, func(x, y *register) int { return x.def.Index - y.def.Index })
	return a
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
