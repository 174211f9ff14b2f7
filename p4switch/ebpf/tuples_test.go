//go:build linux

package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
)

// acl is an entry of testdata/acl.p4: of five fields, each with a mask; proto 0 is any.
type acl struct {
	src, srcMask, dst, dstMask         uint32
	sport, sportMask, dport, dportMask uint16
	proto                              byte
	priority                           int32
	rule                               uint16
}

func (a *acl) entry() datapath.Entry {
	w := func(v, mask uint32) datapath.Match {
		be := binary.BigEndian
		return datapath.Match{Value: be.AppendUint32(nil, v&mask), Mask: be.AppendUint32(nil, mask)}
	}
	h := func(v, mask uint16) datapath.Match {
		be := binary.BigEndian
		return datapath.Match{Value: be.AppendUint16(nil, v&mask), Mask: be.AppendUint16(nil, mask)}
	}
	proto := datapath.Match{Value: []byte{a.proto}}
	if a.proto == 0 {
		proto = datapath.Match{Wildcard: true}
	}
	return datapath.Entry{
		Table: "I.acl", Priority: a.priority, Match: []datapath.Match{w(a.src, a.srcMask), w(a.dst, a.dstMask), h(a.sport, a.sportMask), h(a.dport, a.dportMask), proto},
		Action: &datapath.Action{Name: "I.take", Params: [][]byte{{byte(a.rule >> 8), byte(a.rule)}}},
	}
}

func aclPacket(src, dst uint32, sport, dport uint16, proto byte) []byte {
	be := binary.BigEndian
	b := be.AppendUint32(be.AppendUint32(nil, src), dst)
	b = be.AppendUint16(be.AppendUint16(b, sport), dport)
	return append(append(b, proto, 0), make([]byte, 46)...)
}

// TestTuples: whatever entries come, change and go, both executors find the same: with few values, so that many entries match a packet, have one
// mask, or differ in their priority alone.
func TestTuples(t *testing.T) {
	prog := load(t, "testdata/acl.json")
	for s, replay := range seeds(t, max(*rounds/3, 2)) {
		p := newPair(t, prog, 0)
		r := rand.New(rand.NewPCG(s, 1))
		few := func(v ...uint32) uint32 { return v[r.IntN(len(v))] }
		var there []datapath.Entry
		for i := range 400 {
			a := acl{
				src: few(1, 2, 1<<24, 1<<24|1), srcMask: few(0, 0xff000000, 0xffffffff, 1), dst: few(1, 2), dstMask: few(0, 0xffffffff),
				sport: uint16(few(1, 2)), sportMask: uint16(few(0, 0xffff)), proto: byte(few(0, 6, 17)), priority: int32(few(1, 2, 3, 1<<31-1)), rule: uint16(i),
			}
			there = p.change(t, r, a.entry(), there)
			for range 4 {
				p.Check(t, 1, aclPacket(few(1, 2, 1<<24, 1<<24|1, 7), few(1, 2, 3), uint16(few(1, 2, 3)), 9, byte(few(6, 17, 1))), replay)
			}
		}
		p.Counters(t, there, replay)
	}
}

// TestTuples_Goes: a tuple goes with its last entry, and an entry that only another one of a higher priority hid is there again.
func TestTuples_Goes(t *testing.T) {
	p := newPair(t, load(t, "testdata/acl.json"), 0)
	packet := aclPacket(1, 2, 3, 4, 6)
	high, low := acl{src: 1, srcMask: 0xffffffff, priority: 9, rule: 1}, acl{src: 1, srcMask: 0xffffffff, priority: 5, rule: 2}
	wide := acl{priority: 7, rule: 3}
	for _, a := range []acl{low, high, wide} {
		p.Update(t, datapath.Insert, a.entry())
		p.Check(t, 1, packet, "")
	}
	space := p.kernel.tables["I.acl"].layout.(*tupleSpace)
	if len(space.tuples) != 3 || space.tuples[0].top < space.tuples[1].top || space.tuples[1].top < space.tuples[2].top {
		t.Fatalf("%d tuples, or out of order", len(space.tuples))
	}
	for left, a := range []acl{wide, low, high} {
		p.Update(t, datapath.Delete, []acl{high, wide, low}[left].entry())
		p.Check(t, 1, packet, "")
		if len(space.tuples) != 2-left || len(space.byMask) > 2-left {
			t.Errorf("without rule %d: %d tuples, %d masks", a.rule, len(space.tuples), len(space.byMask))
		}
	}
	if err := p.kernel.Apply(datapath.Delete, high.entry()); !errors.Is(err, datapath.ErrNotFound) {
		t.Errorf("an entry goes twice: %v", err)
	}
}

// BenchmarkTuples is a lookup among 10,000 entries of the worst kind, which the last tuple has, and an insertion, in tables with so many masks.
func BenchmarkTuples(b *testing.B) {
	for _, masks := range []int{1, 8, 32, 128, 1024, 8192} {
		p := newPair(b, load(b, "testdata/acl.json"), 0)
		entry := func(i int) datapath.Entry {
			m := uint32(i % masks)
			a := acl{src: uint32(i)*2654435761 | 1, srcMask: 0xffff0000 | m, dst: uint32(i), dstMask: 0xffffffff, priority: int32(1 + i%1000), rule: uint16(i)} //nolint:gosec // any values
			a.src |= 1 << 16
			return a.entry()
		}
		var inserts []time.Duration
		for i := range 10_000 {
			e := entry(i)
			began := time.Now()
			if err := p.kernel.Apply(datapath.Insert, e); err != nil {
				b.Fatal(err)
			}
			inserts = append(inserts, time.Since(began))
			if err := p.Golang.Apply(datapath.Insert, e); err != nil {
				b.Fatal(err)
			}
		}
		b.Run(fmt.Sprint("masks=", masks), func(b *testing.B) {
			measureTuples(b, p, aclPacket(0, 0, 0, 0, 0), inserts)
		})
	}
}

