//go:build linux

package ebpf

import (
	"fmt"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/trace"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// maxGrow bounds by how much a packet may grow on its way to the CPU port.
const maxGrow = 64

// program generates the whole program.
func (g *gen) program() {
	std := &g.prog.Std
	parsed, send := g.label("parsed"), g.label("send")
	forkI, forkE := g.label("fork_ingress"), g.label("fork_egress")
	g.done = verdict
	if g.forks.any() || slices.ContainsFunc(g.prog.Tables, scans) || len(g.prog.ValueSets) > 0 {
		g.function("bifrost", &btf.FuncProto{
			Return: &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed},
			Params: []btf.FuncParam{{Name: "skb", Type: &btf.Pointer{Target: &btf.Void{}}}},
		})
	}
	g.begin(g.head)
	g.parser(g.walk, parsed)
	g.mark(parsed)
	g.ingress()
	g.unlessStraight(forkI)
	g.dropIfAsked("ingress")
	g.load(asm.R0, fieldAt(g, std.EgressSpec))
	g.store(stOutPort, asm.R0)
	if g.prog.Egress.Start != nil {
		g.setField(std.InstanceType, 0)
		g.beginEgress()
		g.noteName(trace.Pipeline, "egress")
		g.pipeline(g.prog.Egress, "egress")
	} else {
		g.noteName(trace.Pipeline, "egress")
	}
	g.unlessLast(forkE)
	if g.prog.Egress.Start != nil {
		g.dropIfAsked("egress")
	}
	g.updateChecksums()
	g.deparse(send, verdict)
	g.send(send)
	if g.forks.any() {
		g.jobs(forkI, forkE)
	}
	g.mark(verdict)
	g.traceDecide()
	g.leave()
	g.emit(asm.Mov.Imm(asm.R0, actDrop), asm.Return())
	if g.forks.any() {
		g.step()
	}
	g.searches()
}

// function begins a function.
func (g *gen) function(name string, proto *btf.FuncProto) {
	g.mark(name)
	g.begins = &btf.Func{Name: name, Type: proto, Linkage: btf.StaticFunc}
}

// ingress generates what comes between the parser and the end of ingress.
func (g *gen) ingress() {
	g.traceDecide()
	g.judgeable()
	g.place = "parser"
	g.load(asm.R0, stError)
	g.setReg(g.prog.Std.ParserError)
	g.verifyChecksums()
	g.noteName(trace.Pipeline, "ingress")
	g.pipeline(g.prog.Ingress, "ingress")
	g.place = "ingress"
	g.digests()
}

// fieldAt is where a metadata field of at most 64 bits lies.
func fieldAt(g *gen, ref v1model.FieldRef) int {
	return g.st.headers[ref.Header.Index].fields[ref.Field]
}

// judgeable drops a super-packet of which more than the headers that all its
// segments share was parsed, and a packet with a checksum that is still to be written
// where the program looks.
func (g *gen) judgeable() {
	fine, bad := g.label("judgeable"), g.label("not_judgeable")
	g.load(asm.R0, stGSOLen)
	g.emit(asm.JEq.Imm(asm.R0, 0, fine))
	g.load(asm.R1, stParsed)
	g.emit(asm.JLE.Reg(asm.R1, asm.R0, fine))
	g.mark(bad)
	g.unjudged()
	g.mark(fine)
	g.judgeableSum(bad)
}

// dropIfAsked drops the packet if the program has said so.
func (g *gen) dropIfAsked(where string) {
	g.load(asm.R0, fieldAt(g, g.prog.Std.EgressSpec))
	g.ifDropped(where, g.done)
}

// ifDropped goes to a label if R0 is the port that means to drop.
func (g *gen) ifDropped(where, to string) {
	if g.traced == nil {
		g.emit(asm.JEq.Imm(asm.R0, int32(g.drop), to))
		return
	}
	on := g.label("not_dropped")
	g.emit(asm.JNE.Imm(asm.R0, int32(g.drop), on))
	g.noteName(trace.Drop, where)
	g.jump(to)
	g.mark(on)
}

