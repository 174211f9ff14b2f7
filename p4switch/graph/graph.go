// Package graph lays a program out for people to look at: its parser and both of its pipelines as rows from top to bottom, with lines beside them that lead
// from row to row, and which of them a packet that was traced went.
package graph

import (
	"cmp"
	"encoding/hex"
	"slices"

	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// The kinds of rows.
const (
	State     = "state"
	Table     = "table"
	Condition = "condition"
	Call      = "call" // of an action by the control itself
	End       = "end"  // of its part: the last row
)

// Graph is a program. It is not changed once it is made.
type Graph struct {
	// Source is the file that was compiled.
	Source string `json:"source,omitempty"`
	// Parts are the parser and the pipelines, in the order in which packets meet them.
	Parts []Part `json:"parts"`
}

// Part is the parser or a pipeline.
type Part struct {
	Name string `json:"name"`
	Rows []Row  `json:"rows"`
	// Edges lead from row to row. Those of a pipeline lead down.
	Edges []Edge `json:"edges"`
	// Lanes is how many lanes lie beside the rows.
	Lanes int `json:"lanes"`
	// Start is the row where packets begin.
	Start int `json:"start"`
}

// Row is a step that packets may take.
type Row struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
	// Key is what a table or state looks at.
	Key []string `json:"key,omitempty"`
	// Profile tells that a table's actions are those of an action profile's members.
	Profile bool `json:"profile,omitempty"`
}

// Edge is a way from one row to another.
type Edge struct {
	From int `json:"from"`
	To   int `json:"to"`
	// When says what leads there, each of it: an action, hit, miss, true, false, or values of a state's key.
	When []string `json:"when,omitempty"`
	// Otherwise tells that anything else leads there.
	Otherwise bool `json:"otherwise,omitempty"`
	// Lane is where the line lies, from 1 on; 0: straight to the next row. All that lead to the same row, and do not from the one above, have the same.
	Lane int `json:"lane"`
}

// What leads from a table or a condition.
const (
	whenHit, whenMiss   = "hit", "miss"
	whenTrue, whenFalse = "true", "false"
)

// Of is the graph of a program.
func Of(prog *v1model.Program) *Graph {
	g := &Graph{Source: prog.Source}
	if prog.Parser != nil {
		g.Parts = append(g.Parts, partOf(prog.Parser.Name, prog.Parser.Start, ofState))
	}
	for _, p := range []*v1model.Pipeline{prog.Ingress, prog.Egress} {
		if p != nil {
			g.Parts = append(g.Parts, partOf(p.Name, p.Start, ofNode))
		}
	}
	return g
}

// way is where a step may lead, and when.
type way[N comparable] struct {
	when string // empty: otherwise
	to   N      // its zero value: to the end
}

// partOf lays out what can be reached from a step. describe tells what a step is, and where it leads.
func partOf[N comparable](name string, start N, describe func(N) (Row, []way[N])) Part {
	var none N
	p := Part{Name: name, Edges: []Edge{}}
	var order []N // backwards
	ways, rows, at := map[N][]way[N]{}, map[N]Row{}, map[N]int{}
	var visit func(n N)
	visit = func(n N) {
		if _, seen := rows[n]; n == none || seen {
			return
		}
		rows[n], ways[n] = describe(n)
		for _, w := range slices.Backward(ways[n]) { // what comes first is next below
			visit(w.to)
		}
		order = append(order, n)
	}
	visit(start)
	slices.Reverse(order)
	for i, n := range order {
		p.Rows, at[n] = append(p.Rows, rows[n]), i
	}
	at[none] = len(order)
	p.Rows = append(p.Rows, Row{Kind: End, Name: "end"})
	p.Start = at[start]
	for i, n := range order {
		first := len(p.Edges)
		for _, w := range ways[n] {
			e := slices.IndexFunc(p.Edges[first:], func(e Edge) bool { return e.To == at[w.to] })
			if e < 0 {
				e = len(p.Edges) - first
				p.Edges = append(p.Edges, Edge{From: i, To: at[w.to]})
			}
			if w.when == "" {
				p.Edges[first+e].Otherwise = true
			} else {
				p.Edges[first+e].When = append(p.Edges[first+e].When, w.when)
			}
		}
		if len(p.Edges) == first+1 {
			p.Edges[first].When, p.Edges[first].Otherwise = nil, true // whatever happens
		}
	}
	p.lanes()
	return p
}

