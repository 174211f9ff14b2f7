//go:build linux

package ebpf

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	mathbits "math/bits"
	"slices"

	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/v1model"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// A table with ternary or optional fields, or with several of longest prefix, is a tuple space (Srinivasan, Suri and Varghese, 1999): entries with
// one mask are a tuple, and a packet's key, masked, is looked up once for each tuple. Two entries that differ in their priority alone
// are in two tuples of one mask. There are two tries:
//
//	tuples   its only node: how many tuples there are (u64), the default entry, and for each tuple, those first that may win:
//	         a bound of the ranks in it (u64), its id (u64), its mask
//	entries  id (u64) and masked key ─▶ an entry's value (table.go), and behind it its rank (u64)
//
// A rank is the priority, then how early the entry came. A tuple is written before its first entry, and a higher bound before the entry that needs it.
// So one step of a trie shows an entry to packets, and one hides it. Bounds are rounded up, so that few entries raise one.
type tupleSpace struct {
	plan    *scanPlan
	def     []byte // the default entry's value
	tuples  []*tuple
	byMask  map[string][]*tuple
	entries map[string]tupled // by the entry's identity (scanPlan.key)
	ids     uint64
	came    uint32 // how many entries have come
}

// tuple is the entries of one mask.
type tuple struct {
	id   uint64
	mask string
	top  uint64          // no entry has a higher rank; all bits below its first one are set
	keys map[string]bool // masked
}

// tupled is where an entry is.
type tupled struct {
	in     *tuple
	masked string
	rank   uint64
}

const (
	// tupleMask is where a tuple's record has its mask.
	tupleMask = 16
	// maxTuples is how many tuples a table has at most: they are written together.
	maxTuples = 1024
)

func newTupleSpace(p *scanPlan) *tupleSpace {
	return &tupleSpace{plan: p, byMask: map[string][]*tuple{}, entries: map[string]tupled{}}
}

// entryKey is the size of a key of the entries' trie.
func (p *scanPlan) entryKey() int { return 4 + 8 + 8*p.words }

// split takes an entry's identity apart.
func (p *scanPlan) split(key []byte) (mask, masked string, priority uint32) {
	var m, k []byte
	for i := range p.words {
		at := key[4+scanWord*i:]
		m, k = append(m, at[:8]...), append(k, at[8:16]...)
	}
	return string(m), string(k), ^binary.BigEndian.Uint32(key)
}

// join is split's other way round.
func (p *scanPlan) join(mask, masked []byte, priority uint32) []byte {
	key := binary.BigEndian.AppendUint32(nil, ^priority)
	for i := range p.words {
		key = append(append(append(key, mask[8*i:8*i+8]...), masked[8*i:8*i+8]...), make([]byte, 8)...)
	}
	return key
}

// trieKey is an entry's key in its trie.
func (e *tupled) trieKey() []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(8*(8+len(e.masked))))
	return append(binary.NativeEndian.AppendUint64(b, e.in.id), e.masked...)
}

// put inserts or replaces an entry.
func (s *tupleSpace) put(m *tableMaps, key, value []byte) error {
	e, found := s.entries[string(key)]
	if !found {
		mask, masked, priority := s.plan.split(key)
		e = tupled{in: s.roomFor(mask, masked), masked: masked, rank: uint64(priority)<<32 | uint64(^s.came)}
		e.rank = max(e.rank, 1) // 0 stands for none
		if err := s.admit(m, &e); err != nil {
			return err
		}
		s.came++
	}
	if err := putElement(m.entries, e.trieKey(), s.plan.withRank(value, e.rank)); err != nil {
		return err
	}
	e.in.keys[e.masked] = true
	s.entries[string(key)] = e
	return nil
}

// withRank is what the trie has of an entry.
func (p *scanPlan) withRank(value []byte, rank uint64) []byte {
	b := make([]byte, p.value+8)
	copy(b, value)
	binary.NativeEndian.PutUint64(b[p.value:], rank)
	return b
}

// roomFor returns a tuple of a mask in which a key has no entry.
func (s *tupleSpace) roomFor(mask, masked string) *tuple {
	for _, t := range s.byMask[mask] {
		if !t.keys[masked] {
			return t
		}
	}
	s.ids++
	return &tuple{id: s.ids, mask: mask, keys: map[string]bool{}}
}

