//go:build linux

package ebpf

import (
	"encoding/binary"
	"fmt"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/trace"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// maxKey is the most bytes of an LPM trie's key.
const maxKey = 256

// An entry's value in the kernel. Its layout:
//
//	0  action's place in the table, plus one; 0 is none   u32
//	4  cell of the table's counter                        u32
//	8  1 if found by its key, 0 for the default entry     u32
//	16 arguments, in words of host order, low word first
const (
	entryAction  = 0
	entryCounter = 4
	entryHit     = 8
	entryArgs    = 16
)

// tableMaps are a table's maps.
type tableMaps struct {
	entries  *ebpf.Map
	tuples   *mapped   // nil unless the table is a tuple space
	counters *ebpf.Map // of all tables that count as this one does; nil if it does not count
	counted  uint32    // the table's first cell of counters
	meters   meterMaps // empty if the table does not meter
	hits     *ebpf.Map // when each entry was hit; nil if the table has no idle timeouts
}

// keyField is a field of a table's key and where it lies in the trie's key.
type keyField struct {
	v1model.Key
	index int // in the table's key
	at    int // first byte, behind the prefix length
	bytes int
	width int
}

// keyPlan is how a table's key is laid out: a byte that tells entries from the
// default one, which is the empty prefix, the exact fields, and the field to
// match the longest prefix of, which begins at its first bit.
type keyPlan struct {
	fields []keyField
	lpm    *keyField // the last of fields, or nil
	bytes  int
}

// put writes an entry: a node of the trie. delete removes it.
func (p *keyPlan) put(m *tableMaps, key, value []byte) error {
	return putElement(m.entries, key, value)
}

func (p *keyPlan) delete(m *tableMaps, key []byte) error { return deleteElement(m.entries, key) }

// setDefault writes the trie's root, which every key has.
func (p *keyPlan) setDefault(m *tableMaps, value []byte) error {
	return m.entries.Put(make([]byte, 4+p.bytes), value)
}

func planKey(t *v1model.Table) (*keyPlan, string) {
	p := &keyPlan{bytes: 1}
	var last []keyField
	for i, k := range t.Key {
		w := k.Field.Width()
		f := keyField{Key: k, index: i, width: w, bytes: (w + 7) / 8}
		switch {
		case k.Field.Def().Varbit:
			return nil, "match on a variable-length field"
		case k.Kind == v1model.MatchLPM:
			last = append(last, f)
			continue
		}
		f.at = p.bytes
		p.bytes += f.bytes
		p.fields = append(p.fields, f)
	}
	if len(last) == 1 {
		last[0].at = p.bytes
		p.bytes += last[0].bytes
		p.fields = append(p.fields, last[0])
		p.lpm = &p.fields[len(p.fields)-1]
	}
	if p.bytes > maxKey {
		return nil, fmt.Sprintf("key of more than %d bytes", maxKey-1)
	}
	return p, ""
}

// argsAt tells where an action's arguments lie in an entry, and its size.
func argsAt(a *v1model.Action) (at []int, size int) {
	size = entryArgs
	for _, p := range a.Params {
		at = append(at, size)
		size += 8 * words(p.Width)
	}
	return at, size
}

// entrySize is the size of a table's entries.
func entrySize(t *v1model.Table) int {
	n := entryArgs
	for _, a := range t.Actions {
		_, k := argsAt(a)
		n = max(n, k)
	}
	if t.Profile != nil {
		n = max(n, entryArgs+8) // an id
	}
	return n
}

// checkTable notes what of a table is not supported, and returns its key's plan; nil
// if it has none.
func (g *gen) checkTable(t *v1model.Table) *keyPlan {
	g.place = fmt.Sprintf("table %q", t.Name)
	if scans(t) {
		return nil
	}
	p, lack := planKey(t)
	if lack != "" {
		g.lack("%s", lack)
	}
	return p
}

// table generates a table: look up, act, go on.
func (g *gen) table(t *v1model.Table) {
	if t.IsCall() {
		g.note(point{step: trace.Step{Kind: trace.Action, Action: t.Default.Action.Name}})
		g.action(t.Default.Action, args{consts: t.Default.Args})
		if t.ByHit {
			g.jump(g.node(t.Miss))
		} else {
			g.jump(g.node(g.after(t, t.Default.Action)))
		}
		return
	}
	maps := g.objs.tables[t]
	none := g.label("none")
	var scan *scanPlan
	plan := g.checkTable(t)
	switch {
	case plan != nil:
		g.buildKey(plan)
		g.lookup(maps.entries, rState, g.st.key)
		g.emit(asm.JEq.Imm(asm.R0, 0, none), asm.Mov.Reg(rEntry, asm.R0))
	case scans(t):
		var lack string
		if scan, lack = planScan(t); lack != "" {
			g.lack("%s", lack)
			return
		}
		g.tuples(t, scan, &maps, none)
	default:
		return
	}
	g.noteTable(t, plan, scan)
	g.countLookup(t)
	if maps.counters != nil {
		counted := g.label("counted")
		g.emit(asm.LoadMem(asm.R0, rEntry, entryCounter, asm.Word), asm.Add.Imm(asm.R0, int32(maps.counted))) //nolint:gosec // as many cells fit a map
		g.countCell(maps.counters, counted)
		g.mark(counted)
	}
	if t.Meter != nil {
		unmetered := g.label("unmetered")
		g.emit(
			asm.LoadMem(asm.R0, rEntry, entryHit, asm.Word), asm.JEq.Imm(asm.R0, 0, unmetered),
			asm.LoadMem(asm.R0, rEntry, entryCounter, asm.Word))
		g.meter(maps.meters, t.Meter, unmetered)
		g.setReg(t.Meter.Result)
		g.mark(unmetered)
	}
	if t.Timeout {
		g.noteHit(maps.hits)
	}
	empty := g.label("empty")
	g.resolve(t, empty)
	g.dispatch(t, none)
	g.mark(none)
	g.idle(t, false)
	if t.Profile != nil {
		g.mark(empty)
		g.idle(t, true)
	}
}

// countLookup counts a lookup that found rEntry, the default entry or another. The
// counters are this CPU's own, as is all of the state.
func (g *gen) countLookup(t *v1model.Table) {
	if len(t.Key) == 0 {
		return
	}
	at := int16(g.st.tables + tableStat*t.Index)
	g.emit(
		asm.LoadMem(asm.R1, rEntry, entryHit, asm.Word),
		asm.And.Imm(asm.R1, 1), asm.LSh.Imm(asm.R1, 3), // hits lie behind misses
		asm.Add.Reg(asm.R1, rState),
		asm.LoadMem(asm.R0, asm.R1, at, asm.DWord),
		asm.Add.Imm(asm.R0, 1),
		asm.StoreMem(asm.R1, at, asm.R0, asm.DWord))
}

// dispatch runs the entry's action.
func (g *gen) dispatch(t *v1model.Table, none string) {
	labels := make([]string, len(t.Actions))
	g.emit(asm.LoadMem(asm.R0, rEntry, entryAction, asm.Word))
	for i := range t.Actions {
		labels[i] = g.label("act")
		g.emit(asm.JEq.Imm(asm.R0, int32(actionNumber(t, i)), labels[i]))
	}
	if t.ByHit {
		g.byHit(t)
	} else {
		g.jump(none)
	}
	for i, a := range t.Actions {
		g.mark(labels[i])
		if t.Profile != nil {
			g.noteMember(a)
		}
		at, _ := argsAt(a)
		g.action(a, args{at: at})
		if t.ByHit {
			g.byHit(t)
		} else {
			g.jump(g.node(t.Next[i]))
		}
	}
}

func (g *gen) byHit(t *v1model.Table) {
	g.emit(asm.LoadMem(asm.R0, rEntry, entryHit, asm.Word), asm.JNE.Imm(asm.R0, 0, g.node(t.Hit)))
	g.jump(g.node(t.Miss))
}

// idle goes where the table leads if it has no action to run.
func (g *gen) idle(t *v1model.Table, hit bool) {
	switch {
	case !t.ByHit:
		g.jump(g.node(t.BaseNext))
	case hit:
		g.jump(g.node(t.Hit))
	default:
		g.jump(g.node(t.Miss))
	}
}

// after is where an action of a table leads unless that depends on the hit.
func (g *gen) after(t *v1model.Table, a *v1model.Action) v1model.Node {
	for i, next := range t.Next {
		if t.Actions[i] == a {
			return next
		}
	}
	return t.BaseNext
}

// buildKey writes the packet's key.
func (g *gen) buildKey(p *keyPlan) {
	g.storeImm(g.st.key, int32(p.bytes*8), asm.Word)
	g.storeImm(g.st.key+4, 1, asm.Byte)
	for i := range p.fields {
		g.buildField(&p.fields[i])
	}
}

// buildField writes a field of the key, from its first byte to its last; what a
// word has too much the next field overwrites.
func (g *gen) buildField(f *keyField) {
	zero, done := g.label("zero"), g.label("key")
	h := f.Field.Header
	check := !h.Metadata && f.Field.Field != v1model.ValidField
	if check {
		g.emit(asm.LoadMem(asm.R0, rState, int16(g.validAt(h)), asm.Byte), asm.JEq.Imm(asm.R0, 0, zero))
	}
	at, left := g.st.key+4+f.at, 0
	if f.Kind == v1model.MatchLPM {
		left = f.bytes*8 - f.width
	}
	known := g.sure
	if check {
		known = known.with(h.Index)
	}
	g.knows(known, func() {
		for i := words(f.width) - 1; i >= 0; i-- {
			at += g.keyWord(f, i, left, at)
		}
	})
	if !check {
		return
	}
	g.jump(done)
	g.mark(zero)
	g.set(asm.R0, 0)
	for i := 0; i < f.bytes; i += 8 {
		g.store(g.st.key+4+f.at+i, asm.R0)
	}
	g.mark(done)
}

// keyWord writes a word of a field and returns how many bytes it takes.
func (g *gen) keyWord(f *keyField, i, left, at int) int {
	b := wordOf(f.Field, i)
	n := (b.width + 7) / 8
	g.read(asm.R0, b)
	if f.Mask != nil {
		g.andConst(asm.R0, wordAt(f.Mask, i), asm.R0)
	}
	if left > 0 && f.width > 64 {
		g.lack("LPM field of more than 64 bits that is no whole number of bytes")
		return n
	}
	if shift := 64 - 8*n + left; shift > 0 {
		g.emit(asm.LSh.Imm(asm.R0, int32(shift)))
	}
	g.emit(asm.HostTo(asm.BE, asm.R0, asm.DWord))
	g.store(at, asm.R0)
	return n
}

// key is the trie's key of an entry: how many bits of it matter, then the bytes
// (keyPlan). Bits that do not matter are zero, so equal entries have equal keys.
func (t *table) key(ms []datapath.Match, priority int32) ([]byte, error) {
	if t.scan != nil {
		if t.def.Kind == v1model.MatchLPM {
			return t.scan.key(ms, -1)
		}
		return t.scan.key(ms, int64(max(priority, 0)))
	}
	p := t.plan
	if len(ms) != len(p.fields) {
		return nil, fmt.Errorf("%d match fields for a key of %d", len(ms), len(p.fields))
	}
	b := make([]byte, 4+p.bytes)
	b[4] = 1
	prefix := 8 * p.bytes
	for i := range p.fields {
		f, m := &p.fields[i], &ms[p.fields[i].index]
		n, err := f.put(b[4+f.at:][:f.bytes], m)
		if err != nil {
			return nil, fmt.Errorf("match field %q: %w", f.Name, err)
		}
		if f.Kind == v1model.MatchLPM {
			prefix = 8*f.at + n
		}
	}
	binary.NativeEndian.PutUint32(b, uint32(prefix))
	return b, nil
}

// put writes what an entry wants of a field, and tells the prefix's length.
func (f *keyField) put(b []byte, m *datapath.Match) (int, error) {
	n := f.width
	if f.Kind == v1model.MatchLPM {
		n = m.PrefixLen
	}
	if m.Wildcard {
		if f.Kind == v1model.MatchExact {
			return 0, fmt.Errorf("exact field left out")
		}
		return 0, nil
	}
	if n < 0 || n > f.width {
		return 0, fmt.Errorf("prefix of %d bits of %d", n, f.width)
	}
	if err := checkWidth(m.Value, f.width); err != nil {
		return 0, err
	}
	copy(b, m.Value)
	if f.Mask != nil {
		// What the program masks out can match nothing.
		for i := range b {
			b[i] &= f.Mask[i]
		}
	}
	if f.Kind == v1model.MatchLPM {
		shiftLeft(b, f.bytes*8-f.width)
		keep(b, n)
	}
	return n, nil
}

// checkWidth tells whether b is as long as a field of width bits, and within it.
func checkWidth(b []byte, width int) error {
	if len(b) != (width+7)/8 {
		return fmt.Errorf("%d bytes for %d bits", len(b), width)
	}
	if spare := len(b)*8 - width; spare > 0 && b[0]>>(8-spare) != 0 {
		return fmt.Errorf("value wider than %d bits", width)
	}
	return nil
}

// shiftLeft shifts a big-endian number by less than a byte.
func shiftLeft(b []byte, n int) {
	if n == 0 {
		return
	}
	for i := range b {
		b[i] <<= n
		if i+1 < len(b) {
			b[i] |= b[i+1] >> (8 - n)
		}
	}
}

// keep clears all but the first n bits.
func keep(b []byte, n int) {
	for i := range b {
		switch left := n - 8*i; {
		case left <= 0:
			b[i] = 0
		case left < 8:
			b[i] &= 0xff << (8 - left)
		}
	}
}
