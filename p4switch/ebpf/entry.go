//go:build linux

package ebpf

import (
	"github.com/cilium/ebpf/asm"
)

// Where fields lie in struct __sk_buff.
const (
	ctxLen         = 0
	ctxProtocol    = 16
	ctxVLANPresent = 20
	ctxVLANTCI     = 24
	ctxVLANProto   = 28
	ctxCB          = 48 // five words that are the program's
	ctxGSOSize     = 176
)

// The words of the packet's control block.
const (
	cbPort   = ctxCB      // in: ingress port, and testFlag
	cbDigest = ctxCB + 4  // out: how many digests were sent
	cbPad    = ctxCB + 8  // out: padding before a packet to the CPU port
	cbOut    = ctxCB + 12 // out: egress port plus one, 0 if the packet was dropped
	cbSent   = ctxCB + 16 // out: how many copies there are to be shown
	testFlag = 1 << 16
)

// verdict is the label of the code that drops the packet.
const verdict = "verdict"

// What the program returns.
const (
	actOK   = 0
	actDrop = 2
)

// Counters of a port, words of a per-CPU value.
const (
	nRxPackets = 8 * iota
	nRxBytes
	nTxPackets
	nTxBytes
	nRxOffload // super-packets and unfinished checksums that cannot be judged
	nTxTooLong // longer than the interface's MTU
	nTxResize  // headers that could not be grown or shrunk, or checksums not be finished behind them
	nLost      // for a port that is not attached
	nLooped    // of which the program wanted too many copies
	nRxShort   // shorter than an Ethernet header
	statSize
)

// minEthernet is the length of an Ethernet header.
const minEthernet = 14

// begin generates what comes before the parser: find the state, clear it, and
// fetch the frame's first bytes.
func (g *gen) begin(window int) {
	g.place = "entry"
	start, dropped := g.label("state"), g.label("no_state")
	g.emit(asm.Mov.Reg(rCtx, asm.R1))
	g.emit(asm.StoreImm(asm.R10, -4, 0, asm.Word))
	g.lookup(g.objs.state, asm.R10, -4)
	g.emit(asm.JNE.Imm(asm.R0, 0, start))
	g.mark(dropped)
	g.emit(asm.Mov.Imm(asm.R0, actDrop), asm.Return())
	g.mark(start)
	g.emit(asm.Mov.Reg(rState, asm.R0))
	g.enter(dropped)
	g.traceStart()
	g.context(asm.R0, cbPort)
	g.emit(
		asm.Mov.Reg(asm.R1, asm.R0), asm.RSh.Imm(asm.R1, 16),
		asm.And.Imm(asm.R0, 0xffff))
	g.store(stTest, asm.R1)
	g.store(stPort, asm.R0)
	g.set(asm.R0, 0)
	for _, at := range []int{stDigest, stGSOLen, stTag} {
		g.store(at, asm.R0)
	}
	for at := g.st.zeroFrom; at < g.st.zeroTo; at += 8 {
		g.store(at, asm.R0)
	}
	g.zeroFiltered()
	g.findSum()
	g.set(asm.R0, 0)
	g.emit(asm.StoreMem(rCtx, cbOut, asm.R0, asm.Word), asm.StoreMem(rCtx, cbDigest, asm.R0, asm.Word))
	if g.forks.any() {
		g.emit(asm.StoreMem(rCtx, cbSent, asm.R0, asm.Word))
		g.clearOrders()
	}
	g.fetch(window)
	g.lengths()
	g.traceIn()
	g.superPacket()
}

