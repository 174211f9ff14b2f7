//go:build linux

package ebpf

import (
	"github.com/bifrost-rack/bifrost/p4switch/trace"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/cilium/ebpf/asm"
)

// contextAt is where the main function keeps what a step needs of it: the
// packet's context and the state.
const contextAt = epochAt - 16

// stepName is the function that bpf_loop calls.
const stepName = "bifrost_step"

// startJobs begins the other way: the stack is empty, and the frame is in one
// piece, without a tag beside it.
func (g *gen) startJobs() {
	bare := g.label("bare")
	g.set(asm.R0, 0)
	for _, at := range []int{stJobs, stFinal, stSent, stCut} {
		g.store(at, asm.R0)
	}
	g.load(asm.R0, stTag)
	g.emit(asm.JEq.Imm(asm.R0, 0, bare))
	// Whether segments may have tags depends on what the frame seems to be.
	fine := g.label("untag")
	g.load(asm.R0, stGSOLen)
	g.emit(asm.JEq.Imm(asm.R0, 0, fine))
	g.load(asm.R0, stPort)
	g.stat(nRxOffload, -1)
	g.jump(verdict)
	g.mark(fine)
	g.untag(g.st.ethernet()+tagEnd, verdict)
	g.mark(bare)
	g.windowStart()
	g.load(asm.R0, stWireLen)
	g.emit(asm.Sub.Reg(asm.R0, asm.R1))
	g.store(stTail, asm.R0)
}

// jobs generates the other way: from the end of ingress, from that of egress, and
// the steps.
func (g *gen) jobs(fromIngress, fromEgress string) {
	run := g.label("run")
	g.mark(fromIngress)
	g.startJobs()
	g.fork()
	g.jump(run)
	g.mark(fromEgress)
	g.startJobs()
	g.forkEgress()
	g.mark(run)
	g.emit(
		asm.StoreMem(asm.R10, contextAt, rCtx, asm.DWord),
		asm.StoreMem(asm.R10, contextAt+8, rState, asm.DWord),
		asm.Mov.Imm(asm.R1, maxCopies))
	g.call(stepName)
	g.emit(
		asm.Mov.Reg(asm.R3, asm.R10), asm.Add.Imm(asm.R3, contextAt),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnLoop.Call())
	empty := g.label("empty")
	g.load(asm.R0, stJobs)
	g.emit(asm.JEq.Imm(asm.R0, 0, empty))
	g.looped()
	g.mark(empty)
	g.load(asm.R0, stSent)
	g.emit(asm.StoreMem(rCtx, cbSent, asm.R0, asm.Word))
	g.load(rEntry, stFinal)
	g.emit(asm.JEq.Imm(rEntry, 0, verdict))
	g.leave()
	g.emit(
		asm.Mov.Reg(asm.R1, rEntry),
		asm.Mov.Imm(asm.R2, 0),
		asm.FnRedirect.Call(),
		asm.Return())
}

// step generates the function that does one job: long step(u32 n, void *packet).
// It returns 1 when there is nothing more to do.
func (g *gen) step() {
	next, stop, egress, output := g.label("next"), g.label("stop"), g.label("egress"), g.label("output")
	g.done = next
	g.function(stepName, loopBody())
	g.place = "copies"
	g.emit(asm.LoadMem(rCtx, asm.R2, 0, asm.DWord), asm.LoadMem(rState, asm.R2, 8, asm.DWord))
	g.load(asm.R0, stJobs)
	g.emit(asm.JEq.Imm(asm.R0, 0, stop), asm.Sub.Imm(asm.R0, 1), asm.StoreMem(asm.R10, -4, asm.R0, asm.Word))
	g.lookup(g.objs.jobs, asm.R10, -4)
	g.emit(asm.JEq.Imm(asm.R0, 0, stop), asm.Mov.Reg(rEntry, asm.R0), asm.LoadMem(rTemp, rEntry, jobKind, asm.DWord))
	g.restore(rEntry)
	g.job(stop, egress, output)

	g.mark(egress)
	fork := g.label("fork")
	g.beginEgress()
	g.noteName(trace.Pipeline, "egress")
	g.pipeline(g.prog.Egress, "egress")
	g.unlessLast(fork)
	g.dropIfAsked("egress")
	g.mark(output)
	g.output(stop)
	g.mark(fork)
	g.forkEgress()
	g.mark(next)
	g.emit(asm.Mov.Imm(asm.R0, 0), asm.Return())
	g.mark(stop)
	g.emit(asm.Mov.Imm(asm.R0, 1), asm.Return())
}

