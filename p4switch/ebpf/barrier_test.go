//go:build linux

package ebpf

import (
	"flag"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/internal/sample"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// To see that the test below can fail: go test ./p4switch/ebpf -run TestSettle_NoPacketInFlightSeesTheOldRule -no-barrier
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
	return datapath.Entry{Table: "SampleIngress.identity", Match: []datapath.Match{{Value: []byte{0, 1}}, whole(nodeA)},
		Action: &datapath.Action{Name: "SampleIngress.known", Params: sample.Row(1)}}
}

// at lets a node speak at a port.
func at(port byte, a netip.Addr) datapath.Entry {
	e := known()
	e.Match = []datapath.Match{{Value: []byte{0, port}}, whole(a)}
	return e
}

func route() datapath.Entry {
	return datapath.Entry{Table: "SampleIngress.l3", Match: []datapath.Match{whole(nodeB)},
		Action: &datapath.Action{Name: "SampleIngress.to_hop", Params: [][]byte{{0, 1}}}}
}

func hop() datapath.Entry {
	return datapath.Entry{Table: "SampleIngress.next_hop", Match: []datapath.Match{{Value: []byte{0, 1}}},
		Action: &datapath.Action{Name: "SampleIngress.forward", Params: [][]byte{{0, 2}, make([]byte, 6), make([]byte, 6)}}}
}

// start makes an executor of the sample program, with entries.
func start(t testing.TB, sink datapath.Sink, entries ...datapath.Entry) *Executor {
	t.Helper()
	needRoot(t)
	x, err := New(sampled(t), Config{CPUPort: sample.CPUPort, Sink: sink})
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

// verdicts counts the packets of a test's ports that had a verdict.
func verdicts(t testing.TB, x *Executor, v sample.Verdict) (n uint64) {
	t.Helper()
	for port := range uint16(8) {
		c, err := x.Counter("SampleIngress.verdicts", v.Cell(port))
		if err != nil {
			t.Fatal(err)
		}
		n += c.Packets
	}
	return n
}

// slow makes packets take their time between finding an entry and acting on it:
// in front of every access to a table, the clock is read many times.
func slow(code asm.Instructions) asm.Instructions { return slower(code, 40) }

func slower(code asm.Instructions, times int) asm.Instructions {
	var out asm.Instructions
	for _, i := range code {
		if i.IsLoadFromMap() && i.Symbol() == "" && i.Dst == asm.R1 {
			for range times {
				out = append(out, asm.FnKtimeGetNs.Call())
			}
		}
		out = append(out, i)
	}
	return out
}

// No packet in flight is judged by a rule whose deletion has settled.
func TestSettle_NoPacketInFlightSeesTheOldRule(t *testing.T) {
	needRoot(t)
	x, err := New(sampled(t), Config{CPUPort: sample.CPUPort, edit: slow})
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
	apply := func(op datapath.Op, e datapath.Entry) error {
		err := x.Apply(op, e)
		if !*noBarrier {
			x.Synchronize()
		}
		return err
	}
	for range 300 {
		if err := apply(datapath.Delete, route()); err != nil {
			t.Fatal(err)
		}
		before, dropped := verdicts(t, x, sample.Forwarded), verdicts(t, x, sample.NoRoute)
		for verdicts(t, x, sample.NoRoute) < dropped+5 && !t.Failed() {
			runtime.Gosched()
		}
		if n := verdicts(t, x, sample.Forwarded) - before; n > 0 {
			t.Fatalf("%d packets were forwarded by a deleted rule", n)
		}
		if err := apply(datapath.Insert, route()); err != nil {
			t.Fatal(err)
		}
	}
}

// flood runs packets until it is stopped.
func flood(t testing.TB, x *Executor, stop *atomic.Bool) {
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

// Waits run beside each other and beside packets.
func TestSettle_Concurrent(t *testing.T) {
	x := start(t, nil, known(), route(), hop())
	var stop atomic.Bool
	var load, waits sync.WaitGroup
	load.Go(func() { flood(t, x, &stop) })
	for range 4 {
		waits.Go(func() {
			for range 200 {
				x.Synchronize()
			}
		})
	}
	waits.Wait()
	stop.Store(true)
	load.Wait()
	for cpu := range len(x.epochs.mem) / epochSize {
		if in, out := *x.epochs.word(cpu, epochEntered), *x.epochs.word(cpu, epochLeft); in != out {
			t.Errorf("CPU %d: %d packets came in, %d left", cpu, in, out)
		}
	}
}

// A packet that is under way is waited for; one that comes later is not.
func TestSettle_WaitsForWhoIsInside(t *testing.T) {
	x := start(t, nil)
	inside := x.epochs.word(0, epochEntered)
	atomic.AddUint64(inside, 1)
	done := make(chan struct{})
	go func() { x.Synchronize(); close(done) }()
	for x.epochs.mu.TryLock() { // until it waits
		x.epochs.mu.Unlock()
		runtime.Gosched()
	}
	select {
	case <-done:
		t.Fatal("it did not wait")
	default:
	}
	atomic.AddUint64(inside, 1)
	atomic.AddUint64(x.epochs.word(0, epochLeft), 1)
	<-done
	atomic.AddUint64(x.epochs.word(0, epochLeft), 1)
}

// What a Synchronize takes, with packets on no other CPU and on two. (It was 45 µs to
// 1 ms by running a thread on each CPU, and 8 to 16 ms by membarrier.)
func BenchmarkSettle(b *testing.B) {
	for _, busy := range []int{0, 2} {
		b.Run(fmt.Sprintf("busy=%d", busy), func(b *testing.B) {
			x := start(b, nil, known(), route(), hop())
			var stop atomic.Bool
			var load sync.WaitGroup
			for range busy {
				load.Go(func() { flood(b, x, &stop) })
			}
			var took []time.Duration
			for b.Loop() {
				begin := time.Now()
				x.Synchronize()
				took = append(took, time.Since(begin))
			}
			stop.Store(true)
			load.Wait()
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns")
			b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns")
		})
	}
}
