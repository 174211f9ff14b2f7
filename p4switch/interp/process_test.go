package interp

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
)

// memory is a sink that remembers.
type memory struct {
	mu      sync.Mutex
	packets [][]byte
	digests []datapath.Digest
	idle    []datapath.Entry
}

func (m *memory) PacketIn(b []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.packets = append(m.packets, b)
}

func (m *memory) Digest(d datapath.Digest) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.digests = append(m.digests, d)
}

func (m *memory) Idle(e datapath.Entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.idle = append(m.idle, e)
}

// What goes out of the CPU port goes to the sink, to keep; what comes by
// PacketOut comes in by that port and leaves by the configured output.
func TestCPUPort(t *testing.T) {
	sink := &memory{}
	var out []string
	x := start(t, "copies", Config{CPUPort: 2, Sink: sink, Output: func(p datapath.Port, b []byte) {
		out = append(out, fmt.Sprintf("%d:%x", p, b))
	}})
	for i := range byte(2) {
		if got := process(x, 1, 0, 0, 0, 0, i); len(got) != 0 {
			t.Errorf("emitted %v", got)
		}
	}
	if len(sink.packets) != 2 || sink.packets[0][10] != 0 || sink.packets[1][10] != 1 {
		t.Errorf("sink got %x", sink.packets)
	}
	if err := x.PacketOut([]byte{10, 0, 0, 0}); err != nil { // exit with port 3
		t.Fatal(err)
	}
	if fmt.Sprint(out) != "[3:0004000002030a000000]" {
		t.Errorf("PacketOut emitted %v", out)
	}
	if got := x.Stats(); got.In != 3 || got.Out != 3 || got.ToCPU != 2 {
		t.Errorf("%+v", got)
	}
}

func TestNoCPUPort(t *testing.T) {
	x := start(t, "copies", Config{})
	if err := x.PacketOut([]byte{0, 0, 0, 0}); err == nil {
		t.Error("PacketOut without a CPU port")
	}
}

func TestCloneSessions(t *testing.T) {
	x := start(t, "copies", Config{})
	to := []datapath.Replica{{Port: 7, Instance: 0x1234}, {Port: 8}}
	if err := x.Clone(5, to, 8); err != nil {
		t.Fatal(err)
	}
	if got := process(x, 1, 8, 0, 0, 0, 0xaa, 0xbb); fmt.Sprint(got) != "[7:0006123400070800 8:0006000000080800]" {
		t.Errorf("clones, cut to 8 bytes: %v", got)
	}
	if err := x.Clone(5, nil, 0); err != nil {
		t.Fatal(err)
	}
	if got := process(x, 1, 8, 0, 0, 0); len(got) != 0 {
		t.Errorf("a session that was removed clones %v", got)
	}
	if err := x.Clone(maxSession+1, to, 0); err == nil {
		t.Error("a session beyond the largest")
	}
	for _, group := range []uint32{0, 1 << 16} {
		if err := x.Multicast(group, to); err == nil {
			t.Errorf("multicast group %d", group)
		}
	}
}

// A loop in an action that does not end loses the packet; one that ends does not.
func TestLoop_InAction(t *testing.T) {
	x := start(t, "forloop", Config{})
	if got := process(x, 1, 4, 255, 0, 0); len(got) != 0 {
		t.Errorf("emitted %v", got)
	}
	if got := process(x, 1, 4, 254, 0, 0); len(got) != 1 {
		t.Errorf("emitted %v", got)
	}
	if got := x.Stats(); got.Looped != 1 {
		t.Errorf("%+v", got)
	}
}

// A program that recirculates for ever loses the packet in the end, and the
// switch lives on.
func TestLoop(t *testing.T) {
	x := start(t, "loop", Config{})
	if got := process(x, 1, 0); len(got) != 0 {
		t.Errorf("emitted %v", got)
	}
	if got := x.Stats(); got.Looped == 0 {
		t.Errorf("%+v", got)
	}
	if got := process(x, 1, 1); fmt.Sprint(got) != "[2:01]" {
		t.Errorf("the next packet gave %v", got)
	}
	// A parser that makes no progress ends with an error.
	if got := process(x, 1, 2); fmt.Sprint(got) != "[2:ff]" {
		t.Errorf("endless parser: %v", got)
	}
}