// fetch loads the frame's first bytes; a VLAN tag, which the kernel has taken
// out, is put back.
func (g *gen) fetch(window int) {
	tagged, fetched, short := g.label("tagged"), g.label("fetched"), g.label("too_short")
	eth := g.st.ethernet()
	g.context(rTemp, ctxLen)
	g.context(asm.R0, ctxVLANPresent)
	g.emit(asm.JNE.Imm(asm.R0, 0, tagged))
	g.store(stWireLen, rTemp)
	g.emit(asm.JLT.Imm(rTemp, minEthernet, short))
	g.loadBytes(0, eth, window)
	g.jump(fetched)

	g.mark(tagged)
	g.emit(asm.JLT.Imm(rTemp, minEthernet, short))
	g.emit(asm.Mov.Imm(rTemp, 12))
	g.loadBytes(0, eth, 12)
	g.emit(
		asm.LoadMem(asm.R0, rCtx, ctxVLANProto, asm.Word),
		asm.StoreMem(rState, int16(eth+12), asm.R0, asm.Half),
		asm.LoadMem(asm.R0, rCtx, ctxVLANTCI, asm.Word),
		asm.HostTo(asm.BE, asm.R0, asm.Half),
		asm.StoreMem(rState, int16(eth+14), asm.R0, asm.Half),
		asm.LoadMem(asm.R0, rState, int16(eth+12), asm.Word))
	g.store(stTag, asm.R0)
	g.context(rTemp, ctxLen)
	g.emit(asm.Mov.Reg(asm.R0, rTemp), asm.Add.Imm(asm.R0, 4))
	g.store(stWireLen, asm.R0)
	g.emit(asm.JLT.Imm(rTemp, minEthernet, short), asm.Sub.Imm(rTemp, 12))
	g.loadBytes(12, eth+16, window-16)
	g.countTag()
	g.jump(fetched)
	g.mark(short) // on devices that have no Ethernet header; the kernel drops them on others
	g.load(asm.R0, stPort)
	g.stat(nRxShort, -1)
	g.jump(verdict)
	g.mark(fetched)
	if g.sumsPayload() {
		g.windowStart()
	}
}

// windowStart notes how many bytes of the frame are in the state.
func (g *gen) windowStart() {
	ready := g.label("ready")
	g.load(asm.R1, stWireLen)
	g.emit(asm.JLE.Imm(asm.R1, int32(g.head), ready), asm.Mov.Imm(asm.R1, int32(g.head)))
	g.mark(ready)
	g.store(stWindow, asm.R1)
}

// loadBytes copies rTemp bytes of the frame, at most max, to the state.
func (g *gen) loadBytes(from, to, most int) {
	fits := g.label("fits")
	g.emit(asm.Mov.Reg(asm.R4, rTemp), asm.JLE.Imm(asm.R4, int32(most), fits), asm.Mov.Imm(asm.R4, int32(most)))
	g.mark(fits)
	g.emit(
		asm.Mov.Reg(asm.R1, rCtx),
		asm.Mov.Imm(asm.R2, int32(from)),
		asm.Mov.Reg(asm.R3, rState),
		asm.Add.Imm(asm.R3, int32(to)),
		asm.FnSkbLoadBytes.Call(),
		asm.JSLT.Imm(asm.R0, 0, verdict))
}

// lengths notes the packet's lengths, fetches what comes before the Ethernet
// header of one from the CPU port, and counts it.
func (g *gen) lengths() {
	std := &g.prog.Std
	other := g.label("port")
	g.load(asm.R0, stWireLen)
	g.store(stInLen, asm.R0)
	if g.st.prefix > 0 {
		g.load(asm.R1, stPort)
		g.emit(asm.JNE.Imm(asm.R1, int32(g.cpu), other))
		g.emit(asm.Add.Imm(asm.R0, int32(g.st.prefix)))
		g.store(stInLen, asm.R0)
		g.emit(asm.StoreImm(asm.R10, -4, 0, asm.Word))
		g.lookup(g.objs.prefix, asm.R10, -4)
		g.emit(asm.JEq.Imm(asm.R0, 0, verdict))
		n := align8(g.st.prefix)
		for i := 0; i < n; i += 8 {
			g.emit(asm.LoadMem(asm.R1, asm.R0, int16(i), asm.DWord))
			g.store(g.st.frame+i, asm.R1)
		}
		g.mark(other)
	}
	g.load(asm.R0, stPort)
	g.stat(nRxPackets, nRxBytes)
	g.load(asm.R0, stPort)
	g.setReg(std.IngressPort)
	g.load(asm.R0, stInLen)
	g.store(stLength, asm.R0)
	if g.prog.Uses(std.PacketLength) {
		g.setReg(std.PacketLength)
	}
	if g.prog.Uses(std.IngressTimestamp) {
		g.clock()
		g.setReg(std.IngressTimestamp)
	}
}

// clock puts the time in microseconds into R0.
func (g *gen) clock() {
	g.emit(asm.FnKtimeGetNs.Call(), asm.Div.Imm(asm.R0, 1000))
}

