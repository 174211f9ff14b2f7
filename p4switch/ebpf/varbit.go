//go:build linux

package ebpf

import (
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/cilium/ebpf/asm"
)

// A variable-length field, or an advance by a number that is not constant, makes the parser's positions variable: from then on they are relative to
// one that the packet's state has (stBase), so that the states behind are generated once and not for each length. A header with such a field lies in
// the state as
//
//	its other fields, as on the wire without it │ eight zeros │ its bytes, and what was behind them │ how many they are (u64)
//
// Read as a number, as comparisons do, its words are aligned at its end, so those of a short one begin in the zeros.

// varbit tells where a header has what belongs to its variable-length field; max is 0 if it has none.
type varbit struct {
	before int // bytes of the fields before it
	bytes  int
	length int
	max    int // bytes
}

// varbitOf lays a header's variable-length field out behind its other fields, which end at a place.
func varbitOf(t *v1model.HeaderType, end int) (v varbit, size int) {
	if t.Varbit < 0 {
		return v, 0
	}
	f := t.Fields[t.Varbit]
	v = varbit{before: f.Offset / 8, bytes: end + 8, max: f.MaxWidth / 8}
	v.length = v.bytes + align8(v.max)
	return v, v.length + 8 - end
}

// mask has all bits of a length.
func (v *varbit) mask() int32 {
	m := int32(1)
	for m < int32(v.max) { //nolint:gosec // at most maxHeader
		m = m<<1 | 1
	}
	return m
}

// addLength adds the length of a header's variable-length field to a register, by means of another one.
func (g *gen) addLength(h *v1model.Header, r, scratch asm.Register) {
	if v := g.st.headers[h.Index].varbit; v.max > 0 {
		g.emit(asm.LoadMem(scratch, rState, int16(v.length), asm.DWord), asm.And.Imm(scratch, v.mask()), asm.Add.Reg(r, scratch))
	}
}

// varbitWord is the i-th word of a variable-length field as a number.
func (g *gen) varbitWord(ref v1model.FieldRef, i int, r asm.Register) {
	v := g.st.headers[ref.Header.Index].varbit
	if v.max == 0 {
		g.set(r, 0)
		return
	}
	inside := g.label("varbit")
	g.emit(
		asm.LoadMem(r, rState, int16(v.length), asm.DWord), asm.And.Imm(r, v.mask()),
		asm.Sub.Imm(r, int32(8*i)), asm.JSGE.Imm(r, 0, inside), asm.Mov.Imm(r, 0)) // no bytes: the zeros
	g.mark(inside)
	g.emit(asm.Add.Reg(r, rState), asm.LoadMem(r, r, int16(v.bytes-8), asm.DWord), asm.HostTo(asm.BE, r, asm.DWord))
}

// checkVarbit notes what of a header's variable-length field is not supported.
func (g *gen) checkVarbit(h *v1model.Header) {
	t := h.Type
	switch {
	case t.Varbit < 0:
	case t.Fields[t.Varbit].Offset%8 != 0:
		g.lack("variable-length field that does not begin at a byte")
	case (t.Bits+t.Fields[t.Varbit].MaxWidth)/8 > maxHeader:
		g.lack("header of more than %d bytes", maxHeader)
	}
}

// assignVarbit copies a variable-length field with its length.
func (g *gen) assignVarbit(s v1model.AssignVarbit) {
	to, ok1 := g.target(s.Dst)
	from, ok2 := g.target(s.Src)
	if !ok1 || !ok2 {
		return
	}
	dst, src := g.st.headers[to.Header.Index].varbit, g.st.headers[from.Header.Index].varbit
	if dst.max != src.max || dst.max == 0 {
		g.lack("assignment of a variable-length field of another greatest length")
		return
	}
	g.copyState(dst.bytes, src.bytes, dst.length+8-dst.bytes)
	g.touch(to.Header)
}

