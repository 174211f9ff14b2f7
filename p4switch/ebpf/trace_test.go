//go:build linux

package ebpf

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/compare"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/graph"
	"github.com/bifrost-rack/bifrost/p4switch/inputs"
	"github.com/bifrost-rack/bifrost/p4switch/trace"
)

// watched starts a trace on both executors.
func watched(t *testing.T, p *pair, spec trace.Spec) (kernel, golang *trace.Session) {
	t.Helper()
	k, err1 := p.kernel.Trace(spec)
	g, err2 := p.Golang.Trace(spec)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Stop)
	t.Cleanup(g.Stop)
	return k, g
}

// next is what a session tells next; "" if it tells nothing.
func next(t *testing.T, s *trace.Session, wait bool) string {
	t.Helper()
	if wait {
		return nextPacket(t, s).String()
	}
	select {
	case p := <-s.Packets():
		return p.String()
	default:
		return ""
	}
}

// nextPacket is the packet that a session tells of next.
func nextPacket(t *testing.T, s *trace.Session) *trace.Packet {
	t.Helper()
	select {
	case p := <-s.Packets():
		p.TimeNs = 0
		return p
	case <-time.After(patience):
		t.Fatal("no trace of the packet")
		return nil
	}
}

// TestTrace_Same: both executors tell the same of the same packets.
func TestTrace_Same(t *testing.T) {
	for _, name := range []string{"testdata/acl.json", "testdata/ranges.json", "testdata/router.json", "testdata/varbit.json", "testdata/turns.json", "testdata/match.json", "../interp/testdata/tables.json"} {
		t.Run(name, func(t *testing.T) {
			for s, replay := range seeds(t, max(*rounds/5, 1)) {
				prog := load(t, name)
				p, a := newPair(t, prog, 0), inputs.New(prog, s)
				for range 60 {
					if e, ok := a.Entry(); ok {
						p.Update(t, datapath.Insert, e)
					}
				}
				k, g := watched(t, p, trace.Spec{Rate: trace.MaxRate})
				for range 100 {
					in, frame := a.Packet()
					p.Check(t, datapath.Port(in), compare.Testable(frame), replay)
					kernel, golang := nextPacket(t, k), nextPacket(t, g)
					if kernel.String() != golang.String() && !kernel.Cut {
						t.Fatalf("kernel: %sGo: %sreplay: %s", kernel, golang, replay)
					}
				}
				k.Stop()
				g.Stop()
				if kc, gc := k.Counts(), g.Counts(); kc != gc || kc.Matched < 100 {
					t.Errorf("counts: kernel %+v, Go %+v", kc, gc)
				}
				p.Check(t, 1, make([]byte, 60), replay) // as before
				if kernel := next(t, k, false); kernel != "" {
					t.Errorf("traced after the end: %s", kernel)
				}
			}
		})
	}
}

// TestTrace_Filter: packets are traced that the filter lets through, and no others; the port by which they came, fields, masks, ranges, headers.
func TestTrace_Filter(t *testing.T) {
	for _, tc := range []struct {
		filter []string
		ports  string // that packets of a source and protocol come by, of 1 and 2
		src    []uint32
		traced int
	}{
		{nil, "12", []uint32{1, 2}, 4},
		{[]string{"port=2"}, "12", []uint32{1, 2}, 2},
		{[]string{"five.src=2"}, "12", []uint32{1, 2}, 2},
		{[]string{"hdr.five.src=0.0.0.2", "port=1"}, "12", []uint32{1, 2}, 1},
		{[]string{"src=10.1.0.0/16"}, "1", []uint32{0x0a010203, 0x0a020304, 0x0a01ffff}, 2},
		{[]string{"src=0x1&0xff"}, "1", []uint32{0x0a010201, 0x0a020304}, 1},
		{[]string{"src=5..7"}, "1", []uint32{4, 5, 6, 7, 8}, 3},
		{[]string{"five"}, "1", []uint32{4}, 1},
		{[]string{"result"}, "1", []uint32{4}, 0},
		{[]string{"result.rule=0"}, "1", []uint32{4}, 0},
	} {
		p := newPair(t, load(t, "testdata/acl.json"), 0)
		k, g := watched(t, p, trace.Spec{Filter: tc.filter, Rate: trace.MaxRate})
		for _, port := range tc.ports {
			for _, src := range tc.src {
				p.Check(t, datapath.Port(port-'0'), aclPacket(src, 0, 0, 0, 6), "")
			}
		}
		k.Stop()
		g.Stop()
		for who, s := range map[string]*trace.Session{"kernel": k, "Go": g} {
			if n := len(s.Packets()); n != tc.traced || s.Counts().Matched != uint64(n) {
				t.Errorf("%v: %s has traced %d packets of %+v, not %d", tc.filter, who, n, s.Counts(), tc.traced)
			}
		}
	}
}