func TestAssertAndLog(t *testing.T) {
	var log bytes.Buffer
	x := start(t, "loop", Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if got := process(x, 1, 3); len(got) != 0 {
		t.Errorf("emitted %v after a failed assertion", got)
	}
	if got := x.Stats(); got.Asserted != 1 {
		t.Errorf("%+v", got)
	}
	if s := log.String(); !strings.Contains(s, "assertion failed") || !strings.Contains(s, "h.h.op != 3") {
		t.Errorf("logged %s", s)
	}
	log.Reset()
	process(x, 1, 4)
	if s := log.String(); !strings.Contains(s, `msg="op 4, {port} 1, wide 340282366920938463463374607431768211455"`) {
		t.Errorf("logged %s", s)
	}
}

func TestTrace(t *testing.T) {
	var events []string
	x := start(t, "tables", Config{Tracer: tracerFunc(func(e Event) {
		s := fmt.Sprintf("%d:%d %s", e.Packet, e.Kind, e.Name)
		if e.Kind == TraceTable {
			s += fmt.Sprintf(" %v %s %v", e.Hit, e.Action, e.Entry != nil)
		}
		events = append(events, s)
	})})
	e := datapath.Entry{Table: "I.exact_two", Match: []datapath.Match{{Value: []byte{1}}, {Value: []byte{2, 3}}}, Action: act("set", 7)}
	if err := x.Apply(datapath.Insert, e); err != nil {
		t.Fatal(err)
	}
	process(x, 1, append([]byte{1, 1, 2, 3}, make([]byte, 16)...)...)
	process(x, 1, append([]byte{1, 9, 2, 3}, make([]byte, 16)...)...)
	process(x, 1, 1)
	all := strings.Join(events, "\n")
	for _, want := range []string{
		"1:1 ", "1:2 start", "1:4 ingress", "1:5 h.h.which == 1", "1:6 I.exact_two true I.set true", "1:4 egress", "1:10 ",
		"2:6 I.exact_two false I.miss false", "3:3 PacketTooShort",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("no event %q in\n%s", want, all)
		}
	}
}

type tracerFunc func(Event)

func (f tracerFunc) Trace(e Event) { f(e) }

// When Apply returns, no packet is judged by the old rule any more.
func TestWritesAreBarriers(t *testing.T) {
	x := start(t, "tables", Config{})
	e := datapath.Entry{Table: "I.exact_two", Match: []datapath.Match{{Value: []byte{1}}, {Value: []byte{2, 3}}}}
	e.Action = act("set", 0)
	if err := x.Apply(datapath.Insert, e); err != nil {
		t.Fatal(err)
	}
	var lowest atomic.Uint32 // the oldest rule that may still judge a packet
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			template := append([]byte{1, 1, 2, 3}, make([]byte, 16)...)
			frame := make([]byte, len(template))
			for {
				select {
				case <-stop:
					return
				default:
				}
				copy(frame, template)
				x.Process(1, frame, func(_ datapath.Port, b []byte) {
					if low := lowest.Load(); uint32(b[0]) < low {
						t.Errorf("judged by rule %d after rule %d was in force", b[0], low)
					}
				})
			}
		})
	}
	for rule := byte(1); rule < 200; rule++ {
		e.Action = act("set", rule)
		if err := x.Apply(datapath.Modify, e); err != nil {
			t.Error(err)
		}
		lowest.Store(uint32(rule))
	}
	close(stop)
	wg.Wait()
}

// Everything at once, for the race detector.
func TestConcurrent(t *testing.T) {
	x := start(t, "state", Config{Sink: &memory{}})
	e := datapath.Entry{Table: "I.direct", Match: []datapath.Match{{Value: []byte{7}}}, Action: act("metered")}
	var wg sync.WaitGroup
	for g := range byte(4) {
		wg.Go(func() {
			for i := range 300 {
				f := stateFrame([]byte{1, 2, 3, 4, 5, 11, 12, 30}[i%8], 7*(g%2))
				x.Process(1, f, nil)
			}
		})
	}
	wg.Go(func() {
		for range 100 {
			if err := x.Apply(datapath.Insert, e); err != nil {
				t.Error(err)
			}
			if _, err := x.EntryCounts(e); err != nil {
				t.Error(err)
			}
			if err := x.EntryMeter(e, &datapath.MeterConfig{CIR: 1, PIR: 2}); err != nil {
				t.Error(err)
			}
			if err := x.Apply(datapath.Delete, e); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Go(func() {
		for range 100 {
			_, _ = x.Register("I.sums", 0)
			_ = x.Meter("I.rate", 0, &datapath.MeterConfig{CIR: 1, PIR: 2})
			_, _ = x.Counter("I.seen", 0)
			_ = x.Stats()
			_ = x.TableStats()
		}
	})
	wg.Wait()
}

// An action that touches a register is atomic.
func TestRegisterActionsAreAtomic(t *testing.T) {
	x := start(t, "state", Config{})
	const each = 500
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range each {
				f := stateFrame(1, 2)
				f[5] = 1
				x.Process(1, f, nil)
			}
		})
	}
	wg.Wait()
	if got, _ := x.Register("I.sums", 2); fmt.Sprintf("%x", got) != fmt.Sprintf("%08x", 4*each) {
		t.Errorf("summed up to %x, not %08x", got, 4*each)
	}
}

func TestClosed(t *testing.T) {
	x := start(t, "copies", Config{})
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	if got := process(x, 1, 0, 0, 0, 0); len(got) != 0 {
		t.Errorf("a closed switch emits %v", got)
	}
}

// The payload may be anything, and frames are returned to the caller.
func TestJumbo(t *testing.T) {
	x := start(t, "copies", Config{})
	frame := make([]byte, 65535)
	frame[0] = 9
	copy(frame[4:], bytes.Repeat([]byte{0xab}, 65531))
	n := 0
	x.Process(1, frame, func(_ datapath.Port, b []byte) {
		n++
		if len(b) != 65535+6 || !bytes.Equal(b[10:], frame[4:]) {
			t.Errorf("%d bytes came out", len(b))
		}
	})
	if n != 1 {
		t.Errorf("%d packets came out", n)
	}
}
