//go:build linux

package ebpf

import (
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
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
	g.stat(nTxResize, -1)
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
		if h.Type.Varbit >= 0 {
			g.emit(asm.LoadMem(asm.R2, rState, int16(g.st.dirty+h.Index), asm.Byte), asm.JNE.Imm(asm.R2, 0, rebuild))
			g.addLength(h, asm.R1, asm.R2)
		}
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
	if h.Type.Bits == 0 || h.Type.Varbit >= 0 { // one with a variable-length field that has changed is laid out anew
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
		if h.Type.Varbit >= 0 {
			g.layOutVarbit(h)
			g.mark(skip)
			continue
		}
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

// resize grows or shrinks a packet and writes its headers, if they were laid out
// anew.
func (g *gen) resize() {
	done, fail, tagged := g.label("sized"), g.label("no_resize"), g.label("tagged")
	g.load(asm.R0, stBuilt)
	g.emit(asm.JEq.Imm(asm.R0, 0, done))
	g.load(asm.R0, stTag)
	g.emit(asm.JNE.Imm(asm.R0, 0, tagged))
	unchanged := g.label("unchanged")
	g.load(asm.R0, stDelta)
	g.emit(asm.JEq.Imm(asm.R0, 0, unchanged))
	g.extendImage(fail)
	g.resizeBy(fail)
	g.mark(unchanged)
	g.set(asm.R2, 0)
	g.storeOut(fail)
	g.jump(done)
	g.mark(tagged)
	g.resizeTagged(done, fail)
	g.mark(fail)
	g.load(asm.R0, stOutPort)
	g.stat(nTxResize, -1)
	g.jump(verdict)
	g.mark(done)
}

// resizeBy grows or shrinks a packet by stDelta bytes, in front of what the
// parser has left. The helpers made for it grow frames of up to 16 KiB, and
// shrink IP; where they refuse, tags are pushed and popped. For a device without
// Ethernet header nothing but IP can change its length: what else makes a packet
// longer or shorter moves the network header, and all before that is cut off there.
func (g *gen) resizeBy(fail string) {
	same, shrink, other, framed := g.label("same"), g.label("shrink"), g.label("other_way"), g.label("framed")
	g.load(asm.R0, stDelta)
	g.emit(asm.JEq.Imm(asm.R0, 0, same))
	g.load(asm.R1, stGSOLen)
	g.emit(asm.JNE.Imm(asm.R1, 0, fail))
	g.load(asm.R0, stOutPort)
	g.emit(asm.StoreMem(asm.R10, -4, asm.R0, asm.Word))
	g.lookup(g.objs.ports, asm.R10, -4)
	g.emit(
		asm.JEq.Imm(asm.R0, 0, framed),
		asm.LoadMem(asm.R0, asm.R0, portBare, asm.Word), asm.JEq.Imm(asm.R0, 0, framed))
	g.load(asm.R2, stDelta)
	g.adjust()
	g.emit(asm.JEq.Imm(asm.R0, 0, same))
	g.jump(fail)
	g.mark(framed)
	g.load(asm.R0, stDelta)
	g.emit(
		asm.Mov.Reg(asm.R1, rCtx),
		asm.JSLT.Imm(asm.R0, 0, shrink),
		asm.Mov.Reg(asm.R2, asm.R0), asm.Mov.Imm(asm.R3, 0),
		asm.FnSkbChangeHead.Call(),
		asm.JEq.Imm(asm.R0, 0, same))
	g.jump(other)
	g.mark(shrink)
	g.emit(asm.Mov.Reg(asm.R2, asm.R0))
	g.adjust()
	g.emit(asm.JEq.Imm(asm.R0, 0, same))
	g.mark(other)
	g.resizeByTags(fail)
	g.mark(same)
}

// adjust makes an IP packet longer or shorter by R2 bytes, behind its link header.
func (g *gen) adjust() {
	g.emit(
		asm.Mov.Reg(asm.R1, rCtx),
		asm.Mov.Imm(asm.R3, 1), // BPF_ADJ_ROOM_MAC
		asm.Mov.Imm(asm.R4, 0),
		asm.FnSkbAdjustRoom.Call())
}

// maxTagged bounds by how much resizeByTags grows or shrinks, in bytes.
const maxTagged = 64

// resizeByTags changes the length by pushing and popping VLAN tags, four bytes at
// a time. Popping a tag that lies in the frame makes the kernel read the next
// EtherType; what is written there makes it take the next four bytes for a tag,
// or not. Frames above 16 KiB change by multiples of four only.
func (g *gen) resizeByTags(fail string) {
	shrink, done := g.label("cut"), g.label("cut_done")
	g.load(rTemp, stDelta)
	g.emit(asm.JSLT.Imm(rTemp, 0, shrink))
	g.emit(asm.Mov.Reg(asm.R0, rTemp), asm.And.Imm(asm.R0, 3), asm.JNE.Imm(asm.R0, 0, fail))
	for range maxTagged / 4 {
		g.emit(asm.JSLE.Imm(rTemp, 0, done))
		g.pushTags(3, fail)
		g.etherType(etherOther, fail)
		g.popTags(2, fail)
		g.emit(asm.Sub.Imm(rTemp, 4))
	}
	g.jump(fail)
	g.mark(shrink)
	enough := g.label("cut_enough")
	for range maxTagged / 4 {
		g.emit(asm.JSGE.Imm(rTemp, 0, enough))
		g.pushTags(2, fail)
		g.etherType(etherVLAN, fail)
		g.popTags(1, fail)
		g.etherType(etherOther, fail)
		g.popTags(2, fail)
		g.emit(asm.Add.Imm(rTemp, 4))
	}
	g.emit(asm.JSLT.Imm(rTemp, 0, fail))
	g.mark(enough)
	g.emit(
		asm.JEq.Imm(rTemp, 0, done),
		asm.Mov.Reg(asm.R1, rCtx), asm.Mov.Reg(asm.R2, rTemp), asm.Mov.Imm(asm.R3, 0),
		asm.FnSkbChangeHead.Call(),
		asm.JNE.Imm(asm.R0, 0, fail))
	g.mark(done)
}

// etherOther is any EtherType but a tag's.
const etherOther = 0x88b5

func (g *gen) pushTags(n int, fail string) {
	for range n {
		g.emit(
			asm.Mov.Reg(asm.R1, rCtx), asm.Mov.Imm(asm.R2, etherVLAN), asm.HostTo(asm.BE, asm.R2, asm.Half),
			asm.Mov.Imm(asm.R3, 1),
			asm.FnSkbVlanPush.Call(),
			asm.JNE.Imm(asm.R0, 0, fail))
	}
}

func (g *gen) popTags(n int, fail string) {
	for range n {
		g.emit(asm.Mov.Reg(asm.R1, rCtx), asm.FnSkbVlanPop.Call(), asm.JNE.Imm(asm.R0, 0, fail))
	}
}

// etherType writes the EtherType behind a VLAN tag into the frame, storeEtherType that in R0.
func (g *gen) etherType(value int32, fail string) {
	g.emit(asm.Mov.Imm(asm.R0, value))
	g.storeEtherType(fail)
}

func (g *gen) storeEtherType(fail string) {
	g.emit(
		asm.HostTo(asm.BE, asm.R0, asm.Half),
		asm.StoreMem(asm.R10, -8, asm.R0, asm.Half),
		asm.Mov.Reg(asm.R1, rCtx), asm.Mov.Imm(asm.R2, tagEnd),
		asm.Mov.Reg(asm.R3, asm.R10), asm.Add.Imm(asm.R3, -8),
		asm.Mov.Imm(asm.R4, 2), asm.Mov.Imm(asm.R5, 0),
		asm.FnSkbStoreBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, fail))
}

// storeOut writes the laid out headers at the offset in R2.
func (g *gen) storeOut(fail string) { g.storeFrom(0, fail) }

// storeFrom writes the laid out headers but for their first bytes at the offset
// in R2.
func (g *gen) storeFrom(skip int, fail string) {
	none := g.label("no_headers")
	g.load(asm.R4, stOutLen)
	g.emit(asm.And.Imm(asm.R4, int32(g.st.outMask)))
	if skip > 0 {
		g.emit(asm.Sub.Imm(asm.R4, int32(skip)))
	}
	g.emit(
		asm.JSLE.Imm(asm.R4, 0, none),
		asm.Mov.Reg(asm.R1, rCtx),
		asm.Mov.Reg(asm.R3, rState), asm.Add.Imm(asm.R3, int32(g.st.out+skip)),
		asm.Mov.Imm(asm.R5, recompute),
		asm.FnSkbStoreBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, fail))
	g.mark(none)
}

