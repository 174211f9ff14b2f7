//go:build linux

package ebpf

import (
	"fmt"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/trace"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/cilium/ebpf/asm"
)

// visit is a parser state at a position of the packet. The parser is generated
// once for every visit, so that each position is a constant, which the verifier
// and the code like better than a variable.
type visit struct {
	state *v1model.State
	pos   int // in bytes from the Ethernet header on
	next  counts
	far   bool // pos is relative to a position that is not known before (varbit.go)
}

// counts is how many elements of each stack have been extracted, header stacks
// first and then those of unions.
type counts [maxStacks]uint8

const maxStacks = 8

// visitLabel is the label of a visit; the parser of packets that are parsed once
// more has labels of its own.
func (g *gen) visitLabel(v visit) string {
	return fmt.Sprintf("%sparse_%d_%d_%t_%x", g.again, v.state.Index, v.pos, v.far, v.next)
}

// Bounds of how often states are generated. A parser that loops as often as the
// packet says gets maxLooped: packets that go further are lost. All others must
// fit into maxVisits, or the program is refused.
const (
	maxLooped = 512
	maxVisits = 2048
)

// prefixOf is the length of the header that the parser extracts first from
// frames from the CPU port, and from no others: packet_out.
func prefixOf(p *v1model.Program, cpu datapath.Port) int {
	st := p.Parser.Start
	if st == nil || cpu == 0 || len(st.Key) != 1 || len(st.Body) != 0 {
		return 0
	}
	if k, ok := st.Key[0].Value.(v1model.FieldValue); !ok || k.Ref != p.Std.IngressPort {
		return 0
	}
	for _, c := range st.Cases {
		if c.Set != nil || c.Next == nil || len(c.Values) != 1 || c.Masks != nil || number(c.Values[0]) != uint64(cpu) {
			continue
		}
		if len(c.Next.Body) > 0 {
			if x, ok := c.Next.Body[0].(v1model.Extract); ok && x.Header != nil && x.VarbitBits == nil {
				return x.Header.Type.Bits / 8
			}
		}
	}
	return 0
}

// number reads at most 8 bytes, big-endian.
func number(b []byte) uint64 {
	var v uint64
	for _, x := range b {
		v = v<<8 | uint64(x)
	}
	return v
}

// walk is what one pass over the parser's visits finds.
type walk struct {
	visits []visit
	cut    map[visit]bool // those that are too far: the packet is lost
	high   map[visit]int  // how far what its position is relative to may be
	end    int            // how far the parser looks
	back   map[[2]visit]bool
	lack   string
}

// walkParser finds all visits, without generating anything.
func walkParser(p *v1model.Program, prefix int) walk {
	if w := walkUpTo(p, prefix, maxVisits); w.lack != "" || len(w.cut) == 0 {
		return w
	}
	w := walkUpTo(p, prefix, maxLooped)
	if !cyclic(p) {
		w.lack = fmt.Sprintf("a parser of more than %d bytes, or more than %d ways through its states", maxParse, maxVisits)
	}
	return w
}

// cyclic tells whether a state of the parser leads to itself.
func cyclic(p *v1model.Program) bool {
	const grey, black = 1, 2
	colour := make([]int, len(p.Parser.States))
	var dfs func(s *v1model.State) bool
	dfs = func(s *v1model.State) bool {
		if s == nil || colour[s.Index] == black {
			return false
		}
		if colour[s.Index] == grey {
			return true
		}
		colour[s.Index] = grey
		for _, c := range s.Cases {
			if dfs(c.Next) {
				return true
			}
		}
		if dfs(s.Default) {
			return true
		}
		colour[s.Index] = black
		return false
	}
	return dfs(p.Parser.Start)
}

