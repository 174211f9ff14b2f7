//go:build linux

package ebpf

import (
	"fmt"

	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/cilium/ebpf/asm"
)

// What the search in a tuple space is told and finds, at scanAt on the stack: the state, the version of the tuples, the rank of the best
// entry so far, and the filter. The best entry is copied to the state: it may be deleted before the search ends.
const (
	spaceState = 8 * iota
	spaceVersion
	spaceRank
	spaceFilter
)

// tupleKey is where the key of the entries' trie is made, with the length of its prefix in the upper half of the first word.
func (g *gen) tupleKey(p *scanPlan) int { return g.st.key + 8*p.words }

// tuples generates the search in a tuple space: rEntry is the entry that wins, or the default one.
func (g *gen) tuples(t *v1model.Table, p *scanPlan, maps *tableObjects, none string) {
	for i := range p.fields {
		g.scanKey(&p.fields[i])
	}
	name := fmt.Sprintf("bifrost_tuples_%d", t.Index)
	byDefault, found := g.label("default"), g.label("found")
	g.emit(asm.StoreImm(asm.R10, -4, 0, asm.Word))
	g.lookup(maps.tuples, asm.R10, -4)
	g.emit(
		asm.JEq.Imm(asm.R0, 0, none), asm.Mov.Reg(rEntry, asm.R0),
		asm.Add.Imm(asm.R0, int32(p.filterAt())), asm.StoreMem(asm.R10, scanAt+spaceFilter, asm.R0, asm.DWord),
		asm.LoadMem(asm.R1, rEntry, 0, asm.DWord), asm.And.Imm(asm.R1, tupleVersions-1), asm.Mul.Imm(asm.R1, int32(p.versionSize())),
		asm.Add.Reg(rEntry, asm.R1), asm.Add.Imm(rEntry, 8),
		asm.StoreMem(asm.R10, scanAt+spaceState, rState, asm.DWord),
		asm.StoreMem(asm.R10, scanAt+spaceVersion, rEntry, asm.DWord),
		asm.Mov.Imm(asm.R0, 0), asm.StoreMem(asm.R10, scanAt+spaceRank, asm.R0, asm.DWord))
	g.storeImm(g.tupleKey(p)+4, int32(8*(8+8*p.words)), asm.Word)
	g.emit(asm.LoadMem(asm.R1, rEntry, 0, asm.DWord))
	g.call(name)
	g.emit(
		asm.Mov.Reg(asm.R3, asm.R10), asm.Add.Imm(asm.R3, scanAt),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnLoop.Call(),
		asm.LoadMem(asm.R0, asm.R10, scanAt+spaceRank, asm.DWord),
		asm.JEq.Imm(asm.R0, 0, byDefault),
		asm.Mov.Reg(rEntry, rState), asm.Add.Imm(rEntry, int32(g.st.entry)))
	g.jump(found)
	g.mark(byDefault)
	g.emit(asm.Add.Imm(rEntry, listHeader))
	g.mark(found)
	g.spaces[name] = tupleSearch{p, maps.entries}
}

// tupleSearch is a function that looks into a tuple.
type tupleSearch struct {
	plan    *scanPlan
	entries fder
}

// lookIntoTuple generates the function that looks into one tuple: long look(u32 n, void *ctx). It returns 1 when no further one can win.
func (g *gen) lookIntoTuple(name string, s tupleSearch) {
	p := s.plan
	next, stop := g.label("next_tuple"), g.label("best")
	now := g.tupleKey(p)
	g.function(name, loopBody())
	g.emit(
		asm.Mov.Reg(asm.R8, asm.R2), asm.LoadMem(asm.R6, asm.R2, spaceState, asm.DWord), asm.LoadMem(asm.R7, asm.R2, spaceVersion, asm.DWord),
		asm.Mov.Reg32(asm.R1, asm.R1),
		asm.JGE.Imm(asm.R1, int32(p.room), stop),
		asm.Mul.Imm(asm.R1, int32(p.record)), asm.Add.Reg(asm.R7, asm.R1))
	at := func(offset int) int16 { return int16(listHeader + p.value + offset) }
	g.emit(
		asm.LoadMem(asm.R4, asm.R7, at(0), asm.DWord), asm.LoadMem(asm.R5, asm.R8, spaceRank, asm.DWord),
		asm.JLE.Reg(asm.R4, asm.R5, stop), // those behind it have no higher ranks
		asm.LoadMem(asm.R3, asm.R7, at(8), asm.DWord), asm.StoreMem(asm.R6, int16(now+8), asm.R3, asm.DWord))
	hash := uint64(filterHash)
	g.emit(asm.LoadImm(asm.R2, int64(hash), asm.DWord))
	for i := range p.words {
		g.emit(
			asm.LoadMem(asm.R4, asm.R6, int16(g.st.key+8*i), asm.DWord),
			asm.LoadMem(asm.R5, asm.R7, at(tupleMask+8*i), asm.DWord), asm.And.Reg(asm.R4, asm.R5),
			asm.StoreMem(asm.R6, int16(now+tupleMask+8*i), asm.R4, asm.DWord),
			asm.Xor.Reg(asm.R3, asm.R4), asm.Mul.Reg(asm.R3, asm.R2))
	}
	g.emit(
		asm.RSh.Imm(asm.R3, int32(64-p.filter)), asm.Mov.Reg(asm.R4, asm.R3), asm.RSh.Imm(asm.R3, 3), asm.And.Imm(asm.R4, 7),
		asm.LoadMem(asm.R5, asm.R8, spaceFilter, asm.DWord), asm.Add.Reg(asm.R5, asm.R3), asm.LoadMem(asm.R5, asm.R5, 0, asm.Byte),
		asm.RSh.Reg(asm.R5, asm.R4), asm.And.Imm(asm.R5, 1), asm.JEq.Imm(asm.R5, 0, next))
	g.lookup(s.entries, asm.R6, now+4)
	g.emit(
		asm.JEq.Imm(asm.R0, 0, next),
		asm.LoadMem(asm.R4, asm.R0, int16(p.value), asm.DWord), asm.LoadMem(asm.R5, asm.R8, spaceRank, asm.DWord),
		asm.JLE.Reg(asm.R4, asm.R5, next))
	bounds := int16(p.value + 8)
	for _, f := range p.fields {
		if f.Kind == v1model.MatchRange {
			g.emit(
				asm.LoadMem(asm.R3, asm.R6, int16(g.st.key+8*f.at), asm.DWord),
				asm.LoadMem(asm.R5, asm.R0, bounds, asm.DWord), asm.JLT.Reg(asm.R3, asm.R5, next),
				asm.LoadMem(asm.R5, asm.R0, bounds+8, asm.DWord), asm.JGT.Reg(asm.R3, asm.R5, next))
			bounds += 16
		}
	}
	g.emit(asm.StoreMem(asm.R8, spaceRank, asm.R4, asm.DWord))
	for i := 0; i < p.value; i += 8 {
		g.emit(asm.LoadMem(asm.R4, asm.R0, int16(i), asm.DWord), asm.StoreMem(asm.R6, int16(g.st.entry+i), asm.R4, asm.DWord))
	}
	g.mark(next)
	g.emit(asm.Mov.Imm(asm.R0, 0), asm.Return())
	g.mark(stop)
	g.emit(asm.Mov.Imm(asm.R0, 1), asm.Return())
}