// job goes on with the job rEntry of kind rTemp, whose packet is in the state.
func (g *gen) job(stop, egress, output string) {
	to := map[int]string{}
	jump := func(kind int, on bool) {
		if on {
			to[kind] = g.label("kind")
			g.emit(asm.JEq.Imm(rTemp, int32(kind), to[kind]))
		}
	}
	// These stay on the stack.
	jump(jobMulticast, g.forks.multicast)
	jump(jobReplicas, g.forks.clone)
	jump(jobCloneI, g.forks.clone)
	jump(jobCloneE, g.forks.clone)
	g.popJob()
	jump(jobResubmit, g.forks.resubmit)
	jump(jobRecirculate, g.forks.recirculate)
	g.emit(asm.JNE.Imm(rTemp, jobEgress, output))
	g.setField(g.prog.Std.InstanceType, 0)
	g.storeImm(stSession, 0, asm.DWord) // that was of ingress
	g.jump(egress)
	for _, k := range []int{jobMulticast, jobReplicas} {
		if to[k] != "" {
			g.mark(to[k])
			g.replica(stop)
			if k == jobMulticast {
				g.setField(g.prog.Std.InstanceType, instanceReplication)
			}
			g.jump(egress)
		}
	}
	if g.forks.clone {
		g.mark(to[jobCloneE])
		g.keepFields(stKeep, 0, true)
		g.zeroMetadata()
		g.cloned(instanceEgressClone, stop)
		g.mark(to[jobCloneI])
		g.keepFields(stKeep, 0, true)
		g.zeroPacket()
		g.load(asm.R0, stPort) // as bmv2 does, so that the parser takes the same way
		g.setReg(g.prog.Std.IngressPort)
		g.storeImm(stMore, 1, asm.DWord) // no ingress
		g.parseAgain()
	}
	if l := to[jobResubmit]; l != "" {
		g.mark(l)
		g.keepFields(stAgain, 1, true)
		g.zeroPacket()
		g.keepFields(stAgain, 1, false)
		g.begun(instanceResubmit)
		g.parseAgain()
	}
	if l := to[jobRecirculate]; l != "" {
		g.mark(l)
		g.recirculate()
		g.parseAgain()
	}
	if g.again != "" {
		g.parsedAgain(stop)
	}
}

// popJob takes the top job off the stack.
func (g *gen) popJob() {
	g.load(asm.R0, stJobs)
	g.emit(asm.Sub.Imm(asm.R0, 1))
	g.store(stJobs, asm.R0)
}

// replica makes the packet the next replica of the job's list, and takes the job
// off the stack with the last one. The job's place is on the stack, as a key.
func (g *gen) replica(stop string) {
	more := g.label("more")
	g.lookup(g.objs.lists, asm.R10, -4)
	g.emit(
		asm.JEq.Imm(asm.R0, 0, stop),
		asm.LoadMem(asm.R1, rEntry, jobNext, asm.DWord),
		asm.LoadMem(asm.R2, asm.R0, listCount, asm.Word),
		asm.LoadMem(asm.R3, asm.R0, listLimit, asm.Word))
	g.store(stDelta, asm.R3)
	g.emit(
		asm.Mov.Reg(asm.R3, asm.R1), asm.And.Imm(asm.R3, maxReplicas-1), asm.LSh.Imm(asm.R3, 2), asm.Add.Reg(asm.R0, asm.R3),
		asm.LoadMem(asm.R3, asm.R0, listReplicas, asm.Half))
	g.store(stOutPort, asm.R3)
	g.emit(
		asm.LoadMem(asm.R3, asm.R0, listReplicas+2, asm.Half),
		asm.Add.Imm(asm.R1, 1), asm.StoreMem(rEntry, jobNext, asm.R1, asm.DWord),
		asm.Mov.Reg(rEntry, asm.R3),
		asm.JLT.Reg(asm.R1, asm.R2, more))
	g.popJob()
	g.mark(more)
	g.notePort(trace.Copy, "replica", false)
	g.emit(asm.Mov.Reg(asm.R0, rEntry))
	g.setReg(g.prog.Std.EgressRID)
	g.clearOrders()
	g.load(asm.R0, stDelta)
	g.store(stLimit, asm.R0)
}