func walkUpTo(p *v1model.Program, prefix, most int) walk {
	w := walk{cut: map[visit]bool{}, high: map[visit]int{}}
	if len(p.Stacks)+len(p.UnionStacks) > maxStacks {
		w.lack = fmt.Sprintf("more than %d header stacks", maxStacks)
		return w
	}
	seen := map[visit]int{} // the place of each in visits
	var todo []int
	add := func(v visit, high int) {
		if v.state == nil {
			return
		}
		at, known := seen[v]
		switch {
		case !known:
			at = len(w.visits)
			seen[v] = at
			w.visits = append(w.visits, v)
		case high <= w.high[v]:
			return
		}
		w.high[v] = high
		todo = append(todo, at)
	}
	add(visit{state: p.Parser.Start}, 0)
	if prefix > 0 {
		add(visit{state: p.Parser.Start, pos: -prefix}, 0)
	}
	for ; len(todo) > 0; todo = todo[1:] {
		v := w.visits[todo[0]]
		to, way, ok := advance(p, v)
		if todo[0] >= most || way.ahead > maxParse {
			w.cut[v] = true
			continue
		}
		// Further than maxParse is found when the packet comes.
		w.end = max(w.end, min(w.high[v]+way.ahead, maxParse))
		if !ok {
			continue
		}
		for _, c := range v.state.Cases {
			add(visit{c.Next, to.pos, to.next, to.far}, min(w.high[v]+way.varied, maxParse))
		}
		add(visit{v.state.Default, to.pos, to.next, to.far}, min(w.high[v]+way.varied, maxParse))
	}
	w.back = turnsBack(p, &w)
	return w
}

// stackAt is a stack's place in counts, and how many elements it has.
func stackAt(p *v1model.Program, e v1model.Expr) (at, size int) {
	switch e := e.(type) {
	case v1model.StackValue:
		return e.Stack.Index, len(e.Stack.Headers)
	case v1model.UnionStackValue:
		return len(p.Stacks) + e.Stack.Index, len(e.Stack.Unions)
	}
	return 0, 0
}

// element is the header of an element of a stack; of one of unions, its member.
func element(e v1model.Expr, i, member int) *v1model.Header {
	switch e := e.(type) {
	case v1model.StackValue:
		return e.Stack.Headers[i]
	case v1model.UnionStackValue:
		return e.Stack.Unions[i].Headers[member]
	}
	return nil
}

// way is what a state has the parser pass: how far ahead of its base it looks at most, and by how much the base moves at most.
type way struct{ ahead, varied int }

// advance tells how a state leaves the parser; ok is false if a stack is full, which ends the parser.
func advance(p *v1model.Program, v visit) (to visit, w way, ok bool) {
	to = v
	vary := func(most int) {
		w.varied = min(w.varied+to.pos+most, maxParse)
		to.pos, to.far = 0, true
	}
	for _, s := range v.state.Body {
		switch s := s.(type) {
		case v1model.Extract:
			h := s.Header
			if h == nil {
				at, size := stackAt(p, s.Next)
				n := int(to.next[at])
				if n >= size {
					w.ahead = w.varied + to.pos
					return to, w, false
				}
				h = element(s.Next, n, s.Member)
				to.next[at]++
			}
			if s.VarbitBits != nil {
				vary((h.Type.Bits + h.Type.Fields[h.Type.Varbit].MaxWidth) / 8)
				continue
			}
			to.pos += h.Type.Bits / 8
		case v1model.Advance:
			if k, ok := v1model.SmallConst(s.Bits); ok {
				to.pos += k / 8
			} else {
				vary(maxParse)
			}
		default:
			to.next = stackCopied(p, s, to.next)
		}
	}
	ahead := to.pos + 32 // room for lookaheads in statements
	for _, k := range v.state.Key {
		if l, ok := k.Value.(v1model.Lookahead); ok {
			ahead = max(ahead, to.pos+(l.Offset+l.Width+7)/8)
		}
	}
	w.ahead = w.varied + ahead
	if w.varied > 0 {
		w.ahead = min(w.ahead, maxParse)
	}
	return to, w, true
}

