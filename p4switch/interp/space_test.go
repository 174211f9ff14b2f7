package interp

import (
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// model is a table as the specification has it: a list of entries.
type model struct {
	kind    v1model.MatchKind
	fields  []v1model.MatchKind
	widths  []int
	entries []modelEntry
}

type modelEntry struct {
	match    []datapath.Match
	priority int32
	id       int
}

// matches tells whether a field's value is what an entry wants.
func matches(kind v1model.MatchKind, width int, m *datapath.Match, v *big.Int) bool {
	if m.Wildcard {
		return true
	}
	want := new(big.Int).SetBytes(m.Value)
	switch kind {
	case v1model.MatchLPM:
		drop := uint(width - m.PrefixLen)
		return new(big.Int).Rsh(v, drop).Cmp(want.Rsh(want, drop)) == 0
	case v1model.MatchTernary:
		mask := new(big.Int).SetBytes(m.Mask)
		return new(big.Int).And(v, mask).Cmp(want.And(want, mask)) == 0
	case v1model.MatchRange:
		return v.Cmp(want) >= 0 && v.Cmp(new(big.Int).SetBytes(m.High)) <= 0
	}
	return v.Cmp(want) == 0
}

// find is the id of the entry that wins, or -1.
func (m *model) find(key []*big.Int) int {
	won, best := -1, int64(-1<<62)
	for _, e := range m.entries {
		all, length := true, 0
		for i := range key {
			all = all && matches(m.fields[i], m.widths[i], &e.match[i], key[i])
			length += e.match[i].PrefixLen
		}
		rank := int64(e.priority)
		if m.kind == v1model.MatchLPM {
			rank = int64(length)
		}
		if all && rank > best {
			won, best = e.id, rank
		}
	}
	return won
}

// keyProgram is a program with a table of the given key, whose one action
// writes its parameter to the metadata field result.
func keyProgram(t *testing.T, m *model) *v1model.Program {
	kinds := map[v1model.MatchKind]string{
		v1model.MatchExact: "exact", v1model.MatchLPM: "lpm", v1model.MatchTernary: "ternary", v1model.MatchRange: "range",
	}
	fields, key, bits := `["result",32]`, "", 0
	for i, w := range m.widths {
		fields += fmt.Sprintf(`,["f%d",%d]`, i, w)
		bits += w
		key += fmt.Sprintf(`,{"match_type":%q,"target":["m","f%d"]}`, kinds[m.fields[i]], i)
	}
	fields += fmt.Sprintf(`,["pad",%d]`, 16-bits%8)
	return loadText(t, `{"__meta__":{"version":[2,23]},
	"header_types":[{"name":"std","fields":[["ingress_port",9],["egress_spec",9],["egress_port",9],["instance_type",32],["packet_length",32],["pad",5]]},
	{"name":"m","fields":[`+fields+`]}],
	"headers":[{"name":"standard_metadata","id":0,"header_type":"std","metadata":true},{"name":"m","id":1,"header_type":"m","metadata":true}],
	"parsers":[{"name":"p","init_state":null}],"deparsers":[{"name":"d"}],
	"actions":[{"name":"set","id":0,"runtime_data":[{"name":"v","bitwidth":32}],"primitives":[
	{"op":"assign","parameters":[{"type":"field","value":["m","result"]},{"type":"runtime_data","value":0}]}]}],
	"pipelines":[{"name":"ingress","init_table":"t","tables":[{"name":"t","match_type":"`+kinds[m.kind]+`","type":"simple","max_size":40,
	"key":[`+key[1:]+`],"action_ids":[0],"next_tables":{"set":null}}]},{"name":"egress"}]}`)
}

// TestTables compares tables of every kind with the specification, under
// random inserts, modifications and deletes.
func TestTables(t *testing.T) {
	x, l, te, r := v1model.MatchExact, v1model.MatchLPM, v1model.MatchTernary, v1model.MatchRange
	for _, m := range []model{
		{kind: x, fields: []v1model.MatchKind{x}, widths: []int{3}},
		{kind: x, fields: []v1model.MatchKind{x, x, x}, widths: []int{4, 128, 9}},
		{kind: l, fields: []v1model.MatchKind{l}, widths: []int{128}},
		{kind: l, fields: []v1model.MatchKind{x, l, x}, widths: []int{8, 13, 70}},
		{kind: l, fields: []v1model.MatchKind{x, x, l}, widths: []int{128, 128, 8}},
		{kind: te, fields: []v1model.MatchKind{te, te}, widths: []int{4, 70}},
		{kind: te, fields: []v1model.MatchKind{te, l, x}, widths: []int{9, 40, 3}},
		{kind: te, fields: []v1model.MatchKind{te, te, te}, widths: []int{200, 300, 128}},
		{kind: r, fields: []v1model.MatchKind{r}, widths: []int{5}},
		{kind: r, fields: []v1model.MatchKind{r, te, l, x, r}, widths: []int{7, 9, 66, 2, 100}},
		{kind: te, fields: []v1model.MatchKind{te, te}, widths: []int{1000, 900}},
	} {
		t.Run(fmt.Sprintf("%v of %v bits", m.fields, m.widths), func(t *testing.T) { testTable(t, &m) })
	}
}

func testTable(t *testing.T, m *model) {
	prog := keyProgram(t, m)
	ex, err := New(prog, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer ex.Close()
	g := &exprGen{Rand: rand.New(rand.NewPCG(5, uint64(len(m.widths))))}
	s := newState(ex.c.lay, len(prog.Headers))
	s.shard = ex.lock.pick()
	for id := range 600 {
		m.change(t, ex, g, id)
		for range 8 {
			key := m.randomKey(g)
			copy(s.w, ex.c.lay.reset)
			for i, v := range key {
				sl := ex.c.lay.slot(v1model.FieldRef{Header: prog.Headers[1], Field: 1 + i})
				putBig(s.w[sl.at:sl.at+sl.n], v, sl.width)
			}
			s.w[ex.c.lay.bases[1]+1] = 0xffffffff
			ex.ingress.runAll(s)
			if got, want := int(int32(s.w[ex.c.lay.bases[1]+1])), m.find(key); got != want {
				t.Fatalf("key %x hit entry %d, not %d, of\n%+v", key, got, want, m.entries)
			}
		}
	}
}

// change inserts, modifies or deletes an entry in the table and the model.
func (m *model) change(t *testing.T, ex *Executor, g *exprGen, id int) {
	t.Helper()
	if len(m.entries) > 0 && g.IntN(3) == 0 {
		i := g.IntN(len(m.entries))
		old := m.entries[i]
		e := datapath.Entry{Table: "t", Match: old.match, Priority: old.priority, Action: set(id)}
		op := datapath.Delete
		if g.IntN(2) == 0 {
			op = datapath.Modify
			m.entries[i].id = id
		} else {
			m.entries = slices.Delete(m.entries, i, i+1)
		}
		if err := ex.Apply(op, e); err != nil {
			t.Fatal(err)
		}
		return
	}
	e := datapath.Entry{Table: "t", Action: set(id)}
	if m.kind == v1model.MatchTernary || m.kind == v1model.MatchRange {
		e.Priority = int32(1000*g.IntN(3) + id + 1) // unique, so that one entry wins
	}
	for i := range m.fields {
		e.Match = append(e.Match, m.randomMatch(g, i))
	}
	switch err := ex.Apply(datapath.Insert, e); {
	case err == nil:
		m.entries = append(m.entries, modelEntry{e.Match, e.Priority, id})
	case errors.Is(err, datapath.ErrFull) && len(m.entries) == 40:
	case errors.Is(err, datapath.ErrExists) && m.kind != v1model.MatchTernary && m.kind != v1model.MatchRange:
	default:
		t.Fatal(err)
	}
}

func set(id int) *datapath.Action {
	return &datapath.Action{Name: "set", Params: [][]byte{{byte(id >> 24), byte(id >> 16), byte(id >> 8), byte(id)}}}
}

// near is a number that often is one of a few.
func (g *exprGen) near(width int) *big.Int {
	v := new(big.Int).Lsh(big.NewInt(int64(g.IntN(4))), uint(max(width-2, 0)))
	v.Add(v, big.NewInt(int64(g.IntN(4))))
	return v.And(v, new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), uint(width)), big.NewInt(1)))
}

