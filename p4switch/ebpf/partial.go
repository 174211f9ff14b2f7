//go:build linux

package ebpf

import (
	"errors"
	"fmt"
	"sync"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// A sender may leave a packet's checksum to the network card. The kernel then
// writes the sum of what follows a place (start) to another (at), both of the
// sender's choice, when the packet leaves the machine or is delivered: after the
// program has judged. A request to read could so become one to write.
//
// Such a packet passes only if it makes no difference when the checksum is
// written. Else it is dropped and counted:
//
//	judgeable   the program does not look at the two bytes of the checksum: they
//	            are behind what it parses, or in fields that it does not use
//	wholeTail   the program moves nothing from start on; for what it changes there the
//	            field makes up, so that the same checksum is written
//
// The port's stub tells where they are, in the packet's control block.
const (
	cbSum     = cbDigest // in: where the checksum is, plus one; 0 if the packet has none to be written
	cbSumFrom = cbPad    // in: where the part begins that is summed
)

// noSum is stSum's value if there is no checksum to be written: beyond any frame.
const noSum = 1 << 20

// stubLicense: what stub returns, and nothing else, may be used under the MIT licence
// or the GPL as well as under this project's. Only programs under a licence that the
// kernel knows as compatible with its own may look at a packet's struct sk_buff. The
// stub has none of the user's program in it, whose licence is the user's affair.
const stubLicense = "Dual MIT/GPL"

// partial is CHECKSUM_PARTIAL, listOfPackets SKB_GSO_FRAGLIST (linux/skbuff.h).
const (
	partial       = 3
	listOfPackets = 1 << 18
)

// skbLayout is where the stub finds things in the running kernel.
type skbLayout struct {
	cast, view      int64 // BTF ids of bpf_cast_to_kern_ctx and bpf_rdonly_cast
	shared          int32 // BTF id of struct skb_shared_info
	summed, mask    int32 // the byte of ip_summed, and its bits in it
	shift           int
	head, data, end int16
	gsoType         int16 // in skb_shared_info
	csumStart, csum int16
}

// errNoBTF means that the kernel does not tell how its packets are laid out.
var errNoBTF = fmt.Errorf("%w: checksums that are still to be written cannot be seen (this needs Linux 6.2 with BTF)", datapath.ErrUnsupported)

// layoutOfSkb asks the running kernel, once.
var layoutOfSkb = sync.OnceValues(func() (*skbLayout, error) {
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		return nil, errors.Join(errNoBTF, err)
	}
	var cast, view *btf.Func
	var skb, shared *btf.Struct
	err = errors.Join(
		spec.TypeByName("bpf_cast_to_kern_ctx", &cast), spec.TypeByName("bpf_rdonly_cast", &view),
		spec.TypeByName("sk_buff", &skb), spec.TypeByName("skb_shared_info", &shared))
	if err != nil {
		return nil, errors.Join(errNoBTF, err)
	}
	var ids [3]btf.TypeID
	for i, t := range []btf.Type{cast, view, shared} {
		if ids[i], err = spec.TypeID(t); err != nil {
			return nil, errors.Join(errNoBTF, err)
		}
	}
	at, super := map[string]btf.Bits{}, map[string]btf.Bits{}
	membersOf(skb.Members, 0, at)
	membersOf(shared.Members, 0, super)
	for _, name := range []string{"ip_summed", "head", "data", "end", "csum_start", "csum_offset"} {
		if _, ok := at[name]; !ok {
			return nil, fmt.Errorf("%w: sk_buff has no %s", errNoBTF, name)
		}
	}
	if _, ok := super["gso_type"]; !ok {
		return nil, fmt.Errorf("%w: skb_shared_info has no gso_type", errNoBTF)
	}
	shift := int(at["ip_summed"] % 8)
	return &skbLayout{
		cast: int64(ids[0]), view: int64(ids[1]), shared: int32(ids[2]),
		summed: int32(at["ip_summed"] / 8), mask: 3 << shift, shift: shift,
		head: int16(at["head"] / 8), data: int16(at["data"] / 8), end: int16(at["end"] / 8), gsoType: int16(super["gso_type"] / 8),
		csumStart: int16(at["csum_start"] / 8), csum: int16(at["csum_offset"] / 8),
	}, nil
})

