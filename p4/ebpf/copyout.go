//go:build linux

package ebpf

import "github.com/cilium/ebpf/asm"

// layOut lays everything out that a packet has before the tail that copies share:
// its headers, and what of the frame's beginning the parser left. It goes to moved if
// a checksum could not be written behind them any more.
func (g *gen) layOut(moved string) {
	g.updateChecksums()
	g.place = "deparser"
	for _, s := range g.prog.Deparser.Body {
		g.stmt(s)
	}
	g.wholeTail(moved)
	g.rebuild()
	g.place = "copies"
	g.load(asm.R1, stParsed)
	g.load(asm.R2, stOutLen)
	g.load(asm.R3, stWindow)
	g.emit(asm.Sub.Reg(asm.R3, asm.R1), asm.Add.Reg(asm.R3, asm.R2))
	g.store(stOutLen, asm.R3)
	g.emit(
		asm.And.Imm(asm.R1, int32(g.st.windowMask())), asm.Add.Reg(asm.R1, rState),
		asm.And.Imm(asm.R2, int32(g.st.outMask)), asm.Add.Reg(asm.R2, rState))
	for i := 0; i < g.st.window; i += 8 {
		g.emit(
			asm.LoadMem(asm.R0, asm.R1, int16(g.st.ethernet()+i), asm.DWord),
			asm.StoreMem(asm.R2, int16(g.st.out+i), asm.R0, asm.DWord))
	}
}

// output sends a copy: it writes everything before the shared tail, and has the
// frame cloned unless this is the last copy.
func (g *gen) output(stop string) {
	lost, long, resize, broken := g.label("lost"), g.label("too_long"), g.label("no_resize"), g.label("broken")
	test, sent := g.label("test"), g.label("sent")
	g.layOut(resize)
	g.tailLeft(resize)
	g.uncutSum(resize)
	g.storeImm(stPad, 0, asm.DWord)
	g.room(resize, broken)
	g.cutTail(broken)
	g.load(asm.R2, stPad)
	g.storeOut(broken)
	if g.cpu != 0 {
		g.tagForCPU(broken)
	}
	g.load(asm.R0, stTest)
	g.emit(asm.JNE.Imm(asm.R0, 0, test))
	g.findPort(lost)
	g.fits(long)
	g.countOut()
	more := g.label("more")
	g.emit(asm.LoadMem(asm.R2, rEntry, portIndex, asm.Word))
	g.load(asm.R0, stJobs)
	g.emit(asm.JNE.Imm(asm.R0, 0, more))
	g.store(stFinal, asm.R2)
	g.jump(stop)
	g.mark(more)
	g.emit(asm.Mov.Reg(asm.R1, rCtx), asm.Mov.Imm(asm.R3, 0), asm.FnCloneRedirect.Call())
	g.jump(sent)
	g.mark(test)
	g.showCopy(sent)
	g.mark(lost)
	g.set(asm.R0, lostPort)
	g.stat(asm.R0, nLost, -1)
	g.jump(sent)
	g.mark(long)
	g.load(asm.R0, stOutPort)
	g.stat(asm.R0, nTxTooLong, -1)
	g.mark(sent)
	if g.cpu != 0 {
		g.load(asm.R0, stOutPort)
		g.emit(asm.JNE.Imm(asm.R0, int32(g.cpu), g.done))
		g.popTags(1, broken)
	}
	g.jump(g.done)
	g.mark(resize)
	g.load(asm.R0, stOutPort)
	g.stat(asm.R0, nTxResize, -1)
	g.jump(g.done)
	// Nobody knows what the frame looks like now: no copy follows.
	g.mark(broken)
	g.load(asm.R0, stOutPort)
	g.stat(asm.R0, nTxResize, -1)
	g.storeImm(stJobs, 0, asm.DWord)
	g.jump(stop)
}