// admit makes an entry's tuple one that packets look into, as soon as they must for the entry's rank.
func (s *tupleSpace) admit(m *tableMaps, e *tupled) error {
	t := e.in
	known := slices.Contains(s.byMask[t.mask], t)
	if known && t.top >= e.rank {
		return nil
	}
	if !known && len(s.tuples) == s.plan.room {
		return fmt.Errorf("%w: entries with %d masks", datapath.ErrFull, len(s.tuples))
	}
	was, tuples := t.top, slices.Clone(s.tuples)
	if !known {
		s.tuples = append(s.tuples, t)
	}
	t.top = 1<<mathbits.Len64(e.rank) - 1
	s.sort()
	if err := s.write(m); err != nil {
		t.top, s.tuples = was, tuples
		return err
	}
	if !known {
		s.byMask[t.mask] = append(s.byMask[t.mask], t)
	}
	return nil
}

// sort puts those first that may win.
func (s *tupleSpace) sort() {
	slices.SortStableFunc(s.tuples, func(a, b *tuple) int { return cmp.Compare(b.top, a.top) })
}

// delete removes an entry, and its tuple with the last one.
func (s *tupleSpace) delete(m *tableMaps, key []byte) error {
	e, found := s.entries[string(key)]
	if !found {
		return datapath.ErrNotFound
	}
	if err := deleteElement(m.entries, e.trieKey()); err != nil {
		return err
	}
	delete(s.entries, string(key))
	delete(e.in.keys, e.masked)
	if len(e.in.keys) > 0 {
		return nil
	}
	out := func(all []*tuple) []*tuple { return slices.DeleteFunc(all, func(t *tuple) bool { return t == e.in }) }
	s.tuples = out(s.tuples)
	if s.byMask[e.in.mask] = out(s.byMask[e.in.mask]); len(s.byMask[e.in.mask]) == 0 {
		delete(s.byMask, e.in.mask)
	}
	return s.write(m)
}

func (s *tupleSpace) setDefault(m *tableMaps, value []byte) error {
	s.def = value
	return s.write(m)
}

// write puts the tuples into the kernel.
func (s *tupleSpace) write(m *tableMaps) error {
	p := s.plan
	b := make([]byte, p.size())
	binary.NativeEndian.PutUint64(b, uint64(len(s.tuples)))
	copy(b[listHeader:], s.def)
	for i, t := range s.tuples {
		at := b[listHeader+p.value+i*p.record:]
		binary.NativeEndian.PutUint64(at, t.top)
		binary.NativeEndian.PutUint64(at[8:], t.id)
		copy(at[tupleMask:], t.mask)
	}
	return putElement(m.tuples, listKey(), b)
}

// inheritedTuples tells the counters' cells of entries of the executor before, by their identities.
func (p *scanPlan) inheritedTuples(tuples, entries *ebpf.Map) (map[string]uint32, error) {
	b, err := tuples.LookupBytes(listKey())
	if err != nil || b == nil {
		return nil, err
	}
	masks := map[uint64][]byte{}
	for i := range min(int(binary.NativeEndian.Uint64(b)), p.room) { //nolint:gosec // bounded
		at := b[listHeader+p.value+i*p.record:]
		masks[binary.NativeEndian.Uint64(at[8:])] = at[tupleMask : tupleMask+8*p.words]
	}
	cells := map[string]uint32{}
	var key, value []byte
	it := entries.Iterate()
	for it.Next(&key, &value) {
		if mask := masks[binary.NativeEndian.Uint64(key[4:])]; mask != nil {
			priority := uint32(binary.NativeEndian.Uint64(value[p.value:]) >> 32)
			cells[string(p.join(mask, bytes.Clone(key[12:]), priority))] = binary.NativeEndian.Uint32(value[entryCounter:])
		}
	}
	return cells, it.Err()
}

// makeTuples makes the maps of a tuple space.
func (t *table) makeTuples(limit int) (err error) {
	p := t.scan
	t.maps.tuples, err = newMap(&ebpf.MapSpec{Name: "tuples", Type: ebpf.LPMTrie, Flags: bpfNoPrealloc, KeySize: 8, ValueSize: uint32(p.size()), MaxEntries: 1})
	if err != nil {
		return err
	}
	t.maps.entries, err = newMap(&ebpf.MapSpec{
		Name: "table", Type: ebpf.LPMTrie, Flags: bpfNoPrealloc, KeySize: uint32(p.entryKey()), ValueSize: uint32(p.value + 8), MaxEntries: uint32(limit),
	})
	return err
}

// inheritTuples is inheritedTuples of a table's pinned maps.
func (x *Executor) inheritTuples(t *table, entries *ebpf.Map) (cells map[string]uint32, err error) {
	name := fmt.Sprintf("tuples_%d", t.def.Index)
	old, err := x.inherited(name)
	if err != nil || old == nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, old.Close()) }()
	if old.ValueSize() != t.maps.tuples.ValueSize() {
		return nil, fmt.Errorf("%s: %w: its tuples have another size", name, ErrOtherVersion)
	}
	return t.scan.inheritedTuples(old, entries)
}