// membersOf notes where the members of a struct are, those of unnamed ones in it too.
func membersOf(ms []btf.Member, from btf.Bits, at map[string]btf.Bits) {
	for _, m := range ms {
		if m.Name != "" {
			at[m.Name] = from + m.Offset
			continue
		}
		switch t := btf.UnderlyingType(m.Type).(type) {
		case *btf.Struct:
			membersOf(t.Members, from+m.Offset, at)
		case *btf.Union:
			membersOf(t.Members, from+m.Offset, at)
		}
	}
}

// stub generates the program that is attached to a port's interface: it notes the
// port's number and what checksum is still to be written, and runs the main program.
//
// A super-packet may be a list of packets, each with headers of its own (rx-gro-list of ethtool). The kernel changes the program's
// addresses and ports in all of them, and nothing else. So it gets a checksum that is still to be written where none is, and is dropped.
func stub(port uint32, programs fder, l *skbLayout) asm.Instructions {
	const skb = asm.R7
	kernel := func(id int64) asm.Instruction {
		return asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call), Src: asm.PseudoKfuncCall, Constant: id}
	}
	return asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		kernel(l.cast),
		asm.Mov.Reg(skb, asm.R0),
		asm.StoreImm(asm.R6, cbPort, int64(port), asm.Word),
		asm.LoadMem(asm.R1, asm.R6, ctxGSOSize, asm.Word),
		asm.JEq.Imm(asm.R1, 0, "packet"),
		asm.LoadMem(asm.R1, skb, l.head, asm.DWord), asm.LoadMem(asm.R2, skb, l.end, asm.Word), asm.Add.Reg(asm.R1, asm.R2),
		asm.Mov.Imm(asm.R2, l.shared),
		kernel(l.view),
		asm.LoadMem(asm.R1, asm.R0, l.gsoType, asm.Word),
		asm.Mov.Imm(asm.R2, noSum+1), // beyond any frame
		asm.And.Imm(asm.R1, listOfPackets), asm.JNE.Imm(asm.R1, 0, "nowhere"),
		asm.Mov.Imm(asm.R2, 0).WithSymbol("packet"),
		asm.LoadMem(asm.R1, skb, int16(l.summed), asm.Byte),
		asm.And.Imm(asm.R1, l.mask),
		asm.JNE.Imm(asm.R1, partial<<l.shift, "written"),
		asm.LoadMem(asm.R2, skb, l.csumStart, asm.Half),
		asm.LoadMem(asm.R1, skb, l.head, asm.DWord), asm.Add.Reg(asm.R2, asm.R1),
		asm.LoadMem(asm.R1, skb, l.data, asm.DWord), asm.Sub.Reg(asm.R2, asm.R1),
		asm.JSGE.Imm(asm.R2, 0, "inside"),
		asm.Mov.Imm(asm.R2, 0), // no frame has that; nothing of this one passes
		asm.Mov.Reg(asm.R2, asm.R2).WithSymbol("inside"),
		asm.StoreMem(asm.R6, cbSumFrom, asm.R2, asm.Word),
		asm.LoadMem(asm.R1, skb, l.csum, asm.Half), asm.Add.Reg(asm.R2, asm.R1),
		asm.Add.Imm(asm.R2, 1).WithSymbol("nowhere"),
		asm.StoreMem(asm.R6, cbSum, asm.R2, asm.Word).WithSymbol("written"),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.LoadMapPtr(asm.R2, programs.FD()),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnTailCall.Call(),
		asm.Mov.Imm(asm.R0, actDrop), // there is no program any more
		asm.Return(),
	}
}

