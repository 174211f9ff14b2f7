package store

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// The undo against a model that copies a whole region before an execution's first
// change: any writes, frees and allocations of several executions and of a plain
// client, commits, and crashes with re-runs, which find their regions again.
func TestUndoModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{store: newTestStore(4 << 20)}
		m.runs[3].main = 1
		m.limited = rapid.IntRange(0, 2).Draw(t, "limited") == 0
		m.store.KeepUndo(1 << 30)
		if m.limited {
			m.store.KeepUndo(20_000)
		}
		t.Repeat(map[string]func(*rapid.T){
			"alloc":     m.alloc,
			"write":     m.write,
			"overwrite": m.overwrite,
			"free":      m.free,
			"commit":    m.commit,
			"rollback":  m.rollback,
			"reclaim":   m.reclaim,
			"late":      m.late,
			"":          m.check,
		})
		for e := range m.runs {
			if e > 0 {
				m.end(t, e)
			}
		}
		m.check(t)
		if u := m.store.Undo(); u.Executions != 0 || u.Bytes != 0 {
			t.Fatalf("%+v is left", u)
		}
	})
}

// model is what the regions must hold.
type model struct {
	store   *Store
	now     time.Duration
	limited bool
	regions []*modelRegion
	runs    [4]run // by execution; 0 is a plain client
	said    []word // that were obeyed, and may come again late
}

// run is an execution's present run. Execution 3 is a durable main: it is rolled back
// and begins again in the same incarnation, too, and goes on after a commit.
type run struct {
	crashes    uint32
	requests   uint64
	allocs     uint32 // of this run
	main       uint64
	checkpoint uint32
}

// word is a commit or rollback, and which incarnation of the node says it.
type word struct {
	back bool
	run  control.Run
	says uint32
}

// tell gives the store a word.
func (m *model) tell(w word) fault.Code {
	if w.back {
		return m.store.Rollback(w.run, w.says)
	}
	return m.store.Commit(w.run, w.says)
}

// say gives the store a word that is due, twice.
func (m *model) say(t interface{ Fatalf(string, ...any) }, e int, back bool, says uint32) {
	r := &m.runs[e]
	w := word{back, control.Run{
		Execution: control.ExecutionID{15: byte(e)}, Node: rackaddr.Node(uint64(e + 1)), Incarnation: r.crashes + 1, Main: r.main, Checkpoint: r.checkpoint,
	}, says}
	for range 2 {
		if got := m.tell(w); got != fault.OK {
			t.Fatalf("%v: %+v", got, w)
		}
	}
	m.said = append(m.said, w)
}

// late says again what was obeyed long ago: it changes nothing.
func (m *model) late(t *rapid.T) {
	if len(m.said) == 0 {
		t.Skip()
	}
	w := rapid.SampledFrom(m.said).Draw(t, "word")
	now := m.runs[w.run.Execution[15]].crashes + 1
	if w.run.Main == 0 && w.run.Incarnation == now {
		return
	}
	if rapid.Bool().Draw(t, "another copy") {
		w.says = now
	}
	m.tell(w)
}

type modelRegion struct {
	dsmpacket.Region
	asked  uint64
	data   []byte
	before []byte // a copy of everything, from before holder's first change
	holder int    // execution with changes; 0: none
	own    bool   // holder has allocated it,
	index  uint32 // as this operation,
	used   bool   // in this run
}

// ask carries out an operation of an execution on a region, nil for a new one. It reports whether it
// was refused for want of room.
func (m *model) ask(t *rapid.T, e int, reg *modelRegion, to dsmpacket.Pointer, index uint32, length uint64, data []byte) (Answer, bool) {
	r := &m.runs[e]
	r.requests++
	req := Request{Node: rackaddr.Node(uint64(e + 1)), To: to, Data: data, Header: dsmpacket.Header{
		Kind: dsmpacket.Request, Request: r.requests, Floor: r.requests, Incarnation: r.crashes + 1, Length: length, Index: index,
	}}
	req.Header.Execution[15] = byte(e)
	a, drop := handle(m.store, &req)
	if drop != NotDropped {
		t.Fatalf("dropped: %v", drop)
	}
	full := a.Header.Status == fault.Overloaded && (reg == nil || reg.refusal(e) != fault.Overloaded)
	if full && (!m.limited || e == 0) {
		t.Fatal("overloaded without a limit")
	}
	return a, full
}

func (m *model) pick(t *rapid.T) *modelRegion {
	if len(m.regions) == 0 {
		t.Skip()
	}
	return rapid.SampledFrom(m.regions).Draw(t, "region")
}

