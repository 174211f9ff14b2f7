package graph

import (
	"slices"
	"strings"

	"github.com/bifrost-rack/bifrost/p4switch/trace"
)

// Visit is a row that a packet came by.
type Visit struct {
	Part int `json:"part"`
	Row  int `json:"row"`
	// Edge is the one by which the packet came from the row of the visit before; -1: it began here, or nobody knows how.
	Edge int `json:"edge"`
	// Says is what happened here, as a trace says it, a line for each thing.
	Says []string `json:"says,omitempty"`
}

// Way is how a traced packet went, its copies one after the other. Of a packet that is traced only in part, or of another program, the rest is left out.
func (g *Graph) Way(p *trace.Packet) []Visit {
	w := walker{g: g, part: -1}
	for i := range p.Steps {
		w.step(&p.Steps[i])
	}
	return w.visits
}

// walker follows a packet. Where it is, is the last visit.
type walker struct {
	g      *Graph
	visits []Visit
	part   int  // -1: before the first
	next   int  // the row that comes next in the part; -1: it is not known
	edge   int  // the edge that leads there
	done   bool // the part is over
	member bool // the table's action is yet to be told: that of a member of its profile
}

func (w *walker) step(s *trace.Step) {
	says := s.Text()
	member := w.member
	w.member = false
	switch s.Kind {
	case trace.Parser:
		w.state(s.Name)
	case trace.Pipeline:
		w.finish()
		w.part = slices.IndexFunc(w.g.Parts, func(p Part) bool { return p.Name == s.Name })
		w.next, w.edge, w.done = -1, -1, false
		if w.part >= 0 {
			w.next = w.g.Parts[w.part].Start
		}
	case trace.Condition:
		if w.arrive(Condition, s.Name) && s.Hit != nil {
			w.say(map[bool]string{true: "is true", false: "is false"}[*s.Hit])
			w.leave(map[bool]string{true: whenTrue, false: whenFalse}[*s.Hit])
		}
	case trace.Table:
		if w.arrive(Table, s.Name) {
			w.say(strings.TrimSpace(strings.TrimPrefix(says, s.Name)))
			hit := s.Hit != nil && *s.Hit
			w.leave(s.Action, map[bool]string{true: whenHit, false: whenMiss}[hit])
			w.member = s.Action == "" && w.g.Parts[w.part].Rows[w.visits[len(w.visits)-1].Row].Profile
		}
	case trace.Action:
		switch {
		case member:
			w.leave(s.Action)
			w.say(says)
		case w.arrive(Call, s.Action):
			w.leave()
		default:
			w.say(says)
		}
	case trace.ParserError:
		w.say(strings.TrimSpace(s.Kind + " " + says))
		w.done = true // it goes on from wherever it was
	case trace.Out, trace.Drop, trace.Copy:
		w.finish()
		w.say(strings.TrimSpace(s.Kind + " " + says))
	default:
		w.say(strings.TrimSpace(s.Kind + " " + says))
	}
}

// state goes to a state of the parser, from another one or anew.
func (w *walker) state(name string) {
	part := slices.IndexFunc(w.g.Parts, func(p Part) bool { return len(p.Rows) > 0 && p.Rows[0].Kind == State })
	if part < 0 {
		return
	}
	p := &w.g.Parts[part]
	row := slices.IndexFunc(p.Rows, func(r Row) bool { return r.Kind == State && r.Name == name })
	if row < 0 {
		return
	}
	edge := -1
	if n := len(w.visits); w.part == part && !w.done && n > 0 {
		edge = slices.IndexFunc(p.Edges, func(e Edge) bool { return e.From == w.visits[n-1].Row && e.To == row })
	}
	w.part, w.done = part, false
	w.visits = append(w.visits, Visit{Part: part, Row: row, Edge: edge})
	w.next, w.edge = -1, -1
}

// arrive goes to the row that comes next, if it is of that kind and name; it is false if it is not.
func (w *walker) arrive(kind, name string) bool {
	if w.part < 0 {
		return false
	}
	rows := w.g.Parts[w.part].Rows
	if w.next < 0 || rows[w.next].Kind != kind || rows[w.next].Name != name {
		return false
	}
	w.visits = append(w.visits, Visit{Part: w.part, Row: w.next, Edge: w.edge})
	w.next, w.edge = -1, -1
	return true
}

// leave chooses the edge by what has happened; without one of that name it is the edge for anything else.
func (w *walker) leave(because ...string) {
	p := &w.g.Parts[w.part]
	row, otherwise := w.visits[len(w.visits)-1].Row, -1
	for i := range p.Edges {
		e := &p.Edges[i]
		if e.From != row {
			continue
		}
		if e.Otherwise {
			otherwise = i
		}
		for _, b := range because {
			if slices.Contains(e.When, b) {
				w.next, w.edge = e.To, i
				return
			}
		}
	}
	if otherwise >= 0 {
		w.next, w.edge = p.Edges[otherwise].To, otherwise
	}
}

// finish goes to the end of the part, if that is what comes next, once.
func (w *walker) finish() {
	if w.part < 0 || w.done {
		return
	}
	w.done = true
	p := &w.g.Parts[w.part]
	end := len(p.Rows) - 1
	if n := len(w.visits); p.Rows[0].Kind == State && n > 0 { // a parser says where it goes by going there
		w.edge = slices.IndexFunc(p.Edges, func(e Edge) bool { return e.From == w.visits[n-1].Row && e.To == end })
		if w.edge >= 0 {
			w.next = end
		}
	}
	if w.next == end {
		w.visits = append(w.visits, Visit{Part: w.part, Row: end, Edge: w.edge})
	}
	w.next, w.edge = -1, -1
}

// say notes what happened at the row of the last visit.
func (w *walker) say(text string) {
	if n := len(w.visits); n > 0 && text != "" {
		w.visits[n-1].Says = append(w.visits[n-1].Says, text)
	}
}
