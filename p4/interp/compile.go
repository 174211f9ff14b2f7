package interp

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/bifrost-rack/bifrost/p4/v1model"
)

// compiler turns a program into closures. What it makes refers to it: it holds
// the objects that they share.
type compiler struct {
	prog  *v1model.Program
	lay   *layout
	codes codes

	now      func() time.Time
	log      *slog.Logger
	dropPort uint64

	counters  []*counter
	meters    []*meter
	registers []*register
	valueSets []*valueSet
	digests   map[*v1model.Digest]*digest
	actions   []*action
	unpackers map[*typeLayout]func(w []uint64, b []byte)

	// argAt is where each parameter of the action being compiled lies in its
	// arguments.
	argAt []int
}

func newCompiler(p *v1model.Program, now func() time.Time, log *slog.Logger) *compiler {
	c := &compiler{
		prog: p, lay: newLayout(p), codes: newCodes(p), now: now, log: log,
		unpackers: map[*typeLayout]func([]uint64, []byte){},
		digests:   map[*v1model.Digest]*digest{},
	}
	return c
}

// compileObjects makes what statements refer to, and the actions.
func (c *compiler) compileObjects() {
	p := c.prog
	for _, t := range c.lay.types {
		if t.Varbit < 0 {
			c.unpackers[t] = t.unpacker()
		}
	}
	for _, d := range p.Counters {
		n := d.Size
		if d.Direct {
			n = 0
		}
		c.counters = append(c.counters, &counter{d, make([]tally, n)})
	}
	for _, d := range p.Meters {
		n := d.Size
		if d.Direct {
			n = 0
		}
		c.meters = append(c.meters, &meter{d, make([]meterCell, n)})
	}
	for _, d := range p.Registers {
		c.registers = append(c.registers, newRegister(d))
	}
	for _, d := range p.ValueSets {
		c.valueSets = append(c.valueSets, &valueSet{def: d})
	}
	for _, d := range p.Digests {
		c.digests[d] = c.digest(d)
	}
	for _, a := range p.Actions {
		c.actions = append(c.actions, c.action(a))
	}
}

// stmt compiles a statement.
func (c *compiler) stmt(st v1model.Stmt) step {
	switch st := st.(type) {
	case v1model.Assign:
		return c.assign(st.Dst, st.Src)
	case v1model.AssignVarbit:
		return c.assignVarbit(st)
	case v1model.Copy:
		return c.copyStmt(st)
	case v1model.SetValid:
		return c.setValid(st)
	case v1model.Push:
		return c.push(st)
	case v1model.Pop:
		return c.pop(st)
	case v1model.CountPacket:
		return c.countPacket(st)
	case v1model.ExecuteMeter:
		return c.executeMeter(st)
	case v1model.ReadRegister:
		return c.readRegister(st)
	case v1model.WriteRegister:
		return c.writeRegister(st)
	case v1model.Hash:
		return c.hash(st)
	case v1model.Random:
		return c.random(st)
	case v1model.Assert:
		return c.assert(st)
	case v1model.Log:
		return c.logMessage(st)
	case v1model.Extract:
		return c.extract(st)
	case v1model.Verify:
		return c.verify(st)
	case v1model.Advance:
		return c.advance(st)
	}
	return c.order(st)
}

// order compiles a statement on the packet's fate.
func (c *compiler) order(st v1model.Stmt) step {
	switch st := st.(type) {
	case v1model.Drop:
		return c.drop(st)
	case v1model.SendDigest:
		d := c.digests[st.Digest]
		return func(s *state) { s.digest = d }
	case v1model.Clone:
		session := c.count(st.Session)
		return func(s *state) {
			s.clone, s.session, s.cloneFields = true, uint32(session(s)&maxSession), st.Fields
		}
	case v1model.Resubmit:
		return func(s *state) { s.resubmit = st.Fields }
	case v1model.Recirculate:
		return func(s *state) { s.recirculate = st.Fields }
	case v1model.Truncate:
		length := c.count(st.Length)
		return func(s *state) {
			n := int(min(length(s), 1<<31-1))
			if s.limit < 0 || n < s.limit {
				s.limit = n
			}
		}
	case v1model.Exit:
		return func(s *state) { s.exit = true }
	case v1model.Jump:
		return func(s *state) { s.pc = st.Target }
	case v1model.JumpIfZero:
		cond := c.num(st.Cond)
		return func(s *state) {
			if cond(s) == 0 {
				s.pc = st.Target
			}
		}
	}
	panic(fmt.Sprintf("interp: %T is no statement", st))
}

// DropPort is the egress port that means to drop, unless configured otherwise;
// simple_switch has the same.
const DropPort = 511

func (c *compiler) drop(st v1model.Drop) step {
	spec := c.lay.slot(st.Spec)
	port := c.dropPort & mask64(spec.width)
	if !st.Group.Valid() {
		return func(s *state) { s.w[spec.at] = port }
	}
	group := c.lay.slot(st.Group)
	return func(s *state) {
		s.w[spec.at] = port
		clear(s.w[group.at : group.at+group.n])
	}
}

func (c *compiler) hash(st v1model.Hash) step {
	calc, base, size := c.calculation(st.Calculation), c.num(st.Base), c.num(st.Max)
	set := c.assignUint(st.Dst)
	return func(s *state) { set(s, calc(s)%max(size(s), 1)+base(s)) }
}

func (c *compiler) random(st v1model.Random) step {
	low, high, set := c.num(st.Low), c.num(st.High), c.assignUint(st.Dst)
	return func(s *state) {
		a, b := low(s), high(s)
		if a > b {
			return
		}
		v := s.rand()
		if b-a != ^uint64(0) {
			v = a + v%(b-a+1)
		}
		set(s, v)
	}
}
