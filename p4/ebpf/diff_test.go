//go:build linux

package ebpf

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"iter"
	"log/slog"
	mapsutil "maps"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/privilege"
	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/difftest"
	"github.com/bifrost-rack/bifrost/p4/inputs"
	"github.com/bifrost-rack/bifrost/p4/interp"
	"github.com/bifrost-rack/bifrost/p4/v1model"
)

// To run a difference again: go test ./p4/ebpf -run TestDifferential_Bifrost -seed N -rounds 1
var (
	seed   = flag.Uint64("seed", 1, "first seed of the generated packets and entries")
	rounds = flag.Int("rounds", 10, "seeds to try, each with entries of its own and 200 packets")

	compared = flag.String("compare", "", "TestDifferential_Any: a directory of compiled programs to run on both executors")
)

// needRoot skips where programs cannot be loaded into the kernel; CI can.
func needRoot(t testing.TB) {
	t.Helper()
	privilege.Need(t)
}

// log of what leaves an executor, for comparison.
type log struct {
	mu    sync.Mutex
	lines []string
}

func (l *log) add(format string, a ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf(format, a...))
}

func (l *log) emit(port datapath.Port, b []byte) { l.add("out %d: %x", port, b) }
func (l *log) PacketIn(b []byte)                 { l.add("cpu: %x", b) }
func (l *log) Digest(d datapath.Digest)          { l.add("digest %s %x", d.Name, d.Fields) }
func (l *log) Idle(datapath.Entry)               {}

func (l *log) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.lines
	l.lines = nil
	return s
}

// pair is a program on both executors.
type pair struct {
	prog   *v1model.Program
	kernel *Executor
	golang *interp.Executor
	k, g   log
	// unordered: several packets may leave in any order.
	unordered bool
}

// both does the same to both, which must succeed.
func (p *pair) both(t testing.TB, f func(datapath.Datapath) error) {
	t.Helper()
	for _, x := range []datapath.Datapath{p.kernel, p.golang} {
		if err := f(x); err != nil {
			t.Fatal(err)
		}
	}
}

func newPair(t testing.TB, prog *v1model.Program, cpu datapath.Port) *pair {
	t.Helper()
	return newPairWith(t, prog, Config{CPUPort: cpu})
}

// stale fills a packet's state, but for counters, with what an earlier packet could have left there: it must make no difference.
func stale(x *Executor) error {
	var states [][]byte // of every CPU
	if err := x.maps.state.Lookup(uint32(0), &states); err != nil {
		return err
	}
	for _, st := range states {
		for i := range st {
			if counts := i - x.counted; counts < 0 || counts >= tableStat*len(x.prog.Tables) {
				st[i] = byte(0xa5 + i%7)
			}
		}
	}
	return x.maps.state.Put(uint32(0), states)
}

// newPairWith is newPair with a configuration, but for the sink.
func newPairWith(t testing.TB, prog *v1model.Program, cfg Config) *pair {
	t.Helper()
	needRoot(t)
	p := &pair{prog: prog}
	cfg.Sink, cfg.Copies, cfg.before = &p.k, max(cfg.Copies, 256), stale
	var err error
	if p.kernel, err = New(prog, cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.kernel.Close(); err != nil {
			t.Error(err)
		}
	})
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	if p.golang, err = interp.New(prog, interp.Config{CPUPort: cfg.CPUPort, Sink: &p.g, Logger: quiet}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.golang.Close() })
	return p
}

// apply makes an update on both; both must take it or refuse it.
func (p *pair) apply(t testing.TB, op datapath.Op, e datapath.Entry) bool {
	t.Helper()
	a, b := p.kernel.Apply(op, e), p.golang.Apply(op, e)
	if (a == nil) != (b == nil) {
		t.Fatalf("op %d of %+v: kernel says %v, Go says %v", op, e, a, b)
	}
	return a == nil
}

