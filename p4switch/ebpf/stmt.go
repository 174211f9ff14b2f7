//go:build linux

package ebpf

import (
	"fmt"

	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/cilium/ebpf/asm"
)

// action generates an action's body; it goes on behind it.
func (g *gen) action(a *v1model.Action, with args) {
	saved, place := g.args, g.place
	g.args, g.place = with, fmt.Sprintf("action %q", a.Name)
	targets := map[int]string{}
	target := func(i int) string {
		if targets[i] == "" {
			targets[i] = g.label("line")
		}
		return targets[i]
	}
	atomic, locked, inside := atomicsOf(a.Body), false, g.label("locked")
	known := g.sure
	defined, _ := definedByAction(a, known)
	if loopsBack(a.Body, target) {
		g.storeImm(stSteps, 0, asm.DWord)
	}
	for i, s := range a.Body {
		if l := targets[i]; l != "" {
			g.mark(l)
		}
		g.sure = defined[i]
		if i == atomic.first {
			g.takeLock(atomic.crc)
			g.mark(inside)
			locked = true
		}
		// out is where a jump goes that leads back, or leaves the atomic part.
		out := func(to int) string {
			if to <= i {
				t := turn{g.label("again"), target(to), i - to + 1, locked}
				if locked && to == atomic.first {
					t.to = inside
				}
				g.turns = append(g.turns, t)
				return t.label
			}
			if !locked || to <= atomic.last {
				return target(to)
			}
			return g.unlockAt(target(to))
		}
		switch s := s.(type) {
		case v1model.Jump:
			g.jump(out(s.Target))
		case v1model.JumpIfZero:
			on := g.label("on")
			g.cond(v1model.Unary{Op: v1model.OpToBool, X: s.Cond}, on, out(s.Target))
			g.mark(on)
		case v1model.Exit:
			if locked {
				g.giveLock()
			}
			g.stmt(s)
		case v1model.Hash:
			if locked && calls(s) {
				g.lack("random hash between accesses to registers")
			}
			g.hash(s, locked)
		default:
			if locked && calls(s) {
				g.lack("%s between accesses to registers", featureOf(s))
			}
			g.stmt(s)
		}
		if i == atomic.last {
			g.giveLock()
			locked = false
		}
	}
	if l := targets[len(a.Body)]; l != "" {
		g.mark(l)
	}
	g.unlocks()
	g.loops()
	g.args, g.place, g.sure = saved, place, known
}

// loopsBack makes the labels of an action's statements that jumps lead back to, and tells whether there are any.
func loopsBack(body []v1model.Stmt, target func(int) string) (back bool) {
	for i, s := range body {
		if to, ok := v1model.JumpTarget(s); ok && to <= i {
			target(to)
			back = true
		}
	}
	return back
}

// maxSteps is how many statements the turns of an action's loops may have, as in package interp; a turn counts as if it had all of its statements.
const maxSteps = 1 << 16

// turn is a jump back: its label, where it leads, how many statements that is, and whether it holds the lock.
type turn struct {
	label, to string
	steps     int
	locked    bool
}

// loops generates what the labels of jumps back stand for, out of the way. The verifier believes that a loop ends when it says that it may go on only
// so often (may_goto, Linux 6.9); a packet that wants more steps is lost long before.
func (g *gen) loops() {
	if len(g.turns) == 0 {
		return
	}
	end := g.label("looped")
	g.jump(end)
	for _, t := range g.turns {
		lost := g.label("too_many_turns")
		g.mark(t.label)
		g.load(asm.R0, stSteps)
		g.emit(asm.Add.Imm(asm.R0, int32(t.steps))) //nolint:gosec // a body's length
		g.store(stSteps, asm.R0)
		g.emit(
			asm.JGT.Imm(asm.R0, maxSteps, lost),
			asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.JCOND), Offset: -1}.WithReference(lost)) // -1: to be resolved
		g.jump(t.to)
		g.mark(lost)
		if t.locked {
			g.giveLock()
		}
		g.looped()
		g.jump(g.done)
	}
	g.mark(end)
	g.turns = nil
}