// findSum notes where the checksum is that is still to be written.
func (g *gen) findSum() {
	some, found := g.label("some_sum"), g.label("sum")
	g.context(asm.R0, cbSum)
	g.emit(asm.JNE.Imm(asm.R0, 0, some), asm.Mov.Imm(asm.R0, noSum+1))
	g.mark(some)
	g.emit(asm.Sub.Imm(asm.R0, 1), asm.JLE.Imm(asm.R0, noSum, found), asm.Mov.Imm(asm.R0, 0))
	g.mark(found)
	g.store(stSum, asm.R0)
	g.context(asm.R0, cbSumFrom)
	g.store(stSumFrom, asm.R0)
}

// countTag counts the tag in that is put back into the frame.
func (g *gen) countTag() {
	for _, at := range []int{stSum, stSumFrom} {
		before := g.label("before_tag")
		g.load(asm.R0, at)
		g.emit(asm.JLT.Imm(asm.R0, tagAt, before), asm.Add.Imm(asm.R0, vlanLen))
		g.store(at, asm.R0)
		g.mark(before)
	}
}

// judgeableSum goes to bad if the program looks at the bytes of a checksum that is
// still to be written.
func (g *gen) judgeableSum(bad string) {
	fine, single := g.label("sum_fine"), g.label("sum_single")
	g.load(asm.R0, stSum)
	g.emit(asm.JGE.Imm(asm.R0, noSum, fine))
	if g.sumsPayload() {
		g.jump(bad)
		g.mark(fine)
		return
	}
	// Segments get the checksum of their transport header, wherever this one is.
	g.load(asm.R1, stGSOLen)
	g.emit(asm.JEq.Imm(asm.R1, 0, single))
	g.load(asm.R1, stGSOSum)
	g.emit(asm.JNE.Reg(asm.R0, asm.R1, bad))
	g.mark(single)
	for _, h := range g.prog.Headers {
		if h.Metadata {
			continue
		}
		next := g.label("other_header")
		g.emit(
			asm.LoadMem(asm.R1, rState, int16(g.st.at+2*h.Index), asm.Half),
			asm.JEq.Imm(asm.R1, 0, next),
			asm.Sub.Imm(asm.R1, atBias),
			asm.Mov.Reg(asm.R2, asm.R0), asm.Sub.Reg(asm.R2, asm.R1),
			asm.JSLT.Imm(asm.R2, -1, next), asm.JSGE.Imm(asm.R2, int32(h.Type.Bits/8), next))
		for _, d := range g.unused(h) {
			g.emit(asm.JEq.Imm(asm.R2, int32(d), fine))
		}
		g.jump(bad)
		g.mark(next)
	}
	g.load(asm.R1, stParsed)
	g.emit(asm.JLT.Reg(asm.R0, asm.R1, bad)) // in what the parser has skipped
	g.mark(fine)
}

// unused are the places in a header of two bytes that the program does not look at.
// A header in a stack or a union may be used under other names.
func (g *gen) unused(h *v1model.Header) (at []int) {
	if h.Union != nil || g.stacked[h] {
		return nil
	}
	used := make([]bool, h.Type.Bits)
	for i, f := range h.Type.Fields {
		for b := f.Offset; b < f.Offset+f.Width && g.prog.Uses(v1model.FieldRef{Header: h, Field: i}); b++ {
			used[b] = true
		}
	}
	free := 0
	if v := h.Type.Varbit; v >= 0 { // what is behind it may be anywhere
		used = used[:h.Type.Fields[v].Offset]
	}
	for b, u := range used {
		if free++; u {
			free = 0
		}
		if b%8 == 7 && free >= 16 {
			at = append(at, b/8-1)
		}
	}
	return at
}

// unlessAhead drops the packet if a lookahead at some bytes cannot be judged: a
// checksum is still to be written among them, or they are in the payload of a
// super-packet and differ from segment to segment.
func (g *gen) unlessAhead(r asm.Register, from, to int) {
	fine, bad, written := g.label("ahead_fine"), g.label("ahead_bad"), g.label("ahead_written")
	sum, segments := stSum, stGSOLen
	if g.far {
		sum, segments = stBaseSum, stBaseGSO
	}
	g.load(r, sum)
	g.emit(asm.JSGE.Imm(r, int32(to), written), asm.JSGE.Imm(r, int32(from-1), bad))
	g.mark(written)
	g.load(r, segments)
	g.emit(asm.JEq.Imm(r, 0, fine), asm.JSGE.Imm(r, int32(to), fine))
	g.mark(bad)
	g.unjudged()
	g.mark(fine)
}