// turnsBack finds the ways from a visit back to one that has led there: loops over lengths that only the packet tells, or that read
// nothing. Every loop has one.
func turnsBack(p *v1model.Program, w *walk) map[[2]visit]bool {
	const grey, black = 1, 2
	colour, back := map[visit]int{}, map[[2]visit]bool{}
	var dfs func(v visit)
	dfs = func(v visit) {
		if v.state == nil || colour[v] == black || w.cut[v] {
			return
		}
		colour[v] = grey
		to, _, ok := advance(p, v)
		for _, next := range append(nexts(v.state), v.state.Default) {
			at := visit{next, to.pos, to.next, to.far}
			switch {
			case !ok:
			case colour[at] == grey:
				back[[2]visit{v, at}] = true
			default:
				dfs(at)
			}
		}
		colour[v] = black
	}
	for _, v := range w.visits {
		dfs(v)
	}
	return back
}

// nexts are the states that a state's cases lead to.
func nexts(s *v1model.State) (all []*v1model.State) {
	for _, c := range s.Cases {
		all = append(all, c.Next)
	}
	return all
}

// parser generates all visits. It goes on at the label done.
func (g *gen) parser(w walk, done string) {
	if w.lack != "" {
		g.place = fmt.Sprintf("parser %q", g.prog.Parser.Name)
		g.lack("%s", w.lack)
		return
	}
	if g.prog.Parser.Start == nil {
		g.accept(0, g.codes.none, done)
		return
	}
	if len(w.back) > 0 {
		g.storeImm(stSteps, 0, asm.DWord)
	}
	if g.st.prefix > 0 {
		from := g.visitLabel(visit{state: g.prog.Parser.Start, pos: -g.st.prefix})
		if g.again == "" {
			g.load(asm.R0, stPort)
			g.emit(asm.JEq.Imm(asm.R0, int32(g.cpu), from))
		} else { // one that was recirculated has nothing in front any more
			g.load(asm.R0, stInLen)
			g.load(asm.R1, stWireLen)
			g.emit(asm.JNE.Reg(asm.R0, asm.R1, from))
		}
	}
	g.jump(g.visitLabel(visit{state: g.prog.Parser.Start}))
	for _, v := range w.visits {
		g.mark(g.visitLabel(v))
		if w.cut[v] {
			g.looped()
			g.jump(g.done)
			continue
		}
		g.knows(nil, func() { g.visit(v, done) })
	}
	g.parsing = false
}

// accept ends the parser at a position with an error code.
func (g *gen) accept(pos, code int, done string) {
	if code != g.codes.none {
		g.noteName(trace.ParserError, g.prog.ErrorName(code))
	}
	g.position(stParsed, pos-g.pos, asm.DWord)
	g.storeImm(stError, int32(code), asm.DWord)
	g.jump(done)
}

func (g *gen) visit(v visit, done string) {
	g.place, g.pos, g.far, g.next, g.parsing = fmt.Sprintf("parser state %q", v.state.Name), v.pos, v.far, v.next, true
	g.at = v
	g.limitStates(done)
	g.noteName(trace.Parser, v.state.Name)
	for _, s := range v.state.Body {
		if x, ok := s.(v1model.Extract); ok && x.Header == nil {
			at, size := stackAt(g.prog, x.Next)
			n := int(g.next[at])
			if n >= size {
				g.accept(g.pos, g.codes.stackFull, done)
				return
			}
			g.next[at]++
			s = v1model.Extract{Header: element(x.Next, n, x.Member), VarbitBits: x.VarbitBits}
		}
		g.parserStmt(s, done)
	}
	if len(v.state.Cases) > 0 {
		g.selectNext(v.state, done)
	}
	g.follow(v.state.Default, done)
}

// follow goes to a state, or accepts.
func (g *gen) follow(to *v1model.State, done string) {
	if to == nil {
		g.accept(g.pos, g.codes.none, done)
		return
	}
	v := visit{to, g.pos, g.next, g.far}
	if g.walk.back[[2]visit{g.at, v}] {
		g.emit(asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.JCOND), Offset: -1}.WithReference(g.done)) // gen.loops tells why
	}
	g.jump(g.visitLabel(v))
}

