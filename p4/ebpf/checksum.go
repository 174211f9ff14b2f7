//go:build linux

package ebpf

import (
	"fmt"

	"github.com/bifrost-rack/bifrost/p4/v1model"
	"github.com/cilium/ebpf/asm"
)

// checkChecksum notes what of a checksum is not supported: the sum must be over
// fields of one header, as IPv4's is.
func (g *gen) checkChecksum(c *v1model.Checksum) {
	g.place = fmt.Sprintf("checksum %q", c.Name)
	calc := c.Calculation
	switch {
	case calc.Algorithm != v1model.HashCSum16:
		g.lack("another checksum than csum16")
	case calc.Payload:
		g.lack("checksum with the payload")
	case c.Target.Width() != 16:
		g.lack("checksum field of other than 16 bits")
	}
	if _, ok := summed(calc); !ok {
		g.lack("checksum over several headers, or none")
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
		g.read(asm.R0, wordOf(c.Target, 0))
		g.emit(asm.JEq.Reg(asm.R0, rTemp, end))
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
		g.emit(asm.Mov.Reg(asm.R0, rTemp))
		g.write(wordOf(c.Target, 0), asm.R0, asm.R1)
		g.mark(end)
	}
}

// sum computes a checksum in rTemp, or goes to end if it does not apply.
func (g *gen) sum(c *v1model.Checksum, end string) {
	if c.Cond != nil {
		applies := g.label("applies")
		g.cond(c.Cond, applies, end)
		g.mark(applies)
	}
	h, ok := summed(c.Calculation)
	if !ok {
		return
	}
	g.set(rTemp, 0)
	folded := g.label("folded")
	// Parts in a header that is not valid are left out.
	g.emit(asm.LoadMem(asm.R0, rState, int16(g.validAt(h)), asm.Byte), asm.JEq.Imm(asm.R0, 0, folded))
	at := 0 // in bits
	for _, in := range c.Calculation.Input {
		at = g.addInput(in, at)
	}
	for range 3 {
		g.emit(
			asm.Mov.Reg(asm.R0, rTemp), asm.RSh.Imm(asm.R0, 16),
			asm.And.Imm(rTemp, 0xffff), asm.Add.Reg(rTemp, asm.R0))
	}
	g.mark(folded)
	g.emit(asm.Xor.Imm(rTemp, 0xffff))
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