// unjudged drops and counts a packet that cannot be judged because of offload.
func (g *gen) unjudged() {
	g.load(asm.R0, stPort)
	g.stat(nRxOffload, -1)
	g.jump(g.done)
}

// wholeTail goes to moved unless what is summed leaves in its place: the headers from
// there on are those that came, one behind the other, up to what the parser left. If
// some have changed, the checksum's field makes up for the difference, so that what
// the kernel will write is what it would have written before.
func (g *gen) wholeTail(moved string) {
	fine, none := g.label("tail_fine"), g.label("tail_unparsed")
	// Positions have the bias of state.at; next is where the next header of the tail
	// must have been, and -1 before the first one.
	const from, next, at, end = asm.R1, rTemp, asm.R4, asm.R5
	g.load(asm.R0, stSum)
	g.emit(asm.JGE.Imm(asm.R0, noSum, fine), asm.Mov.Imm(next, -1))
	g.storeImm(stScratch, 0, asm.DWord) // by how much the sum has grown
	for _, h := range g.prog.Deparser.Order {
		n := int32(h.Type.Bits / 8)
		skip, before, first, on := g.label("tail_skip"), g.label("tail_before"), g.label("tail_first"), g.label("tail_on")
		g.load(from, stSumFrom)
		g.emit(
			asm.LoadMem(asm.R0, rState, int16(g.validAt(h)), asm.Byte), asm.JEq.Imm(asm.R0, 0, skip),
			asm.LoadMem(at, rState, int16(g.st.at+2*h.Index), asm.Half), asm.JEq.Imm(at, 0, before),
			asm.Add.Imm(from, atBias),
			asm.Mov.Reg(end, at), asm.Add.Imm(end, n))
		g.addLength(h, end, asm.R0)
		g.emit(
			asm.JSLE.Reg(end, from, before),
			asm.JSLT.Imm(next, 0, first),
			asm.JNE.Reg(at, next, moved))
		g.jump(on)
		g.mark(first)
		g.emit(asm.JSGT.Reg(at, from, moved))
		g.mark(on)
		g.emit(asm.Mov.Reg(next, end), asm.LoadMem(asm.R0, rState, int16(g.st.dirty+h.Index), asm.Byte), asm.JEq.Imm(asm.R0, 0, skip))
		g.sumChange(h, moved)
		g.jump(skip)
		g.mark(before) // new, or wholly before the tail, of which nothing may lie before it
		g.emit(asm.JSGE.Imm(next, 0, moved))
		g.mark(skip)
	}
	g.load(asm.R1, stParsed)
	g.load(asm.R2, stSumFrom)
	g.emit(asm.JSLT.Imm(next, 0, none), asm.Sub.Imm(next, atBias), asm.JNE.Reg(next, asm.R1, moved))
	g.makeUp(moved)
	g.jump(fine)
	g.mark(none)
	g.emit(asm.JSGT.Reg(asm.R1, asm.R2, moved))
	g.mark(fine)
}

// sumChange adds to stScratch what a changed header, which is at R4, adds to the sum
// that begins at R1; both have the bias of state.at.
func (g *gen) sumChange(h *v1model.Header, moved string) {
	n := h.Type.Bits / 8
	if n%4 != 0 || h.Type.Varbit >= 0 {
		g.jump(moved)
		return
	}
	g.emit(
		asm.Sub.Reg(asm.R4, asm.R1),
		asm.JSLT.Imm(asm.R4, 0, moved), // it begins before
		asm.And.Imm(asm.R4, 1), asm.JNE.Imm(asm.R4, 0, moved),
		asm.LoadMem(asm.R1, rState, int16(g.st.at+2*h.Index), asm.Half), asm.Sub.Imm(asm.R1, atBias),
		asm.And.Imm(asm.R1, int32(g.st.windowMask())), asm.Add.Reg(asm.R1, rState), asm.Add.Imm(asm.R1, int32(g.st.ethernet())),
		asm.Mov.Imm(asm.R2, int32(n)),
		asm.Mov.Reg(asm.R3, rState), asm.Add.Imm(asm.R3, int32(g.st.headers[h.Index].base)),
		asm.Mov.Imm(asm.R4, int32(n)),
		asm.LoadMem(asm.R5, rState, stScratch, asm.DWord),
		asm.FnCsumDiff.Call())
	g.mask(asm.R0, 32)
	g.store(stScratch, asm.R0)
}

