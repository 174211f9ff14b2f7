//go:build linux

package ebpf

import (
	"reflect"

	"github.com/bifrost-rack/bifrost/p4switch/trace"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/cilium/ebpf/asm"
)

// While packets are traced, another program runs in the place of the usual one, with the same maps: it also notes in the packet's state what it does, and
// writes that to a ring when the packet ends. So a trace costs nothing while there is none. A step is
//
//	its place in gen.points (u64), and as many words as the point has
type tracing struct {
	ring, control fder
	filter        v1model.Expr // nil: all packets
	sample        int32
	interval      int32 // ns between two packets
	points        []point
	outcomes      []outcome // of the condition being generated
}

// traceFirst is how many words the first step has: when the packet came, its port, its length, and whether there was no room for some step.
const traceFirst = 4

// point is a place of the program where something is noted.
type point struct {
	step  trace.Step // what is known before
	words int
	more  func(st *trace.Step, words []uint64) // puts in what the packet had
}

// What is at the beginning of a trace's part of the state, and in the control map.
const (
	traceAt      = 0  // how many bytes of steps there are; traceOff and more: none are noted
	traceDecided = 8  // whether the packet is one of those that are traced
	traceCut     = 16 // 1 if there was no room for some
	traceSteps   = 24 // the steps

	// traceRoom is how many bytes of steps a packet has at most.
	traceRoom = 4096
	traceOff  = 1 << 20
)

const (
	controlNext    = 0 // when the next packet may be traced, ns
	controlCount   = 8 // packets since the last one that was traced
	controlMatched = 16
	controlSkipped = 24
	controlLost    = 32
	controlSize    = 64
)

// traceStart begins a packet's trace.
func (g *gen) traceStart() {
	if g.traced == nil {
		return
	}
	g.storeImm(g.st.trace+traceAt, 0, asm.DWord)
	g.storeImm(g.st.trace+traceDecided, 0, asm.DWord)
	g.storeImm(g.st.trace+traceCut, 0, asm.DWord)
}

// zeroFiltered zeroes what of metadata the filter looks at: the program may not.
func (g *gen) zeroFiltered() {
	if g.traced == nil {
		return
	}
	(&refs{seen: map[any]bool{}, f: func(r v1model.FieldRef) {
		if r.Header.Metadata && r.Field != v1model.ValidField {
			for i := range words(r.Width()) {
				g.storeImm(fieldAt(g, r)+8*i, 0, asm.DWord)
			}
		}
	}}).walk(reflect.ValueOf(g.traced.filter))
}

// traceIn notes that a packet has come.
func (g *gen) traceIn() {
	if g.traced == nil {
		return
	}
	g.emit(asm.FnKtimeGetNs.Call())
	g.store(stScratch, asm.R0)
	g.note(point{}, func() { g.load(asm.R0, stScratch) }, func() { g.load(asm.R0, stPort) }, func() { g.load(asm.R0, stInLen) }, func() { g.set(asm.R0, 0) })
}

// note notes a step, if the packet is traced. Each word is put into R0, by means of R2. It changes R0 to R2.
func (g *gen) note(p point, words ...func()) {
	t := g.traced
	if t == nil {
		return
	}
	room, skip, n := g.label("trace_room"), g.label("untraced"), 8*(1+len(words))
	p.words = len(words)
	at := g.st.trace
	g.load(asm.R1, at+traceAt)
	g.emit(asm.JLE.Imm(asm.R1, int32(traceRoom-n), room)) //nolint:gosec // small
	g.storeImm(at+traceCut, 1, asm.DWord)
	g.jump(skip)
	g.mark(room)
	g.emit(asm.Add.Reg(asm.R1, rState))
	g.emit(asm.Mov.Imm(asm.R0, int32(len(t.points))), asm.StoreMem(asm.R1, int16(at+traceSteps), asm.R0, asm.DWord))
	for i, word := range words {
		word()
		g.emit(asm.StoreMem(asm.R1, int16(at+traceSteps+8+8*i), asm.R0, asm.DWord))
	}
	g.load(asm.R1, at+traceAt)
	g.emit(asm.Add.Imm(asm.R1, int32(n))) //nolint:gosec // small
	g.store(at+traceAt, asm.R1)
	g.mark(skip)
	t.points = append(t.points, p)
}

// noteName notes a step of which all is known before.
func (g *gen) noteName(kind, name string) { g.note(point{step: trace.Step{Kind: kind, Name: name}}) }

// noteDrop notes a drop, and changes R1 alone.
func (g *gen) noteDrop(why string) {
	if g.traced == nil {
		return
	}
	g.store(stScratch, asm.R0)
	g.noteName(trace.Drop, why)
	g.load(asm.R0, stScratch)
}