// Where the search in a tuple space has its keys, of the entries' trie: the one of the tuple that it looks at, and that of the best entry so far. Each has
// the length of the prefix in the upper half of its first word.
func (g *gen) tupleKeys(p *scanPlan) (now, best int) {
	now = g.st.key + 8*p.words
	return now, now + tupleMask + 8*p.words
}

// tuples generates the search in a tuple space: rEntry is the entry that wins, or the default one.
func (g *gen) tuples(t *v1model.Table, p *scanPlan, maps *tableObjects, none string) {
	for i := range p.fields {
		g.scanKey(&p.fields[i])
	}
	name := fmt.Sprintf("bifrost_tuples_%d", t.Index)
	byDefault, found := g.label("default"), g.label("found")
	now, best := g.tupleKeys(p)
	g.storeImm(now, 32, asm.DWord) // prefix length and key of the tuples
	g.lookup(maps.tuples, rState, now)
	g.emit(asm.JEq.Imm(asm.R0, 0, none), asm.Mov.Reg(rEntry, asm.R0))
	for _, at := range []int{now, best} {
		g.storeImm(at+4, int32(8*(8+8*p.words)), asm.Word)
	}
	g.emit(
		asm.StoreMem(asm.R10, scanAt, rState, asm.DWord),
		asm.StoreMem(asm.R10, scanAt+8, rEntry, asm.DWord),
		asm.Mov.Imm(asm.R0, 0), asm.StoreMem(asm.R10, scanAt+16, asm.R0, asm.DWord),
		asm.LoadMem(asm.R1, rEntry, 0, asm.DWord))
	g.call(name)
	g.emit(
		asm.Mov.Reg(asm.R3, asm.R10), asm.Add.Imm(asm.R3, scanAt),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnLoop.Call(),
		asm.LoadMem(asm.R0, asm.R10, scanAt+16, asm.DWord),
		asm.JEq.Imm(asm.R0, 0, byDefault))
	g.lookup(maps.entries, rState, best+4)
	g.emit(
		asm.JEq.Imm(asm.R0, 0, byDefault), // it has just been deleted
		asm.Mov.Reg(rEntry, asm.R0))
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
	now, best := g.tupleKeys(p)
	g.function(name, loopBody())
	g.emit(
		asm.Mov.Reg(asm.R8, asm.R2), asm.LoadMem(asm.R6, asm.R2, 0, asm.DWord), asm.LoadMem(asm.R7, asm.R2, 8, asm.DWord),
		asm.Mov.Reg32(asm.R1, asm.R1),
		asm.JGE.Imm(asm.R1, int32(p.room), stop),
		asm.Mul.Imm(asm.R1, int32(p.record)), asm.Add.Reg(asm.R7, asm.R1))
	at := func(offset int) int16 { return int16(listHeader + p.value + offset) }
	g.emit(
		asm.LoadMem(asm.R4, asm.R7, at(0), asm.DWord), asm.LoadMem(asm.R5, asm.R8, 16, asm.DWord),
		asm.JLE.Reg(asm.R4, asm.R5, stop), // those behind it have no higher ranks
		asm.LoadMem(asm.R4, asm.R7, at(8), asm.DWord), asm.StoreMem(asm.R6, int16(now+8), asm.R4, asm.DWord))
	for i := range p.words {
		g.emit(
			asm.LoadMem(asm.R4, asm.R6, int16(g.st.key+8*i), asm.DWord),
			asm.LoadMem(asm.R5, asm.R7, at(tupleMask+8*i), asm.DWord), asm.And.Reg(asm.R4, asm.R5),
			asm.StoreMem(asm.R6, int16(now+tupleMask+8*i), asm.R4, asm.DWord))
	}
	g.lookup(s.entries, asm.R6, now+4)
	g.emit(
		asm.JEq.Imm(asm.R0, 0, next),
		asm.LoadMem(asm.R4, asm.R0, int16(p.value), asm.DWord), asm.LoadMem(asm.R5, asm.R8, 16, asm.DWord),
		asm.JLE.Reg(asm.R4, asm.R5, next),
		asm.StoreMem(asm.R8, 16, asm.R4, asm.DWord))
	for i := range p.words + 1 {
		g.emit(asm.LoadMem(asm.R4, asm.R6, int16(now+8+8*i), asm.DWord), asm.StoreMem(asm.R6, int16(best+8+8*i), asm.R4, asm.DWord))
	}
	g.mark(next)
	g.emit(asm.Mov.Imm(asm.R0, 0), asm.Return())
	g.mark(stop)
	g.emit(asm.Mov.Imm(asm.R0, 1), asm.Return())
}
