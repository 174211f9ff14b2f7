//go:build linux

package ebpf

import (
	"math"
	"math/big"

	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/cilium/ebpf/asm"
)

// pool are the registers that an expression's parts are computed in, by depth. The last one only holds leaves.
var pool = []asm.Register{asm.R0, asm.R1, asm.R2, asm.R3, asm.R4, asm.R5, rTemp}

// maxSpills is how many values of one expression may wait in the packet's state until the registers are free again.
const maxSpills = 64

// args are the arguments of the action being generated: constants, or words of
// the table entry that rEntry points to.
type args struct {
	consts []*big.Int
	at     []int // offset in the entry of each argument
}

// reg is the register of a depth.
func (g *gen) reg(d int) asm.Register { return pool[d] }

// leaf tells whether a number needs no register but the one that it is computed in.
func leaf(e v1model.Expr) bool {
	switch e := e.(type) {
	case v1model.Const, v1model.FieldValue, v1model.Param, v1model.Lookahead:
		return true
	case v1model.FieldOf:
		of, _ := elementAt(e.Header)
		return of == nil
	}
	return false
}

// pair computes words of two numbers in the registers of depths d and d+1. If the second one needs more registers
// than there are, the first one waits in the packet's state. Not on the stack, of which a function has 512 bytes
// together with those that it calls.
func (g *gen) pair(x v1model.Expr, i int, y v1model.Expr, j, d int) {
	g.word(x, i, d)
	if d+2 < len(pool) || leaf(y) {
		g.word(y, j, d+1)
		return
	}
	if g.spilled == maxSpills {
		g.lack("expression of which more than %d values wait for others", maxSpills)
		return
	}
	at := g.st.spills + 8*g.spilled
	g.store(at, g.reg(d))
	g.spilled++
	g.word(y, j, d)
	g.spilled--
	g.emit(asm.Mov.Reg(g.reg(d+1), g.reg(d)))
	g.load(g.reg(d), at)
}

// num computes a number modulo 2^64 in the register of depth d, changing none
// of lower depth. It is exact if the number's span fits 64 bits.
func (g *gen) num(e v1model.Expr, d int) { g.word(e, 0, d) }

// word computes the i-th word of a number.
func (g *gen) word(e v1model.Expr, i, d int) {
	r := g.reg(d)
	switch e := e.(type) {
	case v1model.Const:
		g.set(r, constWord(e.Value, i))
	case v1model.FieldValue:
		g.fieldWord(e.Ref, i, r)
	case v1model.FieldOf:
		if of, index := elementAt(e.Header); of != nil {
			g.num(index, d)
			none := func() { g.set(r, 0) }
			g.eachElement(of, d, none, func(h *v1model.Header) { g.fieldWord(v1model.FieldRef{Header: h, Field: e.Field}, i, r) })
			return
		}
		if ref, ok := g.fixed(e); ok {
			g.fieldWord(ref, i, r)
		}
	case v1model.Param:
		g.param(e, i, r)
	case v1model.Lookahead:
		g.lookahead(e, i, r)
	case v1model.Select:
		g.choose(e, i, d)
	case v1model.Unary:
		g.unary(e, i, d)
	case v1model.Binary:
		g.binary(e, i, d)
	default:
		g.lack("%T", e)
	}
}

// fixed is the field of a header that is known now.
func (g *gen) fixed(e v1model.FieldOf) (v1model.FieldRef, bool) {
	h, ok := g.header(e.Header)
	return v1model.FieldRef{Header: h, Field: e.Field}, ok
}

// constWord is a word of a number in two's complement.
func constWord(v *big.Int, i int) uint64 {
	w := new(big.Int).Rsh(v, uint(64*i)) // rounds down, so signs extend
	return w.And(w, new(big.Int).SetUint64(^uint64(0))).Uint64()
}

func (g *gen) fieldWord(ref v1model.FieldRef, i int, r asm.Register) {
	d := ref.Def()
	if d.Varbit {
		g.varbitWord(ref, i, r)
		return
	}
	g.read(r, wordOf(ref, i))
	if !d.Signed {
		return
	}
	if d.Width > 64 {
		g.lack("signed field of more than 64 bits %v", ref)
		return
	}
	if i == 0 {
		g.extend(r, d.Width)
	}
}