func (g *gen) beginEgress() {
	std := &g.prog.Std
	g.load(asm.R0, stOutPort)
	g.setReg(std.EgressPort)
	g.setField(std.EgressSpec, 0)
	if g.prog.Uses(std.PacketLength) {
		g.load(asm.R0, stLength)
		g.setReg(std.PacketLength)
	}
	for _, f := range []v1model.FieldRef{std.EgressTimestamp, std.EnqueueTimestamp} {
		if g.prog.Uses(f) {
			g.clock()
			g.setReg(f)
		}
	}
	if g.prog.UsesQueues() {
		g.queueDepth(std.EnqueueDepth, std.DequeueDepth)
	}
}

// Layout of what the process says of a port's queue (SetQueueDepth), which holds for depthHolds: a program that drops packets where many wait
// would else drop all of them for as long as the process is away.
const (
	queueWaits = 0 // packets
	queueTold  = 8 // when, by the monotonic clock in nanoseconds
	queueSize  = 16

	depthHolds = time.Second
)

// queueDepth sets fields to how many packets wait at the egress port, saturated, where the program uses them.
func (g *gen) queueDepth(fields ...v1model.FieldRef) {
	unknown, known := g.label("no_queue"), g.label("queue")
	g.load(asm.R0, stOutPort)
	g.emit(asm.StoreMem(asm.R10, -4, asm.R0, asm.Word))
	g.lookup(g.objs.depths, asm.R10, -4)
	g.emit(asm.JEq.Imm(asm.R0, 0, unknown), asm.LoadMem(rTemp, asm.R0, queueTold, asm.DWord), asm.LoadMem(asm.R0, asm.R0, queueWaits, asm.DWord))
	g.emit(asm.JEq.Imm(asm.R0, 0, unknown)) // there is no need for the clock
	g.store(stScratch, asm.R0)
	g.emit(asm.FnKtimeGetNs.Call(), asm.Sub.Reg(asm.R0, rTemp), asm.JSLE.Imm(asm.R0, int32(depthHolds), known))
	g.mark(unknown)
	g.storeImm(stScratch, 0, asm.DWord)
	g.mark(known)
	for _, f := range fields {
		if !g.prog.Uses(f) {
			continue
		}
		g.load(asm.R0, stScratch)
		if f.Width() < 32 { // more than 32 bits no depth has
			fits := g.label("depth")
			g.emit(asm.JLE.Imm(asm.R0, int32(mask64(f.Width())), fits)) //nolint:gosec // of 31 bits at most
			g.set(asm.R0, mask64(f.Width()))
			g.mark(fits)
		}
		g.setReg(f)
	}
}

// digests sends the digest that the program asked for, with the values of now:
// the digest's index in a word, then its fields, each in whole bytes.
func (g *gen) digests() {
	if len(g.prog.Digests) == 0 {
		return
	}
	done, full := g.label("digested"), g.label("digest_full")
	next := ""
	g.load(asm.R0, stDigest)
	g.emit(asm.JEq.Imm(asm.R0, 0, done))
	for i, d := range g.prog.Digests {
		if next != "" {
			g.mark(next)
			g.load(asm.R0, stDigest)
		}
		next = g.label("digest")
		g.place = fmt.Sprintf("digest %q", d.Name)
		g.emit(asm.JNE.Imm(asm.R0, int32(i+1), next))
		g.storeImm(g.st.digest, int32(i), asm.Word)
		at := g.st.digest + 4
		for _, e := range d.Elements {
			at = g.digestElement(e, at)
		}
		g.emit(
			asm.LoadMapPtr(asm.R1, g.objs.digests.FD()),
			asm.Mov.Reg(asm.R2, rState), asm.Add.Imm(asm.R2, int32(g.st.digest)),
			asm.Mov.Imm(asm.R3, int32(at-g.st.digest)),
			asm.Mov.Imm(asm.R4, 0),
			asm.FnRingbufOutput.Call(),
			asm.JSLT.Imm(asm.R0, 0, full))
		g.digestSent()
		g.jump(done)
	}
	g.mark(next)
	g.mark(full)
	g.mark(done)
}

// digestSent counts digests, for tests.
func (g *gen) digestSent() {
	g.emit(asm.LoadMem(asm.R0, rCtx, cbDigest, asm.Word), asm.Add.Imm(asm.R0, 1), asm.StoreMem(rCtx, cbDigest, asm.R0, asm.Word))
}

// digestBytes is how long a digest's sample is.
func digestBytes(d *v1model.Digest) int {
	n := 4
	for _, e := range d.Elements {
		n += elementBytes(e)
	}
	return n
}

