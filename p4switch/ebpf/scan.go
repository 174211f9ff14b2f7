//go:build linux

package ebpf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	mapsutil "maps"
	"math/big"
	mathbits "math/bits"
	"slices"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// scanPlan is how entries are laid out that want of each word of a key what a mask and two bounds say: those of a tuple space (tuples.go), and the
// members of a parser's value set. A packet's key is its fields' words, each field's low word first.
type scanPlan struct {
	fields []scanField
	words  int
	record int // size of a member of a set, or of a tuple
	room   int // for members, with the one that matches nothing, or for tuples
	value  int // a tuple space: size of an entry's value
	ranges int // the same: how many fields are ranges
	filter int // the same: how many bits there are in a hash of the filter
}

// scanField is a field of the key, and the word it begins at.
type scanField struct {
	v1model.Key
	at, width int
}

const (
	listHeader = 8
	// maxList is the largest list.
	maxList = 1 << 21
	// scanWord is the size of what an entry's identity has for each word of the key.
	scanWord = 24
)

// planScan plans a tuple space.
func planScan(t *v1model.Table) (*scanPlan, string) {
	p := &scanPlan{value: align8(entrySize(t))}
	for _, k := range t.Key {
		w := k.Field.Width()
		switch {
		case k.Field.Def().Varbit:
			return nil, "match on a variable-length field"
		case k.Kind == v1model.MatchRange && w > 64:
			return nil, "range of more than 64 bits"
		case k.Kind == v1model.MatchRange:
			p.ranges++
		}
		p.fields = append(p.fields, scanField{k, p.words, w})
		p.words += words(w)
	}
	if 8*(p.words+1) > maxKey { // the entries of a tuple space have an id beside
		return nil, fmt.Sprintf("key of more than %d bytes", maxKey-8)
	}
	limit := limitOf(t)
	p.record = tupleMask + 8*p.words
	p.room = min(limit*p.parts(), maxTuples/p.record)
	p.filter = mathbits.Len(uint(min(max(limit*filterBits, 1<<10), maxFilter) - 1)) //nolint:gosec // positive
	return p, ""
}

// scans tells whether a table is a tuple space.
func scans(t *v1model.Table) bool {
	if t.Kind == v1model.MatchTernary || t.Kind == v1model.MatchRange {
		return true
	}
	prefixes := 0
	for _, k := range t.Key {
		if k.Kind == v1model.MatchLPM {
			prefixes++
		}
	}
	return prefixes > 1
}

// size is that of a set.
func (p *scanPlan) size() int { return listHeader + p.room*p.record }

// listKey is the key of the trie's only node.
func listKey() []byte { return binary.NativeEndian.AppendUint64(nil, 32) }

// scanAt is where a function has what the search is told, and what it finds: the
// state, the list, and the entry's place.
const scanAt = crcAt - 32

// search looks for the packet's key in a list, which rEntry then is: R0 is the place
// of the entry that wins. The function of that name looks at one entry.
func (g *gen) search(name string, p *scanPlan, m fder, none string) {
	g.storeImm(g.st.key+8*p.words, 32, asm.DWord) // prefix length and key of the list
	g.lookup(m, rState, g.st.key+8*p.words)
	g.emit(
		asm.JEq.Imm(asm.R0, 0, none), asm.Mov.Reg(rEntry, asm.R0),
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
		asm.JGE.Imm(asm.R0, int32(p.room), none))
	g.scanned[name] = p
}

// call loads a function that bpf_loop is to call into R2.
func (g *gen) call(name string) {
	g.emit(asm.Instruction{OpCode: asm.LoadImmOp(asm.DWord), Dst: asm.R2, Src: asm.PseudoFunc, Constant: -1}.WithReference(name))
}