// extend extends the sign of a number of n bits.
func (g *gen) extend(r asm.Register, n int) {
	if n < 64 {
		g.emit(asm.LSh.Imm(r, int32(64-n)), asm.ArSh.Imm(r, int32(64-n)))
	}
}

func (g *gen) param(e v1model.Param, i int, r asm.Register) {
	switch {
	case g.args.consts != nil:
		g.set(r, constWord(g.args.consts[e.Index], i))
	case i < words(e.Width):
		g.emit(asm.LoadMem(r, rEntry, int16(g.args.at[e.Index]+8*i), asm.DWord))
	default:
		g.set(r, 0)
	}
}

func (g *gen) choose(e v1model.Select, i, d int) {
	yes, no, end := g.label("then"), g.label("else"), g.label("chosen")
	t, f := definedByCond(e.Cond, g.sure)
	g.condAt(e.Cond, d, yes, no)
	g.mark(yes)
	g.knows(t, func() { g.word(e.Then, i, d) })
	g.jump(end)
	g.mark(no)
	g.knows(f, func() { g.word(e.Else, i, d) })
	g.mark(end)
}

func (g *gen) unary(e v1model.Unary, i, d int) {
	r := g.reg(d)
	switch e.Op {
	case v1model.OpNot:
		g.word(e.X, i, d)
		g.emit(asm.Xor.Imm(r, -1))
	case v1model.OpNeg:
		if i > 0 {
			g.lack("negation of more than 64 bits")
		}
		g.num(e.X, d)
		g.emit(asm.Neg.Imm(r, 0))
	case v1model.OpToData:
		if i > 0 {
			g.set(r, 0)
			return
		}
		yes, no, end := g.label("true"), g.label("false"), g.label("bool")
		g.condAt(e.X, d, yes, no)
		g.mark(yes)
		g.set(r, 1)
		g.jump(end)
		g.mark(no)
		g.set(r, 0)
		g.mark(end)
	default: // OpLastIndex, OpSize
		at, _ := stackAt(g.prog, e.X)
		if !g.parsing {
			g.lack("index of a header stack outside of the parser")
			return
		}
		n := int64(g.next[at])
		if e.Op == v1model.OpLastIndex {
			n--
		}
		g.set(r, constWord(big.NewInt(n), i))
	}
}

var bitwise = map[v1model.Op]asm.ALUOp{v1model.OpAnd: asm.And, v1model.OpOr: asm.Or, v1model.OpXor: asm.Xor}
var ring = map[v1model.Op]asm.ALUOp{v1model.OpAdd: asm.Add, v1model.OpSub: asm.Sub, v1model.OpMul: asm.Mul}

func (g *gen) binary(e v1model.Binary, i, d int) {
	if op, ok := bitwise[e.Op]; ok {
		g.bitwise(op, e, i, d)
		return
	}
	switch e.Op {
	case v1model.OpShl, v1model.OpShr:
		if k, ok := v1model.SmallConst(e.Y); ok {
			g.shiftConst(e, k, i, d)
			return
		}
	}
	// What follows computes one word. The high words of a number that fits the
	// low one follow from its sign.
	if i > 0 {
		if p := v1model.SpanOf(e); p.Fits64() && !p.Signed {
			g.set(g.reg(d), 0)
			return
		}
		g.lack("arithmetic with more than 64 bits")
		return
	}
	if op, ok := ring[e.Op]; ok {
		g.pair(e.X, 0, e.Y, 0, d)
		g.emit(op.Reg(g.reg(d), g.reg(d+1)))
		return
	}
	g.exactBinary(e, d)
}

func (g *gen) bitwise(op asm.ALUOp, e v1model.Binary, i, d int) {
	r := g.reg(d)
	if k, ok := e.Y.(v1model.Const); ok {
		w := constWord(k.Value, i)
		if op == asm.And && w == 0 {
			g.set(r, 0)
			return
		}
		g.word(e.X, i, d)
		switch {
		case op == asm.And && w == ^uint64(0), op != asm.And && w == 0:
		case op == asm.And && w&(w+1) == 0:
			g.maskUnless(e.X, i, r, w)
		case int64(w) == int64(int32(w)):
			g.emit(op.Imm(r, int32(w)))
		default:
			g.emit(asm.LoadImm(g.reg(d+1), int64(w), asm.DWord), op.Reg(r, g.reg(d+1)))
		}
		return
	}
	g.pair(e.X, i, e.Y, i, d)
	g.emit(op.Reg(r, g.reg(d+1)))
}