func (g *gen) stmt(s v1model.Stmt) {
	switch s := s.(type) {
	case v1model.Assign:
		g.assign(s)
	case v1model.AssignVarbit:
		g.assignVarbit(s)
	case v1model.SetValid:
		g.setValid(s)
	case v1model.Copy:
		g.copyStmt(s)
	case v1model.Push:
		g.shift(s.Stack, s.Count, 1)
	case v1model.Pop:
		g.shift(s.Stack, s.Count, -1)
	case v1model.CountPacket:
		g.count(s)
	case v1model.Hash: // not in an action
		g.hash(s, false)
	case v1model.Random:
		g.random(s)
	case v1model.ReadRegister:
		g.readRegister(s)
	case v1model.WriteRegister:
		g.writeRegister(s)
	case v1model.ExecuteMeter:
		g.executeMeter(s)
	case v1model.Drop:
		g.setField(s.Spec, g.drop)
		if s.Group.Valid() {
			g.setField(s.Group, 0)
		}
	case v1model.SendDigest:
		for i, d := range g.prog.Digests {
			if d == s.Digest {
				g.storeImm(stDigest, int32(i+1), asm.DWord)
			}
		}
	case v1model.Clone, v1model.Resubmit, v1model.Recirculate, v1model.Truncate:
		g.order(s)
	case v1model.Log:
		g.logMessage(s)
	case v1model.Assert:
		g.assert(s)
	case v1model.Exit:
		g.jump(g.endpipe)
		// What follows is left out unless something jumps there.
	default:
		g.lack("%s", featureOf(s))
	}
}

// featureOf is what a user calls a statement that cannot be generated.
func featureOf(s v1model.Stmt) string {
	switch s.(type) {
	case v1model.ExecuteMeter:
		return "meter"
	case v1model.CountPacket:
		return "counter"
	case v1model.Random:
		return "random number"
	case v1model.Assert:
		return "assert or assume"
	case v1model.Log:
		return "log message"
	}
	return fmt.Sprintf("%T", s)
}

// setField writes a constant of at most 64 bits.
func (g *gen) setField(ref v1model.FieldRef, v uint64) {
	g.set(asm.R0, v)
	g.setReg(ref)
}

// setReg writes R0 to a field, if the program has it.
func (g *gen) setReg(ref v1model.FieldRef) {
	if !ref.Valid() {
		return
	}
	for i := words(ref.Width()) - 1; i > 0; i-- {
		g.set(asm.R1, 0)
		g.write(wordOf(ref, i), asm.R1, asm.R2)
	}
	g.write(wordOf(ref, 0), asm.R0, asm.R1)
}

// target is the field that an assignment goes to.
func (g *gen) target(e v1model.Expr) (v1model.FieldRef, bool) {
	switch e := e.(type) {
	case v1model.FieldValue:
		return e.Ref, true
	case v1model.FieldOf:
		return g.fixed(e)
	}
	g.lack("%T as a destination", e)
	return v1model.FieldRef{}, false
}

func (g *gen) assign(s v1model.Assign) {
	if f, ok := s.Dst.(v1model.FieldOf); ok {
		if of, index := elementAt(f.Header); of != nil {
			g.assignElement(of, index, f.Field, s.Src)
			return
		}
	}
	to, ok := g.target(s.Dst)
	if !ok {
		return
	}
	n := words(to.Width())
	if n <= 2 {
		for i := range n {
			g.word(s.Src, i, i)
		}
		for i := range n {
			g.write(wordOf(to, i), g.reg(i), asm.R2)
		}
		return
	}
	// All words first, since the destination may be part of the source.
	if n > maxSpill {
		g.lack("field %v of more than %d bits", to, maxSpill*64)
		return
	}
	for i := range n {
		g.word(s.Src, i, 0)
		g.emit(asm.StoreMem(asm.R10, spillAt(i+1), asm.R0, asm.DWord))
	}
	for i := range n {
		g.emit(asm.LoadMem(asm.R0, asm.R10, spillAt(i+1), asm.DWord))
		g.write(wordOf(to, i), asm.R0, asm.R1)
	}
}

