//go:build linux

package ebpf

import (
	"fmt"
	"slices"

	"github.com/bifrost-rack/bifrost/p4/v1model"
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
	g.dropIfAsked()
	g.load(asm.R0, fieldAt(g, std.EgressSpec))
	g.store(stOutPort, asm.R0)
	if g.prog.Egress.Start != nil {
		g.setField(std.InstanceType, 0)
		g.beginEgress()
		g.pipeline(g.prog.Egress, "egress")
	}
	g.unlessLast(forkE)
	if g.prog.Egress.Start != nil {
		g.dropIfAsked()
	}
	g.updateChecksums()
	g.deparse(send, verdict)
	g.send(send)
	if g.forks.any() {
		g.jobs(forkI, forkE)
	}
	g.mark(verdict)
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
	g.judgeable()
	g.place = "parser"
	g.load(asm.R0, stError)
	g.setReg(g.prog.Std.ParserError)
	g.verifyChecksums()
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
func (g *gen) dropIfAsked() {
	g.load(asm.R0, fieldAt(g, g.prog.Std.EgressSpec))
	g.emit(asm.JEq.Imm(asm.R0, int32(g.drop), g.done))
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
	built, known, test := g.label("built"), g.label("known"), g.label("test")
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
	g.findPort(lost)
	g.jump(known)
	g.mark(known)
	g.fits(long)
	g.countOut()
	g.redirect()
	g.mark(test)
	g.testOut()
	g.mark(lost)
	g.set(asm.R0, lostPort)
	g.stat(asm.R0, nLost, -1)
	g.jump(verdict)
	g.mark(long)
	g.load(asm.R0, stOutPort)
	g.stat(asm.R0, nTxTooLong, -1)
	g.jump(verdict)
	if g.cpu != 0 {
		g.mark("cpu")
		g.toCPU(lost)
	}
}

// lostPort is whose counters count packets for ports that are not there.
const lostPort = 511

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
	g.context(asm.R0, ctxLen)
	g.store(stInLen, asm.R0)
	g.load(asm.R0, stOutPort)
	g.stat(asm.R0, nTxPackets, nTxBytes)
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
	g.findPort(lost)
	g.countOut()
	g.redirect()
	g.mark(test)
	g.load(asm.R0, stPad)
	g.emit(asm.StoreMem(rCtx, cbPad, asm.R0, asm.Word))
	g.testOut()
	g.mark(fail)
	g.load(asm.R0, stPort)
	g.stat(asm.R0, nRxOffload, -1)
	g.jump(verdict)
}