// Where a tag is in a frame, and how much of the frame helpers that change its length move about or change: the addresses, a tag, an
// EtherType, and up to three bytes that come in front (resizeByTags).
const (
	tagAt    = 12
	tagEnd   = tagAt + vlanLen
	minImage = tagEnd + 2 + 3
)

const (
	etherVLAN = 0x8100
	etherQinQ = 0x88a8
)

// resizeTagged does so for a frame whose VLAN tag the kernel keeps beside it: the
// tag is removed, the rest resized and written, and the tag that the program has
// made, if any, put beside it again.
func (g *gen) resizeTagged(done, fail string) {
	tag, out := g.label("tag"), g.st.out
	g.extendImage(fail)
	g.emit(
		asm.LoadMem(asm.R0, rState, int16(out+tagAt), asm.Half),
		asm.HostTo(asm.BE, asm.R0, asm.Half),
		asm.JEq.Imm(asm.R0, etherVLAN, tag), asm.JEq.Imm(asm.R0, etherQinQ, tag))
	g.untag(out+tagAt, fail)
	g.load(asm.R0, stDelta)
	g.emit(asm.Add.Imm(asm.R0, vlanLen))
	g.store(stDelta, asm.R0)
	g.resizeBy(fail)
	g.set(asm.R2, 0)
	g.storeOut(fail)
	g.jump(done)
	g.mark(tag)
	g.untag(out+tagEnd, fail)
	g.resizeBy(fail)
	g.emit(
		asm.Mov.Reg(asm.R1, rCtx), asm.Mov.Imm(asm.R2, 0),
		asm.Mov.Reg(asm.R3, rState), asm.Add.Imm(asm.R3, int32(out)),
		asm.Mov.Imm(asm.R4, tagAt), asm.Mov.Imm(asm.R5, recompute),
		asm.FnSkbStoreBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, fail))
	g.set(asm.R2, tagAt)
	g.storeFrom(tagEnd, fail)
	g.emit(
		asm.LoadMem(asm.R2, rState, int16(out+tagAt), asm.Half),
		asm.LoadMem(asm.R3, rState, int16(out+tagAt+2), asm.Half),
		asm.HostTo(asm.BE, asm.R3, asm.Half),
		asm.Mov.Reg(asm.R1, rCtx), asm.FnSkbVlanPush.Call(),
		asm.JNE.Imm(asm.R0, 0, fail))
	g.jump(done)
}