// scanKey writes a field of the packet's key; it is zero in a header that is not
// valid.
func (g *gen) scanKey(f *scanField) {
	zero, done := g.label("zero"), g.label("key")
	h := f.Field.Header
	check := !h.Metadata && f.Field.Field != v1model.ValidField
	if check {
		g.emit(asm.LoadMem(asm.R0, rState, int16(g.validAt(h)), asm.Byte), asm.JEq.Imm(asm.R0, 0, zero))
	}
	known := g.sure
	if check {
		known = known.with(h.Index)
	}
	g.knows(known, func() {
		for i := range words(f.width) {
			g.read(asm.R0, wordOf(f.Field, i))
			if f.Mask != nil {
				g.andConst(asm.R0, wordAt(f.Mask, i), asm.R0)
			}
			g.store(g.st.key+8*(f.at+i), asm.R0)
		}
	})
	if check {
		g.jump(done)
		g.mark(zero)
		g.set(asm.R0, 0)
		for i := range words(f.width) {
			g.store(g.st.key+8*(f.at+i), asm.R0)
		}
		g.mark(done)
	}
}

// searches generates the functions that look at one entry each: long scan(u32 n,
// void *ctx). They return 1 when the entry wins.
func (g *gen) searches() {
	for _, name := range slices.Sorted(mapsutil.Keys(g.scanned)) {
		p := g.scanned[name]
		next, stop := g.label("next_entry"), g.label("found")
		g.function(name, loopBody())
		g.emit(
			asm.Mov.Reg(asm.R8, asm.R2), asm.LoadMem(asm.R6, asm.R2, 0, asm.DWord), asm.LoadMem(asm.R7, asm.R2, 8, asm.DWord),
			asm.Mov.Reg32(asm.R1, asm.R1),
			asm.JEq.Imm(asm.R1, 0, next), // the default entry
			asm.JGE.Imm(asm.R1, int32(p.room), stop),
			asm.Mov.Reg(asm.R3, asm.R1), asm.Mul.Imm(asm.R3, int32(p.record)), asm.Add.Reg(asm.R7, asm.R3))
		for _, f := range p.fields {
			for i := f.at; i < f.at+words(f.width); i++ {
				at := int16(listHeader + p.record - scanWord*(p.words-i))
				g.emit(
					asm.LoadMem(asm.R4, asm.R6, int16(g.st.key+8*i), asm.DWord),
					asm.LoadMem(asm.R5, asm.R7, at, asm.DWord), asm.And.Reg(asm.R4, asm.R5),
					asm.LoadMem(asm.R5, asm.R7, at+8, asm.DWord))
				if f.Kind != v1model.MatchRange {
					g.emit(asm.JNE.Reg(asm.R4, asm.R5, next))
					continue
				}
				g.emit(
					asm.JLT.Reg(asm.R4, asm.R5, next),
					asm.LoadMem(asm.R5, asm.R7, at+16, asm.DWord), asm.JGT.Reg(asm.R4, asm.R5, next))
			}
		}
		g.emit(asm.StoreMem(asm.R8, 16, asm.R1, asm.DWord))
		g.mark(stop)
		g.emit(asm.Mov.Imm(asm.R0, 1), asm.Return())
		g.mark(next)
		g.emit(asm.Mov.Imm(asm.R0, 0), asm.Return())
	}
	for _, name := range slices.Sorted(mapsutil.Keys(g.spaces)) {
		g.lookIntoTuple(name, g.spaces[name])
	}
}

// programMask is what a program leaves of a word of a field.
func (f *scanField) programMask(i int) uint64 {
	if f.Mask != nil {
		return wordAt(f.Mask, i)
	}
	return mask64(min(64, f.width-64*i))
}

// loopBody is the type of functions that bpf_loop calls.
func loopBody() *btf.FuncProto {
	return &btf.FuncProto{
		Return: &btf.Int{Name: "long", Size: 8, Encoding: btf.Signed},
		Params: []btf.FuncParam{
			{Name: "n", Type: &btf.Int{Name: "unsigned int", Size: 4}},
			{Name: "context", Type: &btf.Pointer{Target: &btf.Void{}}},
		},
	}
}