// keepFields saves the fields of the list whose index, plus something, is in a
// word of the state, or puts them back.
func (g *gen) keepFields(word, plus int, save bool) {
	for i, l := range g.prog.FieldLists {
		if len(l.Fields) == 0 {
			continue
		}
		other, at := g.label("other_list"), g.st.kept
		g.load(asm.R0, word)
		g.emit(asm.JNE.Imm(asm.R0, int32(i+plus), other))
		for _, f := range l.Fields {
			if !f.Header.Metadata || f.Field == v1model.ValidField {
				g.lack("field list with %v, which is not metadata", f)
				continue
			}
			n := 8 * words(f.Width())
			if save {
				g.copyState(at, fieldAt(g, f), n)
			} else {
				g.copyState(fieldAt(g, f), at, n)
			}
			at += n
		}
		g.mark(other)
	}
}

// zeroMetadata zeroes all metadata, zeroPacket the headers too.
func (g *gen) zeroMetadata() {
	g.set(asm.R0, 0)
	for _, h := range g.prog.Headers {
		if !h.Metadata {
			continue
		}
		pl := g.st.headers[h.Index]
		for at := pl.base; at < pl.base+pl.size; at += 8 {
			g.store(at, asm.R0) // a variable-length field
		}
		for i, at := range pl.fields {
			for n := range words(h.Type.Fields[i].Width) {
				if at < g.st.frame { // others are private
					g.store(at+8*n, asm.R0)
				}
			}
		}
	}
}

func (g *gen) zeroPacket() {
	g.set(asm.R0, 0)
	for at := g.st.zeroFrom; at < g.st.frame; at += 8 {
		g.store(at, asm.R0)
	}
}

// cloned makes the packet a clone, with the fields saved, and leaves it to the
// next steps to make its replicas.
func (g *gen) cloned(instance uint64, stop string) {
	g.keepFields(stKeep, 0, false)
	g.setField(g.prog.Std.InstanceType, instance)
	g.clearOrders()
	g.lookup(g.objs.jobs, asm.R10, -4) // nothing has changed the key
	g.emit(asm.JEq.Imm(asm.R0, 0, stop), asm.Mov.Imm(asm.R1, jobReplicas), asm.StoreMem(asm.R0, jobKind, asm.R1, asm.DWord))
	g.save(asm.R0)
	g.jump(g.done)
}

// begun makes the packet one that comes in.
func (g *gen) begun(instance uint64) {
	std := &g.prog.Std
	g.setField(std.InstanceType, instance)
	g.load(asm.R0, stInLen)
	g.store(stLength, asm.R0)
	g.setReg(std.PacketLength)
	g.clearOrders()
	g.storeImm(stDigest, 0, asm.DWord)
	g.storeImm(stMore, 0, asm.DWord)
}

// parseAgain goes to the parser; parsedAgain is where it comes from there.
func (g *gen) parseAgain() {
	if g.again == "" {
		g.again = g.label("again")
	}
	g.jump(g.again)
}

