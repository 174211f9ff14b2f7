//go:build linux

package ebpf

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/difftest"
	"github.com/bifrost-rack/bifrost/p4/graph"
	"github.com/bifrost-rack/bifrost/p4/inputs"
	"github.com/bifrost-rack/bifrost/p4/trace"
	"github.com/bifrost-rack/bifrost/p4/v1model"
)

// reached is what of a program packets have met: rows and edges of its graph, and actions of its tables.
type reached struct {
	graph                *graph.Graph
	rows, edges, actions map[string]bool
}

func newReached(prog *v1model.Program) *reached {
	return &reached{graph.Of(prog), map[string]bool{}, map[string]bool{}, map[string]bool{}}
}

func (w *reached) add(p *trace.Packet) {
	for _, v := range w.graph.Way(p) {
		w.rows[fmt.Sprint(v.Part, v.Row)] = true
		if v.Edge >= 0 {
			w.edges[fmt.Sprint(v.Part, v.Edge)] = true
		}
	}
	for _, s := range p.Steps {
		if s.Kind == trace.Table && s.Action != "" {
			w.actions[s.Name+" "+s.Action] = true
		}
	}
}

// share is what was met, and how much there is.
type share struct{ met, of int }

func (s share) String() string { return fmt.Sprintf("%d of %d", s.met, s.of) }

func (s *share) add(o share) { s.met, s.of = s.met+o.met, s.of+o.of }

func (w *reached) shares(prog *v1model.Program) (out [3]share) {
	for _, p := range w.graph.Parts {
		out[0].of += len(p.Rows)
		out[1].of += len(p.Edges)
	}
	for _, t := range prog.Tables {
		if !t.IsCall() {
			out[2].of += len(t.Actions)
		}
	}
	out[0].met, out[1].met, out[2].met = len(w.rows), len(w.edges), len(w.actions)
	return out
}

// TestCompared runs each program that the tests load into the kernel on both executors, which must do the same with each packet, and tells how much of the
// programs' graphs the packets met: that is what is compared of the generated code. With -v it tells so of each program.
func TestCompared(t *testing.T) {
	if testing.Short() {
		t.Skip("loads every program twice")
	}
	needRoot(t)
	var files []string
	for _, pattern := range []string{"testdata/*.json", "../interp/testdata/*.json", "../../docs/testdata/basic.json", "../bifrost.json"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatal(pattern, err)
		}
		files = append(files, found...)
	}
	var all [3]share
	programs, refused := 0, []string{}
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".json")
		prog := load(t, f)
		if len(Lacks(prog, 0)) > 0 {
			refused = append(refused, name)
			continue
		}
		w := newReached(prog)
		for n := range max(*rounds/5, 1) {
			compareWays(t, name, prog, w, *seed+uint64(n))
		}
		if name == "bifrost" {
			compareRights(t, prog, w)
		}
		programs++
		shares := w.shares(prog)
		for i := range all {
			all[i].add(shares[i])
		}
		t.Logf("%-12s %s steps, %s ways between them, %s actions of tables", name, shares[0], shares[1], shares[2])
	}
	t.Logf("%d programs (not in the kernel: %s): %s steps, %s ways between them, %s actions of tables", programs, strings.Join(refused, ", "), all[0], all[1], all[2])
	for i, least := range []int{90, 84, 65} {
		if all[i].met*100 < least*all[i].of {
			t.Errorf("%s were met, less than %d %%", all[i], least)
		}
	}
}

