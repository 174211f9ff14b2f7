//go:build linux

package ebpf

import (
	"github.com/bifrost-rack/bifrost/p4/v1model"
	"github.com/cilium/ebpf/asm"
)

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
		g.condAt(e.Cond, d, a, b)
		g.mark(a)
		g.condAt(e.Then, d, yes, no)
		g.mark(b)
		g.condAt(e.Else, d, yes, no)
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
		p := spanOf(e.X)
		if p.signed && !p.exact() {
			g.lack("signed number of more than 64 bits")
			return
		}
		for i := range words(p.bits) {
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
	switch e.Op {
	case v1model.OpLogicalAnd:
		g.condAt(e.X, d, next, no)
		g.mark(next)
		g.condAt(e.Y, d, yes, no)
		return
	case v1model.OpLogicalOr:
		g.condAt(e.X, d, yes, next)
		g.mark(next)
		g.condAt(e.Y, d, yes, no)
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
	p := join(spanOf(e.X), spanOf(e.Y))
	jump := unsignedJumps[e.Op]
	if p.signed {
		jump = signedJumps[e.Op]
	}
	switch {
	case p.exact():
		g.compareWord(jump, e, 0, d, yes)
		g.jump(no)
	case p.signed:
		g.lack("comparison of signed numbers of more than 64 bits")
	default:
		g.compareWide(e, words(p.bits), d, yes, no)
	}
}

// compareWord jumps to yes if a word of X and one of Y compare so.
func (g *gen) compareWord(jump asm.JumpOp, e v1model.Binary, i, d int, yes string) {
	g.word(e.X, i, d)
	if k, ok := e.Y.(v1model.Const); ok {
		if w := constWord(k.Value, i); int64(w) == int64(int32(w)) {
			g.emit(jump.Imm(g.reg(d), int32(w), yes))
			return
		}
	}
	g.word(e.Y, i, d+1)
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
		g.word(e.X, i, d)
		g.word(e.Y, i, d+1)
		g.emit(asm.JLT.Reg(g.reg(d), g.reg(d+1), differ[0]), asm.JGT.Reg(g.reg(d), g.reg(d+1), differ[1]))
	}
	switch e.Op {
	case v1model.OpEqual, v1model.OpLessEqual, v1model.OpGreaterEqual:
		g.jump(yes)
	default:
		g.jump(no)
	}
}