func (m *model) randomKey(g *exprGen) []*big.Int {
	if len(m.entries) > 0 && g.IntN(2) == 0 { // what some entry wants
		var key []*big.Int
		e := m.entries[g.IntN(len(m.entries))]
		for i := range m.fields {
			v := g.near(m.widths[i])
			if !e.match[i].Wildcard {
				v.SetBytes(e.match[i].Value)
			}
			key = append(key, v)
		}
		return key
	}
	var key []*big.Int
	for _, w := range m.widths {
		key = append(key, g.near(w))
	}
	return key
}

func (m *model) randomMatch(g *exprGen, i int) datapath.Match {
	w, n := m.widths[i], (m.widths[i]+7)/8
	v := datapath.Match{Value: g.near(w).FillBytes(make([]byte, n))}
	switch m.fields[i] {
	case v1model.MatchLPM:
		v.PrefixLen = g.IntN(w + 1)
		v.Wildcard = g.IntN(5) == 0
		if v.Wildcard {
			v.PrefixLen = 0
		}
	case v1model.MatchTernary:
		v.Mask = g.random(w).FillBytes(make([]byte, n))
		v.Wildcard = g.IntN(5) == 0
	case v1model.MatchRange:
		a, b := g.near(w), g.near(w)
		if a.Cmp(b) > 0 {
			a, b = b, a
		}
		v.Value, v.High = a.FillBytes(make([]byte, n)), b.FillBytes(make([]byte, n))
		v.Wildcard = g.IntN(5) == 0
	}
	return v
}