func (g *gen) parsedAgain(stop string) {
	parsed, clone := g.label("parsed"), g.label("clone_parsed")
	g.mark(g.again)
	g.parser(g.walk, parsed)
	g.mark(parsed)
	g.place = "copies"
	if g.forks.clone {
		if g.forks.again() {
			g.load(asm.R0, stMore)
			g.emit(asm.JNE.Imm(asm.R0, 0, clone))
		} else {
			g.jump(clone)
		}
	}
	if g.forks.again() {
		g.ingress()
		g.fork()
		g.jump(g.done)
	}
	if g.forks.clone {
		g.mark(clone)
		g.zeroMetadata()
		g.load(asm.R0, stInLen)
		g.store(stLength, asm.R0)
		g.load(asm.R0, stJobs)
		g.emit(asm.Sub.Imm(asm.R0, 1), asm.StoreMem(asm.R10, -4, asm.R0, asm.Word))
		g.cloned(instanceClone, stop)
	}
}

// recirculate makes the packet that leaves the one that comes in.
func (g *gen) recirculate() {
	short := g.label("window_short")
	moved, whole := g.label("moved_tail"), g.label("whole_tail")
	g.layOut(moved)
	g.jump(whole)
	g.mark(moved)
	g.load(asm.R0, stOutPort)
	g.stat(nTxResize, -1)
	g.jump(g.done)
	g.mark(whole)
	g.keepFields(stRound, 1, true)
	g.zeroPacket()
	g.keepFields(stRound, 1, false)
	// What was laid out is the packet's beginning now, and the rest is as long.
	g.load(asm.R0, stWireLen)
	g.load(asm.R1, stWindow)
	g.emit(asm.Sub.Reg(asm.R0, asm.R1))
	g.load(asm.R1, stOutLen)
	g.store(stWindow, asm.R1)
	g.emit(asm.Add.Reg(asm.R0, asm.R1))
	g.load(asm.R2, stWireLen)
	g.store(stWireLen, asm.R0)
	g.store(stInLen, asm.R0)
	g.emit(asm.Sub.Reg(asm.R0, asm.R2))
	g.shiftSum()
	g.load(asm.R1, stWindow)
	fits := g.label("window_fits")
	g.emit(asm.JLE.Imm(asm.R1, int32(g.st.window), fits))
	g.looped()
	g.jump(g.done)
	g.mark(fits)
	g.copyState(g.st.ethernet(), g.st.out, g.st.window)
	// The parser may want to see more of it than that: take it from the rest.
	g.load(asm.R0, stWireLen)
	g.load(asm.R3, stWindow)
	least := g.label("least")
	g.emit(asm.Mov.Reg(asm.R4, asm.R0), asm.JLE.Imm(asm.R4, int32(g.head), least), asm.Mov.Imm(asm.R4, int32(g.head)))
	g.mark(least)
	g.emit(asm.Sub.Reg(asm.R4, asm.R3), asm.JSLE.Imm(asm.R4, 0, short))
	g.emit(asm.Sub.Reg(asm.R0, asm.R3)) // the rest
	g.load(asm.R1, stTail)
	lost := g.label("window_lost")
	g.emit(asm.JGT.Reg(asm.R0, asm.R1, lost)) // has been cut
	g.load(asm.R1, stCut)
	g.emit(asm.JNE.Imm(asm.R1, 0, lost))
	g.context(asm.R2, ctxLen)
	g.emit(
		asm.Sub.Reg(asm.R2, asm.R0),
		asm.Mov.Reg(asm.R1, asm.R3), asm.Add.Reg(asm.R1, asm.R4))
	g.store(stWindow, asm.R1)
	g.emit(
		asm.And.Imm(asm.R3, int32(g.st.windowMask())), asm.Add.Reg(asm.R3, rState), asm.Add.Imm(asm.R3, int32(g.st.ethernet())),
		asm.And.Imm(asm.R4, int32(g.st.windowMask())),
		asm.JEq.Imm(asm.R4, 0, short),
		asm.Mov.Reg(asm.R1, rCtx),
		asm.FnSkbLoadBytes.Call(),
		asm.JEq.Imm(asm.R0, 0, short))
	g.mark(lost)
	g.looped()
	g.jump(g.done)
	g.mark(short)
	g.begun(instanceRecirculate)
}
