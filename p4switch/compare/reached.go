package compare

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/graph"
	"github.com/bifrost-rack/bifrost/p4switch/inputs"
	"github.com/bifrost-rack/bifrost/p4switch/trace"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// Reached is what of a program packets have met: rows and edges of its graph, and actions of its tables.
type Reached struct {
	graph                *graph.Graph
	rows, edges, actions map[string]bool
	profiles             map[string]bool // tables that have one
}

// NewReached begins with nothing that was met.
func NewReached(prog *v1model.Program) *Reached {
	w := &Reached{graph.Of(prog), map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}}
	for _, t := range prog.Tables {
		w.profiles[t.Name] = t.Profile != nil
	}
	return w
}

// Add adds what a packet has met.
func (w *Reached) Add(p *trace.Packet) {
	for _, v := range w.graph.Way(p) {
		w.rows[fmt.Sprint(v.Part, v.Row)] = true
		if v.Edge >= 0 {
			w.edges[fmt.Sprint(v.Part, v.Edge)] = true
		}
	}
	for i, s := range p.Steps {
		if s.Kind != trace.Table {
			continue
		}
		action := s.Action
		if next := i + 1; w.profiles[s.Name] && next < len(p.Steps) && p.Steps[next].Kind == trace.Action { // of a member
			action = p.Steps[next].Action
		}
		if action != "" {
			w.actions[s.Name+" "+action] = true
		}
	}
}

// Share is what was met, and how much there is.
type Share struct{ Met, Of int }

// String is "met of all".
func (s Share) String() string { return fmt.Sprintf("%d of %d", s.Met, s.Of) }

// Add adds another one.
func (s *Share) Add(o Share) { s.Met, s.Of = s.Met+o.Met, s.Of+o.Of }

// Shares are the shares of the program's steps, of the ways between them, and of the actions of its tables.
func (w *Reached) Shares(prog *v1model.Program) (out [3]Share) {
	for _, p := range w.graph.Parts {
		out[0].Of += len(p.Rows)
		out[1].Of += len(p.Edges)
	}
	for _, t := range prog.Tables {
		for _, a := range t.Actions {
			if !t.IsCall() {
				out[2].Of++
			}
			if w.actions[t.Name+" "+a.Name] {
				out[2].Met++
			}
		}
	}
	out[0].Met, out[1].Met = len(w.rows), len(w.edges)
	return out
}

// Missed are the steps, and the actions of tables, that no packet has met.
func (w *Reached) Missed(name string, prog *v1model.Program) (out []string) {
	for i, p := range w.graph.Parts {
		for j, r := range p.Rows {
			if !w.rows[fmt.Sprint(i, j)] {
				out = append(out, fmt.Sprintf("%s: %s %s", name, r.Kind, r.Name))
			}
		}
	}
	for _, t := range prog.Tables {
		for _, a := range t.Actions {
			if !t.IsCall() && !w.actions[t.Name+" "+a.Name] {
				out = append(out, fmt.Sprintf("%s: table %s %s", name, t.Name, a.Name))
			}
		}
	}
	return out
}

// Packet makes a frame, and the port that it comes by.
type Packet func() (in datapath.Port, frame []byte)

// Ways runs packets on both executors, which must do the same with each: in turn those that are derived from the program, and others if there are any.
// It notes what of the program they met. fit, if there is one, changes what cannot be compared.
func (p *Pair) Ways(t testing.TB, w *Reached, a *inputs.Maker, packets int, other Packet, fit func(frame []byte), replay string) {
	t.Helper()
	s, err := p.Golang.Trace(trace.Spec{Rate: trace.MaxRate})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	derived := func() (datapath.Port, []byte) {
		in, frame := a.Packet()
		return datapath.Port(in), frame
	}
	if other == nil {
		other = derived
	}
	for i := range packets {
		in, frame := []Packet{derived, other}[i%2]()
		if fit != nil {
			fit(frame)
		}
		frame = Testable(frame)
		same := p.Same(t, in, frame, replay)
		if way := <-s.Packets(); same {
			w.Add(way)
		}
	}
}

// Same runs a packet on both, which must do the same; it returns false if the kernel cannot show what it does.
func (p *Pair) Same(t testing.TB, in datapath.Port, frame []byte, replay string) bool {
	t.Helper()
	kernel, golang, differ := p.Differs(in, frame)
	if differ && !tooShort(golang) {
		t.Fatalf("port %d, packet %x\nkernel: %q\nGo:     %q\nreplay: %s", in, frame, kernel, golang, replay)
	}
	return !differ
}

// tooShort tells whether a frame leaves that is too short for a test run in the kernel to show: shorter than an Ethernet header.
func tooShort(lines []string) bool {
	return slices.ContainsFunc(lines, func(line string) bool {
		_, frame, ok := strings.Cut(line, ": ")
		return ok && strings.HasPrefix(line, "out ") && len(frame) < 2*inputs.ShortestFrame
	})
}