// extractVarbit extracts a header with a variable-length field of as many bits as the packet says.
func (g *gen) extractVarbit(s v1model.Extract, done string) {
	h := s.Header
	v, n := g.st.headers[h.Index].varbit, h.Type.Bits/8
	if v.max == 0 && h.Type.Varbit >= 0 && h.Type.Fields[h.Type.Varbit].MaxWidth > 0 {
		return // checkVarbit has told
	}
	g.wholeBytes(s.VarbitBits, done)
	long, short, fits := g.label("too_long"), g.label("too_short"), g.label("varbit_fits")
	g.rest(asm.R1)
	g.emit(asm.JGT.Reg(asm.R0, asm.R1, short), asm.Sub.Reg(asm.R1, asm.R0), asm.JLT.Imm(asm.R1, int32(n), short))
	g.emit(asm.JGT.Imm(asm.R0, int32(v.max), long))
	g.jump(fits)
	g.mark(short)
	g.accept(g.pos, g.codes.tooShort, done)
	g.mark(long)
	g.accept(g.pos, g.codes.headerTooShort, done)
	g.mark(fits)
	g.emit(asm.And.Imm(asm.R0, v.mask()))
	if v.max > 0 {
		g.store(v.length, asm.R0)
	}
	base := g.st.headers[h.Index].base
	from := g.frame(asm.R1)
	copyFrom := func(to, at, n int) {
		for i := 0; i < n; i += 8 {
			g.emit(asm.LoadMem(asm.R2, from, int16(g.st.ethernet()+g.pos+at+i), asm.DWord), asm.StoreMem(rState, int16(to+i), asm.R2, asm.DWord))
		}
	}
	copyFrom(base, 0, v.before)
	copyFrom(v.bytes, v.before, v.max)
	if from == rState {
		g.emit(asm.Mov.Reg(asm.R1, rState))
		from = asm.R1
	}
	g.emit(asm.Add.Reg(asm.R1, asm.R0))
	copyFrom(base+v.before, v.before, n-v.before)
	g.extracted(h)
	g.emit(asm.Add.Imm(asm.R0, int32(n)))
	g.rebase()
}

// advanceBy skips as many bits as the packet says.
func (g *gen) advanceBy(e v1model.Expr, done string) {
	g.wholeBytes(e, done)
	fits := g.label("advance")
	g.rest(asm.R1)
	g.emit(asm.JLE.Reg(asm.R0, asm.R1, fits))
	g.accept(g.pos, g.codes.tooShort, done)
	g.mark(fits)
	g.rebase()
}

// wholeBytes computes in R0 how many bytes a number of bits is; what is negative is none.
func (g *gen) wholeBytes(e v1model.Expr, done string) {
	p := v1model.SpanOf(e)
	if !p.Fits64() {
		g.lack("length of more than 64 bits")
		return
	}
	whole := g.label("whole_bytes")
	g.storeImm(stError, int32(g.codes.none), asm.DWord)
	g.num(e, 0)
	if looksAhead(e) {
		g.store(stScratch, asm.R0)
		g.failIfShort(done)
		g.load(asm.R0, stScratch)
	}
	if p.Signed {
		some := g.label("positive")
		g.emit(asm.JSGE.Imm(asm.R0, 0, some), asm.Mov.Imm(asm.R0, 0))
		g.mark(some)
	}
	g.emit(asm.Mov.Reg(asm.R1, asm.R0), asm.And.Imm(asm.R1, 7), asm.JEq.Imm(asm.R1, 0, whole))
	g.accept(g.pos, g.codes.invalid, done)
	g.mark(whole)
	g.emit(asm.RSh.Imm(asm.R0, 3))
}

// rest computes how many bytes there are from the parser's position on.
func (g *gen) rest(r asm.Register) {
	g.left(r)
	g.emit(asm.Sub.Imm(r, int32(g.pos)))
}

// left computes how many bytes there are from where positions are relative to.
func (g *gen) left(r asm.Register) {
	if g.far {
		g.load(r, stBaseLen)
	} else {
		g.load(r, stWireLen)
	}
}