// refusal is what a change of the region by e must be answered with.
func (reg *modelRegion) refusal(e int) fault.Code {
	if reg.holder != 0 && reg.holder != e {
		return fault.Overloaded
	}
	return fault.OK
}

// hold notes e's first change.
func (reg *modelRegion) hold(e int) {
	if reg.holder == 0 && e != 0 {
		reg.holder, reg.before = e, bytes.Clone(reg.data)
	}
}

func (m *model) alloc(t *rapid.T) {
	e := rapid.IntRange(0, 3).Draw(t, "execution")
	index := m.runs[e].allocs
	asked := rapid.SampledFrom([]uint64{64, 100, 4096, 10_000, 1 << 16, 300_000}).Draw(t, "size")
	again := slices.IndexFunc(m.regions, func(r *modelRegion) bool { return r.own && r.holder == e && r.index == index })
	if again >= 0 {
		asked = m.regions[again].asked
	}
	m.now += restTime / 4
	m.store.Tick(m.now)
	at := choose(m.store, rackaddr.Node(uint64(e+1)))
	if again >= 0 {
		at = m.regions[again].Base
	}
	a, full := m.ask(t, e, nil, at.With(dsmpacket.OpAlloc), index, asked, nil)
	if full || a.Header.Status == fault.NoSpace && again < 0 {
		return
	}
	m.runs[e].allocs++
	reg, err := dsmpacket.RegionOf(a.From, a.Header.Length)
	if err != nil || a.Header.Status != fault.OK {
		t.Fatalf("alloc: %v, %v", a.Header.Status, err)
	}
	if again >= 0 {
		if old := m.regions[again]; old.Region != reg {
			t.Fatalf("the re-run gets %v, had %v", reg, old.Region)
		}
		m.regions[again].used = true
		return
	}
	m.regions = append(m.regions, &modelRegion{
		Region: reg, asked: asked, data: make([]byte, reg.Size()), before: make([]byte, reg.Size()),
		holder: e, own: e != 0, index: index, used: true,
	})
}

func (m *model) write(t *rapid.T) {
	reg, e := m.pick(t), rapid.IntRange(0, 3).Draw(t, "execution")
	at := rapid.Uint64Range(0, reg.Size()-1).Draw(t, "at")
	n := rapid.Uint64Range(0, min(10_000, reg.Size()-at)).Draw(t, "n")
	m.put(t, reg, e, at, n)
}

// overwrite writes much of a region in large pieces, which turns its pages.
func (m *model) overwrite(t *rapid.T) {
	reg, e := m.pick(t), rapid.IntRange(0, 3).Draw(t, "execution")
	at := rapid.Uint64Range(0, min(10_000, reg.Size()-1)).Draw(t, "at")
	end := reg.Size() - rapid.Uint64Range(0, reg.Size()-at).Draw(t, "left")
	for ; at < end && slices.Contains(m.regions, reg); at += 60_000 {
		m.put(t, reg, e, at, min(60_000, end-at))
	}
}

// put writes n bytes.
func (m *model) put(t *rapid.T, reg *modelRegion, e int, at, n uint64) {
	data := bytes.Repeat([]byte{rapid.Byte().Draw(t, "byte")}, int(n))
	a, full := m.ask(t, e, reg, reg.Base.Add(int64(at)).With(dsmpacket.OpWrite), 0, n, data)
	if full {
		return
	}
	want := reg.refusal(e)
	if n == 0 && at != 0 {
		want = fault.BadRequest // it asks whether the region that begins there may be freed
	}
	if a.Header.Status != want {
		t.Fatalf("write: %v, want %v", a.Header.Status, want)
	}
	if a.Header.Status == fault.OK && n > 0 {
		reg.hold(e)
		copy(reg.data[at:], data)
	}
}

func (m *model) free(t *rapid.T) {
	reg, e := m.pick(t), rapid.IntRange(0, 3).Draw(t, "execution")
	index := rapid.SampledFrom([]uint32{reg.index, 1 << 30}).Draw(t, "index")
	a, _ := m.ask(t, e, reg, reg.Base.With(dsmpacket.OpFree), index, 0, nil)
	want := reg.refusal(e)
	if want == fault.OK && e != 0 && (!reg.own || index != reg.index) {
		want = fault.BadRequest // it may take back its own allocation, and nothing else
	}
	if a.Header.Status != want {
		t.Fatalf("free: %v, want %v", a.Header.Status, want)
	}
	if want == fault.OK {
		m.drop(reg)
	}
}

func (m *model) drop(reg *modelRegion) {
	m.regions = slices.DeleteFunc(m.regions, func(r *modelRegion) bool { return r == reg })
}

