//go:build linux

package ebpf

import (
	"fmt"
	"math"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/trace"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// Registers with a fixed use. R0 to R5 and rTemp hold numbers.
const (
	rCtx   = asm.R6 // the packet: struct __sk_buff
	rState = asm.R7
	rTemp  = asm.R8 // survives calls
	rEntry = asm.R9 // the table entry whose action runs
)

// gen generates the code of one program. What it cannot generate it notes as a
// lack, and goes on, so that all lacks are known at the end.
type gen struct {
	prog *v1model.Program
	st   *state

	cells  int     // Config.RegisterCells
	placed []array // registers
	cpu    datapath.Port
	drop   uint64
	objs   *objects

	code    asm.Instructions
	pending string            // label of the next instruction
	alias   map[string]string // labels of the same instruction
	labels  int

	place string // what is being generated, for lacks
	lacks []Lack

	args    args
	endpipe string // where exit leads
	at      visit  // the state being generated
	pos     int    // of the parser in it
	far     bool   // it is relative to stBase
	next    counts // of the same
	spilled int    // values of the expression being generated that wait
	parsing bool   // a state is being generated
	emits   map[*v1model.Header]bool
	stacked map[*v1model.Header]bool // headers that are elements of stacks
	nodes   map[v1model.Node]string
	todo    []v1model.Node
	codes   errorCodes
	traced  *tracing                    // nil unless the program notes what it does
	tableOf func(*v1model.Table) *table // of a program that does

	sure     bitset // headers that are defined here
	walk     walk
	head     int // how many bytes of a frame are fetched
	forks    forks
	messages []message // that the code sends
	done     string    // where a packet that ends leads
	again    string    // the parser of packets that are parsed once more; "" if there are none

	scanned map[string]*scanPlan   // tables that are looked through, by the function that does it
	spaces  map[string]tupleSearch // tuple spaces, likewise
	turns   []turn                 // jumps back of the action being generated
	unlock  [][2]string            // labels that give the lock back, and where they lead
	begins  *btf.Func              // the function that begins with the next instruction
}

type errorCodes struct{ none, tooShort, stackFull, headerTooShort, invalid, timeout int }

// objects are the maps that the code refers to.
type objects struct {
	state, ports, stats, prefix, digests, epochs fder
	groups, lists, jobs, outputs                 fder           // nil unless there may be copies
	lock, registers                              fder           // nil unless there are registers
	crcs                                         fder           // nil unless there are CRCs
	held                                         fder           // nil unless packets to the control plane outlive the process
	depths                                       fder           // nil unless the program uses the depths of queues
	meters                                       []meterObjects // by Meter.Index; empty if direct
	profiles                                     []profileObjects
	sets                                         []fder // by ValueSet.Index; nil if the parser does not look
	tables                                       map[*v1model.Table]tableObjects
	counters                                     []fder // by Counter.Index; nil if direct
}

// tableObjects are a table's maps; counters is nil if the table does not count,
// meters if it does not meter, hits if it has no idle timeouts.
type tableObjects struct {
	entries, tuples, counters fder
	counted                   uint32 // the table's first cell of counters
	meters                    meterObjects
	hits                      fder
}

// meterObjects are meters and what they count.
type meterObjects struct{ cells, counts fder }

// fder is a map.
type fder interface{ FD() int }

// noMap stands for maps that are not made, while a program is only looked at.
type noMap struct{}

func (noMap) FD() int { return 0 }

// lack notes that the program uses something that cannot be generated.
func (g *gen) lack(format string, a ...any) {
	l := Lack{Where: g.place, Feature: fmt.Sprintf(format, a...)}
	for _, have := range g.lacks {
		if have == l {
			return
		}
	}
	g.lacks = append(g.lacks, l)
}

// emit appends instructions.
func (g *gen) emit(ins ...asm.Instruction) {
	for _, i := range ins {
		if g.pending != "" {
			i = i.WithSymbol(g.pending)
			g.pending = ""
		}
		if g.begins != nil {
			i = btf.WithFuncMetadata(i, g.begins)
			g.begins = nil
		}
		g.code = append(g.code, i)
	}
}

// label makes a new label.
func (g *gen) label(what string) string {
	g.labels++
	return fmt.Sprintf("%s_%d", what, g.labels)
}

// mark puts a label before the next instruction.
func (g *gen) mark(l string) {
	if g.pending == "" {
		g.pending = l
		return
	}
	g.alias[l] = g.pending
}

func (g *gen) jump(l string) { g.emit(asm.Ja.Label(l)) }

// set loads a constant.
func (g *gen) set(r asm.Register, v uint64) {
	if int64(v) >= math.MinInt32 && int64(v) <= math.MaxInt32 {
		g.emit(asm.Mov.Imm(r, int32(v)))
		return
	}
	g.emit(asm.LoadImm(r, int64(v), asm.DWord))
}

// load and store move a word of the state.
func (g *gen) load(r asm.Register, at int) {
	g.emit(asm.LoadMem(r, rState, int16(at), asm.DWord))
}

func (g *gen) store(at int, r asm.Register) {
	g.emit(asm.StoreMem(rState, int16(at), r, asm.DWord))
}

func (g *gen) storeImm(at int, v int32, size asm.Size) {
	// asm.StoreImm refuses double words, which the kernel takes.
	op := asm.OpCode(asm.StClass).SetMode(asm.MemMode).SetSize(size)
	g.emit(asm.Instruction{OpCode: op, Dst: rState, Offset: int16(at), Constant: int64(v)})
}

// context loads a 32-bit field of the packet's context.
func (g *gen) context(r asm.Register, at int16) {
	g.emit(asm.LoadMem(r, rCtx, at, asm.Word))
}

// finish resolves labels and leaves out what nothing leads to, which the
// verifier would refuse.
func (g *gen) finish() asm.Instructions {
	for i := range g.code {
		l := g.code[i].Reference()
		for to, ok := g.alias[l]; ok; to, ok = g.alias[l] {
			l = to
		}
		if l != g.code[i].Reference() {
			g.code[i] = g.code[i].WithReference(l)
		}
	}
	return longJumps(reachable(g.code))
}

func reachable(code asm.Instructions) asm.Instructions {
	at := map[string]int{}
	for i := range code {
		if s := code[i].Symbol(); s != "" {
			at[s] = i
		}
	}
	seen := make([]bool, len(code))
	todo := []int{0}
	for len(todo) > 0 {
		i := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for i < len(code) && !seen[i] {
			seen[i] = true
			op := code[i].OpCode.JumpOp()
			if to, ok := at[code[i].Reference()]; ok && (code[i].OpCode.Class().IsJump() || code[i].IsLoadOfFunctionPointer()) {
				todo = append(todo, to)
			}
			if code[i].OpCode.Class().IsJump() && (op == asm.Ja || op == asm.Exit) {
				break
			}
			i++
		}
	}
	var out asm.Instructions
	for i := range code {
		if seen[i] {
			out = append(out, code[i])
		}
	}
	return out
}

// shortJump is how many instructions a jump may skip. Its distance has 16 bits, of which the verifier needs
// its share: it puts up to nine instructions in the place of three, where a map is looked up. Of the programs
// that have been tried none more than trebles; one that does is refused when it is loaded.
const shortJump = 10_000

// longJumps lengthens jumps that are too far for the 16 bits that a jump has for its
// distance; the assembler would cut the distance off without an error. Long jumps
// need Linux 6.6, as tcx does. Only programs of more than 10,000 instructions have any.
//
//	if x goto far   ▶   if x goto 1; goto over; 1: goto far (32 bits); over:
func longJumps(code asm.Instructions) asm.Instructions {
	for {
		at, places := map[string]int{}, make([]int, len(code))
		for it := code.Iterate(); it.Next(); {
			places[it.Index] = int(it.Offset)
			if s := it.Ins.Symbol(); s != "" {
				at[s] = int(it.Offset)
			}
		}
		var out asm.Instructions
		more := false // code grows, so other jumps may be too far then
		for i, ins := range code {
			to, known := at[ins.Reference()]
			distance := to - places[i] - 1
			if !known || !isShort(ins) || -shortJump <= distance && distance <= shortJump {
				out = append(out, ins)
				continue
			}
			more = true
			long := asm.LongJump(ins.Reference())
			if ins.OpCode.JumpOp() == asm.Ja {
				out = append(out, long.WithMetadata(ins.Metadata))
				continue
			}
			over := asm.Instruction{OpCode: asm.Ja.Label("").OpCode, Offset: 1}
			ins = ins.WithReference("")
			ins.Offset = 1
			out = append(out, ins, over, long)
		}
		if !more {
			return out
		}
		code = out
	}
}

// isShort tells whether an instruction is a jump whose distance has 16 bits.
func isShort(ins asm.Instruction) bool {
	op := ins.OpCode.JumpOp()
	return ins.OpCode.Class().IsJump() && op != asm.Call && op != asm.Exit && ins.OpCode != asm.LongJump("").OpCode
}

// pipeline generates a control, which goes on behind it.
func (g *gen) pipeline(p *v1model.Pipeline, what string) {
	end, defined := g.label(what+"_end"), definedAt(p)
	g.endpipe, g.nodes, g.todo = end, map[v1model.Node]string{}, nil
	g.jump(g.node(p.Start))
	for len(g.todo) > 0 {
		n := g.todo[0]
		g.todo = g.todo[1:]
		g.mark(g.nodes[n])
		g.knows(defined[n], func() { g.generate(n) })
	}
	g.mark(end)
}

// node is the label of a node, which is generated later; of nil, the end.
func (g *gen) node(n v1model.Node) string {
	if n == nil {
		return g.endpipe
	}
	l := g.nodes[n]
	if l == "" {
		l = g.label("node")
		g.nodes[n] = l
		g.todo = append(g.todo, n)
	}
	return l
}

func (g *gen) generate(n v1model.Node) {
	switch n := n.(type) {
	case *v1model.Table:
		g.table(n)
	case *v1model.Condition:
		g.place = fmt.Sprintf("condition %q", n.Name)
		g.cond(n.Expr, g.outcome(n, true, n.True), g.outcome(n, false, n.False))
		g.outcomes()
	case *v1model.Call:
		g.note(point{step: trace.Step{Kind: trace.Action, Action: n.Action.Name}})
		g.action(n.Action, args{})
		g.jump(g.node(n.Next))
	}
}
