package callgraph

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

var benchSizes = []int{10, 1_000, 100_000, 1_000_000}

// budget is what the design allows a million calls.
const budget = 1 << 30

// load makes calls as a busy rack has them: 1,000 nodes, 100 services, each call
// with a pointer of its own, two thirds of them nested, up to 8 deep, some to stateful services.
type load struct {
	n       uint64
	parents [64]struct {
		id    rpcpacket.ID
		depth int
	}
	now time.Time
}

func (l *load) id(n uint64) (id rpcpacket.ID) {
	binary.BigEndian.PutUint64(id[:], n*0x9E3779B97F4A7C15) // hashed ids are spread out
	binary.BigEndian.PutUint64(id[8:], n)
	return id
}

func (l *load) next() Call {
	l.n++
	l.now = l.now.Add(time.Microsecond)
	c := Call{
		ID: l.id(l.n), Caller: Node{rackaddr.Node(1 + l.n%1000), 1}, Callee: Node{rackaddr.Node(1 + l.n*7%1000), 1},
		Service: services[l.n%100], Method: "increment", Serial: l.n%100 < 10, Policy: rpcpacket.PolicyRecover,
		Pointers: []dsmpacket.Pointer{dsmpacket.Make(16, uint8(l.n), l.n<<12)},
	}
	depth := 0
	if p := l.parents[l.n%64]; l.n%3 > 0 && p.depth < 8 {
		c.Parent, depth = p.id, p.depth
	}
	p := &l.parents[rand.IntN(64)]
	p.id, p.depth = c.ID, depth+1
	return c
}

var services = func() (all []string) {
	for k := range 100 {
		all = append(all, fmt.Sprintf("Service%d", k))
	}
	return all
}()

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// fill sends n calls and returns their ids.
func fill(tb testing.TB, g *Graph, l *load, n int) []rpcpacket.ID {
	ids := make([]rpcpacket.ID, 0, n)
	for len(ids) < n {
		c := l.next()
		if err := g.Sent(c, l.now); err == nil {
			g.Delivered(c.ID, c.Callee, l.now)
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// BenchmarkCall is a call's whole life (four events) among so many others; it
// reports the time for one event and the memory for one call.
func BenchmarkCall(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprintf("active=%d", n), func(b *testing.B) {
			g, l := New(2*n), &load{now: time.Unix(100, 0)}
			before := heap()
			ids := fill(b, g, l, n)
			perCall := float64(heap()-before-uint64(16*n)) / float64(n)
			b.ResetTimer()
			for b.Loop() {
				k := rand.IntN(n)
				g.Finished(ids[k], l.now)
				g.Returned(ids[k], l.now)
				for {
					c := l.next()
					if err := g.Sent(c, l.now); err == nil {
						g.Delivered(c.ID, c.Callee, l.now)
						ids[k] = c.ID
						break
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(4*b.N), "ns/event")
			b.ReportMetric(perCall, "B/call")
		})
	}
}

// BenchmarkSlowest is what the slowest events cost while a million calls come.
func BenchmarkSlowest(b *testing.B) {
	const n = 1_000_000
	for b.Loop() {
		g, l := New(n), &load{now: time.Unix(100, 0)}
		took := make([]time.Duration, 0, n)
		for range n {
			c := l.next()
			at := time.Now()
			_ = g.Sent(c, l.now) // some are refused: deadlocks
			took = append(took, time.Since(at))
		}
		slices.Sort(took)
		b.ReportMetric(float64(took[n/2].Nanoseconds()), "p50-ns")
		b.ReportMetric(float64(took[n/1000*999].Nanoseconds()), "p99.9-ns")
		b.ReportMetric(float64(took[n-1].Nanoseconds()), "max-ns")
	}
}

// BenchmarkDeadlock is a call at the end of a chain of so many calls, half of
// them to stateful services: one that would wait for the first of them and is
// refused, and one to a service that is busy with something else.
func BenchmarkDeadlock(b *testing.B) {
	for _, depth := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprintf("chain=%d", depth), func(b *testing.B) {
			g, now := New(2*depth+10), time.Unix(100, 0)
			node := func(k int) Node { return Node{rackaddr.Node(uint64(k + 1)), 1} }
			l := &load{}
			for k := range depth {
				c := Call{ID: l.id(uint64(k + 1)), Caller: node(k), Callee: node(k + 1), Service: "S", Method: "m", Serial: k%2 == 0}
				if k > 0 {
					c.Parent = l.id(uint64(k))
				}
				if err := g.Sent(c, now); err != nil {
					b.Fatal(err)
				}
			}
			busy := Call{ID: l.id(9998), Caller: node(0), Callee: node(9999), Service: "S", Method: "m", Serial: true}
			if err := g.Sent(busy, now); err != nil {
				b.Fatal(err)
			}
			last := Call{
				ID: l.id(9999), Parent: l.id(uint64(depth)), Caller: node(depth), Callee: node(1), Service: "S", Method: "m", Serial: true,
			}
			b.Run("refused", func(b *testing.B) {
				for b.Loop() {
					if d := g.deadlock(&last); d == nil {
						b.Fatal("no deadlock")
					}
				}
			})
			last.Callee = busy.Callee
			b.Run("fine", func(b *testing.B) {
				for b.Loop() {
					if d := g.deadlock(&last); d != nil {
						b.Fatal(d)
					}
				}
			})
		})
	}
}

// BenchmarkDomain is a failure domain of one node among a million calls.
func BenchmarkDomain(b *testing.B) {
	g, l := New(1_000_000), &load{now: time.Unix(100, 0)}
	fill(b, g, l, 1_000_000)
	for b.Loop() {
		if d := g.Domain(Node{rackaddr.Node(2), 1}); len(d.Rerun) == 0 {
			b.Fatal("nothing there")
		}
	}
}

// TestMemoryBudget holds the design's promise: a million calls under way fit in
// 1 GiB.
func TestMemoryBudget(t *testing.T) {
	const n = 100_000
	g, l := New(n), &load{now: time.Unix(100, 0)}
	before := heap()
	fill(t, g, l, n)
	if used := heap() - before; used > budget*n/1_000_000 {
		t.Errorf("%d calls take %d bytes, a million of them more than %d", n, used, budget)
	}
	runtime.KeepAlive(g)
}
