//go:build linux

package ebpf

import (
	"flag"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/frame"
	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// To see that the test below can fail: go test ./p4/ebpf -run InFlight -no-barrier
var noBarrier = flag.Bool("no-barrier", false, "update tables without waiting for packets in flight")

var (
	nodeA = netip.MustParseAddr("fd00::a")
	nodeB = netip.MustParseAddr("fd00::b")
)

// datagram is a frame from node A to node B.
func datagram(port uint16) []byte {
	return frame.UDP6{Src: netip.AddrPortFrom(nodeA, 1), Dst: netip.AddrPortFrom(nodeB, port), Payload: []byte("x")}.Append(nil)
}

func whole(a netip.Addr) datapath.Match {
	b := a.As16()
	return datapath.Match{Value: b[:], PrefixLen: 128}
}

func known() datapath.Entry {
	return datapath.Entry{Table: "BifrostIngress.identity", Match: []datapath.Match{{Value: []byte{0, 1}}, whole(nodeA)},
		Action: &datapath.Action{Name: "BifrostIngress.known", Params: [][]byte{{0}}}}
}

func route() datapath.Entry {
	return datapath.Entry{Table: "BifrostIngress.l3", Match: []datapath.Match{whole(nodeB)},
		Action: &datapath.Action{Name: "BifrostIngress.to_hop", Params: [][]byte{{0, 1}}}}
}

func hop() datapath.Entry {
	return datapath.Entry{Table: "BifrostIngress.next_hop", Match: []datapath.Match{{Value: []byte{0, 1}}},
		Action: &datapath.Action{Name: "BifrostIngress.forward", Params: [][]byte{{0, 2}, make([]byte, 6), make([]byte, 6)}}}
}

// start makes an executor of Bifröst's program, with entries.
func start(t testing.TB, sink datapath.Sink, entries ...datapath.Entry) *Executor {
	t.Helper()
	needRoot(t)
	x, err := New(bifrost(t), Config{CPUPort: p4.CPUPort, Sink: sink})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, e := range entries {
		if err := x.Apply(datapath.Insert, e); err != nil {
			t.Fatal(err)
		}
	}
	return x
}

func verdicts(t testing.TB, x *Executor, i int) uint64 {
	t.Helper()
	c, err := x.Counter("BifrostIngress.verdicts", i)
	if err != nil {
		t.Fatal(err)
	}
	return c.Packets
}

// slow makes packets take their time between finding an entry and acting on it:
// in front of every access to a table, the clock is read many times.
func slow(code asm.Instructions) asm.Instructions {
	var out asm.Instructions
	for _, i := range code {
		if i.IsLoadFromMap() && i.Symbol() == "" && i.Dst == asm.R1 {
			for range 40 {
				out = append(out, asm.FnKtimeGetNs.Call())
			}
		}
		out = append(out, i)
	}
	return out
}

// No packet in flight is judged by a rule whose deletion has been answered.
func TestApply_NoPacketInFlightSeesTheOldRule(t *testing.T) {
	const forwarded, noRoute = 0, 4
	needRoot(t)
	x, err := New(bifrost(t), Config{CPUPort: p4.CPUPort, edit: slow})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	for _, e := range []datapath.Entry{known(), route(), hop()} {
		if err := x.Apply(datapath.Insert, e); err != nil {
			t.Fatal(err)
		}
	}
	var stop atomic.Bool
	var load sync.WaitGroup
	defer load.Wait()
	defer stop.Store(true)
	for range 2 {
		load.Go(func() { flood(t, x, &stop) })
	}
	apply := x.Apply
	if *noBarrier {
		apply = func(op datapath.Op, e datapath.Entry) error { return x.tables[e.Table].apply(op, &e) }
	}
	for range 300 {
		if err := apply(datapath.Delete, route()); err != nil {
			t.Fatal(err)
		}
		before, dropped := verdicts(t, x, forwarded), verdicts(t, x, noRoute)
		for verdicts(t, x, noRoute) < dropped+5 && !t.Failed() {
			runtime.Gosched()
		}
		if n := verdicts(t, x, forwarded) - before; n > 0 {
			t.Fatalf("%d packets were forwarded by a deleted rule", n)
		}
		if err := apply(datapath.Insert, route()); err != nil {
			t.Fatal(err)
		}
	}
}

// flood runs packets until it is stopped.
func flood(t *testing.T, x *Executor, stop *atomic.Bool) {
	data, out := datagram(7), make([]byte, 512)
	for !stop.Load() {
		ctx := skBuff{CB: [5]uint32{1 | testFlag}}
		// Every repetition goes on with what the one before left: a hop less.
		if _, err := x.main.Run(&ebpf.RunOptions{Data: data, DataOut: out, Context: &ctx, Repeat: 60}); err != nil {
			t.Error(err)
			return
		}
	}
}

// Concurrent updates share a visit of the CPUs; each of them waits.
func TestBarrier_Concurrent(t *testing.T) {
	var b barrier
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				if err := b.wait(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if b.running || b.next != nil {
		t.Errorf("it does not rest: %+v", &b)
	}
}

func TestParseCPUs(t *testing.T) {
	for in, want := range map[string][]int{"0": {0}, "0-3": {0, 1, 2, 3}, "0-1,4,6-7": {0, 1, 4, 6, 7}} {
		if got, err := parseCPUs(in); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "a", "1-", "-1", "70000"} {
		if got, err := parseCPUs(in); err == nil {
			t.Errorf("%q: %v", in, got)
		}
	}
}

func BenchmarkBarrier(b *testing.B) {
	var v barrier
	for b.Loop() {
		if err := v.wait(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkBarrier_Global(b *testing.B) {
	for b.Loop() {
		if err := globalBarrier(); err != nil {
			b.Fatal(err)
		}
	}
}
