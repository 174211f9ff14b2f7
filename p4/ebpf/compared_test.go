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
	profiles             map[string]bool // tables that have one
}

func newReached(prog *v1model.Program) *reached {
	w := &reached{graph.Of(prog), map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}}
	for _, t := range prog.Tables {
		w.profiles[t.Name] = t.Profile != nil
	}
	return w
}

func (w *reached) add(p *trace.Packet) {
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
		for _, a := range t.Actions {
			if !t.IsCall() {
				out[2].of++
			}
			if w.actions[t.Name+" "+a.Name] {
				out[2].met++
			}
		}
	}
	out[0].met, out[1].met = len(w.rows), len(w.edges)
	return out
}

// uncompared are the steps and the actions of tables that TestCompared compares on no packet, and why.
var uncompared = map[string]string{
	"testdata/options: call options59":      "after a loop of the parser without end, of which a trace has no room for what follows; TestOptions compares it",
	"testdata/stacks: call stacks90":        "clones each clone without end, and the executors' bounds differ; TestEndless looks at the kernel's",
	"interp/testdata/copies: call copies44": "cuts packets to 9 bytes, fewer than BPF_PROG_TEST_RUN can show",
	"interp/testdata/stacks: call stacks74": "no packet has an error of the parser that the program does not name",
	"interp/testdata/state: call state59":   "draws a random number",
}

// missed are the steps, and the actions of tables, that no packet has met.
func (w *reached) missed(name string, prog *v1model.Program) (out []string) {
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

// kernelPrograms are the files of the programs that tests load into the kernel, and of some that it does not take.
func kernelPrograms(t *testing.T) (files []string) {
	t.Helper()
	for _, pattern := range []string{"testdata/*.json", "../interp/testdata/*.json", "../../docs/testdata/basic.json", "../bifrost.json"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatal(pattern, err)
		}
		files = append(files, found...)
	}
	return files
}

// TestCompared runs each program that the tests load into the kernel on both executors, which must do the same with each packet, and tells how much of the
// programs' graphs the packets met: that is what is compared of the generated code. With -v it tells so of each program.
func TestCompared(t *testing.T) {
	if testing.Short() {
		t.Skip("loads every program twice")
	}
	needRoot(t)
	var all [3]share
	programs, refused, missed := 0, []string{}, []string{}
	for _, f := range kernelPrograms(t) {
		name := strings.TrimSuffix(strings.TrimPrefix(f, "../"), ".json")
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
		missed = append(missed, w.missed(name, prog)...)
		t.Logf("%-25s %s steps, %s ways between them, %s actions of tables", name, shares[0], shares[1], shares[2])
	}
	t.Logf("%d programs (not in the kernel: %s): %s steps, %s ways between them, %s actions of tables", programs, strings.Join(refused, ", "), all[0], all[1], all[2])
	if *seed != 1 || *rounds < 10 {
		return // other packets may meet less
	}
	for _, m := range missed {
		if uncompared[m] == "" {
			t.Errorf("no packet has met %s", m)
		}
	}
	for m, why := range uncompared {
		if !slices.Contains(missed, m) {
			t.Errorf("a packet has met %s, which is said not to be compared: %s", m, why)
		}
	}
	if least := 95; all[1].met*100 < least*all[1].of {
		t.Errorf("%s ways were met, less than %d %%", all[1], least)
	}
}