// maxSpill is how many words may lie on the stack; from spillAt(1) on, behind what
// has a fixed place there.
const maxSpill = 32

func spillAt(slot int) int16 { return int16(heldAt - 8*slot) }

// assignElement assigns to a field of an element whose index is not known before.
func (g *gen) assignElement(of []*v1model.Header, index v1model.Expr, field int, src v1model.Expr) {
	ref := v1model.FieldRef{Header: of[0], Field: field}
	n := words(ref.Width())
	if n > maxSpill {
		g.lack("field %v of more than %d bits", ref, maxSpill*64)
		return
	}
	for i := range n {
		g.word(src, i, 0)
		g.emit(asm.StoreMem(asm.R10, spillAt(i+1), asm.R0, asm.DWord))
	}
	g.num(index, 0)
	g.eachElement(of, 0, func() {}, func(h *v1model.Header) {
		for i := range n {
			g.emit(asm.LoadMem(asm.R0, asm.R10, spillAt(i+1), asm.DWord))
			g.write(wordOf(v1model.FieldRef{Header: h, Field: field}, i), asm.R0, asm.R1)
		}
	})
}

func (g *gen) setValid(s v1model.SetValid) {
	if of, index := elementAt(s.Header); of != nil {
		g.num(index, 0)
		g.eachElement(of, 0, func() {}, func(h *v1model.Header) {
			g.setValid(v1model.SetValid{Header: v1model.HeaderValue{Header: h}, Valid: s.Valid})
		})
		return
	}
	h, ok := g.header(s.Header)
	if !ok {
		return
	}
	if h.Metadata {
		return
	}
	end := g.label("set")
	g.emit(asm.LoadMem(asm.R0, rState, int16(g.validAt(h)), asm.Byte))
	if !s.Valid {
		g.emit(asm.JEq.Imm(asm.R0, 0, end))
		g.invalidate(h)
		g.shrink(h)
		g.mark(end)
		return
	}
	g.emit(asm.JNE.Imm(asm.R0, 0, end))
	g.zeroHeader(h)
	g.storeImm(g.validAt(h), 1, asm.Byte)
	g.sole(h)
	g.touch(h)
	g.grow(h.Type.Bits / 8)
	g.mark(end)
}

// grow changes what packet_length will be in egress.
func (g *gen) grow(n int) {
	if g.prog.Uses(g.prog.Std.PacketLength) {
		g.load(asm.R0, stLength)
		g.emit(asm.Add.Imm(asm.R0, int32(n)))
		g.store(stLength, asm.R0)
	}
}

// shrink does so for a header that is gone.
func (g *gen) shrink(h *v1model.Header) {
	if !g.prog.Uses(g.prog.Std.PacketLength) {
		return
	}
	g.set(asm.R1, uint64(h.Type.Bits/8))
	g.addLength(h, asm.R1, asm.R2)
	g.load(asm.R0, stLength)
	g.emit(asm.Sub.Reg(asm.R0, asm.R1))
	g.store(stLength, asm.R0)
}

// count counts the packet in a cell of an indirect counter.
func (g *gen) count(s v1model.CountPacket) {
	end := g.label("counted")
	g.index(s.Index, s.Counter.Size, 0, end)
	g.countCell(g.objs.counters[s.Counter.Index], end)
	g.mark(end)
}

// countCell counts the packet in the cell R0 of a map of counts.
func (g *gen) countCell(m fder, end string) {
	g.emit(asm.StoreMem(asm.R10, -4, asm.R0, asm.Word))
	g.lookup(m, asm.R10, -4)
	g.emit(
		asm.JEq.Imm(asm.R0, 0, end),
		asm.Mov.Imm(asm.R1, 1),
		asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0))
	g.load(asm.R1, stInLen)
	g.emit(asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 8))
}

// lookup looks up the key at an address; R0 is the value or 0.
func (g *gen) lookup(m fder, base asm.Register, offset int) {
	g.emit(
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.Mov.Reg(asm.R2, base),
		asm.Add.Imm(asm.R2, int32(offset)),
		asm.FnMapLookupElem.Call())
}
