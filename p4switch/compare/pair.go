// Package compare runs a program on two executors, packet by packet: what leaves, and what is counted, must be the same. It is for tests.
package compare

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/inputs"
	"github.com/bifrost-rack/bifrost/p4switch/interp"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// Log is what leaves an executor, line by line. It is an executor's sink.
type Log struct {
	mu    sync.Mutex
	lines []string
}

// Add adds a line.
func (l *Log) Add(format string, a ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf(format, a...))
}

// Emit adds a frame that leaves by a port.
func (l *Log) Emit(port datapath.Port, b []byte) { l.Add("out %d: %x", port, b) }

// PacketIn implements datapath.Sink.
func (l *Log) PacketIn(b []byte) { l.Add("cpu: %x", b) }

// Digest implements datapath.Sink.
func (l *Log) Digest(d datapath.Digest) { l.Add("digest %s %x", d.Name, d.Fields) }

// Idle implements datapath.Sink: when entries are idle depends on the clock.
func (l *Log) Idle(datapath.Entry) {}

// Take returns the lines since the last call.
func (l *Log) Take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.lines
	l.lines = nil
	return s
}

// Executor is the one that is compared with the Go executor.
type Executor interface {
	datapath.Datapath
	// Test runs one frame; emit, or the sink, gets what leaves.
	Test(in datapath.Port, frame []byte, emit func(datapath.Port, []byte)) error
	// TableStats counts the lookups in every table with a key, by its name.
	TableStats() map[string]datapath.TableCounts
}

// Pair is a program on both executors.
type Pair struct {
	Prog   *v1model.Program
	Kernel Executor
	Golang *interp.Executor
	K, G   Log // what leaves each
	// Unordered: several packets may leave in any order.
	Unordered bool
}

// Start starts a program on the Go executor beside another one, whose sink must be the pair's K.
func (p *Pair) Start(t testing.TB, prog *v1model.Program, other Executor, cpu datapath.Port) {
	t.Helper()
	var err error
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	if p.Golang, err = interp.New(prog, interp.Config{CPUPort: cpu, Sink: &p.G, Logger: quiet}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Golang.Close() })
	p.Prog, p.Kernel = prog, other
}

// Both does the same to both, which must succeed.
func (p *Pair) Both(t testing.TB, f func(datapath.Datapath) error) {
	t.Helper()
	for _, x := range []datapath.Datapath{p.Kernel, p.Golang} {
		if err := f(x); err != nil {
			t.Fatal(err)
		}
	}
}

// Update makes an update on both; both must take it or refuse it.
func (p *Pair) Update(t testing.TB, op datapath.Op, e datapath.Entry) bool {
	t.Helper()
	a, b := p.Kernel.Apply(op, e), p.Golang.Apply(op, e)
	if (a == nil) != (b == nil) {
		t.Fatalf("op %d of %+v: kernel says %v, Go says %v", op, e, a, b)
	}
	return a == nil
}

// Differs runs a packet on both.
func (p *Pair) Differs(in datapath.Port, frame []byte) (kernel, golang []string, differ bool) {
	if err := p.Kernel.Test(in, bytes.Clone(frame), p.K.Emit); err != nil {
		p.K.Add("%v", err)
	}
	p.Golang.Process(in, bytes.Clone(frame), p.G.Emit)
	kernel, golang = p.K.Take(), p.G.Take()
	if p.Unordered {
		slices.Sort(kernel)
		slices.Sort(golang)
	}
	return kernel, golang, !slices.Equal(kernel, golang)
}

// Check runs a packet on both and reports a difference with the shortest packet
// that shows it.
func (p *Pair) Check(t testing.TB, in datapath.Port, frame []byte, replay string) {
	t.Helper()
	if _, _, differ := p.Differs(in, frame); !differ {
		return
	}
	frame = p.minimize(in, frame)
	k, g, _ := p.Differs(in, frame)
	t.Fatalf("port %d, packet %s\nkernel: %q\nGo:     %q\nreplay: %s", in, hex.EncodeToString(frame), k, g, replay)
}

// minimize cuts a packet's end and zeroes its bytes while the difference stays.
func (p *Pair) minimize(in datapath.Port, frame []byte) []byte {
	try := func(b []byte) bool {
		if len(b) < 14+40+4 {
			return false
		}
		_, _, differ := p.Differs(in, b)
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

// Derived compares both with entries and packets that are derived from the program, and then all counters.
func (p *Pair) Derived(t testing.TB, seed uint64, replay string) {
	t.Helper()
	a := inputs.New(p.Prog, seed)
	for range 60 {
		if e, ok := a.Entry(); ok {
			p.Update(t, []datapath.Op{datapath.Insert, datapath.Insert, datapath.Modify, datapath.Delete}[a.IntN(4)], e)
		}
	}
	for range 200 {
		in, frame := a.Packet()
		p.Check(t, datapath.Port(in), Testable(frame), replay)
	}
	p.Counters(t, nil, replay)
}

// Testable pads a frame that is too short for a test run in the kernel to take it.
func Testable(frame []byte) []byte {
	const least = 18 + 40
	return append(frame, make([]byte, max(0, least-len(frame)))...)
}

// Counters compares all counters of both.
func (p *Pair) Counters(t testing.TB, entries []datapath.Entry, replay string) {
	t.Helper()
	for _, c := range p.Prog.Counters {
		if c.Direct {
			continue
		}
		for i := range c.Size {
			a, err1 := p.Kernel.Counter(c.Name, i)
			b, err2 := p.Golang.Counter(c.Name, i)
			if a != b || err1 != nil || err2 != nil {
				t.Fatalf("counter %s[%d]: kernel %+v %v, Go %+v %v\nreplay: %s", c.Name, i, a, err1, b, err2, replay)
			}
		}
	}
	meters := []datapath.MeterCell{}
	for _, m := range p.Prog.Meters {
		for i := 0; !m.Direct && i < m.Size; i++ {
			meters = append(meters, datapath.MeterCell{Name: m.Name, Index: i})
		}
	}
	for i, e := range entries {
		if p.Prog.Table(e.Table).Meter != nil {
			meters = append(meters, datapath.MeterCell{Entry: &entries[i]})
		}
	}
	for _, m := range meters {
		a, err1 := p.Kernel.MeterCounts(m)
		b, err2 := p.Golang.MeterCounts(m)
		if a != b || (err1 == nil) != (err2 == nil) {
			t.Fatalf("meter %+v: kernel %+v %v, Go %+v %v\nreplay: %s", m, a, err1, b, err2, replay)
		}
	}
	if a, b := p.Kernel.TableStats(), p.Golang.TableStats(); !reflect.DeepEqual(a, b) {
		t.Fatalf("lookups: kernel %+v, Go %+v\nreplay: %s", a, b, replay)
	}
	for _, e := range entries {
		if !p.Prog.Table(e.Table).Counters {
			continue
		}
		a, err1 := p.Kernel.EntryCounts(e)
		b, err2 := p.Golang.EntryCounts(e)
		if a != b || (err1 == nil) != (err2 == nil) {
			t.Fatalf("entry %+v: kernel %+v %v, Go %+v %v\nreplay: %s", e, a, err1, b, err2, replay)
		}
	}
}
