//go:build linux

package ebpf

import (
	"fmt"

	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/cilium/ebpf/asm"
)

// checkChecksum notes what of a checksum is not supported.
func (g *gen) checkChecksum(c *v1model.Checksum) {
	g.place = fmt.Sprintf("checksum %q", c.Name)
	switch calc := c.Calculation; {
	case calc.Payload && calc.Algorithm != v1model.HashCSum16:
		g.lack("another checksum than csum16 with the payload")
	case c.Target.Width() > 64:
		g.lack("checksum field of more than 64 bits")
	}
}

// summed is the header that a calculation is over, or false if there are several.
func summed(calc *v1model.Calculation) (*v1model.Header, bool) {
	var h *v1model.Header
	for _, in := range calc.Input {
		of := in.Header
		if in.Field.Valid() {
			of = in.Field.Header
		}
		if of == nil || of.Metadata {
			continue
		}
		if h != nil && h != of {
			return nil, false
		}
		h = of
	}
	return h, h != nil
}

// verifyChecksums tells the program in R0 whether some checksum is wrong.
func (g *gen) verifyChecksums() {
	ref := g.prog.Std.ChecksumError
	g.place = "checksum verification"
	g.setField(ref, 0)
	for _, c := range g.prog.Checksums {
		if !c.Verify {
			continue
		}
		end := g.label("verified")
		g.emit(asm.LoadMem(asm.R0, rState, int16(g.validAt(c.Target.Header)), asm.Byte), asm.JEq.Imm(asm.R0, 0, end))
		g.sum(c, end)
		g.read(asm.R1, wordOf(c.Target, 0))
		g.emit(asm.JEq.Reg(asm.R0, asm.R1, end))
		g.setField(ref, 1)
		g.mark(end)
	}
}

func (g *gen) updateChecksums() {
	for _, c := range g.prog.Checksums {
		if !c.Update {
			continue
		}
		g.place = fmt.Sprintf("checksum %q", c.Name)
		end := g.label("updated")
		g.sum(c, end)
		g.write(wordOf(c.Target, 0), asm.R0, asm.R1)
		g.mark(end)
	}
}

// sum computes a checksum in R0, or goes to end if it does not apply.
func (g *gen) sum(c *v1model.Checksum, end string) {
	if c.Cond != nil {
		applies := g.label("applies")
		g.cond(c.Cond, applies, end)
		g.mark(applies)
	}
	h, ok := summed(c.Calculation)
	if !ok || h.Type.Varbit >= 0 || c.Calculation.Algorithm != v1model.HashCSum16 || c.Calculation.Payload {
		if isCRC(c.Calculation.Algorithm) {
			g.findTables()
		}
		if c.Calculation.Payload {
			g.sumPayload(c.Calculation)
			return
		}
		g.calculate(c.Calculation)
		return
	}
	g.set(rTemp, 0)
	folded := g.label("folded")
	// Parts in a header that is not valid are left out.
	g.emit(asm.LoadMem(asm.R0, rState, int16(g.validAt(h)), asm.Byte), asm.JEq.Imm(asm.R0, 0, folded))
	g.knows(g.sure.with(h.Index), func() {
		at := 0 // in bits
		for _, in := range c.Calculation.Input {
			at = g.addInput(in, at)
		}
	})
	for range 3 {
		g.emit(
			asm.Mov.Reg(asm.R0, rTemp), asm.RSh.Imm(asm.R0, 16),
			asm.And.Imm(rTemp, 0xffff), asm.Add.Reg(rTemp, asm.R0))
	}
	g.mark(folded)
	g.emit(asm.Xor.Imm(rTemp, 0xffff), asm.Mov.Reg(asm.R0, rTemp))
}

// sumsPayload tells whether some checksum is over the payload.
func (g *gen) sumsPayload() bool {
	for _, c := range g.prog.Checksums {
		if c.Calculation.Payload {
			return true
		}
	}
	return false
}

// sumChunk is how many bytes of the payload are summed up at once.
const sumChunk = 512