// stat counts in a port's counters: one of packets, and one of bytes if it is
// not negative. The port is in R0.
func (g *gen) stat(packets, bytes int) {
	if why := dropReasons[packets]; why != "" {
		g.noteDrop(why)
	}
	end := g.label("stat")
	g.emit(asm.StoreMem(asm.R10, -4, asm.R0, asm.Word))
	g.lookup(g.objs.stats, asm.R10, -4)
	g.emit(
		asm.JEq.Imm(asm.R0, 0, end),
		asm.LoadMem(asm.R1, asm.R0, int16(packets), asm.DWord),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(asm.R0, int16(packets), asm.R1, asm.DWord))
	if bytes >= 0 {
		g.load(asm.R2, stInLen)
		g.emit(
			asm.LoadMem(asm.R1, asm.R0, int16(bytes), asm.DWord),
			asm.Add.Reg(asm.R1, asm.R2),
			asm.StoreMem(asm.R0, int16(bytes), asm.R1, asm.DWord))
	}
	g.mark(end)
}

// superPacket finds the length of a super-packet's headers, the transport header
// included; one that is neither TCP nor UDP is dropped.
func (g *gen) superPacket() {
	done, tagged, bad := g.label("whole"), g.label("super_tagged"), g.label("super_bad")
	eth := g.st.ethernet()
	g.context(asm.R0, ctxGSOSize)
	g.emit(asm.JEq.Imm(asm.R0, 0, done))
	g.load(asm.R0, stTag)
	g.emit(asm.JNE.Imm(asm.R0, 0, tagged))
	g.transport(eth, 14, bad, done)
	g.mark(tagged)
	g.transport(eth, 18, bad, done)
	g.mark(bad)
	g.load(asm.R0, stPort)
	g.stat(nRxOffload, -1)
	g.jump(verdict)
	g.mark(done)
}

const (
	protoTCP = 6
	protoUDP = 17
)

// transport finds the headers' length for a network header at l3.
func (g *gen) transport(eth, l3 int, bad, done string) {
	v4, v6, at := g.label("v4"), g.label("v6"), g.label("transport")
	tcp := g.label("tcp")
	byteAt := func(r asm.Register, i int) { g.emit(asm.LoadMem(r, rState, int16(eth+i), asm.Byte)) }
	g.emit(
		asm.LoadMem(asm.R0, rState, int16(eth+l3-2), asm.Half),
		asm.HostTo(asm.BE, asm.R0, asm.Half),
		asm.JEq.Imm(asm.R0, 0x0800, v4),
		asm.JEq.Imm(asm.R0, 0x86dd, v6))
	g.jump(bad)
	g.mark(v4)
	byteAt(asm.R1, l3)
	g.emit(asm.And.Imm(asm.R1, 15), asm.LSh.Imm(asm.R1, 2), asm.Add.Imm(asm.R1, int32(l3)))
	byteAt(asm.R0, l3+9)
	g.jump(at)
	g.mark(v6)
	g.set(asm.R1, uint64(l3+40))
	byteAt(asm.R0, l3+6)
	g.mark(at)
	g.emit(asm.JEq.Imm(asm.R0, protoTCP, tcp), asm.JNE.Imm(asm.R0, protoUDP, bad))
	g.emit(asm.Mov.Reg(asm.R2, asm.R1), asm.Add.Imm(asm.R2, 6), asm.Add.Imm(asm.R1, 8))
	g.store(stGSOSum, asm.R2)
	g.store(stGSOLen, asm.R1)
	g.jump(done)
	g.mark(tcp)
	g.emit(asm.Mov.Reg(asm.R2, asm.R1), asm.Add.Imm(asm.R2, 16))
	g.store(stGSOSum, asm.R2)
	g.emit(
		asm.Mov.Reg(asm.R2, rState), asm.Add.Reg(asm.R2, asm.R1),
		asm.LoadMem(asm.R0, asm.R2, int16(eth+12), asm.Byte),
		asm.RSh.Imm(asm.R0, 4), asm.LSh.Imm(asm.R0, 2),
		asm.Add.Reg(asm.R1, asm.R0))
	g.store(stGSOLen, asm.R1)
	g.jump(done)
}