// rebase makes the parser's position R0 bytes further the one that others are relative to. A packet of which it is beyond what is fetched is lost.
func (g *gen) rebase() {
	fine := g.label("rebased")
	g.emit(asm.Add.Imm(asm.R0, int32(g.pos)))
	if g.far {
		g.load(asm.R1, stBase)
		g.emit(asm.Add.Reg(asm.R0, asm.R1))
	}
	g.pos, g.far = 0, true
	g.emit(asm.JLE.Imm(asm.R0, int32(g.head), fine))
	g.looped()
	g.jump(g.done)
	g.mark(fine)
	g.store(stBase, asm.R0)
	// What a lookahead is compared with: where the checksum is that is still to be written, and where the payload of a super-packet begins.
	plain := g.label("no_segments")
	g.load(asm.R1, stSum)
	g.emit(asm.Sub.Reg(asm.R1, asm.R0))
	g.store(stBaseSum, asm.R1)
	g.load(asm.R1, stGSOLen)
	g.emit(asm.JEq.Imm(asm.R1, 0, plain), asm.Sub.Reg(asm.R1, asm.R0))
	g.mark(plain)
	g.store(stBaseGSO, asm.R1)
	g.load(asm.R1, stWireLen)
	g.emit(asm.Sub.Reg(asm.R1, asm.R0))
	g.store(stBaseLen, asm.R1)
}

// fetched loses the packet if a position is beyond what is fetched of it. R is changed.
func (g *gen) fetched(to int, r asm.Register) {
	if !g.far {
		return
	}
	fine := g.label("fetched")
	g.load(r, stBase)
	g.emit(asm.JLE.Imm(r, int32(g.head-to), fine))
	g.looped()
	g.jump(g.done)
	g.mark(fine)
}

// frame is a register to which the parser's constant position is relative, in the frame's copy: the state itself, or r.
func (g *gen) frame(r asm.Register) asm.Register {
	if !g.far {
		return rState
	}
	g.load(r, stBase)
	g.emit(asm.And.Imm(r, int32(g.st.windowMask())), asm.Add.Reg(r, rState))
	return r
}

// position stores the parser's position, and a constant more, in a word of the state or half a one.
func (g *gen) position(at, more int, size asm.Size) {
	if !g.far {
		g.storeImm(at, int32(g.pos+more), size)
		return
	}
	g.load(asm.R2, stBase)
	g.emit(asm.Add.Imm(asm.R2, int32(g.pos+more)), asm.StoreMem(rState, int16(at), asm.R2, size))
}

// takeVarbit takes the bytes of a variable-length field into a calculation.
func (g *gen) takeVarbit(a v1model.Algorithm, ref v1model.FieldRef, at int) {
	v := g.st.headers[ref.Header.Index].varbit
	if at%8 != 0 {
		g.lack("hash or checksum in which a variable-length field does not begin at a byte")
		return
	}
	end := g.label("varbit_end")
	for i := range v.max {
		g.load(asm.R0, v.length)
		g.emit(asm.JLE.Imm(asm.R0, int32(i), end), asm.LoadMem(asm.R0, rState, int16(v.bytes+i), asm.Byte))
		g.takeByte(a)
		g.settle()
	}
	g.mark(end)
	g.settle()
}

// settle makes what was computed so far any numbers to the verifier, so that the ways there make no difference.
func (g *gen) settle() {
	g.store(stScratch, asm.R5)
	g.load(asm.R5, stScratch)
	g.emit(asm.And.Imm(asm.R5, 15))
	g.store(stScratch, rTemp)
	g.load(rTemp, stScratch)
}

// layOutVarbit lays a header with a variable-length field out at out + R2, after those R1 bytes, and adds its length to R1.
func (g *gen) layOutVarbit(h *v1model.Header) {
	pl, n := &g.st.headers[h.Index], h.Type.Bits/8
	put := func(from, at, n int) {
		for i := 0; i < n; i += 8 {
			g.load(asm.R0, from+i)
			g.emit(asm.StoreMem(asm.R2, int16(g.st.out+at+i), asm.R0, asm.DWord))
		}
	}
	put(pl.base, 0, pl.varbit.before)
	put(pl.varbit.bytes, pl.varbit.before, pl.varbit.max)
	g.emit(
		asm.LoadMem(asm.R3, rState, int16(pl.varbit.length), asm.DWord), asm.And.Imm(asm.R3, pl.varbit.mask()),
		asm.Add.Reg(asm.R1, asm.R3), asm.Add.Reg(asm.R2, asm.R3))
	put(pl.base+pl.varbit.before, pl.varbit.before, n-pl.varbit.before)
	g.emit(asm.Add.Imm(asm.R1, int32(n)))
}