// key is an entry's identity: what it wants of each word, and its priority, which
// comes first so that keys sort as entries win.
func (p *scanPlan) key(ms []datapath.Match, priority int64) ([]byte, error) {
	if len(ms) != len(p.fields) {
		return nil, fmt.Errorf("%d match fields for a key of %d", len(ms), len(p.fields))
	}
	want := make([]byte, scanWord*p.words)
	prefixes := 0
	for i := range p.fields {
		n, err := p.fields[i].put(want, &ms[i])
		if err != nil {
			return nil, fmt.Errorf("match field %q: %w", p.fields[i].Name, err)
		}
		prefixes += n
	}
	if priority < 0 { // the longest prefixes win
		priority = int64(prefixes)
	}
	return append(binary.BigEndian.AppendUint32(nil, ^uint32(priority)), want...), nil
}

// put writes what an entry wants of a field, and tells the prefix's length.
func (f *scanField) put(want []byte, m *datapath.Match) (prefix int, err error) {
	mask, low, high := make([]byte, (f.width+7)/8), m.Value, m.Value
	ones := func(n int) { // the first n bits
		v := new(big.Int).Lsh(big.NewInt(1), uint(n))
		v.Sub(v, big.NewInt(1)).Lsh(v, uint(f.width-n)).FillBytes(mask)
	}
	switch {
	case m.Wildcard && f.Kind == v1model.MatchExact:
		return 0, fmt.Errorf("exact field left out")
	case m.Wildcard:
		low, high = mask, mask
	case f.Kind == v1model.MatchLPM:
		if prefix = m.PrefixLen; prefix < 0 || prefix > f.width {
			return 0, fmt.Errorf("prefix of %d bits of %d", prefix, f.width)
		}
		ones(prefix)
	case f.Kind == v1model.MatchTernary && m.Mask != nil:
		mask = m.Mask
	default:
		ones(f.width)
	}
	if f.Kind == v1model.MatchRange && !m.Wildcard {
		high = m.High
	}
	for _, b := range [][]byte{mask, low, high} {
		if err := checkWidth(b, f.width); err != nil {
			return 0, err
		}
	}
	if bytes.Compare(low, high) > 0 {
		return 0, fmt.Errorf("empty range")
	}
	for i := range words(f.width) {
		k := wordAt(mask, i) & f.programMask(i) // what the program masks out can match nothing
		at := want[scanWord*(f.at+i):]
		binary.NativeEndian.PutUint64(at, k)
		binary.NativeEndian.PutUint64(at[8:], wordAt(low, i)&k)
		binary.NativeEndian.PutUint64(at[16:], wordAt(high, i)) // only looked at in a range
		if f.Kind != v1model.MatchRange {
			binary.NativeEndian.PutUint64(at[16:], 0)
		}
	}
	return prefix, nil
}

// A parser value set is a list, which is looked through from its beginning. It is the only node of a trie, which replaces it in one step,
// so a packet sees the set before an update or behind it. Its layout:
//
//	0 how many members there are, and one more   u64
//	8 one that matches nothing, and the others: for each word of the key a mask and two bounds, low and high

// defaultSet is how many members a set has that does not tell.
const defaultSet = 1024

// valueSet is a value set that the parser looks at.
type valueSet struct {
	def  *v1model.ValueSet
	plan *scanPlan
	list *ebpf.Map
}

// planSet plans a set; nil if the parser does not look at it.
func planSet(p *v1model.Program, set *v1model.ValueSet) *scanPlan {
	for _, st := range p.Parser.States {
		for _, c := range st.Cases {
			if c.Set == set {
				return planMembers(set, st.Key)
			}
		}
	}
	return nil
}

func planMembers(set *v1model.ValueSet, key []v1model.KeyPart) *scanPlan {
	p := &scanPlan{}
	for _, k := range key {
		kind := v1model.MatchRange // which the others are special cases of
		if k.Width > 64 {
			kind = v1model.MatchTernary
		}
		p.fields = append(p.fields, scanField{Key: v1model.Key{Kind: kind}, at: p.words, width: k.Width})
		p.words += words(k.Width)
	}
	room := set.Size
	if room <= 0 {
		room = defaultSet
	}
	p.record = scanWord * p.words
	p.room = min(room+1, maxList/p.record) // a list's first entry matches nothing
	return p
}