func elementBytes(e v1model.Input) int {
	if e.Field.Valid() {
		return e.Field.Bytes()
	}
	return len(e.Const)
}

// digestElement writes a value and returns where the next one goes.
func (g *gen) digestElement(e v1model.Input, at int) int {
	if !e.Field.Valid() {
		for _, b := range e.Const {
			g.storeImm(at, int32(b), asm.Byte)
			at++
		}
		return at
	}
	for i := words(e.Field.Width()) - 1; i >= 0; i-- {
		b := wordOf(e.Field, i)
		n := (b.width + 7) / 8
		g.read(asm.R0, b)
		if n < 8 {
			g.emit(asm.LSh.Imm(asm.R0, int32(64-8*n)))
		}
		g.emit(asm.HostTo(asm.BE, asm.R0, asm.DWord))
		g.store(at, asm.R0)
		at += n
	}
	return at
}

// send brings the packet to its port.
func (g *gen) send(inPlace string) {
	g.place = "output"
	built, test := g.label("built"), g.label("test")
	lost, long := g.label("lost"), g.label("too_long")
	g.set(asm.R0, 1) // headers were rebuilt
	g.store(stBuilt, asm.R0)
	g.jump(built)
	g.mark(inPlace)
	g.storeImm(stBuilt, 0, asm.DWord)
	g.mark(built)
	g.load(asm.R0, stOutPort)
	if g.cpu != 0 {
		g.emit(asm.JEq.Imm(asm.R0, int32(g.cpu), "cpu"))
	}
	g.resize()
	g.load(asm.R0, stTest)
	g.emit(asm.JNE.Imm(asm.R0, 0, test))
	g.toPort(lost, long)
	g.redirect()
	g.mark(test)
	g.testOut()
	g.notSent(lost, long, verdict)
	if g.cpu != 0 {
		g.mark("cpu")
		g.toCPU(lost)
	}
}

// lostPort is whose counters count packets for ports that are not there.
const lostPort = 511

// toPort makes rEntry point to the egress port's description and counts the packet; a
// packet that cannot leave there goes to lost or long.
func (g *gen) toPort(lost, long string) {
	g.findPort(lost)
	g.fits(long)
	g.countOut()
}

// notSent counts what toPort has found, and goes on at a label.
func (g *gen) notSent(lost, long, next string) {
	g.mark(lost)
	g.set(asm.R0, lostPort)
	g.stat(nLost, -1)
	g.jump(next)
	g.mark(long)
	g.load(asm.R0, stOutPort)
	g.stat(nTxTooLong, -1)
	g.jump(next)
}

// findPort makes rEntry point to the egress port's description.
func (g *gen) findPort(lost string) {
	g.load(asm.R0, stOutPort)
	g.emit(asm.StoreMem(asm.R10, -4, asm.R0, asm.Word))
	g.lookup(g.objs.ports, asm.R10, -4)
	g.emit(
		asm.JEq.Imm(asm.R0, 0, lost),
		asm.Mov.Reg(rEntry, asm.R0),
		asm.LoadMem(asm.R1, rEntry, portIndex, asm.Word),
		asm.JEq.Imm(asm.R1, 0, lost))
}

// Layout of a port's description.
const (
	portIndex = 0 // interface index; 0 if the port is not attached
	portMTU   = 4 // longest frame
	portBare  = 8 // 1 if frames have no Ethernet header
	portSize  = 16
)

// fits drops a frame that is too long for the interface, unless it will be cut.
func (g *gen) fits(long string) {
	fine := g.label("fits")
	g.load(asm.R0, stGSOLen)
	g.emit(asm.JNE.Imm(asm.R0, 0, fine))
	g.context(asm.R0, ctxLen)
	g.emit(asm.LoadMem(asm.R1, rEntry, portMTU, asm.Word), asm.JGT.Reg(asm.R0, asm.R1, long))
	g.mark(fine)
}

func (g *gen) countOut() {
	g.notePort(trace.Out, "", true)
	g.context(asm.R0, ctxLen)
	g.store(stInLen, asm.R0)
	g.load(asm.R0, stOutPort)
	g.stat(nTxPackets, nTxBytes)
}

// redirect hands the packet to the interface of rEntry. (bpf_redirect_peer would
// hand it to a veth's other end at once, past this end's queueing discipline,
// filters, captures and being down, and with the packet type of another interface.)
func (g *gen) redirect() {
	g.leave()
	g.emit(
		asm.LoadMem(asm.R1, rEntry, portIndex, asm.Word),
		asm.Mov.Imm(asm.R2, 0),
		asm.FnRedirect.Call(),
		asm.Return())
}

