//go:build linux

package ebpf

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
)

// rule is an entry of testdata/ranges.p4; ports from 1 to 0 are any.
type rule struct {
	acl
	sport, dport [2]uint16
}

func (r *rule) entry() datapath.Entry {
	e := r.acl.entry()
	for i, of := range [][2]uint16{r.sport, r.dport} {
		be := binary.BigEndian
		e.Match[2+i] = datapath.Match{Value: be.AppendUint16(nil, of[0]), High: be.AppendUint16(nil, of[1])}
		if of[0] > of[1] {
			e.Match[2+i] = datapath.Match{Wildcard: true}
		}
	}
	return e
}

// TestRanges: whatever entries with ranges come, change and go, both executors find the same. The ranges are within few values, so that they
// overlap, are the same, or meet at a value, or reach to the ends of the field.
func TestRanges(t *testing.T) {
	prog := load(t, "testdata/ranges.json")
	for s, replay := range seeds(t, max(*rounds/3, 2)) {
		p, r := newPair(t, prog, 0), rand.New(rand.NewPCG(s, 4))
		port := func() uint16 {
			return []uint16{uint16(r.IntN(40)), uint16(1020 + r.IntN(8)), uint16(65535 - r.IntN(3)), uint16(r.Uint32())}[r.IntN(4)]
		}
		ports := func() [2]uint16 {
			switch a, b := port(), port(); r.IntN(5) {
			case 0:
				return [2]uint16{1, 0}
			case 1:
				return [2]uint16{a, a}
			case 2:
				return [2]uint16{0, b}
			default:
				return [2]uint16{min(a, b), max(a, b)}
			}
		}
		var there []datapath.Entry
		for i := range 600 {
			a := rule{acl{src: uint32(r.IntN(2)), srcMask: uint32(r.IntN(2)), proto: byte(6 * r.IntN(2)), priority: int32(1 + r.IntN(5)), rule: uint16(i)}, ports(), ports()}
			there = p.change(t, r, a.entry(), there)
			for range 4 {
				p.Check(t, 1, aclPacket(uint32(r.IntN(2)), 0, port(), port(), byte(6*r.IntN(2))), replay)
			}
		}
		p.Counters(t, there, replay)
		for _, e := range there {
			p.Update(t, datapath.Delete, e)
		}
		space := p.kernel.tables["I.acl"].layout.(*tupleSpace)
		if len(space.tuples)+len(space.byMask)+len(space.entries)+len(space.sharing) > 0 {
			t.Errorf("an empty table has %d tuples of %d masks, %d entries, %d shared bits", len(space.tuples), len(space.byMask), len(space.entries), len(space.sharing))
		}
		for at := space.plan.filterAt(); at < len(p.kernel.tables["I.acl"].maps.tuples.mem); at++ {
			if b := p.kernel.tables["I.acl"].maps.tuples.mem[at]; b != 0 {
				t.Fatalf("an empty table's filter has %#x at %d", b, at)
			}
		}
	}
}

// TestRanges_Apart: ranges that do not overlap are in as many tuples as there are sizes of blocks, however many they are.
func TestRanges_Apart(t *testing.T) {
	p, r := newPair(t, load(t, "testdata/ranges.json"), 0), rand.New(rand.NewPCG(*seed, 5))
	for low := 0; low < 1<<16; {
		high := min(low+r.IntN(60), 1<<16-1)
		a := rule{acl{priority: 1, rule: uint16(low)}, [2]uint16{1, 0}, [2]uint16{uint16(low), uint16(high)}} //nolint:gosec // within 16 bits
		p.Update(t, datapath.Insert, a.entry())
		low = high + 1
	}
	space := p.kernel.tables["I.acl"].layout.(*tupleSpace)
	if len(space.tuples) > 7 || len(space.entries) < 2000 {
		t.Errorf("%d entries are in %d tuples", len(space.entries), len(space.tuples))
	}
	for range 500 {
		p.Check(t, 1, aclPacket(0, 0, 0, uint16(r.Uint32()), 0), "")
	}
}

// BenchmarkRanges is a lookup among 10,000 entries with ranges, and an insertion. apart: ranges of one port, for each of 100 sources. any: two
// ranges of all lengths, for each of 100 sources.
func BenchmarkRanges(b *testing.B) {
	for _, kind := range []string{"apart", "any"} {
		p, r := newPair(b, load(b, "testdata/ranges.json"), 0), rand.New(rand.NewPCG(1, 6))
		var inserts []time.Duration
		for i := range 10_000 {
			low := uint16(i / 100 * 600)                                                                                                                       //nolint:gosec // below 60,000
			a := rule{acl{src: uint32(i % 100), srcMask: 0xffffffff, priority: int32(1 + i%1000)}, [2]uint16{1, 0}, [2]uint16{low, low + uint16(r.IntN(600))}} //nolint:gosec // small
			if kind == "any" {
				ports := func() [2]uint16 {
					x, y := uint16(r.Uint32()), uint16(r.Uint32())
					return [2]uint16{min(x, y), max(x, y)}
				}
				a.sport, a.dport = ports(), ports()
			}
			e := a.entry()
			began := time.Now()
			if err := p.kernel.Apply(datapath.Insert, e); err != nil {
				b.Fatal(err)
			}
			inserts = append(inserts, time.Since(began))
			if err := p.Golang.Apply(datapath.Insert, e); err != nil {
				b.Fatal(err)
			}
		}
		b.Run(kind, func(b *testing.B) {
			measureTuples(b, p, aclPacket(7, 0, 700, 601, 0), inserts)
			b.ReportMetric(float64(len(p.kernel.tables["I.acl"].layout.(*tupleSpace).tuples)), "tuples")
		})
	}
}
