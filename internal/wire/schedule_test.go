package wire

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
)

// virtual runs f with a scheduled wire in virtual time.
func virtual(t *testing.T, seed uint64, onFrame func(Frame), f func(t *testing.T, n *Net)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		n := New(Config{Schedule: &Schedule{Seed: seed, Quiesce: synctest.Wait}, OnFrame: onFrame})
		n.Connect(n.Router())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { n.Run(ctx); close(done) }()
		f(t, n)
		cancel()
		<-done
	})
}

// collect reads until nothing has come for a minute and returns the payloads.
func collect(t *testing.T, c netio.Conn) (got []string) {
	t.Helper()
	ms := []netio.Message{{}}
	for {
		ms[0].Buf = make([]byte, 64)
		if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.ReadBatch(ms); err != nil {
			return got
		}
		got = append(got, string(ms[0].Buf))
	}
}

func numbered(n int) (s []string) {
	for i := range n {
		s = append(s, fmt.Sprintf("%04d", i))
	}
	return s
}

func TestImpairments(t *testing.T) {
	const frames = 2000
	type impaired struct {
		name   string
		impair Impairment
		check  func(t *testing.T, got []string, took time.Duration, s *LinkStats)
	}
	cases := []impaired{
		{"none", Impairment{}, func(t *testing.T, got []string, took time.Duration, _ *LinkStats) {
			if !slices.Equal(got, numbered(frames)) || took > time.Millisecond {
				t.Errorf("%d frames in %v", len(got), took)
			}
		}},
		{"delay and jitter keep the order", Impairment{Delay: time.Second, Jitter: time.Second},
			func(t *testing.T, got []string, took time.Duration, _ *LinkStats) {
				if !slices.Equal(got, numbered(frames)) || took < time.Second || took > 2*time.Second+time.Millisecond {
					t.Errorf("%d frames in %v", len(got), took)
				}
			}},
		{"loss", Impairment{Loss: 0.05}, func(t *testing.T, got []string, _ time.Duration, s *LinkStats) {
			if lost := frames - len(got); lost < frames/40 || lost > frames/10 || s.Lost.Load() != uint64(lost) || !slices.IsSorted(got) {
				t.Errorf("lost %d of %d, counted %d", lost, frames, s.Lost.Load())
			}
		}},
		{"duplicate", Impairment{Duplicate: 0.05}, func(t *testing.T, got []string, _ time.Duration, s *LinkStats) {
			copies := len(got) - frames
			slices.Sort(got)
			if copies < frames/40 || copies > frames/10 || s.Duplicated.Load() != uint64(copies) || len(slices.Compact(got)) != frames {
				t.Errorf("%d copies, counted %d", copies, s.Duplicated.Load())
			}
		}},
		{"reorder", Impairment{Reorder: 0.05}, func(t *testing.T, got []string, took time.Duration, s *LinkStats) {
			if len(got) != frames || slices.IsSorted(got) || s.Reordered.Load() < frames/40 || took > 2*time.Millisecond {
				t.Errorf("%d frames in %v, %d reordered", len(got), took, s.Reordered.Load())
			}
		}},
		{"late", Impairment{Late: 0.05}, func(t *testing.T, got []string, took time.Duration, s *LinkStats) {
			if len(got) != frames || slices.IsSorted(got) || s.Late.Load() < frames/40 || took < time.Second || took > 6*time.Second {
				t.Errorf("%d frames in %v, %d late", len(got), took, s.Late.Load())
			}
		}},
	}
	const ever = time.Duration(math.MaxInt64)
	for name, i := range map[string]Impairment{
		"a delay": {Delay: ever}, "delay and jitter": {Delay: ever, Jitter: ever}, "late": {Delay: time.Second, Late: 1, LateBy: ever},
		"reordered": {Delay: ever, Reorder: 1, ReorderBy: ever}, "copies": {Delay: ever, Duplicate: 1, ReorderBy: ever},
	} {
		cases = append(cases, impaired{name + " for ever", i, func(t *testing.T, got []string, _ time.Duration, _ *LinkStats) {
			if len(got) > 0 {
				t.Errorf("%d frames have come", len(got))
			}
		}})
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			virtual(t, 1, nil, func(t *testing.T, n *Net) {
				a, b := host(t, n, "a", 1), host(t, n, "b", 2)
				a.Impair(tc.impair, Impairment{Loss: 1})
				from, to := listen(t, a, "[::]:7"), listen(t, b, "[::]:9")
				start := time.Now()
				send(t, from, netip.AddrPortFrom(b.Address(), 9), numbered(frames)...)
				got := collect(t, to)
				up, _ := a.LinkStats()
				tc.check(t, got, time.Since(start)-time.Minute, up)
			})
		})
	}
}