// differs runs a packet on both.
func (p *pair) differs(in datapath.Port, frame []byte) (kernel, golang []string, differ bool) {
	if err := p.kernel.test(in, bytes.Clone(frame), p.k.emit); err != nil {
		p.k.add("%v", err)
	}
	p.golang.Process(in, bytes.Clone(frame), p.g.emit)
	kernel, golang = p.k.take(), p.g.take()
	if p.unordered {
		slices.Sort(kernel)
		slices.Sort(golang)
	}
	return kernel, golang, !slices.Equal(kernel, golang)
}

// check runs a packet on both and reports a difference with the shortest packet
// that shows it.
func (p *pair) check(t testing.TB, in datapath.Port, frame []byte, replay string) {
	t.Helper()
	if _, _, differ := p.differs(in, frame); !differ {
		return
	}
	frame = p.minimize(in, frame)
	k, g, _ := p.differs(in, frame)
	t.Fatalf("port %d, packet %s\nkernel: %q\nGo:     %q\nreplay: %s", in, hex.EncodeToString(frame), k, g, replay)
}

// minimize cuts a packet's end and zeroes its bytes while the difference stays.
func (p *pair) minimize(in datapath.Port, frame []byte) []byte {
	try := func(b []byte) bool {
		if len(b) < 14+40+4 {
			return false
		}
		_, _, differ := p.differs(in, b)
		return differ
	}
	for len(frame) > 0 && try(frame[:len(frame)-1]) {
		frame = frame[:len(frame)-1]
	}
	for i := range frame {
		b := bytes.Clone(frame)
		b[i] = 0
		if frame[i] != 0 && try(b) {
			frame = b
		}
	}
	return frame
}

// compareCounters compares all counters of both.
func (p *pair) compareCounters(t testing.TB, entries []datapath.Entry, replay string) {
	t.Helper()
	for _, c := range p.prog.Counters {
		if c.Direct {
			continue
		}
		for i := range c.Size {
			a, err1 := p.kernel.Counter(c.Name, i)
			b, err2 := p.golang.Counter(c.Name, i)
			if a != b || err1 != nil || err2 != nil {
				t.Fatalf("counter %s[%d]: kernel %+v %v, Go %+v %v\nreplay: %s", c.Name, i, a, err1, b, err2, replay)
			}
		}
	}
	meters := []datapath.MeterCell{}
	for _, m := range p.prog.Meters {
		for i := 0; !m.Direct && i < m.Size; i++ {
			meters = append(meters, datapath.MeterCell{Name: m.Name, Index: i})
		}
	}
	for i, e := range entries {
		if p.prog.Table(e.Table).Meter != nil {
			meters = append(meters, datapath.MeterCell{Entry: &entries[i]})
		}
	}
	for _, m := range meters {
		a, err1 := p.kernel.MeterCounts(m)
		b, err2 := p.golang.MeterCounts(m)
		if a != b || (err1 == nil) != (err2 == nil) {
			t.Fatalf("meter %+v: kernel %+v %v, Go %+v %v\nreplay: %s", m, a, err1, b, err2, replay)
		}
	}
	if a, b := p.kernel.TableStats(), p.golang.TableStats(); !reflect.DeepEqual(a, b) {
		t.Fatalf("lookups: kernel %+v, Go %+v\nreplay: %s", a, b, replay)
	}
	for _, e := range entries {
		if !p.prog.Table(e.Table).Counters {
			continue
		}
		a, err1 := p.kernel.EntryCounts(e)
		b, err2 := p.golang.EntryCounts(e)
		if a != b || (err1 == nil) != (err2 == nil) {
			t.Fatalf("entry %+v: kernel %+v %v, Go %+v %v\nreplay: %s", e, a, err1, b, err2, replay)
		}
	}
}

// maker makes packets and entries of Bifröst's program, and of the router.
type maker = difftest.Bifrost