// traceDecide finds out whether the packet is one of those that are traced.
func (g *gen) traceDecide() {
	t := g.traced
	if t == nil {
		return
	}
	yes, no, decided, whole, early := g.label("trace_yes"), g.label("trace_no"), g.label("trace_decided"), g.label("trace_each"), g.label("trace_early")
	g.load(asm.R0, g.st.trace+traceDecided)
	g.emit(asm.JNE.Imm(asm.R0, 0, decided))
	g.storeImm(g.st.trace+traceDecided, 1, asm.DWord)
	if t.filter != nil {
		place := g.place
		g.place = "trace"
		g.cond(t.filter, yes, no)
		g.place = place
	}
	g.mark(yes)
	g.emit(asm.StoreImm(asm.R10, -4, 0, asm.Word))
	g.lookup(t.control, asm.R10, -4)
	g.emit(
		asm.JEq.Imm(asm.R0, 0, no), asm.Mov.Reg(rTemp, asm.R0),
		asm.Mov.Imm(asm.R1, 1), asm.AddAtomic.Mem(rTemp, asm.R1, asm.DWord, controlMatched))
	if t.sample > 1 {
		g.emit(
			asm.LoadMem(asm.R1, rTemp, controlCount, asm.DWord), asm.Add.Imm(asm.R1, 1), asm.StoreMem(rTemp, controlCount, asm.R1, asm.DWord),
			asm.JLT.Imm(asm.R1, t.sample, no),
			asm.Mov.Imm(asm.R1, 0), asm.StoreMem(rTemp, controlCount, asm.R1, asm.DWord))
	}
	g.emit(
		asm.FnKtimeGetNs.Call(),
		asm.LoadMem(asm.R1, rTemp, controlNext, asm.DWord),
		asm.Mov.Reg(asm.R2, asm.R0), asm.Add.Imm(asm.R2, int32(-trace.Burst)),
		asm.JSGE.Reg(asm.R1, asm.R2, whole), asm.Mov.Reg(asm.R1, asm.R2))
	g.mark(whole)
	g.emit(
		asm.JSGT.Reg(asm.R1, asm.R0, early),
		asm.Add.Imm(asm.R1, t.interval), asm.StoreMem(rTemp, controlNext, asm.R1, asm.DWord))
	g.jump(decided)
	g.mark(early)
	g.emit(asm.Mov.Imm(asm.R1, 1), asm.AddAtomic.Mem(rTemp, asm.R1, asm.DWord, controlSkipped))
	g.mark(no)
	g.storeImm(g.st.trace+traceAt, traceOff, asm.DWord)
	g.mark(decided)
}

// traceEnd writes the packet's trace to the ring. It changes R0 to R5, and rTemp if the packet has not been judged.
func (g *gen) traceEnd() {
	t := g.traced
	if t == nil {
		return
	}
	none := g.label("trace_end")
	at := g.st.trace
	g.load(asm.R3, at+traceAt)
	g.emit(
		asm.JGT.Imm(asm.R3, traceRoom, none),
		asm.LoadMem(asm.R1, rState, int16(at+traceCut), asm.DWord), asm.StoreMem(rState, int16(at+traceSteps+8*traceFirst), asm.R1, asm.DWord),
		asm.LoadMapPtr(asm.R1, t.ring.FD()),
		asm.Mov.Reg(asm.R2, rState), asm.Add.Imm(asm.R2, int32(at+traceSteps)), //nolint:gosec // a place in the state
		asm.Mov.Imm(asm.R4, 0),
		asm.FnRingbufOutput.Call(),
		asm.JSGE.Imm(asm.R0, 0, none),
		asm.StoreImm(asm.R10, -4, 0, asm.Word))
	g.lookup(t.control, asm.R10, -4)
	g.emit(asm.JEq.Imm(asm.R0, 0, none), asm.Mov.Imm(asm.R1, 1), asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, controlLost))
	g.mark(none)
}