// tailLeft tells in stDelta by how much what comes before the tail must grow, or
// goes to fail if other copies have taken away too much of the tail.
func (g *gen) tailLeft(fail string) {
	whole, some, none, end := g.label("whole"), g.label("some"), g.label("no_tail"), g.label("tail")
	g.load(asm.R0, stWireLen) // R0 becomes the length of its tail
	g.load(asm.R1, stWindow)
	g.emit(asm.Sub.Reg(asm.R0, asm.R1))
	g.set(asm.R2, 0) // how much of that is cut off
	g.load(asm.R3, stLimit)
	g.load(asm.R4, stOutLen)
	g.context(asm.R5, ctxLen)
	g.emit(asm.JEq.Imm(asm.R3, 0, whole), asm.Sub.Imm(asm.R3, 1))
	if g.forks.clone || g.forks.truncate {
		short := g.label("tail_cut")
		g.emit(asm.JGT.Reg(asm.R3, asm.R4, short))
		// What is cut off begins before the tail: nothing of the frame stays.
		g.store(stOutLen, asm.R3)
		g.mark(none)
		g.storeImm(stEnd, maxFrame, asm.DWord)
		g.storeImm(stDelta, 0, asm.DWord)
		g.jump(end)
		g.mark(short)
		g.emit(
			asm.Mov.Reg(asm.R2, asm.R4), asm.Add.Reg(asm.R2, asm.R0), asm.Sub.Reg(asm.R2, asm.R3),
			asm.JSGT.Imm(asm.R2, 0, whole), asm.Mov.Imm(asm.R2, 0))
	}
	g.mark(whole)
	g.store(stEnd, asm.R2)
	g.load(asm.R1, stCut)
	g.load(asm.R3, stTail)
	g.emit(asm.JEq.Imm(asm.R0, 0, some))
	g.emit(
		asm.JLT.Reg(asm.R2, asm.R1, fail),
		asm.JGT.Reg(asm.R0, asm.R3, fail))
	g.store(stTail, asm.R0)
	g.mark(some)
	if g.forks.clone || g.forks.truncate {
		uncut := g.label("uncut")
		g.emit(asm.JEq.Imm(asm.R1, 0, uncut), asm.JEq.Imm(asm.R0, 0, none))
		g.mark(uncut)
	}
	g.emit(asm.Sub.Reg(asm.R0, asm.R1), asm.Sub.Reg(asm.R5, asm.R0), asm.Sub.Reg(asm.R4, asm.R5))
	g.store(stDelta, asm.R4)
	g.mark(end)
}

// room makes the frame longer or shorter by stDelta. For the CPU port it need not
// become shorter, and it grows by a multiple of four: stPad is what it is then too
// long.
func (g *gen) room(fail, broken string) {
	done, exact := g.label("room"), g.label("exact")
	g.load(asm.R1, stGSOLen)
	fine := g.label("whole_frame")
	g.emit(asm.JEq.Imm(asm.R1, 0, fine))
	g.load(asm.R0, stDelta)
	g.emit(asm.JNE.Imm(asm.R0, 0, fail))
	g.load(asm.R0, stLimit)
	g.emit(asm.JNE.Imm(asm.R0, 0, fail))
	if g.cpu != 0 {
		g.load(asm.R0, stOutPort)
		g.emit(asm.JEq.Imm(asm.R0, int32(g.cpu), fail))
	}
	g.mark(fine)
	if g.cpu != 0 {
		grow, padded := g.label("grow"), g.label("padded")
		g.load(asm.R0, stOutPort)
		g.emit(asm.JNE.Imm(asm.R0, int32(g.cpu), exact))
		g.load(asm.R0, stDelta)
		g.emit(
			asm.JSGT.Imm(asm.R0, 0, grow),
			asm.JSLT.Imm(asm.R0, -200, exact),
			asm.Mov.Imm(asm.R1, 0))
		g.jump(padded)
		g.mark(grow)
		g.emit(asm.Mov.Reg(asm.R1, asm.R0), asm.Add.Imm(asm.R1, 3), asm.And.Imm(asm.R1, -4))
		g.mark(padded)
		g.store(stDelta, asm.R1)
		g.emit(asm.Sub.Reg(asm.R1, asm.R0))
		g.store(stPad, asm.R1)
	}
	g.mark(exact)
	g.load(asm.R0, stDelta)
	g.emit(asm.JEq.Imm(asm.R0, 0, done))
	g.resizeBy(broken)
	g.mark(done)
}