// loaded is Bifröst's program, which all tests share: to load it takes a fifth of a second, and one with the race detector.
var loaded = sync.OnceValues(func() (*v1model.Program, error) { return v1model.Load(p4.JSON) })

func bifrost(t testing.TB) *v1model.Program {
	t.Helper()
	prog, err := loaded()
	if err != nil {
		t.Fatal(err)
	}
	return prog
}

func TestDifferential_Bifrost(t *testing.T) {
	for n := range *rounds {
		s := *seed + uint64(n)
		replay := fmt.Sprintf("go test ./p4/ebpf -run TestDifferential_Bifrost -seed %d -rounds 1", s)
		p := newPair(t, bifrost(t), p4.CPUPort)
		m := maker{Rand: rand.New(rand.NewPCG(s, 0))}
		var entries []datapath.Entry
		for range 200 {
			switch e := m.Entry(); m.IntN(8) {
			case 0:
				p.apply(t, datapath.Delete, e)
			case 1:
				p.apply(t, datapath.Modify, e)
			default:
				if p.apply(t, datapath.Insert, e) {
					entries = append(entries, e)
				}
			}
		}
		for range 200 {
			in := datapath.Port(m.Pick(1, 2, 3, 4, 1, 2, 3, 4, p4.CPUPort))
			p.check(t, in, m.Packet(in), replay)
		}
		p.compareCounters(t, entries, replay)
	}
}

// seeds are n seeds, each with the command that runs the test with it alone.
func seeds(t *testing.T, n int) iter.Seq2[uint64, string] {
	return func(yield func(uint64, string) bool) {
		for i := range n {
			s := *seed + uint64(i)
			if !yield(s, fmt.Sprintf("go test ./p4/ebpf -run %s -seed %d -rounds 1", t.Name(), s)) {
				return
			}
		}
	}
}

// Packets and entries that are derived from the program meet other corners than
// those made by somebody who knows it.
//
// With -compare DIR, all compiled programs there are run instead; those that eBPF
// cannot run are skipped, with the reason.
func TestDifferential_Any(t *testing.T) {
	needRoot(t)
	progs := map[string]string{"bifrost": "", "router": "testdata/router.json"}
	if *compared != "" {
		files, err := filepath.Glob(filepath.Join(*compared, "*.json"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no programs in %s: %v", *compared, err)
		}
		progs = map[string]string{}
		for _, f := range files {
			progs[strings.TrimSuffix(filepath.Base(f), ".json")] = f
		}
	}
	for _, name := range slices.Sorted(mapsutil.Keys(progs)) {
		t.Run(name, func(t *testing.T) {
			prog := bifrost(t)
			if progs[name] != "" {
				prog = load(t, progs[name])
			}
			if lacks := Lacks(prog, 0); len(lacks) > 0 && *compared != "" {
				t.Skip(&UnsupportedError{lacks})
			}
			for n := range max(*rounds/2, 1) {
				compareAny(t, name, prog, *seed+uint64(n))
			}
		})
	}
}

func compareAny(t *testing.T, name string, prog *v1model.Program, seed uint64) {
	t.Helper()
	replay := fmt.Sprintf("go test ./p4/ebpf -run 'TestDifferential_Any/^%s$' -seed %d -rounds 1", name, seed)
	p := newPair(t, prog, 0)
	p.unordered = *compared != "" // copies leave in any order
	a := inputs.New(prog, seed)
	for range 60 {
		if e, ok := a.Entry(); ok {
			p.apply(t, []datapath.Op{datapath.Insert, datapath.Insert, datapath.Modify, datapath.Delete}[a.IntN(4)], e)
		}
	}
	for range 200 {
		in, frame := a.Packet()
		if least := 18 + 40; len(frame) < least { // shorter ones cannot be tested
			frame = append(frame, make([]byte, least-len(frame))...)
		}
		p.check(t, datapath.Port(in), frame, replay)
	}
	p.compareCounters(t, nil, replay)
}