// chatter lets hosts with several endpoints each flood one another with echoes of
// what they get, until frames die out, and returns the trace of all frames.
func chatter(t *testing.T, seed uint64) string {
	var trace strings.Builder
	var start time.Time
	record := func(f Frame) {
		u, err := frame.ParseUDP6(f.Data)
		if err != nil {
			t.Errorf("frame %d: %v", f.Seq, err)
		}
		fmt.Fprintf(&trace, "%d %v %s %s>%s %q\n", f.Seq, time.Since(start), f.Stage, u.Src, u.Dst, u.Payload)
	}
	virtual(t, seed, record, func(t *testing.T, n *Net) {
		start = time.Now()
		bad := Impairment{Delay: time.Millisecond, Jitter: time.Millisecond, Loss: 0.05, Duplicate: 0.02, Reorder: 0.05, Late: 0.05}
		const hosts, endpoints = 4, 3
		var conns []netio.Conn
		for i := range hosts {
			h := host(t, n, fmt.Sprint("h", i), datapath.Port(i+1))
			h.Impair(bad, bad)
			for e := range endpoints {
				conns = append(conns, listen(t, h, fmt.Sprintf("[fd00:b1f0:0:1::%d]:%d", i+1, 100+e)))
			}
		}
		ended := make(chan struct{})
		for i, c := range conns {
			go func() {
				defer func() { ended <- struct{}{} }()
				talk(c, conns, i)
			}()
		}
		for range conns {
			<-ended
		}
	})
	return trace.String()
}

// talk passes every datagram on to two others, with one hop less.
func talk(c netio.Conn, peers []netio.Conn, me int) {
	defer c.Close()
	out := []netio.Message{{Buf: []byte{5, byte(me)}, Remote: peers[(me+1)%len(peers)].LocalAddr()}}
	for {
		if _, err := c.WriteBatch(out); err != nil {
			return
		}
		in := []netio.Message{{Buf: make([]byte, 64)}}
		if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			return
		}
		if _, err := c.ReadBatch(in); err != nil {
			return
		}
		out = out[:0]
		if b := in[0].Buf; b[0] > 0 {
			for i := range 2 {
				next := peers[(me+int(b[1])+3*i+1)%len(peers)].LocalAddr()
				out = append(out, netio.Message{Buf: append([]byte{b[0] - 1, byte(me)}, b[1:]...), Remote: next})
			}
		}
	}
}

func TestSeedReplaysExactly(t *testing.T) {
	first := chatter(t, 7)
	if n := strings.Count(first, "\n"); n < 1000 {
		t.Fatalf("only %d lines of trace", n)
	}
	for range 3 {
		if again := chatter(t, 7); again != first {
			t.Fatal(firstDifference(first, again))
		}
	}
	if chatter(t, 8) == first {
		t.Error("another seed gave the same trace")
	}
}

func firstDifference(a, b string) string {
	as, bs := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(as), len(bs)) {
		if as[i] != bs[i] {
			return fmt.Sprintf("line %d: %s became %s", i, as[i], bs[i])
		}
	}
	return fmt.Sprintf("%d lines became %d", len(as), len(bs))
}