func compareWays(t *testing.T, name string, prog *v1model.Program, w *reached, seed uint64) {
	t.Helper()
	replay := fmt.Sprintf("go test ./p4/ebpf -run TestCompared -seed %d -rounds 1 (%s)", seed, name)
	p, a := newPair(t, prog, p4.CPUPort), inputs.New(prog, seed)
	s, err := p.golang.Trace(trace.Spec{Rate: trace.MaxRate})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	for range 60 {
		if e, ok := a.Entry(); ok {
			p.apply(t, datapath.Insert, e)
		}
	}
	m, c := maker{Rand: rand.New(rand.NewPCG(seed, 0))}, copier{rand.New(rand.NewPCG(seed, 0))}
	for i := range 400 {
		in, frame := a.Packet()
		switch {
		case name == "bifrost" && i%2 == 0:
			at := datapath.Port(m.Pick(1, 2, 3, 4, p4.CPUPort))
			in, frame = int(at), m.Packet(at)
		case name == "copies": // groups and sessions, whose copies leave in any order
			p.unordered = true
			frame = c.packet(360, c.configure(t, p))
		case name == "state" && frame[0] == 11: // draws a random number
			frame[0] = 4
		}
		for len(frame) < 58 {
			frame = append(frame, 0)
		}
		kernel, golang, differ := p.differs(datapath.Port(in), frame)
		way := <-s.Packets()
		switch {
		case !differ:
			w.add(way)
		case !tooShort(golang):
			t.Fatalf("port %d, packet %x\nkernel: %q\nGo:     %q\nreplay: %s", in, frame, kernel, golang, replay)
		}
	}
}

// tooShort tells whether a frame leaves that is too short for a test run in the kernel to show: shorter than an Ethernet header.
func tooShort(lines []string) bool {
	return slices.ContainsFunc(lines, func(line string) bool {
		_, frame, ok := strings.Cut(line, ": ")
		return ok && strings.HasPrefix(line, "out ") && len(frame) < 2*inputs.ShortestFrame
	})
}

// bothTargets are both executors as what is compared with the model of rights: what they do must be the same.
type bothTargets struct {
	*pair
	session *trace.Session
	reached *reached
}

// Apply implements difftest.Target.
func (b *bothTargets) Apply(op datapath.Op, e datapath.Entry) error {
	kernel, golang := b.kernel.Apply(op, e), b.golang.Apply(op, e)
	if (kernel == nil) != (golang == nil) {
		return fmt.Errorf("op %d of %+v: kernel says %w, Go says %w", op, e, kernel, golang)
	}
	return golang
}

// Cell implements difftest.Target.
func (b *bothTargets) Cell(register string, index int) ([]byte, error) {
	return b.golang.Register(register, index)
}

// Run implements difftest.Target.
func (b *bothTargets) Run(in datapath.Port, frame []byte) (out []difftest.Leaves, err error) {
	kernel, golang, differ := b.differs(in, frame)
	if differ {
		return nil, fmt.Errorf("port %d, packet %x\nkernel: %q\nGo:     %q", in, frame, kernel, golang)
	}
	b.reached.add(<-b.session.Packets())
	for _, line := range golang {
		l := difftest.Leaves{Port: p4.CPUPort}
		if _, err := fmt.Sscanf(line, "out %d: %x", &l.Port, &l.Frame); err != nil {
			if _, err := fmt.Sscanf(line, "cpu: %x", &l.Frame); err != nil {
				continue // a digest
			}
		}
		out = append(out, l)
	}
	return out, nil
}

// compareRights compares what the model of rights asks of Bifröst's program.
func compareRights(t *testing.T, prog *v1model.Program, w *reached) {
	t.Helper()
	target := func() *bothTargets {
		p := newPairWith(t, prog, Config{CPUPort: p4.CPUPort, RegisterCells: 512})
		s, err := p.golang.Trace(trace.Spec{Rate: trace.MaxRate})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Stop)
		return &bothTargets{p, s, w}
	}
	if err := difftest.Ports(target()); err != nil {
		t.Error(err)
	}
	r, err := difftest.NewRights(target(), *rightsSeed)
	for n := 0; n < *rightsSteps/4 && err == nil; n++ {
		err = r.Step()
	}
	if err != nil {
		t.Error(err)
	}
}