// testOut tells a test where the packet goes, instead of sending it.
func (g *gen) testOut() {
	g.notePort(trace.Out, "", true)
	g.leave()
	g.load(asm.R0, stOutPort)
	g.emit(
		asm.Add.Imm(asm.R0, 1),
		asm.StoreMem(rCtx, cbOut, asm.R0, asm.Word),
		asm.Mov.Imm(asm.R0, actOK),
		asm.Return())
}

// toCPU sends the packet to the control plane (tap.go tells the form).
func (g *gen) toCPU(lost string) {
	fail, test, small := g.label("cpu_fail"), g.label("cpu_test"), g.label("cpu_same")
	pushed, laidOut := g.label("pushed"), g.label("laid_out")
	g.load(asm.R0, stGSOLen)
	g.emit(asm.JNE.Imm(asm.R0, 0, fail))
	g.load(asm.R0, stBuilt)
	g.emit(asm.JEq.Imm(asm.R0, 0, laidOut))
	g.extendImage(fail)
	g.mark(laidOut)
	// rTemp counts the tags to push, rEntry is the padding.
	g.load(asm.R0, stDelta)
	g.set(rTemp, 0)
	g.emit(
		asm.JSLE.Imm(asm.R0, 0, small),
		asm.JSGT.Imm(asm.R0, maxGrow, fail),
		asm.Mov.Reg(rTemp, asm.R0), asm.Add.Imm(rTemp, 3), asm.RSh.Imm(rTemp, 2))
	g.mark(small)
	g.emit(
		asm.JSLT.Imm(asm.R0, -200, fail),
		asm.Mov.Reg(rEntry, rTemp), asm.LSh.Imm(rEntry, 2), asm.Sub.Reg(rEntry, asm.R0),
		asm.And.Imm(rEntry, 0xff))
	g.store(stPad, rEntry)
	for i := range maxGrow/4 + 1 {
		g.emit(
			asm.Mov.Reg(asm.R1, rCtx),
			asm.Mov.Imm(asm.R2, int32(tapProto)),
			asm.Mov.Reg(asm.R3, rEntry), asm.Or.Imm(asm.R3, tapMagic<<8),
			asm.FnSkbVlanPush.Call(),
			asm.JNE.Imm(asm.R0, 0, fail),
			asm.JEq.Imm(rTemp, int32(i), pushed))
	}
	g.mark(pushed)
	g.load(asm.R0, stBuilt)
	written := g.label("written")
	g.emit(asm.JEq.Imm(asm.R0, 0, written))
	g.load(asm.R2, stPad)
	g.storeOut(fail)
	g.mark(written)
	g.load(asm.R0, stTest)
	g.emit(asm.JNE.Imm(asm.R0, 0, test))
	g.hold()
	g.findPort(lost)
	g.countOut()
	g.redirect()
	g.mark(test)
	g.load(asm.R0, stPad)
	g.emit(asm.StoreMem(rCtx, cbPad, asm.R0, asm.Word))
	g.testOut()
	g.mark(fail)
	g.load(asm.R0, stPort)
	g.stat(nRxOffload, -1)
	g.jump(verdict)
}

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
	if g.cpu != 0 && g.objs.held != nil {
		other := g.label("other_port")
		g.load(asm.R0, stOutPort)
		g.emit(asm.JNE.Imm(asm.R0, int32(g.cpu), other))
		g.hold()
		g.mark(other)
	}
	g.toPort(lost, long)
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
	g.notSent(lost, long, sent)
	g.mark(sent)
	if g.cpu != 0 {
		g.load(asm.R0, stOutPort)
		g.emit(asm.JNE.Imm(asm.R0, int32(g.cpu), g.done))
		g.popTags(1, broken)
	}
	g.jump(g.done)
	g.mark(resize)
	g.load(asm.R0, stOutPort)
	g.stat(nTxResize, -1)
	g.jump(g.done)
	// Nobody knows what the frame looks like now: no copy follows.
	g.mark(broken)
	g.load(asm.R0, stOutPort)
	g.stat(nTxResize, -1)
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
	g.etherType(etherOther, fail)
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
	g.notePort(trace.Out, "", true)
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