// sumPayload computes in R0 a checksum that includes what the parser left: of the
// frame's beginning, which is in the state, and of the rest, which is the end of
// the frame whatever is before it.
func (g *gen) sumPayload(c *v1model.Calculation) {
	g.digest(c)
	g.fold(rTemp)
	g.emit(asm.And.Imm(asm.R5, 8))
	g.store(stScratch, asm.R5) // 8 if what follows begins in the middle of a word
	g.load(asm.R1, stParsed)
	g.load(asm.R2, stWindow)
	g.emit(
		asm.Sub.Reg(asm.R2, asm.R1), asm.And.Imm(asm.R2, int32(g.st.windowMask())),
		asm.And.Imm(asm.R1, int32(g.st.windowMask())), asm.Add.Reg(asm.R1, rState))
	for i := 0; i < g.st.window; i += 8 {
		g.emit(asm.LoadMem(asm.R0, asm.R1, int16(g.st.ethernet()+i), asm.DWord))
		g.store(g.st.out+i, asm.R0)
	}
	g.sumOut()
	g.load(asm.R0, stParsed)
	g.load(asm.R1, stWindow)
	g.emit(asm.Sub.Reg(asm.R1, asm.R0), asm.And.Imm(asm.R1, 1), asm.LSh.Imm(asm.R1, 3))
	g.load(asm.R0, stScratch)
	g.emit(asm.Xor.Reg(asm.R0, asm.R1))
	g.store(stScratch, asm.R0)
	next, end, whole := g.label("chunk"), g.label("summed"), g.label("whole_chunk")
	g.set(rEntry, 0)
	g.mark(next)
	g.load(asm.R4, stWireLen)
	g.load(asm.R1, stWindow)
	g.emit(asm.Sub.Reg(asm.R4, asm.R1)) // the rest
	g.context(asm.R2, ctxLen)
	g.emit(
		asm.Sub.Reg(asm.R2, asm.R4), asm.Add.Reg(asm.R2, rEntry),
		asm.Sub.Reg(asm.R4, rEntry), asm.JSLE.Imm(asm.R4, 0, end),
		asm.JLE.Imm(asm.R4, sumChunk, whole), asm.Mov.Imm(asm.R4, sumChunk))
	g.mark(whole)
	g.store(stDelta, asm.R4)
	g.emit(
		asm.Mov.Reg(asm.R1, rCtx), asm.Mov.Reg(asm.R3, rState), asm.Add.Imm(asm.R3, int32(g.st.out)),
		asm.FnSkbLoadBytes.Call(), asm.JNE.Imm(asm.R0, 0, end))
	g.load(asm.R2, stDelta)
	g.emit(asm.And.Imm(asm.R2, 2*sumChunk-1))
	g.sumOut()
	g.emit(asm.Add.Imm(rEntry, sumChunk), asm.JLT.Imm(rEntry, maxFrame+sumChunk, next))
	g.mark(end)
	g.fold(rTemp)
	g.emit(asm.Xor.Imm(rTemp, 0xffff), asm.Mov.Reg(asm.R0, rTemp))
}

// sumOut adds the R2 bytes of the out buffer to the sum in rTemp. If stScratch is
// 8, they begin in the middle of a word.
func (g *gen) sumOut() {
	even := g.label("even")
	g.set(asm.R0, 0)
	g.emit(
		asm.Mov.Reg(asm.R4, asm.R2), asm.Add.Reg(asm.R2, rState), asm.StoreMem(asm.R2, int16(g.st.out), asm.R0, asm.Word),
		asm.Add.Imm(asm.R4, 3), asm.And.Imm(asm.R4, -4),
		asm.Mov.Imm(asm.R1, 0), asm.Mov.Imm(asm.R2, 0),
		asm.Mov.Reg(asm.R3, rState), asm.Add.Imm(asm.R3, int32(g.st.out)),
		asm.Mov.Imm(asm.R5, 0),
		asm.FnCsumDiff.Call())
	g.mask(asm.R0, 32)
	g.emit(asm.Mov.Reg(asm.R1, asm.R0))
	g.fold(asm.R1)
	g.load(asm.R0, stScratch)
	// The kernel's words are of host order; one that begins in the middle of a word
	// of the sum is as it should be on hosts that have the low byte first.
	g.emit(asm.JNE.Imm(asm.R0, 0, even), asm.HostTo(asm.BE, asm.R1, asm.Half))
	g.mark(even)
	g.emit(asm.Add.Reg(rTemp, asm.R1))
}

// addInput adds a part that begins at a bit to the sum in rTemp, and returns
// where it ends.
func (g *gen) addInput(in v1model.Input, at int) int {
	switch {
	case in.Field.Valid():
		return g.addField(in.Field, at)
	case in.Header != nil:
		for i := range in.Header.Type.Fields {
			at = g.addField(v1model.FieldRef{Header: in.Header, Field: i}, at)
		}
		return at
	}
	for bit := range in.Bits { // a constant: rare and short
		i := len(in.Const)*8 - in.Bits + bit
		if in.Const[i/8]>>(7-i%8)&1 == 1 {
			g.emit(asm.Add.Imm(rTemp, 1<<(15-(at+bit)%16)))
		}
	}
	return at + in.Bits
}

// addField adds a field, in pieces that lie within a 16-bit word each.
func (g *gen) addField(ref v1model.FieldRef, at int) int {
	for left := ref.Width(); left > 0; {
		n := min(left, 16-at%16)
		g.piece(ref, left-n, n)
		if shift := 16 - at%16 - n; shift > 0 {
			g.emit(asm.LSh.Imm(asm.R0, int32(shift)))
		}
		g.emit(asm.Add.Reg(rTemp, asm.R0))
		left -= n
		at += n
	}
	return at
}

// piece loads at most 16 bits of a field, which for metadata may lie in two
// words.
func (g *gen) piece(ref v1model.FieldRef, low, n int) {
	if !ref.Header.Metadata {
		g.read(asm.R0, bits{ref, low, n})
		return
	}
	g.read(asm.R0, wordOf(ref, low/64))
	if low%64 > 0 {
		g.emit(asm.RSh.Imm(asm.R0, int32(low%64)))
	}
	if over := low%64 + n - 64; over > 0 {
		g.read(asm.R1, wordOf(ref, low/64+1))
		g.emit(asm.LSh.Imm(asm.R1, int32(n-over)), asm.Or.Reg(asm.R0, asm.R1))
	}
	g.mask(asm.R0, n)
}