// cutTail gives the frame its length at the end: the packet's longest, or that of
// what was laid out if nothing else stays.
func (g *gen) cutTail(fail string) {
	if !g.forks.clone && !g.forks.truncate {
		return
	}
	done, set := g.label("length"), g.label("set_length")
	g.load(asm.R2, stOutLen)
	g.load(asm.R1, stPad)
	g.context(asm.R3, ctxLen)
	g.load(asm.R0, stEnd)
	g.emit(
		asm.JEq.Imm(asm.R0, 0, done),
		asm.Add.Reg(asm.R2, asm.R1),
		asm.JEq.Imm(asm.R0, maxFrame, set))
	g.load(asm.R2, stLimit)
	g.emit(asm.Sub.Imm(asm.R2, 1), asm.Add.Reg(asm.R2, asm.R1))
	g.mark(set)
	g.store(stCut, asm.R0)
	g.emit(asm.JEq.Reg(asm.R2, asm.R3, done))
	g.emit(
		asm.Mov.Reg(asm.R1, rCtx), asm.Mov.Imm(asm.R3, 0),
		asm.FnSkbChangeTail.Call(),
		asm.JNE.Imm(asm.R0, 0, fail))
	g.mark(done)
}

// tagForCPU pushes the tag that tells the padding (tap.go) if the packet is for
// the CPU port. The kernel must not take what lies in the frame for a tag when
// this one is popped.
func (g *gen) tagForCPU(fail string) {
	done, tagged, plain := g.label("no_tag"), g.label("vlan"), g.label("plain")
	g.load(asm.R0, stOutPort)
	g.emit(asm.JNE.Imm(asm.R0, int32(g.cpu), done))
	g.context(asm.R0, ctxProtocol)
	for _, p := range []uint16{etherVLAN, etherQinQ} {
		g.emit(asm.JEq.Imm(asm.R0, int32(p>>8|p<<8), tagged))
	}
	g.jump(plain)
	g.mark(tagged)
	g.pushTags(2, fail)
	g.etherType(tagEnd, etherOther, fail)
	g.popTags(2, fail)
	g.load(asm.R2, stPad)
	g.storeOut(fail)
	g.mark(plain)
	g.load(rEntry, stPad)
	g.emit(
		asm.Mov.Reg(asm.R1, rCtx),
		asm.Mov.Imm(asm.R2, int32(tapProto)),
		asm.Mov.Reg(asm.R3, rEntry), asm.Or.Imm(asm.R3, tapMagic<<8),
		asm.FnSkbVlanPush.Call(),
		asm.JNE.Imm(asm.R0, 0, fail))
	g.mark(done)
}

// showCopy shows a test what would be sent.
func (g *gen) showCopy(done string) {
	g.load(asm.R0, stSent)
	g.emit(asm.StoreMem(asm.R10, -4, asm.R0, asm.Word), asm.Add.Imm(asm.R0, 1))
	g.store(stSent, asm.R0)
	g.lookup(g.objs.outputs, asm.R10, -4)
	g.emit(asm.JEq.Imm(asm.R0, 0, done))
	for at, word := range []int{stOutPort, stPad} {
		g.load(asm.R1, word)
		g.emit(asm.StoreMem(asm.R0, int16(4*at), asm.R1, asm.Word))
	}
	g.context(asm.R4, ctxLen)
	g.emit(
		asm.JGT.Imm(asm.R4, copyFrame, done), asm.JEq.Imm(asm.R4, 0, done),
		asm.StoreMem(asm.R0, 8, asm.R4, asm.Word),
		asm.Mov.Reg(asm.R3, asm.R0), asm.Add.Imm(asm.R3, 16),
		asm.Mov.Reg(asm.R1, rCtx), asm.Mov.Imm(asm.R2, 0),
		asm.FnSkbLoadBytes.Call())
	g.jump(done)
}