// feeds are what makes packets that meet what those derived from the program seldom do: each prepares both executors and returns the packets.
var feeds = map[string]func(t *testing.T, p *pair, m maker) func() (datapath.Port, []byte){
	"bifrost": feedBifrost,
	"testdata/cpu": func(t *testing.T, p *pair, m maker) func() (datapath.Port, []byte) {
		copied(t, p)
		return func() (datapath.Port, []byte) { return fromCPU(m.Rand) }
	},
	"testdata/options": func(_ *testing.T, _ *pair, m maker) func() (datapath.Port, []byte) {
		return func() (datapath.Port, []byte) { return 1, optioned(m.Rand) }
	},
	"testdata/router": func(t *testing.T, p *pair, m maker) func() (datapath.Port, []byte) {
		for range 60 {
			p.apply(t, datapath.Insert, routerEntry(m))
		}
		return func() (datapath.Port, []byte) { return datapath.Port(m.Pick(1, 2, 3)), routed(m) }
	},
	"testdata/stacks": func(_ *testing.T, _ *pair, m maker) func() (datapath.Port, []byte) {
		return func() (datapath.Port, []byte) {
			frame := stacked(m.Rand, byte(m.Pick(0, 1, 2, 3, 5, 6)))
			frame[19] = byte(m.Pick(2, m.Uint64())) // of the second label
			return 1, frame
		}
	},
	"testdata/varbit": func(_ *testing.T, _ *pair, m maker) func() (datapath.Port, []byte) {
		return func() (datapath.Port, []byte) { return 1, varied(m.Rand) }
	},
	"interp/testdata/copies": func(t *testing.T, p *pair, m maker) func() (datapath.Port, []byte) {
		p.unordered = true // copies leave in any order
		c := copier{m.Rand}
		return func() (datapath.Port, []byte) { return 1, c.packet(360, c.configure(t, p)) }
	},
	"interp/testdata/sets": func(t *testing.T, p *pair, m maker) func() (datapath.Port, []byte) {
		return func() (datapath.Port, []byte) {
			setMembers(t, p, m.Rand)
			return 1, inSets(m.Rand)
		}
	},
	"interp/testdata/stacks": func(_ *testing.T, _ *pair, m maker) func() (datapath.Port, []byte) {
		return func() (datapath.Port, []byte) {
			frame := randomFrame(m.Rand, 60)
			frame[0], frame[1] = byte(m.IntN(8)), byte(m.IntN(10))
			return 1, frame
		}
	},
	"interp/testdata/tables": func(t *testing.T, p *pair, m maker) func() (datapath.Port, []byte) {
		r := &profiled{Rand: m.Rand, pair: p}
		return func() (datapath.Port, []byte) {
			for range 3 {
				r.update(t, t.Name())
			}
			return 1, r.packet()
		}
	},
}

// feedBifrost has machines with two copies, and meters that let nothing pass.
func feedBifrost(t *testing.T, p *pair, m maker) func() (datapath.Port, []byte) {
	p.unordered = true
	p.both(t, func(x datapath.Datapath) error {
		for group := range uint32(10) {
			if err := x.Multicast(group+1, []datapath.Replica{{Port: 2, Instance: 1}, {Port: 3, Instance: 2}, {Port: 4, Instance: 9}}); err != nil {
				return err
			}
		}
		for _, meter := range p.prog.Meters {
			for cell := range 4 { // of ports
				if err := x.Meter(meter.Name, cell, &datapath.MeterConfig{}); err != nil {
					return err
				}
			}
		}
		return nil
	})
	for range 300 {
		p.apply(t, datapath.Insert, m.Entry())
	}
	return func() (datapath.Port, []byte) {
		p.apply(t, []datapath.Op{datapath.Insert, datapath.Modify, datapath.Delete}[m.IntN(3)], m.Entry())
		in := datapath.Port(m.Pick(1, 2, 3, 4, p4.CPUPort))
		return in, m.Packet(in)
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
	derived := func() (datapath.Port, []byte) {
		in, frame := a.Packet()
		return datapath.Port(in), frame
	}
	other := derived
	if feed := feeds[name]; feed != nil {
		other = feed(t, p, maker{Rand: rand.New(rand.NewPCG(seed, 0))})
	}
	packets := 1000
	if name == "bifrost" { // has more steps than the others
		packets = 6000
	}
	for i := range packets {
		in, frame := []func() (datapath.Port, []byte){derived, other}[i%2]()
		switch {
		case name == "interp/testdata/copies" && frame[0] == 7: // is cut to too few bytes for the kernel
			frame[0] = 4
		case name == "interp/testdata/state" && frame[0] == 11: // draws a random number
			frame[0] = 4
		}
		for len(frame) < 58 {
			frame = append(frame, 0)
		}
		kernel, golang, differ := p.differs(in, frame)
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
	x := target()
	r, err := difftest.NewRights(x, *rightsSeed)
	for n := 0; n < *rightsSteps/4 && err == nil; n++ {
		err = r.Step()
	}
	if err != nil {
		t.Error(err)
	}
}