// untag removes the tag that the kernel keeps beside the frame. The EtherType that the state has at a place becomes the frame's, unless it is
// that of a tag: by it the kernel knows how to cut a super-packet and where it may leave a checksum to the card.
func (g *gen) untag(from int, fail string) {
	g.pushTags(1, fail) // the tag goes into the frame
	g.emit(asm.LoadMem(asm.R0, rState, int16(from), asm.Half), asm.HostTo(asm.BE, asm.R0, asm.Half))
	for _, tag := range []int32{etherVLAN, etherQinQ} {
		other := g.label("no_tag")
		g.emit(asm.JNE.Imm(asm.R0, tag, other), asm.Mov.Imm(asm.R0, etherOther))
		g.mark(other)
	}
	g.storeEtherType(fail)
	g.popTags(2, fail)
}

// extendImage appends what follows the parsed part of the frame to the laid out
// headers, if either is shorter than what helpers move about.
func (g *gen) extendImage(fail string) {
	enough, out := g.label("enough"), g.label("out_shorter")
	g.load(asm.R1, stParsed)
	g.load(asm.R2, stOutLen)
	// R3 is the shorter of the two; R4 how much is missing.
	g.emit(asm.Mov.Reg(asm.R3, asm.R2), asm.JSLE.Reg(asm.R2, asm.R1, out), asm.Mov.Reg(asm.R3, asm.R1))
	g.mark(out)
	g.emit(
		asm.JSGE.Imm(asm.R3, minImage, enough),
		asm.JSLT.Imm(asm.R1, 0, fail), asm.JSGT.Imm(asm.R1, int32(g.head-minImage), fail),
		asm.Mov.Imm(asm.R4, minImage), asm.Sub.Reg(asm.R4, asm.R3))
	g.load(asm.R5, stWireLen) // there may be less
	less := g.label("less")
	g.emit(asm.Sub.Reg(asm.R5, asm.R1), asm.JSLE.Reg(asm.R4, asm.R5, less), asm.Mov.Reg(asm.R4, asm.R5))
	g.mark(less)
	g.emit(
		asm.Add.Reg(asm.R1, rState),
		asm.Mov.Reg(asm.R5, asm.R2), asm.And.Imm(asm.R5, int32(g.st.outMask)), asm.Add.Reg(asm.R5, rState))
	for i := 0; i < minImage; i += 8 {
		g.emit(
			asm.LoadMem(asm.R0, asm.R1, int16(g.st.ethernet()+i), asm.DWord),
			asm.StoreMem(asm.R5, int16(g.st.out+i), asm.R0, asm.DWord))
	}
	g.emit(asm.Add.Reg(asm.R2, asm.R4))
	g.store(stOutLen, asm.R2)
	g.mark(enough)
}