// maskUnless masks low bits unless the number has no others.
func (g *gen) maskUnless(x v1model.Expr, i int, r asm.Register, w uint64) {
	n := 0
	for w>>n&1 == 1 && n < 64 {
		n++
	}
	if p := v1model.SpanOf(x); i == 0 && !p.Signed && p.Bits <= n {
		return
	}
	g.mask(r, n)
}

// shiftConst shifts by a constant, words of a number of any width.
func (g *gen) shiftConst(e v1model.Binary, k, i, d int) {
	r := g.reg(d)
	p := v1model.SpanOf(e.X)
	skip, rest := k/64, int32(k%64)
	if e.Op == v1model.OpShl {
		if i < skip {
			g.set(r, 0)
			return
		}
		if rest == 0 || i == skip {
			g.word(e.X, i-skip, d)
			if rest > 0 {
				g.emit(asm.LSh.Imm(r, rest))
			}
			return
		}
		g.pair(e.X, i-skip, e.X, i-skip-1, d)
		t := g.reg(d + 1)
		g.emit(asm.LSh.Imm(r, rest), asm.RSh.Imm(t, 64-rest), asm.Or.Reg(r, t))
		return
	}
	if p.Signed {
		g.shiftSigned(e, k, i, d)
		return
	}
	if p.Bits <= 64*(i+skip) {
		g.set(r, 0)
		return
	}
	if rest == 0 || p.Bits <= 64*(i+skip+1) {
		g.word(e.X, i+skip, d)
		if rest > 0 {
			g.emit(asm.RSh.Imm(r, rest))
		}
		return
	}
	g.pair(e.X, i+skip, e.X, i+skip+1, d)
	t := g.reg(d + 1)
	g.emit(asm.RSh.Imm(r, rest), asm.LSh.Imm(t, 64-rest), asm.Or.Reg(r, t))
}

func (g *gen) shiftSigned(e v1model.Binary, k, i, d int) {
	if !v1model.SpanOf(e.X).Fits64() || i > 0 {
		g.lack("shift of a signed number of more than 64 bits")
		return
	}
	g.num(e.X, d)
	g.emit(asm.ArSh.Imm(g.reg(d), int32(min(k, 63))))
}

// exactBinary computes operators that need exact operands.
func (g *gen) exactBinary(e v1model.Binary, d int) {
	x, y, r := v1model.SpanOf(e.X), v1model.SpanOf(e.Y), g.reg(d)
	switch e.Op {
	case v1model.OpWrap:
		k, _ := v1model.SmallConst(e.Y)
		g.num(e.X, d)
		g.extend(r, max(k, 1))
		return
	case v1model.OpShl, v1model.OpShr:
		if e.Op == v1model.OpShr && !x.Fits64() || !y.Fits64() || y.Signed {
			g.lack("shift of more than 64 bits by a number that is not constant")
			return
		}
		g.shiftBy(e, x, d)
		return
	case v1model.OpDiv, v1model.OpMod:
		if x.Signed || y.Signed || !x.Fits64() || !y.Fits64() {
			g.lack("division of signed numbers or of more than 64 bits")
			return
		}
		g.divide(e, d)
		return
	}
	g.saturate(e, x, d)
}

// saturate brings a number to the nearest that some bits can hold.
func (g *gen) saturate(e v1model.Binary, x v1model.Span, d int) {
	k, ok := v1model.SmallConst(e.Y)
	if !ok || !x.Fits64() || k < 1 || k > 63 && (k > 64 || e.Op == v1model.OpSaturateUnsigned) {
		g.lack("saturating arithmetic with more than 64 bits")
		return
	}
	low, high := int64(0), int64(mask64(min(k, 63)))
	if e.Op == v1model.OpSaturate {
		low, high = math.MinInt64>>(64-k), math.MaxInt64>>(64-k)
	}
	r, bound := g.reg(d), g.reg(d+1)
	g.num(e.X, d)
	fine := g.label("saturated")
	g.set(bound, uint64(high))
	if !x.Signed {
		g.emit(asm.JLE.Reg(r, bound, fine), asm.Mov.Reg(r, bound))
	} else {
		under := g.label("above")
		g.emit(asm.JSLE.Reg(r, bound, under), asm.Mov.Reg(r, bound))
		g.mark(under)
		g.set(bound, uint64(low))
		g.emit(asm.JSGE.Reg(r, bound, fine), asm.Mov.Reg(r, bound))
	}
	g.mark(fine)
}

