package graph

import (
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/inputs"
	"github.com/bifrost-rack/bifrost/p4switch/interp"
	"github.com/bifrost-rack/bifrost/p4switch/trace"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// programs are those of the tests of both executors, the module's page's, and the sample.
func programs(t *testing.T) map[string]*v1model.Program {
	t.Helper()
	out := map[string]*v1model.Program{}
	for _, pattern := range []string{"../ebpf/testdata/*.json", "../interp/testdata/*.json", "../testdata/basic.json", "../internal/sample/sample.json"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			prog, err := v1model.Load(b)
			if err != nil {
				t.Fatalf("%s: %v", f, err)
			}
			out[f] = prog
		}
	}
	return out
}

// TestOf: each part ends in its last row, pipelines lead down, all rows but the first are led to, and no two lines lie on another.
func TestOf(t *testing.T) {
	for name, prog := range programs(t) {
		g := Of(prog)
		if len(g.Parts) != 3 {
			t.Fatalf("%s: %d parts", name, len(g.Parts))
		}
		for i, p := range g.Parts {
			end := len(p.Rows) - 1
			into, high := map[int]bool{p.Start: true}, map[[2]int]int{} // by lane and height, what is led to
			for _, e := range p.Edges {
				into[e.To] = true
				if i > 0 && e.To <= e.From || e.From >= end {
					t.Errorf("%s: %s: from %d to %d of %d", name, p.Name, e.From, e.To, end)
				}
				if (e.Lane == 0) != (e.To == e.From+1) || e.Lane > p.Lanes {
					t.Errorf("%s: %s: %+v", name, p.Name, e)
				}
				if e.Lane == 0 {
					continue
				}
				for y := min(e.From, e.To); y <= max(e.From, e.To); y++ {
					if other, taken := high[[2]int{e.Lane, y}]; taken && other != e.To {
						t.Errorf("%s: %s: lines to %d and %d at height %d of lane %d", name, p.Name, other, e.To, y, e.Lane)
					}
					high[[2]int{e.Lane, y}] = e.To
				}
			}
			for r := range p.Rows {
				if !into[r] {
					t.Errorf("%s: %s: nothing leads to %s", name, p.Name, p.Rows[r].Name)
				}
			}
		}
	}
}

// TestOf_Exit: what leaves a pipeline leads to its end, and not to what is written below it.
func TestOf_Exit(t *testing.T) {
	g := Of(programs(t)["../ebpf/testdata/router.json"])
	ingress := g.Parts[1]
	// router146: "{ drop(); exit; }" is the call of an action, and that of an exit; router149: a case of a switch that leaves.
	for _, name := range []string{"router146", "router149"} {
		row := slices.IndexFunc(ingress.Rows, func(r Row) bool { return r.Name == name })
		var to []string
		for _, e := range ingress.Edges {
			if e.From == row {
				to = append(to, ingress.Rows[e.To].Name)
			}
		}
		if !slices.Equal(to, []string{"end"}) {
			t.Errorf("%s leads to %q", name, to)
		}
	}
}

// TestWay: a packet's way is that of its trace: each state, condition and table is a visit, each visit but the first of a part was reached by an edge from the
// one before, and what happened at the rows is all that the trace tells.
func TestWay(t *testing.T) {
	for name, prog := range programs(t) {
		g := Of(prog)
		x, err := interp.New(prog, interp.Config{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		s, err := x.Trace(trace.Spec{Rate: trace.MaxRate})
		if err != nil {
			t.Fatal(err)
		}
		a := inputs.New(prog, 1)
		for range 60 {
			if e, ok := a.Entry(); ok {
				_ = x.Apply(datapath.Insert, e) // or it is there already
			}
		}
		for range 40 {
			port, frame := a.Packet()
			x.Process(datapath.Port(port), frame, nil)
			check(t, name, g, <-s.Packets())
		}
		s.Stop()
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}
}

func check(t *testing.T, name string, g *Graph, p *trace.Packet) {
	t.Helper()
	kinds := map[string]string{trace.Parser: State, trace.Condition: Condition, trace.Table: Table}
	want, got := []string{}, []string{}
	for _, s := range p.Steps {
		if k, ok := kinds[s.Kind]; ok {
			want = append(want, k+" "+s.Name)
		}
	}
	visits, said := g.Way(p), 0
	for i, v := range visits {
		part := g.Parts[v.Part]
		row := part.Rows[v.Row]
		said += len(v.Says)
		if row.Kind != End && row.Kind != Call {
			got = append(got, row.Kind+" "+row.Name)
		}
		switch {
		case v.Edge < 0 && v.Row != part.Start, v.Edge >= 0 && (visits[i-1].Part != v.Part || part.Edges[v.Edge].From != visits[i-1].Row || part.Edges[v.Edge].To != v.Row):
			t.Fatalf("%s: to %s %s by edge %d\n%s", name, part.Name, row.Name, v.Edge, p)
		}
	}
	if !slices.Equal(got, want) {
		t.Fatalf("%s: visited %q, not %q\n%s", name, got, want, p)
	}
	if outcomes := strings.Count(p.String(), "  "+trace.Out+" ") + strings.Count(p.String(), "  "+trace.Drop+" "); said < outcomes+len(want)-countKind(p, trace.Parser) {
		t.Fatalf("%s: %d lines of %d\n%s", name, said, outcomes, p)
	}
}

func countKind(p *trace.Packet, kind string) (n int) {
	for _, s := range p.Steps {
		if s.Kind == kind {
			n++
		}
	}
	return n
}

// TestWay_Foreign: of a trace that does not fit, what fits is shown: of another program, of one whose beginning is not known, and of one that was cut.
func TestWay_Foreign(t *testing.T) {
	all := programs(t)
	g := Of(all["../testdata/basic.json"])
	yes := true
	for _, steps := range [][]trace.Step{
		{{Kind: trace.Pipeline, Name: "elsewhere"}, {Kind: trace.Table, Name: "t"}, {Kind: trace.Out}},
		{{Kind: trace.Table, Name: "MyIngress.ipv4_lpm", Hit: &yes}},
		{{Kind: trace.Parser, Name: "no such state"}, {Kind: trace.Action, Action: "a"}},
		{},
	} {
		if v := g.Way(&trace.Packet{Steps: steps}); len(v) != 0 {
			t.Errorf("%+v: %+v", steps, v)
		}
	}
	cut := &trace.Packet{Steps: []trace.Step{{Kind: trace.Parser, Name: "start"}, {Kind: trace.Pipeline, Name: "ingress"}, {Kind: trace.Condition, Name: "hdr.ipv4.isValid()", Hit: &yes}}}
	var rows []string
	for _, v := range g.Way(cut) {
		rows = append(rows, g.Parts[v.Part].Rows[v.Row].Name)
	}
	if want := []string{"start", "end", "hdr.ipv4.isValid()"}; !reflect.DeepEqual(rows, want) {
		t.Errorf("visited %q, not %q", rows, want)
	}
}
