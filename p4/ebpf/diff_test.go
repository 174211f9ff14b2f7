//go:build linux

package ebpf

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/interp"
	"github.com/bifrost-rack/bifrost/p4/v1model"
)

// To run a difference again: go test ./p4/ebpf -run TestDifferential_Bifrost -seed N -rounds 1
var (
	seed   = flag.Uint64("seed", 1, "first seed of the generated packets and entries")
	rounds = flag.Int("rounds", 20, "seeds to try, each with entries of its own and 200 packets")
)

// needRoot fails where CI must be able to load programs, and skips elsewhere.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: loads programs into the kernel")
	}
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
}

func newPair(t testing.TB, prog *v1model.Program, cpu datapath.Port) *pair {
	t.Helper()
	needRoot(t)
	p := &pair{prog: prog}
	var err error
	if p.kernel, err = New(prog, Config{CPUPort: cpu, Sink: &p.k}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.kernel.Close(); err != nil {
			t.Error(err)
		}
	})
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	if p.golang, err = interp.New(prog, interp.Config{CPUPort: cpu, Sink: &p.g, Logger: quiet}); err != nil {
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
	if err := p.kernel.test(in, bytes.Clone(frame), 0, p.k.emit); err != nil {
		p.k.add("%v", err)
	}
	p.golang.Process(in, bytes.Clone(frame), p.g.emit)
	kernel, golang = p.k.take(), p.g.take()
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

// maker makes packets and entries of Bifröst's program. Values come from small
// sets, so that packets and entries meet.
type maker struct{ *rand.Rand }

func (m maker) pick(vs ...uint64) uint64 { return vs[m.IntN(len(vs))] }

// address is one of few nodes, blades, services and pointers.
func (m maker) address() []byte {
	b := make([]byte, 16)
	if m.IntN(3) == 0 {
		b[4], b[5], b[6], b[7] = 1, byte(m.IntN(2)), byte(m.IntN(7)), byte(m.IntN(3))
		binary.BigEndian.PutUint64(b[8:], m.pick(0, 0x1000, 0x1fff, 0x2000, 1<<63))
		return b
	}
	copy(b, []byte{0xfd, 0, 0xb1, 0xf0, 0, 0, 0, byte(m.IntN(4))})
	b[15] = byte(m.IntN(4))
	return b
}

func (m maker) port() byte { return byte(1 + m.IntN(4)) }

// packet is a frame, mostly sensible.
func (m maker) packet(in datapath.Port) []byte {
	var b []byte
	put := func(v uint64, n int) {
		for i := n - 1; i >= 0; i-- {
			b = append(b, byte(v>>(8*i)))
		}
	}
	if in == p4.CPUPort {
		put(m.pick(0, 0, 1, 2, 9), 2)
		put(m.Uint64(), 2)
	}
	put(m.Uint64(), 6)
	put(m.Uint64(), 6)
	put(m.pick(0x86dd, 0x86dd, 0x86dd, 0x86dd, 0x86dd, 0x86dd, 0x0800, 0x8100), 2)
	put(m.pick(6, 6, 6, 6, 6, 6, 4)<<28|m.Uint64()&0xfffffff, 4)
	put(m.Uint64(), 2)
	put(m.pick(17, 17, 17, 17, 6, 58, 44, 0), 1)
	put(m.pick(64, 64, 64, 2, 1, 0), 1)
	b = append(b, m.address()...)
	b = append(b, m.address()...)
	put(m.pick(1000, 45100, 45101), 2)
	port := m.pick(45100, 45100, 45101, 45101, 45101, 45102, 7)
	put(port, 2)
	put(m.Uint64(), 4)
	switch port {
	case 45100:
		put(m.pick(0xb1fc, 0xb1fc, 0xb1fc, 0xb1fc, 0xb1fd), 2)
		put(m.pick(1, 1, 1, 1, 2), 1)
		put(m.pick(1, 1, 2, 3, 4, 5, 0), 1)
		put(m.pick(0, 0, 0, 4, 0x10, 0x20, 0xffff), 2)
		put(m.Uint64(), 2)
		put(0, 8)
		put(m.pick(1, 2), 8)
		for range 15 {
			put(m.Uint64(), 8)
		}
		b[len(b)-120-1+16+16] = 0
		binary.BigEndian.PutUint16(b[len(b)-8*15-24-8+106:], uint16(m.pick(0, 0, 0, 1)))
	case 45101:
		put(m.pick(0xb1fd, 0xb1fd, 0xb1fd, 0xb1fd, 0xb1fc), 2)
		put(m.pick(1, 1, 1, 1, 2), 1)
		put(m.Uint64(), 1)
		put(m.pick(0x0100, 0x0100, 0x0100, 0x0200, 0x0300), 2)
		for range 9 {
			put(m.Uint64(), 8)
		}
	}
	for range m.IntN(40) {
		b = append(b, byte(m.Uint64()))
	}
	// The kernel refuses to test frames that are shorter than their IP header;
	// the tests on real interfaces send those.
	if least := 18 + 40; m.IntN(8) == 0 {
		b = b[:least+m.IntN(len(b)-least)]
	}
	return b
}

// entry is an entry of one of the program's tables.
func (m maker) entry() datapath.Entry {
	num := func(v uint64, n int) []byte {
		b := make([]byte, 8)
		binary.BigEndian.PutUint64(b, v)
		return b[8-n:]
	}
	hop := func() *datapath.Action {
		return &datapath.Action{Name: "BifrostIngress.to_hop", Params: [][]byte{num(m.pick(0, 1, 2, 3, 4, 9), 2)}}
	}
	exact := func(b []byte) datapath.Match { return datapath.Match{Value: b} }
	lpm := func(b []byte, n ...uint64) datapath.Match {
		return datapath.Match{Value: b, PrefixLen: int(m.pick(n...))}
	}
	e := datapath.Entry{}
	switch m.IntN(6) {
	case 0:
		e.Table = "BifrostIngress.identity"
		e.Match = []datapath.Match{exact([]byte{0, m.port()}), lpm(m.address(), 128, 128, 64, 48, 0)}
		e.Action = &datapath.Action{Name: "BifrostIngress.known", Params: [][]byte{{byte(m.IntN(2))}}}
	case 1:
		e.Table, e.Action = "BifrostIngress.l3", hop()
		e.Match = []datapath.Match{lpm(m.address(), 128, 64, 48, 0)}
	case 2:
		e.Table, e.Action = "BifrostIngress.dsm_home", hop()
		e.Match = []datapath.Match{exact(m.address()[:6])}
	case 3:
		e.Table, e.Action = "BifrostIngress.dsm_access", &datapath.Action{Name: "BifrostIngress.permit"}
		e.Match = []datapath.Match{exact(m.address()), exact([]byte{byte(2 + m.IntN(3))}), exact([]byte{byte(m.IntN(2))}),
			lpm(num(m.pick(0, 0x1000, 0x2000), 8), 64, 52, 51, 0)}
	case 4:
		e.Table, e.Action = "BifrostIngress.rpc_route", hop()
		e.Match = []datapath.Match{exact(m.address()), exact(append(make([]byte, 15), byte(1+m.IntN(2)))),
			lpm([]byte{byte(m.Uint64())}, 0, 1, 2, 8)}
	default:
		e.Table = "BifrostIngress.next_hop"
		e.Match = []datapath.Match{exact(num(m.pick(0, 1, 2, 3, 4), 2))}
		e.Action = &datapath.Action{Name: "BifrostIngress.forward",
			Params: [][]byte{num(m.pick(1, 2, 3, 4, 510, 511), 2), num(m.Uint64()>>16, 6), num(m.Uint64()>>16, 6)}}
	}
	return e
}

func bifrost(t testing.TB) *v1model.Program {
	t.Helper()
	prog, err := v1model.Load(p4.JSON)
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
		m := maker{rand.New(rand.NewPCG(s, 0))}
		var entries []datapath.Entry
		for range 200 {
			switch e := m.entry(); m.IntN(8) {
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
			in := datapath.Port(m.pick(1, 2, 3, 4, 1, 2, 3, 4, p4.CPUPort))
			p.check(t, in, m.packet(in), replay)
		}
		p.compareCounters(t, entries, replay)
	}
}