// TestEveryArrivalHasItsInstant, however many are sent at once.
func TestEveryArrivalHasItsInstant(t *testing.T) {
	var last time.Time
	virtual(t, 1, func(f Frame) {
		if f.Stage == Arriving {
			if now := time.Now(); !now.After(last) {
				t.Errorf("frame %d came at the instant of the one before", f.Seq)
			}
			last = time.Now()
		}
	}, func(t *testing.T, n *Net) {
		for i := range 3 {
			h := host(t, n, fmt.Sprint("h", i), datapath.Port(i+1))
			send(t, listen(t, h, "[::]:7"), netip.MustParseAddrPort("[fd00:b1f0:0:1::1]:9"), numbered(50)...)
		}
		collect(t, listen(t, n.Host("h0"), "[::]:9"))
	})
}

// TestCrashAtAFrame crashes the receiver before, and then after, a frame.
func TestCrashAtAFrame(t *testing.T) {
	for stage, want := range map[Stage]int{Arriving: 2, Arrived: 3} {
		var n *Net
		received := 0
		onFrame := func(f Frame) {
			if f.Stage == stage && f.Host == "b" && !f.ToSwitch && string(f.Data[frame.HeaderSize:]) == "0002" {
				n.Host("b").Crash()
			}
		}
		virtual(t, 1, onFrame, func(t *testing.T, net *Net) {
			n = net
			a, b := host(t, n, "a", 1), host(t, n, "b", 2)
			from, to := listen(t, a, "[::]:7"), listen(t, b, "[::]:9")
			done := make(chan struct{})
			go func() {
				defer close(done)
				for {
					if _, err := to.ReadBatch([]netio.Message{{Buf: make([]byte, 64)}}); err != nil {
						return
					}
					received++
				}
			}()
			send(t, from, netip.AddrPortFrom(b.Address(), 9), numbered(5)...)
			<-done
		})
		if received != want {
			t.Errorf("crashed at %s: %d datagrams read, want %d", stage, received, want)
		}
	}
}

// TestFramesInFlightDieWithTheLink: what was sent before a cut does not arrive
// after the link is back.
func TestFramesInFlightDieWithTheLink(t *testing.T) {
	virtual(t, 1, nil, func(t *testing.T, n *Net) {
		a, b := host(t, n, "a", 1), host(t, n, "b", 2)
		a.Impair(Impairment{Delay: time.Second}, Impairment{})
		from, to := listen(t, a, "[::]:7"), listen(t, b, "[::]:9")
		send(t, from, netip.AddrPortFrom(b.Address(), 9), "lost")
		a.SetLink(false)
		a.SetLink(true)
		send(t, from, netip.AddrPortFrom(b.Address(), 9), "arrives")
		if got := collect(t, to); !slices.Equal(got, []string{"arrives"}) {
			t.Errorf("got %q", got)
		}
	})
}

// TestScheduledInRealTime: without Quiesce the wire impairs in real time.
func TestScheduledInRealTime(t *testing.T) {
	n := New(Config{Schedule: &Schedule{Seed: 1}})
	n.Connect(n.Router())
	a, b := host(t, n, "a", 1), host(t, n, "b", 2)
	a.Impair(Impairment{Delay: 5 * time.Millisecond}, Impairment{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { n.Run(ctx); close(done) }()
	defer func() { cancel(); <-done }()
	from, to := listen(t, a, "[::]:7"), listen(t, b, "[::]:9")
	start := time.Now()
	send(t, from, netip.AddrPortFrom(b.Address(), 9), "hello")
	if m := read(t, to)[0]; string(m.Buf) != "hello" || time.Since(start) < 5*time.Millisecond {
		t.Errorf("got %q after %v", m.Buf, time.Since(start))
	}
}

func BenchmarkScheduledEvents(b *testing.B) {
	// synctest has no benchmarks; without Quiesce this measures the scheduler alone.
	n := New(Config{Schedule: &Schedule{Seed: 1}})
	n.Connect(func(datapath.Port, []byte) {})
	h, err := n.AddHost(HostConfig{Name: "a", Port: 1})
	if err != nil {
		b.Fatal(err)
	}
	s := n.scheduler
	s.start = time.Now()
	payload := make([]byte, 64)
	b.ReportAllocs()
	for b.Loop() {
		s.send(h.link.up, orderKey{}, payload)
		s.plan()
		s.next()
	}
}