func (m *model) reclaim(t *rapid.T) {
	reg := m.pick(t)
	if a := m.store.Reclaim(control.Reclaim{Regions: []control.RegionID{{ID: reg.Base.ID(), Class: reg.Class}}}); len(a.Refused) > 0 {
		t.Fatalf("refused: %+v", a)
	}
	m.drop(reg)
}

func (m *model) commit(t *rapid.T) { m.end(t, rapid.IntRange(1, 3).Draw(t, "execution")) }

// end commits an execution. Another one takes its id, with places of its own; or it is a
// main, which goes on.
func (m *model) end(t interface{ Fatalf(string, ...any) }, e int) {
	r := &m.runs[e]
	if r.main != 0 {
		r.checkpoint++
	}
	m.say(t, e, false, r.crashes+1)
	if r.main == 0 {
		m.said = slices.DeleteFunc(m.said, func(w word) bool { return int(w.run.Execution[15]) == e })
	}
	m.regions = slices.DeleteFunc(m.regions, func(reg *modelRegion) bool { return reg.holder == e && reg.own && !reg.used })
	for _, reg := range m.regions {
		if reg.holder == e {
			reg.holder, reg.own = 0, false
		}
	}
}

// rollback is a crash.
func (m *model) rollback(t *rapid.T) {
	e := rapid.IntRange(1, 3).Draw(t, "execution")
	r := &m.runs[e]
	again := r.main != 0 && rapid.Bool().Draw(t, "the same incarnation")
	says := r.crashes + 1
	if !again {
		says++
		m.store.Fence(control.Fence{Node: rackaddr.Node(uint64(e + 1)), Incarnation: r.crashes + 1})
	}
	m.say(t, e, true, says)
	if r.allocs = 0; again {
		r.main++
	} else {
		r.crashes, r.requests = r.crashes+1, 0
	}
	for _, reg := range m.regions {
		if reg.holder == e {
			copy(reg.data, reg.before)
			if reg.used = false; !reg.own {
				reg.holder = 0
			}
		}
	}
}

// check compares everything.
func (m *model) check(t *rapid.T) {
	live := m.store.List(control.Regions{}).Regions
	for _, reg := range m.regions {
		got := m.store.regions.byID[reg.Base.ID()]
		if got == nil || !bytes.Equal(got.view(0, uint64(len(got.data))), reg.data) {
			t.Fatalf("%v is not what it should be", reg.Region)
		}
	}
	if len(live) != min(len(m.regions), control.MaxRegions) || len(m.store.regions.byID) != len(m.regions) {
		t.Fatalf("%d regions, want %d", len(m.store.regions.byID), len(m.regions))
	}
	checkUndo(t, m.store)
}

// checkUndo checks the undo's books.
func checkUndo(t interface{ Fatalf(string, ...any) }, s *Store) {
	used, live := uint64(0), map[*execution]int{}
	for _, reg := range s.regions.byID {
		c := reg.changes
		if c == nil {
			continue
		}
		used += c.cost
		live[c.by]++
		if c.region != reg || s.undo.byRun[c.by.key()] != c.by || !slices.Contains(c.by.regions, reg) || c.own != (c.by.allocs[c.key] == c) {
			t.Fatalf("the changes of %s by %v are not in order", reg.id, c.by.id)
		}
	}
	byNode := map[netip.Addr]uint64{}
	for id, e := range s.undo.byRun {
		used += executionCost
		byNode[id.node] += e.cost
		if id != e.key() {
			t.Fatalf("execution %v is not in order", id)
		}
		if e.live != live[e] || e.live == 0 || len(e.allocs) > e.live {
			t.Fatalf("execution %v has %d regions and %d allocations, want %d", id, e.live, len(e.allocs), live[e])
		}
	}
	for node, want := range byNode {
		if held := s.undo.shares.Held(node); held != want {
			t.Fatalf("node %s is charged with %d bytes, want %d", node, held, want)
		}
	}
	if used != s.undo.shares.Used() {
		t.Fatalf("%d bytes are charged, want %d", s.undo.shares.Used(), used)
	}
}

// handle has half of all writes received into their regions.
func handle(s *Store, r *Request) (Answer, Drop) {
	if r.To.Op() != dsmpacket.OpWrite || r.Header.Request%2 == 0 {
		return s.Handle(r)
	}
	q := *r
	q.Data, q.Size = nil, len(r.Data)
	q.Receive = func(to [2][]byte) bool {
		n := copy(to[0], r.Data)
		return n+copy(to[1], r.Data[n:]) == len(r.Data)
	}
	return s.Handle(&q)
}