// TestTrace_Bounded: a sample, and a bounded rate; who reads nothing has traces lost, never packets.
func TestTrace_Bounded(t *testing.T) {
	p := newPair(t, load(t, "testdata/acl.json"), 0)
	run := func(spec trace.Spec, n int) (kernel, golang trace.Counts, traced int) {
		k, g := watched(t, p, spec)
		for range n {
			p.Check(t, 1, aclPacket(1, 0, 0, 0, 6), "") // leaves as ever
		}
		k.Stop()
		g.Stop()
		return k.Counts(), g.Counts(), len(k.Packets())
	}
	if k, g, n := run(trace.Spec{Sample: 10, Rate: trace.MaxRate}, 100); n != 10 || k.Matched != 100 || k != g {
		t.Errorf("a sample of one of ten of 100: %d traced, kernel %+v, Go %+v", n, k, g)
	}
	if k, g, n := run(trace.Spec{Rate: 1}, 100); n > 3 || k.Skipped < 97 || g.Skipped < 97 || k.Lost > 0 {
		t.Errorf("one a second: %d traced, kernel %+v, Go %+v", n, k, g)
	}
	if k, g, n := run(trace.Spec{Rate: trace.MaxRate}, 1000); k.Lost == 0 || g.Lost == 0 || int(k.Lost)+n != 1000 { //nolint:gosec // small
		t.Errorf("nobody reads: %d wait, kernel %+v, Go %+v", n, k, g)
	}
}

// TestTrace_RingFull: what the kernel has no room for is counted.
func TestTrace_RingFull(t *testing.T) {
	p := newPair(t, load(t, "testdata/acl.json"), 0)
	s, err := p.kernel.Trace(trace.Spec{Rate: trace.MaxRate})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	if ret, _, err := p.kernel.running().Benchmark(aclPacket(1, 0, 0, 0, 6), 200_000, nil); err != nil || ret != actDrop {
		t.Fatalf("%d, %v", ret, err)
	}
	s.Stop()
	// Each is left out, lost, or waits to be read.
	if c := s.Counts(); c.Matched != 200_000 || c.Matched != c.Skipped+c.Lost+uint64(len(s.Packets())) {
		t.Errorf("%+v, %d wait", c, len(s.Packets()))
	}
}