func (g *gen) shiftBy(e v1model.Binary, x v1model.Span, d int) {
	r, n := g.reg(d), g.reg(d+1)
	big, end := g.label("far"), g.label("shifted")
	g.pair(e.X, 0, e.Y, 0, d)
	g.emit(asm.JGT.Imm(n, 63, big))
	switch {
	case e.Op == v1model.OpShl:
		g.emit(asm.LSh.Reg(r, n))
	case x.Signed:
		g.emit(asm.ArSh.Reg(r, n))
	default:
		g.emit(asm.RSh.Reg(r, n))
	}
	g.jump(end)
	g.mark(big)
	if e.Op == v1model.OpShr && x.Signed {
		g.emit(asm.ArSh.Imm(r, 63))
	} else {
		g.set(r, 0)
	}
	g.mark(end)
}

// divide divides; as everywhere, division by zero yields zero.
func (g *gen) divide(e v1model.Binary, d int) {
	r, by := g.reg(d), g.reg(d+1)
	g.pair(e.X, 0, e.Y, 0, d)
	if e.Op == v1model.OpDiv {
		g.emit(asm.Div.Reg(r, by)) // the kernel's own rule for zero is the same
		return
	}
	zero, end := g.label("by_zero"), g.label("modulo")
	g.emit(asm.JEq.Imm(by, 0, zero), asm.Mod.Reg(r, by))
	g.jump(end)
	g.mark(zero)
	g.set(r, 0)
	g.mark(end)
}

// cond jumps to yes or no. No register holds anything then.
func (g *gen) cond(e v1model.Expr, yes, no string) { g.condAt(e, 0, yes, no) }

// condAt does so without changing registers of depths below d.
func (g *gen) condAt(e v1model.Expr, d int, yes, no string) {
	switch e := e.(type) {
	case v1model.BoolConst:
		if e.Value {
			g.jump(yes)
		} else {
			g.jump(no)
		}
	case v1model.Select:
		a, b := g.label("then"), g.label("else")
		t, f := definedByCond(e.Cond, g.sure)
		g.condAt(e.Cond, d, a, b)
		g.mark(a)
		g.knows(t, func() { g.condAt(e.Then, d, yes, no) })
		g.mark(b)
		g.knows(f, func() { g.condAt(e.Else, d, yes, no) })
	case v1model.Unary:
		g.condUnary(e, d, yes, no)
	case v1model.Binary:
		g.condBinary(e, d, yes, no)
	default:
		g.lack("%T", e)
	}
}

func (g *gen) condUnary(e v1model.Unary, d int, yes, no string) {
	switch e.Op {
	case v1model.OpLogicalNot:
		g.condAt(e.X, d, no, yes)
	case v1model.OpToBool:
		p := v1model.SpanOf(e.X)
		if p.Signed && !p.Fits64() {
			g.lack("signed number of more than 64 bits")
			return
		}
		for i := range words(p.Bits) {
			g.word(e.X, i, d)
			g.emit(asm.JNE.Imm(g.reg(d), 0, yes))
		}
		g.jump(no)
	case v1model.OpValid:
		if of, index := elementAt(e.X); of != nil {
			g.num(index, d)
			valid := func(h *v1model.Header) {
				g.read(g.reg(d), bits{ref: v1model.FieldRef{Header: h, Field: v1model.ValidField}, width: 1})
			}
			g.eachElement(of, d, func() { g.set(g.reg(d), 0) }, valid)
			g.emit(asm.JNE.Imm(g.reg(d), 0, yes))
			g.jump(no)
			return
		}
		for _, h := range g.headers(e.X) {
			g.read(g.reg(d), bits{ref: v1model.FieldRef{Header: h, Field: v1model.ValidField}, width: 1})
			g.emit(asm.JNE.Imm(g.reg(d), 0, yes))
		}
		g.jump(no)
	}
}