// noteTable notes what a packet has found in a table: rEntry. Its key is where the search had it.
func (g *gen) noteTable(t *v1model.Table, plan *keyPlan, scan *scanPlan) {
	if g.traced == nil {
		return
	}
	var values []func()
	word := func(reg asm.Register, at int, size asm.Size) {
		values = append(values, func() { g.emit(asm.LoadMem(asm.R0, reg, int16(at), size)) })
	}
	keyBytes, keyWords := 0, 0
	if plan != nil {
		keyBytes = plan.bytes
		keyWords = (keyBytes + 7) / 8
		for i := range keyWords {
			word(rState, g.st.key+4+8*i, asm.DWord)
		}
	} else {
		keyWords = scan.words
		for i := range keyWords {
			word(rState, g.st.key+8*i, asm.DWord)
		}
	}
	for _, at := range []int{entryHit, entryCounter, entryAction} {
		word(rEntry, at, asm.Word)
	}
	args := 0
	if t.Profile == nil {
		args = entrySize(t) - entryArgs
		for at := entryArgs; at < entryArgs+args; at += 8 {
			word(rEntry, at, asm.DWord)
		}
	}
	d := &tableNote{t: t, plan: plan, scan: scan, keyWords: keyWords, table: g.tableOf}
	g.note(point{step: trace.Step{Kind: trace.Table, Name: t.Name}, more: d.put}, values...)
}

// noteMember notes that a member's action is called, whose arguments are in rEntry.
func (g *gen) noteMember(a *v1model.Action) {
	if g.traced == nil {
		return
	}
	at, size := argsAt(a)
	var values []func()
	for i := entryArgs; i < size; i += 8 {
		values = append(values, func() { g.emit(asm.LoadMem(asm.R0, rEntry, int16(i), asm.DWord)) }) //nolint:gosec // small
	}
	g.note(point{step: trace.Step{Kind: trace.Action, Action: a.Name}, more: func(st *trace.Step, noted []uint64) {
		for i, p := range a.Params {
			first := (at[i] - entryArgs) / 8
			st.Params = append(st.Params, trace.Field{Name: p.Name, Value: hexWords(noted[first:first+words(p.Width)], p.Width)})
		}
	}}, values...)
}

// outcome is where a condition leads: a label where the outcome is noted first, if packets are traced.
func (g *gen) outcome(c *v1model.Condition, holds bool, to v1model.Node) string {
	if g.traced == nil {
		return g.node(to)
	}
	name := c.Name
	if c.Source != "" {
		name = c.Source
	}
	l := g.label("outcome")
	g.traced.outcomes = append(g.traced.outcomes, outcome{l, trace.Step{Kind: trace.Condition, Name: name, Hit: &holds}, g.node(to)})
	return l
}

type outcome struct {
	label string
	step  trace.Step
	to    string
}

// outcomes generates what outcome's labels stand for.
func (g *gen) outcomes() {
	if g.traced == nil {
		return
	}
	for _, o := range g.traced.outcomes {
		g.mark(o.label)
		g.note(point{step: o.step})
		g.jump(o.to)
	}
	g.traced.outcomes = nil
}

// stepOf is what a point has noted.
func (p *point) stepOf(words []uint64) trace.Step {
	st := p.step
	if p.more != nil {
		p.more(&st, words)
	}
	return st
}

// keepIndex keeps the index of a register's cell, which is in R1, for noteRegister.
func (g *gen) keepIndex() {
	if g.traced != nil {
		g.store(stScratch, asm.R1)
	}
}

// noteRegister notes an access to a register's cell, whose index is in stScratch.
func (g *gen) noteRegister(kind string, r *v1model.Register, value func(i int)) {
	if g.traced == nil {
		return
	}
	values := []func(){func() { g.load(asm.R0, stScratch) }}
	for i := range words(r.Width) {
		values = append(values, func() { value(i) })
	}
	g.note(point{step: trace.Step{Kind: kind, Name: r.Name}, more: func(st *trace.Step, words []uint64) {
		index := words[0]
		st.Index, st.Value = &index, hexWords(words[1:], r.Width)
	}}, values...)
}

// dropReasons are what the counters of a port say of a packet that is dropped.
var dropReasons = map[int]string{
	nRxOffload: "a checksum that is still to be written, or a super-packet, which the program cannot judge", nRxShort: "shorter than an Ethernet header",
	nTxTooLong: "longer than the interface takes", nTxResize: "its headers cannot change their length so", nLooped: "too many steps or copies",
	nLost: "no such port",
}

// notePort notes that a packet leaves, or that a copy is made.
func (g *gen) notePort(kind, name string, sized bool) {
	if g.traced == nil {
		return
	}
	values := []func(){func() { g.load(asm.R0, stOutPort) }}
	if sized {
		values = append(values, func() { g.context(asm.R0, ctxLen) })
	}
	g.note(point{step: trace.Step{Kind: kind, Name: name}, more: func(st *trace.Step, words []uint64) {
		port := portOf(words[0])
		st.Port = &port
		if sized {
			st.Bytes = int(words[1]) //nolint:gosec // a packet's length
		}
	}}, values...)
}