func setName(set *v1model.ValueSet) string { return fmt.Sprintf("bifrost_set_%d", set.Index) }

// inSet goes to none unless the key, which is on the stack, is in a set.
func (g *gen) inSet(set *v1model.ValueSet, none string) {
	p := planSet(g.prog, set)
	for i := range p.words {
		g.emit(asm.LoadMem(asm.R0, asm.R10, spillAt(i+1), asm.DWord))
		g.store(g.st.key+8*i, asm.R0)
	}
	g.search(setName(set), p, g.objs.sets[set.Index], none)
	g.emit(asm.JEq.Imm(asm.R0, 0, none)) // none of the members
}

// makeSets makes the sets' maps.
func (x *Executor) makeSets() error {
	for _, def := range x.prog.ValueSets {
		s := valueSet{def: def, plan: planSet(x.prog, def)}
		x.sets = append(x.sets, &s)
		if s.plan == nil {
			continue
		}
		var err error
		s.list, err = newMap(&ebpf.MapSpec{
			Name: "value_set", Type: ebpf.LPMTrie, Flags: bpfNoPrealloc, KeySize: 8, ValueSize: uint32(s.plan.size()), MaxEntries: 1,
		})
		if err == nil {
			err = s.write(nil)
		}
		if err != nil {
			return fmt.Errorf("value set %q: %w", def.Name, err)
		}
	}
	return nil
}

// ValueSet implements datapath.Datapath. How a member matches shows by the fields set.
func (x *Executor) ValueSet(name string, members [][]datapath.Match) error {
	for _, s := range x.sets {
		if s.def.Name != name {
			continue
		}
		if s.plan == nil {
			return fmt.Errorf("value set %q: %w: the program never looks at it", name, datapath.ErrUnsupported)
		}
		if err := s.write(members); err != nil {
			return fmt.Errorf("value set %q: %w", name, err)
		}
		return nil
	}
	return fmt.Errorf("value set %q: %w", name, datapath.ErrNotFound)
}

// write replaces the set's members, in one step.
func (s *valueSet) write(members [][]datapath.Match) error {
	if len(members)+1 > s.plan.room {
		return datapath.ErrFull
	}
	b := make([]byte, s.plan.size())
	binary.NativeEndian.PutUint64(b, uint64(len(members)+1))
	for i, m := range members {
		if err := s.plan.member(b[listHeader+(i+1)*s.plan.record:], m); err != nil {
			return fmt.Errorf("member %d: %w", i, err)
		}
	}
	return putElement(s.list, listKey(), b)
}

// member writes what a member wants of the key's words.
func (p *scanPlan) member(want []byte, ms []datapath.Match) error {
	if len(ms) != len(p.fields) {
		return fmt.Errorf("%d fields instead of %d", len(ms), len(p.fields))
	}
	for i, f := range p.fields {
		as := f
		if as.Kind = memberKind(&ms[i]); as.Kind == v1model.MatchRange && f.Kind != v1model.MatchRange {
			return fmt.Errorf("field %d: %w: range of more than 64 bits", i, datapath.ErrUnsupported)
		}
		if _, err := as.put(want, &ms[i]); err != nil {
			return fmt.Errorf("field %d: %w", i, err)
		}
		if f.Kind == v1model.MatchRange && as.Kind != v1model.MatchRange {
			at := want[scanWord*f.at:]
			copy(at[16:24], at[8:16])
		}
	}
	return nil
}

func memberKind(m *datapath.Match) v1model.MatchKind {
	switch {
	case m.High != nil:
		return v1model.MatchRange
	case m.Mask != nil || m.Wildcard:
		return v1model.MatchTernary
	case m.PrefixLen > 0:
		return v1model.MatchLPM
	}
	return v1model.MatchExact
}
