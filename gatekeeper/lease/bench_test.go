package lease

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// crowd makes a Machine with n regions, each lent by a call that is out.
func crowd(n int) *Machine {
	m := New()
	for i := range 64 {
		m.AddNode(rackaddr.Node(uint64(i) + 1))
	}
	for i := range n {
		node := rackaddr.Node(uint64(i%64) + 1)
		r := dsmpacket.Region{Base: dsmpacket.Make(rackaddr.DefaultDSMPrefix, uint8(i%3)+1, dsmpacket.IDOf(uint32(i+1), 1)), Class: 12}
		drain(m, m.Submit(Alloc{node, r}, nil))
		drain(m, m.Submit(Call{ID: numbered(uint64(i) + 1), Caller: node, Callee: rackaddr.Node(uint64(i+1)%64 + 1), Pointers: []dsmpacket.Pointer{r.Base}}, nil))
	}
	return m
}

func numbered(n uint64) (id CallID) {
	binary.BigEndian.PutUint64(id[8:], n)
	return id
}

// drain carries out transitions until there are none.
func drain(m *Machine, steps []Step) {
	for len(steps) > 0 {
		s := steps[0]
		steps = steps[1:]
		if s.ID != 0 {
			steps = append(steps, m.Done(s.ID)...)
		}
	}
}

// BenchmarkCallReply is one call with a pointer and its reply, with so many
// regions and calls beside it.
func BenchmarkCallReply(b *testing.B) {
	for _, n := range []int{10, 1000, 100_000, 1_000_000} {
		b.Run(fmt.Sprintf("others=%d", n), func(b *testing.B) {
			m := crowd(n)
			a, c := rackaddr.Node(1), rackaddr.Node(2)
			r := dsmpacket.Region{Base: dsmpacket.Make(rackaddr.DefaultDSMPrefix, 9, dsmpacket.IDOf(1, 1)), Class: 12}
			drain(m, m.Submit(Alloc{a, r}, nil))
			id := CallID{0xff}
			ps := []dsmpacket.Pointer{r.Base}
			b.ReportAllocs()
			for b.Loop() {
				drain(m, m.Submit(Call{ID: id, Caller: a, Callee: c, Pointers: ps}, nil))
				drain(m, m.Submit(Reply{ID: id, Caller: a, Callee: c}, nil))
			}
		})
	}
}

// BenchmarkHotRegion is the same on a region that so many other calls lend.
func BenchmarkHotRegion(b *testing.B) {
	for _, n := range []int{1, 1000, 100_000} {
		b.Run(fmt.Sprintf("leases=%d", n), func(b *testing.B) {
			m := crowd(1)
			a, c := rackaddr.Node(1), rackaddr.Node(2)
			ps := []dsmpacket.Pointer{dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(1, 1))}
			for i := range n {
				drain(m, m.Submit(Call{ID: numbered(uint64(i) + 1000), Caller: a, Callee: c, Pointers: ps}, nil))
			}
			id := CallID{0xff}
			b.ReportAllocs()
			for b.Loop() {
				drain(m, m.Submit(Call{ID: id, Caller: a, Callee: c, Pointers: ps}, nil))
				drain(m, m.Submit(Reply{ID: id, Caller: a, Callee: c}, nil))
			}
		})
	}
}

// BenchmarkMemory reports what a region with one lease takes.
func BenchmarkMemory(b *testing.B) {
	const n = 200_000
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	m := crowd(n)
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/n, "B/region")
	runtime.KeepAlive(m)
}