// measureTuples reports how long a packet takes, and how long the insertions took.
func measureTuples(b *testing.B, p *pair, packet []byte, inserts []time.Duration) {
	slices.Sort(inserts)
	var took []time.Duration
	for b.Loop() {
		_, d, err := p.kernel.main.Benchmark(packet, 250, nil)
		if err != nil {
			b.Fatal(err)
		}
		took = append(took, d)
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "ns/packet")
	const packets = 2000
	began := time.Now()
	for range packets {
		p.Golang.Process(1, packet, func(datapath.Port, []byte) {})
	}
	b.ReportMetric(float64(time.Since(began).Nanoseconds()/packets), "Go-ns/packet")
	b.ReportMetric(float64(inserts[len(inserts)/2].Nanoseconds()), "ns/insert")
	b.ReportMetric(float64(inserts[len(inserts)*99/100].Nanoseconds()), "p99-ns/insert")
}

// TestTuples_Full: a table takes entries with as many masks as it may have, says so when it has them, and goes on with those.
func TestTuples_Full(t *testing.T) {
	p := newPair(t, load(t, "testdata/acl.json"), 0)
	entry := func(i int) datapath.Entry {
		a := acl{src: 1 << 31, srcMask: 1<<31 | uint32(i), priority: 1, rule: uint16(i)} //nolint:gosec // small
		return a.entry()
	}
	room := p.kernel.tables["I.acl"].scan.room
	for i := range room {
		if err := p.kernel.Apply(datapath.Insert, entry(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.kernel.Apply(datapath.Insert, entry(room)); !errors.Is(err, datapath.ErrFull) {
		t.Errorf("one mask too many: %v", err)
	}
	if err := p.kernel.Apply(datapath.Delete, entry(3)); err != nil {
		t.Error(err)
	}
	if err := p.kernel.Apply(datapath.Insert, entry(room)); err != nil {
		t.Errorf("a mask in the place of another one: %v", err)
	}
}

// TestTuples_Inherited: the next executor's entries go on with the counters that they had.
func TestTuples_Inherited(t *testing.T) {
	prog, dir := load(t, "testdata/acl.json"), filepath.Join(pinFS, fmt.Sprint("bifrost-tuples-", os.Getpid()))
	p := newPair(t, prog, 0)
	entries := []datapath.Entry{
		(&acl{src: 1, srcMask: 0xffffffff, priority: 9}).entry(), (&acl{src: 1, srcMask: 0xffffffff, priority: 5}).entry(), (&acl{priority: 7}).entry(),
	}
	for i := range entries {
		p.Update(t, datapath.Insert, entries[i])
	}
	for src := range uint32(3) {
		p.Check(t, 1, aclPacket(src, 2, 3, 4, 6), "")
	}
	if err := p.kernel.Pin(dir); err != nil {
		t.Fatal(err)
	}
	next, err := New(prog, Config{Inherit: dir, Sink: &p.K, Copies: 256})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = next.Close() })
	for i := range entries {
		if err := next.Apply(datapath.Insert, entries[i]); err != nil {
			t.Fatal(err)
		}
	}
	for i := range entries {
		got, err := next.EntryCounts(entries[i])
		want, _ := p.Golang.EntryCounts(entries[i])
		if err != nil || got != want {
			t.Errorf("entry %d counts %+v, %v; want %+v", i, got, err, want)
		}
	}
}

// TestTuples_Waits: no version of the tuples is written that a packet may look at, which has begun after the last wait.
func TestTuples_Waits(t *testing.T) {
	p := newPair(t, load(t, "testdata/acl.json"), 0)
	table := p.kernel.tables["I.acl"]
	space := table.layout.(*tupleSpace)
	seen := map[int]bool{space.version: true} // versions that counted since the last wait
	waits := 0
	space.wait = func() {
		seen = map[int]bool{space.version: true}
		waits++
	}
	for i := range 3 * tupleVersions {
		a := acl{src: 1 << 31, srcMask: 1<<31 | uint32(i), priority: 1}
		was := space.version
		if err := p.kernel.Apply(datapath.Insert, a.entry()); err != nil {
			t.Fatal(err)
		}
		if space.version == was || seen[space.version] {
			t.Fatalf("version %d was written, which packets may look at: %v", space.version, seen)
		}
		seen[space.version] = true
	}
	if waits == 0 || waits > 4 {
		t.Errorf("%d waits for %d changes", waits, 3*tupleVersions)
	}
}

// change inserts an entry, or now and then gives its action to one that is there, or deletes that one. It returns those
// that are there then.
func (p *pair) change(t *testing.T, r *rand.Rand, e datapath.Entry, there []datapath.Entry) []datapath.Entry {
	t.Helper()
	op := datapath.Insert
	if len(there) > 0 && r.IntN(3) == 0 {
		at := r.IntN(len(there))
		old := there[at]
		if op = datapath.Modify; r.IntN(2) == 0 {
			op, there = datapath.Delete, slices.Delete(there, at, at+1)
		}
		old.Action, e = e.Action, old
	}
	if p.Update(t, op, e) && op == datapath.Insert {
		there = append(there, e)
	}
	return there
}
