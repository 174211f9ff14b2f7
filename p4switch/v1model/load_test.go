package v1model_test

import (
	"os"
	"reflect"
	"slices"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/internal/sample"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

func program(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile("../interp/testdata/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func load(t testing.TB, data []byte) *v1model.Program {
	t.Helper()
	p, err := v1model.Load(data)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestLoadSample(t *testing.T) {
	p := load(t, sample.JSON)
	rule := p.Table("SampleIngress.writer")
	if rule == nil {
		t.Fatal("no table writer")
	}
	if rule.Kind != v1model.MatchExact || rule.MaxSize != 1<<16 || !rule.ByHit {
		t.Errorf("writer: %+v", rule)
	}
	var widths []int
	for _, k := range rule.Key {
		widths = append(widths, k.Field.Width())
	}
	if want := []int{12, 20}; !slices.Equal(widths, want) {
		t.Errorf("writer matches fields of %v bits, not %v", widths, want)
	}
	if d := rule.Default; d == nil || d.Action.Name != "NoAction" || !rule.ConstEntry {
		t.Errorf("writer has the default %+v", d)
	}
	if p.Std.MulticastGroup.String() != "standard_metadata.mcast_grp" {
		t.Errorf("multicast group in %v", p.Std.MulticastGroup)
	}
	if p.Uses(p.Std.IngressTimestamp) || !p.Uses(p.Std.ParserError) {
		t.Error("the program looks at parser_error and at no timestamp")
	}
	if code, ok := p.ErrorCode(v1model.ErrorPacketTooShort); !ok || p.ErrorName(code) != v1model.ErrorPacketTooShort {
		t.Error("core errors are not known by name and code")
	}
}

func TestLoadStacks(t *testing.T) {
	p := load(t, program(t, "stacks"))
	if n := len(p.Stacks); n != 1 || len(p.Stacks[0].Headers) != 3 {
		t.Fatalf("stacks: %+v", p.Stacks)
	}
	if n := len(p.UnionStacks); n != 1 || len(p.UnionStacks[0].Unions) != 2 {
		t.Fatalf("union stacks: %+v", p.UnionStacks)
	}
	for _, u := range p.Unions {
		for _, h := range u.Headers {
			if h.Union != u {
				t.Errorf("%s does not know its union", h.Name)
			}
		}
	}
	var opts *v1model.HeaderType
	for _, ht := range p.HeaderTypes {
		if ht.Name == "opts_t" {
			opts = ht
		}
	}
	if opts == nil || opts.Bits != 16 || opts.Varbit != 1 || opts.Fields[1].MaxWidth != 64 || opts.Fields[2].Offset != 8 {
		t.Errorf("opts_t: %+v", opts)
	}
}

func TestLoadTables(t *testing.T) {
	p := load(t, program(t, "tables"))
	for name, want := range map[string]v1model.MatchKind{
		"exact_two": v1model.MatchExact, "longest": v1model.MatchLPM, "exact_lpm": v1model.MatchLPM,
		"three": v1model.MatchTernary, "between": v1model.MatchRange, "maybe": v1model.MatchTernary,
	} {
		if got := p.Table("I." + name); got == nil || got.Kind != want {
			t.Errorf("table %s: %+v", name, got)
		}
	}
	own := p.Table("I.program")
	if len(own.Entries) != 3 || !own.Const || own.EntryPriority(0) != 3 || own.EntryPriority(2) != 1 {
		t.Errorf("entries: %+v", own.Entries)
	}
	chosen := p.Table("I.chosen")
	if chosen.Profile == nil || chosen.Profile.Selector == nil || len(chosen.Key) != 1 {
		t.Errorf("chosen: %+v", chosen)
	}
	if masked := p.Table("I.masked").Key[0]; masked.Mask == nil || masked.Name != "middle" {
		t.Errorf("masked key: %+v", masked)
	}
}

// What compilers of P4_14 wrote, and bmv2 still takes, means what p4c writes today; and a
// program of then has no format version.
func TestOldPrimitives(t *testing.T) {
	type m = map[string]any
	field := func(name string) any { return m{"type": "field", "value": []string{"h", name}} }
	expr := func(op string, l, r any) any {
		return m{"type": "expression", "value": m{"op": op, "left": l, "right": r}}
	}
	call := func(op string, params ...any) any { return m{"op": op, "parameters": append([]any{}, params...)} }
	a, b, header, std := field("a"), field("b"), m{"type": "header", "value": "h"}, m{"type": "header", "value": "standard_metadata"}
	for _, c := range []struct{ old, now []any }{
		{[]any{call("modify_field", a, b)}, []any{call("assign", a, b)}},
		{[]any{call("add_to_field", a, b)}, []any{call("assign", a, expr("+", a, b))}},
		{[]any{call("subtract_from_field", a, b)}, []any{call("assign", a, expr("-", a, b))}},
		{[]any{call("add", a, b, a)}, []any{call("assign", a, expr("+", b, a))}},
		{[]any{call("subtract", a, b, a)}, []any{call("assign", a, expr("-", b, a))}},
		{[]any{call("bit_xor", a, b, a)}, []any{call("assign", a, expr("^", b, a))}},
		{[]any{call("bit_or", a, b, a)}, []any{call("assign", a, expr("|", b, a))}},
		{[]any{call("bit_and", a, b, a)}, []any{call("assign", a, expr("&", b, a))}},
		{[]any{call("shift_left", a, b, a)}, []any{call("assign", a, expr("<<", b, a))}},
		{[]any{call("shift_right", a, b, a)}, []any{call("assign", a, expr(">>", b, a))}},
		{[]any{call("copy_header", header, header)}, []any{call("assign_header", header, header)}},
		{[]any{call("no_op"), call("drop"), call("no_op")}, []any{call("mark_to_drop", std)}},
	} {
		var bodies [][]v1model.Stmt
		for _, body := range [][]any{c.old, c.now} {
			p := load(t, edit(t, edit(t, program(t, "tables"), "actions/I.set/primitives", body), "__meta__", nil))
			i := slices.IndexFunc(p.Actions, func(a *v1model.Action) bool { return a.Name == "I.set" })
			bodies = append(bodies, p.Actions[i].Body)
		}
		if !reflect.DeepEqual(bodies[0], bodies[1]) {
			t.Errorf("%v is loaded as %+v, %v as %+v", c.old, bodies[0], c.now, bodies[1])
		}
	}
}
