//go:build linux

package ebpf

import (
	"github.com/bifrost-rack/bifrost/p4/v1model"
	"github.com/cilium/ebpf/asm"
)

// maxHeader is the longest header, in bytes.
const maxHeader = 512

// deparse writes the headers back. Most packets keep their headers where they
// were: then only what has changed is written. Otherwise all headers are laid
// out anew and the packet is grown or shrunk. It goes on at sent, or at fail.
func (g *gen) deparse(send, fail string) {
	g.place = "deparser"
	for _, s := range g.prog.Deparser.Body {
		g.stmt(s)
	}
	rebuild, whole, moved := g.label("rebuild"), g.label("whole_tail"), g.label("moved_tail")
	g.wholeTail(moved)
	g.jump(whole)
	g.mark(moved)
	g.load(asm.R0, stOutPort)
	g.stat(asm.R0, nTxResize, -1)
	g.jump(fail)
	g.mark(whole)
	g.load(asm.R0, stTag)
	g.emit(asm.JNE.Imm(asm.R0, 0, rebuild)) // its tag is not where the others are
	g.load(asm.R0, stOutPort)
	g.set(asm.R1, 0)
	for _, h := range g.prog.Deparser.Order {
		skip := g.label("skip")
		g.emit(
			asm.LoadMem(asm.R2, rState, int16(g.validAt(h)), asm.Byte),
			asm.JEq.Imm(asm.R2, 0, skip),
			asm.LoadMem(asm.R2, rState, int16(g.st.at+2*h.Index), asm.Half),
			asm.Sub.Imm(asm.R2, atBias),
			asm.JNE.Reg(asm.R2, asm.R1, rebuild),
			asm.Add.Imm(asm.R1, int32(h.Type.Bits/8)))
		g.mark(skip)
	}
	g.load(asm.R2, stParsed)
	g.emit(asm.JNE.Reg(asm.R2, asm.R1, rebuild))
	g.storeImm(stDelta, 0, asm.DWord)
	g.store(stOutLen, asm.R1)
	for _, h := range g.prog.Deparser.Order {
		g.writeBack(h, fail)
	}
	g.jump(send)
	g.mark(rebuild)
	g.rebuild()
}

// writeBack writes a header to where it was, if it has changed.
func (g *gen) writeBack(h *v1model.Header, fail string) {
	if h.Type.Bits == 0 {
		return
	}
	clean := g.label("clean")
	g.emit(
		asm.LoadMem(asm.R0, rState, int16(g.st.dirty+h.Index), asm.Byte),
		asm.JEq.Imm(asm.R0, 0, clean),
		asm.LoadMem(asm.R0, rState, int16(g.validAt(h)), asm.Byte),
		asm.JEq.Imm(asm.R0, 0, clean),
		asm.LoadMem(asm.R2, rState, int16(g.st.at+2*h.Index), asm.Half),
		asm.Sub.Imm(asm.R2, atBias),
		asm.Mov.Reg(asm.R1, rCtx),
		asm.Mov.Reg(asm.R3, rState),
		asm.Add.Imm(asm.R3, int32(g.st.headers[h.Index].base)),
		asm.Mov.Imm(asm.R4, int32(h.Type.Bits/8)),
		asm.Mov.Imm(asm.R5, recompute),
		asm.FnSkbStoreBytes.Call(),
		asm.JSLT.Imm(asm.R0, 0, fail))
	g.mark(clean)
}

// recompute keeps the checksum right that a network card has found.
const recompute = 1 // BPF_F_RECOMPUTE_CSUM

// rebuild lays all headers out in the out buffer and computes by how many bytes
// the packet grows.
func (g *gen) rebuild() {
	g.set(asm.R1, 0)
	for _, h := range g.prog.Deparser.Order {
		n := h.Type.Bits / 8
		skip := g.label("skip")
		g.store(stOutLen, asm.R1)
		g.emit(
			asm.LoadMem(asm.R2, rState, int16(g.validAt(h)), asm.Byte),
			asm.JEq.Imm(asm.R2, 0, skip),
			// From memory the length is any number to the verifier: one path.
			asm.LoadMem(asm.R1, rState, stOutLen, asm.DWord),
			asm.And.Imm(asm.R1, int32(g.st.outMask)),
			asm.Mov.Reg(asm.R2, rState),
			asm.Add.Reg(asm.R2, asm.R1))
		for i := 0; i < n; i += 8 {
			g.load(asm.R0, g.st.headers[h.Index].base+i)
			g.emit(asm.StoreMem(asm.R2, int16(g.st.out+i), asm.R0, asm.DWord))
		}
		g.emit(asm.Add.Imm(asm.R1, int32(n)))
		g.mark(skip)
	}
	g.store(stOutLen, asm.R1)
	g.load(asm.R2, stParsed)
	g.emit(asm.Sub.Reg(asm.R1, asm.R2))
	g.store(stDelta, asm.R1)
}