// lanes gives each row to which others lead than the one above a lane, such that none has two lines at the same height. Short ones lie inside.
func (p *Part) lanes() {
	type span struct{ to, low, high, lane int }
	spans := map[int]*span{}
	for _, e := range p.Edges {
		if e.To == e.From+1 {
			continue
		}
		s := spans[e.To]
		if s == nil {
			s = &span{to: e.To, low: e.To, high: e.To}
			spans[e.To] = s
		}
		s.low, s.high = min(s.low, e.From), max(s.high, e.From)
	}
	var all []*span
	for _, s := range spans {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *span) int {
		return cmp.Or(cmp.Compare(a.high-a.low, b.high-b.low), cmp.Compare(a.to, b.to))
	})
	for i, s := range all {
		taken := map[int]bool{}
		for _, o := range all[:i] {
			if s.low <= o.high && o.low <= s.high {
				taken[o.lane] = true
			}
		}
		for s.lane = 1; taken[s.lane]; s.lane++ {
		}
		p.Lanes = max(p.Lanes, s.lane)
	}
	for i := range p.Edges {
		if e := &p.Edges[i]; e.To != e.From+1 {
			e.Lane = spans[e.To].lane
		}
	}
}

func ofState(s *v1model.State) (Row, []way[*v1model.State]) {
	row := Row{Kind: State, Name: s.Name}
	for _, k := range s.Key {
		switch e := k.Value.(type) {
		case v1model.FieldValue:
			row.Key = append(row.Key, e.Ref.String())
		case v1model.Lookahead:
			row.Key = append(row.Key, "what lies ahead")
		default:
			row.Key = append(row.Key, "a field of a stack")
		}
	}
	var ways []way[*v1model.State]
	for i := range s.Cases {
		c := &s.Cases[i]
		ways = append(ways, way[*v1model.State]{whenOf(c), c.Next})
	}
	return row, append(ways, way[*v1model.State]{"", s.Default})
}

// whenOf writes a case as people do.
func whenOf(c *v1model.Case) string {
	if c.Set != nil {
		return c.Set.Name
	}
	text := ""
	for i, v := range c.Values {
		if i > 0 {
			text += " "
		}
		text += "0x" + hex.EncodeToString(v)
		if c.Masks != nil {
			text += "&0x" + hex.EncodeToString(c.Masks[i])
		}
	}
	return text
}

func ofNode(n v1model.Node) (Row, []way[v1model.Node]) {
	switch n := n.(type) {
	case *v1model.Condition:
		name := n.Name
		if n.Source != "" {
			name = n.Source
		}
		return Row{Kind: Condition, Name: name}, []way[v1model.Node]{{whenTrue, n.True}, {whenFalse, n.False}}
	case *v1model.Call:
		return Row{Kind: Call, Name: n.Action.Name}, []way[v1model.Node]{{"", after(n.Action, n.Next)}}
	case *v1model.Table:
		if n.IsCall() {
			next := n.BaseNext
			if n.ByHit {
				next = n.Miss
			} else if i := slices.Index(n.Actions, n.Default.Action); i >= 0 {
				next = n.Next[i]
			}
			return Row{Kind: Call, Name: n.Default.Action.Name}, []way[v1model.Node]{{"", after(n.Default.Action, next)}}
		}
		row := Row{Kind: Table, Name: n.Name, Profile: n.Profile != nil}
		for _, k := range n.Key {
			row.Key = append(row.Key, k.Name)
		}
		if n.ByHit {
			return row, []way[v1model.Node]{{whenHit, n.Hit}, {whenMiss, n.Miss}}
		}
		var ways []way[v1model.Node]
		for i, a := range n.Actions {
			ways = append(ways, way[v1model.Node]{a.Name, after(a, n.Next[i])})
		}
		return row, append(ways, way[v1model.Node]{"", n.BaseNext})
	}
	return Row{}, nil // there are no others
}

// after is what comes after an action: nothing, if it leaves the pipeline. One that leaves it or not, by a condition of its own, is taken to go on.
func after(a *v1model.Action, next v1model.Node) v1model.Node {
	for _, s := range a.Body {
		switch s.(type) {
		case v1model.Exit:
			return nil
		case v1model.Jump, v1model.JumpIfZero:
			return next
		}
	}
	return next
}