// TestTrace_One: there is one trace at a time, it ends with the executor, and bad filters are refused.
func TestTrace_One(t *testing.T) {
	p := newPair(t, load(t, "testdata/acl.json"), 0)
	var bad *trace.FilterError
	for _, x := range []interface {
		Trace(spec trace.Spec) (*trace.Session, error)
	}{p.kernel, p.Golang} {
		if _, err := x.Trace(trace.Spec{Filter: []string{"nothing=1"}}); !errors.As(err, &bad) || !strings.Contains(err.Error(), "five.src") {
			t.Errorf("a field that there is not: %v", err)
		}
		s, err := x.Trace(trace.Spec{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := x.Trace(trace.Spec{}); !errors.Is(err, datapath.ErrExists) {
			t.Errorf("two at a time: %v", err)
		}
		s.Stop()
		s.Stop()
		if s, err = x.Trace(trace.Spec{}); err != nil {
			t.Fatal(err)
		}
		if err := x.(interface{ Close() error }).Close(); err != nil {
			t.Fatal(err)
		}
		<-s.Ended()
		if _, err := x.Trace(trace.Spec{}); err == nil {
			t.Error("a closed executor traces")
		}
	}
}

// TestTrace_Free: without a trace the program is the same, instruction for instruction, and after one it is what packets run through again.
func TestTrace_Free(t *testing.T) {
	p := newPair(t, load(t, "testdata/acl.json"), 0)
	before := len(programOf(t, p.kernel, nil))
	s, err := p.kernel.Trace(trace.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if during := len(programOf(t, p.kernel, p.kernel.tracing.traced)); during <= before {
		t.Errorf("the program that traces has %d instructions, the usual one %d", during, before)
	}
	s.Stop()
	if p.kernel.running() != p.kernel.main {
		t.Error("packets still run through the program that traces")
	}
	var id uint32
	if err := p.kernel.slot.Lookup(uint32(0), &id); err != nil {
		t.Fatal(err)
	}
	info, err := p.kernel.main.Info()
	if err != nil {
		t.Fatal(err)
	}
	if want, _ := info.ID(); uint32(want) != id {
		t.Errorf("the slot has program %d, not %d", id, want)
	}
}

// programOf is the code of an executor's program, with a trace or without.
func programOf(t *testing.T, x *Executor, traced *tracing) (names []string) {
	t.Helper()
	g := newGen(x.prog, x.cpu, x.cells)
	g.objs = x.objects()
	if traced != nil {
		again := *traced
		again.points = nil
		g.traced, g.tableOf = &again, nil
	}
	g.program()
	for _, i := range g.finish() {
		names = append(names, i.OpCode.String())
	}
	return names
}

// TestTrace_Members: both executors tell the same of tables whose actions are those of members, and of groups of them; and packets went the same way.
func TestTrace_Members(t *testing.T) {
	prog := load(t, "../interp/testdata/tables.json")
	p := newPair(t, prog, 0)
	member, group := uint32(1), uint32(2)
	for _, name := range []string{"I.chosen", "I.shared"} {
		profile := prog.Table(name).Profile.Name
		p.Both(t, func(x datapath.Datapath) error {
			if err := x.Member(datapath.Insert, profile, member, datapath.Action{Name: "I.set", Params: [][]byte{{7}}}); err != nil {
				return err
			}
			if name == "I.shared" { // has no groups
				return nil
			}
			return x.Group(datapath.Insert, profile, group, map[uint32]int{member: 1})
		})
		for i := range byte(2) {
			e := datapath.Entry{Table: name, Match: []datapath.Match{{Value: []byte{i}}}, Member: &member}
			if i == 1 && name == "I.chosen" {
				e.Member, e.Group = nil, &group
			}
			p.Update(t, datapath.Insert, e)
		}
	}
	k, g := watched(t, p, trace.Spec{Rate: trace.MaxRate})
	graph, met := graph.Of(prog), 0
	for i := range 16 {
		frame := make([]byte, 60)
		frame[0] = byte(9 + i%2) // the tables
		frame[1] = byte(i / 2 % 4)
		p.Check(t, 1, frame, t.Name())
		kernel, golang := nextPacket(t, k), nextPacket(t, g)
		if kernel.String() != golang.String() {
			t.Fatalf("kernel: %sGo: %s", kernel, golang)
		}
		a, b := graph.Way(kernel), graph.Way(golang)
		if !reflect.DeepEqual(a, b) || len(a) == 0 || graph.Parts[a[len(a)-1].Part].Rows[a[len(a)-1].Row].Kind != "end" {
			t.Fatalf("kernel %+v\nGo %+v\n%s", a, b, kernel)
		}
		if strings.Contains(kernel.String(), "I.set") {
			met++
		}
	}
	if met == 0 {
		t.Error("no packet met a member")
	}
}