// maxStates bounds how many states a parser that loops passes through, as in package interp: one that goes on has the error of a timeout.
const maxStates = 1 << 12

// limitStates counts a state, if the parser loops.
func (g *gen) limitStates(done string) {
	if len(g.walk.back) == 0 {
		return
	}
	more := g.label("more_states")
	g.load(asm.R0, stSteps)
	g.emit(asm.Add.Imm(asm.R0, 1), asm.JLE.Imm(asm.R0, maxStates, more))
	g.accept(g.pos, g.codes.timeout, done)
	g.mark(more)
	g.store(stSteps, asm.R0)
}

func (g *gen) parserStmt(s v1model.Stmt, done string) {
	switch s := s.(type) {
	case v1model.Extract:
		g.extract(s, done)
	case v1model.Advance:
		k, ok := v1model.SmallConst(s.Bits)
		if !ok {
			g.advanceBy(s.Bits, done)
			return
		}
		if k%8 != 0 {
			g.lack("advance by a number of bits that is no whole number of bytes")
			return
		}
		if k > v1model.MaxFieldBits {
			g.lack("advance by more than 8 KiB")
			return
		}
		g.need(g.pos+k/8, done)
		g.pos += k / 8
	case v1model.Verify:
		g.verify(s, done)
	default:
		g.storeImm(stError, int32(g.codes.none), asm.DWord)
		g.stmt(s)
		if assign, ok := s.(v1model.Assign); ok && looksAhead(assign.Src) {
			g.failIfShort(done)
		}
	}
}

// need fails unless the packet is so long.
func (g *gen) need(length int, done string) {
	if length <= 0 {
		return
	}
	enough := g.label("enough")
	g.left(asm.R0)
	g.emit(asm.JSGE.Imm(asm.R0, int32(length), enough))
	g.accept(g.pos, g.codes.tooShort, done)
	g.mark(enough)
	g.fetched(length, asm.R0)
}

func (g *gen) extract(s v1model.Extract, done string) {
	if s.VarbitBits != nil {
		g.extractVarbit(s, done)
		return
	}
	n := s.Header.Type.Bits / 8
	g.need(g.pos+n, done)
	from := g.frame(asm.R1)
	for i := 0; i < n; i += 8 {
		g.emit(asm.LoadMem(asm.R0, from, int16(g.st.ethernet()+g.pos+i), asm.DWord))
		g.store(g.st.headers[s.Header.Index].base+i, asm.R0)
	}
	g.extracted(s.Header)
	g.pos += n
}

// extracted notes that a header is valid, and where it was.
func (g *gen) extracted(h *v1model.Header) {
	g.storeImm(g.st.valid+h.Index, 1, asm.Byte)
	g.sure = g.sure.with(h.Index)
	g.sole(h)
	g.position(g.st.at+2*h.Index, atBias, asm.Half)
}

// atBias makes every position positive; 0 means that the header has none.
const atBias = 256

func (g *gen) verify(s v1model.Verify, done string) {
	holds, fails := g.label("holds"), g.label("fails")
	code, ok := s.Code.(v1model.Const)
	if !ok {
		g.lack("verify with an error that is not constant")
		return
	}
	g.cond(s.Cond, holds, fails)
	g.mark(fails)
	g.accept(g.pos, int(code.Value.Int64()), done)
	g.mark(holds)
}

// looksAhead tells whether an expression reads ahead.
func looksAhead(e v1model.Expr) bool {
	switch e := e.(type) {
	case v1model.Lookahead:
		return true
	case v1model.Unary:
		return looksAhead(e.X)
	case v1model.Binary:
		return looksAhead(e.X) || looksAhead(e.Y)
	case v1model.Select:
		return looksAhead(e.Cond) || looksAhead(e.Then) || looksAhead(e.Else)
	}
	return false
}