func (g *gen) condBinary(e v1model.Binary, d int, yes, no string) {
	next := g.label("and")
	t, f := definedByCond(e.X, g.sure)
	switch e.Op {
	case v1model.OpLogicalAnd:
		g.condAt(e.X, d, next, no)
		g.mark(next)
		g.knows(t, func() { g.condAt(e.Y, d, yes, no) })
		return
	case v1model.OpLogicalOr:
		g.condAt(e.X, d, yes, next)
		g.mark(next)
		g.knows(f, func() { g.condAt(e.Y, d, yes, no) })
		return
	}
	switch v1model.KindOf(e.X) {
	case v1model.KindData:
		g.compare(e, d, yes, no)
	case v1model.KindBool:
		x, y := v1model.Unary{Op: v1model.OpToData, X: e.X}, v1model.Unary{Op: v1model.OpToData, X: e.Y}
		g.compare(v1model.Binary{Op: e.Op, X: x, Y: y}, d, yes, no)
	default:
		g.lack("comparison of headers")
	}
}

var unsignedJumps = map[v1model.Op]asm.JumpOp{
	v1model.OpEqual: asm.JEq, v1model.OpNotEqual: asm.JNE, v1model.OpLess: asm.JLT,
	v1model.OpLessEqual: asm.JLE, v1model.OpGreater: asm.JGT, v1model.OpGreaterEqual: asm.JGE,
}

var signedJumps = map[v1model.Op]asm.JumpOp{
	v1model.OpEqual: asm.JEq, v1model.OpNotEqual: asm.JNE, v1model.OpLess: asm.JSLT,
	v1model.OpLessEqual: asm.JSLE, v1model.OpGreater: asm.JSGT, v1model.OpGreaterEqual: asm.JSGE,
}

func (g *gen) compare(e v1model.Binary, d int, yes, no string) {
	p := v1model.SpanOf(e.X).Join(v1model.SpanOf(e.Y))
	jump := unsignedJumps[e.Op]
	if p.Signed {
		jump = signedJumps[e.Op]
	}
	switch {
	case p.Fits64():
		g.compareWord(jump, e, 0, d, yes)
		g.jump(no)
	case p.Signed:
		g.lack("comparison of signed numbers of more than 64 bits")
	default:
		g.compareWide(e, words(p.Bits), d, yes, no)
	}
}

// compareWord jumps to yes if a word of X and one of Y compare so.
func (g *gen) compareWord(jump asm.JumpOp, e v1model.Binary, i, d int, yes string) {
	if k, ok := e.Y.(v1model.Const); ok {
		if w := constWord(k.Value, i); int64(w) == int64(int32(w)) {
			g.word(e.X, i, d)
			g.emit(jump.Imm(g.reg(d), int32(w), yes))
			return
		}
	}
	g.pair(e.X, i, e.Y, i, d)
	g.emit(jump.Reg(g.reg(d), g.reg(d+1), yes))
}

// compareWide compares unsigned numbers word by word from the highest: the first
// difference decides.
func (g *gen) compareWide(e v1model.Binary, n, d int, yes, no string) {
	differ := map[v1model.Op][2]string{ // where X's word is less, and where greater
		v1model.OpEqual: {no, no}, v1model.OpNotEqual: {yes, yes},
		v1model.OpLess: {yes, no}, v1model.OpLessEqual: {yes, no},
		v1model.OpGreater: {no, yes}, v1model.OpGreaterEqual: {no, yes},
	}[e.Op]
	for i := n - 1; i >= 0; i-- {
		if differ[0] == differ[1] {
			g.compareWord(asm.JNE, e, i, d, differ[0])
			continue
		}
		g.pair(e.X, i, e.Y, i, d)
		g.emit(asm.JLT.Reg(g.reg(d), g.reg(d+1), differ[0]), asm.JGT.Reg(g.reg(d), g.reg(d+1), differ[1]))
	}
	switch e.Op {
	case v1model.OpEqual, v1model.OpLessEqual, v1model.OpGreaterEqual:
		g.jump(yes)
	default:
		g.jump(no)
	}
}