// makeUp subtracts what has been added to the sum from the checksum's field.
func (g *gen) makeUp(moved string) {
	done := g.label("made_up")
	g.load(asm.R2, stScratch)
	g.fold(asm.R2)
	// Words of a sum are of host order, as the field is read here.
	g.emit(asm.JEq.Imm(asm.R2, 0, done), asm.JEq.Imm(asm.R2, 0xffff, done), asm.Xor.Imm(asm.R2, 0xffff))
	g.load(asm.R1, stGSOLen)
	g.emit(asm.JNE.Imm(asm.R1, 0, moved)) // who cuts it may not look at the field
	for _, h := range g.prog.Deparser.Order {
		other, n := g.label("other_header"), h.Type.Bits/8
		if v := h.Type.Varbit; v >= 0 {
			n = h.Type.Fields[v].Offset / 8
		}
		g.load(asm.R3, stSum)
		g.emit(
			asm.LoadMem(asm.R1, rState, int16(g.validAt(h)), asm.Byte), asm.JEq.Imm(asm.R1, 0, other),
			asm.LoadMem(asm.R1, rState, int16(g.st.at+2*h.Index), asm.Half), asm.JEq.Imm(asm.R1, 0, other),
			asm.Sub.Imm(asm.R1, atBias), asm.Sub.Reg(asm.R3, asm.R1),
			asm.JSLT.Imm(asm.R3, 0, other), asm.JSGT.Imm(asm.R3, int32(n-2), other))
		g.load(asm.R1, stSumFrom)
		g.load(asm.R4, stSum)
		g.emit(
			asm.Sub.Reg(asm.R4, asm.R1), asm.And.Imm(asm.R4, 1), asm.JNE.Imm(asm.R4, 0, moved),
			asm.And.Imm(asm.R3, maxHeader-1), asm.Add.Reg(asm.R3, rState),
			asm.LoadMem(asm.R1, asm.R3, int16(g.st.headers[h.Index].base), asm.Half), asm.Add.Reg(asm.R2, asm.R1))
		g.fold(asm.R2)
		g.emit(asm.StoreMem(asm.R3, int16(g.st.headers[h.Index].base), asm.R2, asm.Half))
		g.touch(h)
		g.jump(done)
		g.mark(other)
	}
	g.jump(moved) // in what the parser left
	g.mark(done)
}

// uncutSum goes to cut if the copy that is sent loses bytes that are still to be
// summed.
func (g *gen) uncutSum(cut string) {
	none := g.label("no_sum")
	g.load(asm.R0, stSum)
	g.emit(asm.JGE.Imm(asm.R0, noSum, none))
	g.load(asm.R0, stEnd)
	g.emit(asm.JNE.Imm(asm.R0, 0, cut))
	g.mark(none)
}

// shiftSum notes that everything before the tail of a packet that goes through the
// parser again has become R0 bytes longer.
func (g *gen) shiftSum() {
	none := g.label("no_sum")
	g.load(asm.R1, stSum)
	g.emit(asm.JGE.Imm(asm.R1, noSum, none), asm.Add.Reg(asm.R1, asm.R0))
	g.store(stSum, asm.R1)
	g.load(asm.R1, stSumFrom)
	g.emit(asm.Add.Reg(asm.R1, asm.R0))
	g.store(stSumFrom, asm.R1)
	g.mark(none)
}