// lookahead reads ahead. Beyond the packet it reads 0 and notes the error.
func (g *gen) lookahead(e v1model.Lookahead, i int, r asm.Register) {
	first := g.pos*8 + e.Offset + e.Width - min(e.Width, 64*(i+1))
	width := min(64, e.Width-64*i)
	if width <= 0 {
		g.set(r, 0)
		return
	}
	n := (first+width+7)/8 - first/8
	if n > 8 || (first+width)/8+8 > maxParse || first < 0 {
		g.lack("lookahead that does not begin at a byte")
		return
	}
	short, end := g.label("short"), g.label("ahead")
	g.unlessAhead(r, g.pos+e.Offset/8, (g.pos*8+e.Offset+e.Width+7)/8)
	g.fetched((g.pos*8+e.Offset+e.Width+7)/8, r)
	g.left(r)
	g.emit(asm.JSLT.Imm(r, int32((g.pos*8+e.Offset+e.Width+7)/8), short))
	g.emit(asm.LoadMem(r, g.frame(r), int16(g.st.ethernet()+first/8), asm.DWord))
	g.emit(asm.HostTo(asm.BE, r, asm.DWord))
	if drop := 64 - first%8 - width; drop > 0 {
		g.emit(asm.RSh.Imm(r, int32(drop)))
	}
	g.mask(r, width)
	g.jump(end)
	g.mark(short)
	g.storeImm(stError, int32(g.codes.tooShort), asm.DWord)
	g.set(r, 0)
	g.mark(end)
}

func (g *gen) failIfShort(done string) {
	fine := g.label("fine")
	g.load(asm.R0, stError)
	g.emit(asm.JEq.Imm(asm.R0, int32(g.codes.none), fine))
	g.accept(g.pos, g.codes.tooShort, done)
	g.mark(fine)
}

// selectNext tries a state's cases in order.
func (g *gen) selectNext(st *v1model.State, done string) {
	g.storeImm(stError, int32(g.codes.none), asm.DWord)
	slots, ahead := 0, false
	for _, k := range st.Key {
		ahead = ahead || looksAhead(k.Value)
		for i := range words(k.Width) {
			if slots++; slots > maxSpill {
				g.lack("transition key of more than %d bits", maxSpill*64)
				return
			}
			g.word(k.Value, i, 0)
			g.mask(asm.R0, min(64, k.Width-64*i))
			g.emit(asm.StoreMem(asm.R10, spillAt(slots), asm.R0, asm.DWord))
		}
	}
	if ahead {
		g.failIfShort(done)
	}
	for _, c := range st.Cases {
		g.tryCase(st, c, done)
	}
}

func (g *gen) tryCase(st *v1model.State, c v1model.Case, done string) {
	next, slot := g.label("case"), 0
	if c.Set != nil {
		g.inSet(c.Set, next)
		g.follow(c.Next, done)
		g.mark(next)
		return
	}
	for k, part := range st.Key {
		for i := range words(part.Width) {
			slot++
			value, m := wordAt(c.Values[k], i), mask64(min(64, part.Width-64*i))
			if c.Masks != nil {
				m &= wordAt(c.Masks[k], i)
			}
			g.tryWord(slot, value&m, m, part.Width-64*i, next)
		}
	}
	g.follow(c.Next, done)
	g.mark(next)
}

func (g *gen) tryWord(slot int, value, mask uint64, width int, next string) {
	if mask == 0 {
		return
	}
	g.emit(asm.LoadMem(asm.R0, asm.R10, spillAt(slot), asm.DWord))
	if mask != mask64(min(64, width)) {
		g.set(asm.R1, mask)
		g.emit(asm.And.Reg(asm.R0, asm.R1))
	}
	g.set(asm.R1, value)
	g.emit(asm.JNE.Reg(asm.R0, asm.R1, next))
}

// wordAt is the i-th word, from the low end, of a big-endian number.
func wordAt(b []byte, i int) uint64 {
	end := len(b) - 8*i
	return number(b[max(end-8, 0):max(end, 0)])
}
