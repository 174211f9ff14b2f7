package store

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// fillModel is the model of the undo, whose store is exchanged for a copy of itself now and
// then: whatever happens while that is filled, the copy must go on where the source was.
type fillModel struct {
	model
	next        *Store // takes all fillings; when one is complete, it and store change places
	filling     bool
	incarnation uint32
	filled, cut int // how many fillings were completed, and cut off while the source closed
}

// TestFillModel: a copy that is filled while executions write, free, commit, crash and are
// rolled back is what the source is, byte by byte, and goes on in its place: undo and
// windows, too. Filling that is cut off leaves nothing behind, at neither side.
func TestFillModel(t *testing.T) {
	filled, cut := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		m := &fillModel{model: model{store: newTestStore(4 << 20)}, next: newTestStore(4 << 20)}
		m.runs[3].main = 1
		m.store.KeepUndo(1 << 30)
		m.next.KeepUndo(1 << 30)
		t.Repeat(map[string]func(*rapid.T){
			"alloc": m.alloc, "write": m.write, "overwrite": m.overwrite, "free": m.free, "commit": m.commit, "rollback": m.rollback,
			"reclaim": m.reclaim, "late": m.late, "begin": m.begin, "copy": m.copySome, "again": m.again, "complete": m.complete, "": m.check,
		})
		filled, cut = filled+m.filled, cut+m.cut
	})
	if !testing.Short() && (filled == 0 || cut == 0) {
		t.Errorf("%d fillings were completed, %d cut off while the source closed", filled, cut)
	}
}

func (m *fillModel) begin(*rapid.T) {
	m.incarnation++
	m.next.batches.floor = 99 // of a later boot
	m.next.BeFilled(m.incarnation)
	m.store.Fill()
	m.filling = true
}

// copySome hands some items over.
func (m *fillModel) copySome(t *rapid.T) {
	limit := rapid.SampledFrom([]int{MinItem, 5000, 60_000}).Draw(t, "limit")
	m.hand(t, rapid.IntRange(1, 20).Draw(t, "items"), limit)
}

// hand hands up to n items over, and reports whether there was nothing left.
func (m *fillModel) hand(t *rapid.T, n, limit int) (empty bool) {
	for ; n > 0 && m.filling; n-- {
		item, ok := m.store.FillNext(limit)
		if !ok {
			return true
		}
		if len(item) > limit {
			t.Fatalf("an item of %d bytes, at most %d", len(item), limit)
		}
		if err := m.next.Take(item); fault.CodeOf(err) == fault.NoSpace { // the memory is cut up in another way
			m.filling = false
			m.store.EndFill()
		} else if err != nil {
			t.Fatal(err)
		}
	}
	return false
}

// again begins the filling anew: the copy crashes, or the source gives up before or while it closes.
func (m *fillModel) again(t *rapid.T) {
	if !m.filling {
		t.Skip()
	}
	if rapid.Bool().Draw(t, "closing") {
		m.store.CloseFill()
		m.copySome(t)
		m.cut++
	}
	m.begin(t)
}

// complete ends the filling: the copy takes the source's place.
func (m *fillModel) complete(t *rapid.T) {
	if !m.filling {
		t.Skip()
	}
	m.store.CloseFill()
	limit := rapid.SampledFrom([]int{MinItem, 60_000}).Draw(t, "limit")
	for !m.hand(t, 1000, limit) {
		if !m.filling {
			return
		}
	}
	if left, _ := m.store.FillLeft(); left != 0 {
		t.Fatalf("%d bytes are left", left)
	}
	if err := m.next.Complete(control.Mirror{Epoch: 1, Incarnation: m.incarnation, Copy: 1, Members: 2}); err != nil {
		t.Fatal(err)
	}
	if a, b := describe(m.store), describe(m.next); a != b {
		t.Fatalf("the copy is not what the source is:\n%s\n%s", a, b)
	}
	m.next.mirror.Members = 1 // the model is one of a machine with one copy
	m.store, m.next = m.next, m.store
	m.filling = false
	m.filled++
}

// describe writes down what two copies must have in common: all but where regions lie, and
// what the undo costs.
func describe(s *Store) string {
	var b bytes.Buffer
	for _, id := range slices.Sorted(maps.Keys(s.regions.byID)) {
		r := s.regions.byID[id]
		fmt.Fprintf(&b, "%s %d %v", id, r.class, r.owner)
		if c := r.changes; c != nil {
			fmt.Fprintf(&b, " %v %v %v %v %d:", c.by.id, c.own, c.used, c.key, c.size)
			old := map[uint64][]byte{}
			for i := range uint64(len(r.data)+pageSize-1) >> pageShift {
				if c.saved.has(i) || c.turned != nil && c.turned[i>>6]>>(i&63)&1 != 0 {
					old[i] = nil
				}
			}
			fmt.Fprint(&b, slices.Sorted(maps.Keys(old)))
		}
		fmt.Fprintln(&b)
	}
	for _, key := range s.undo.inOrder() {
		e := s.undo.byRun[key]
		fmt.Fprintln(&b, key.id, e.by, e.rolled, e.live, len(e.allocs))
	}
	for _, node := range s.clients.inOrder() {
		c := s.clients.byNode[node]
		records := c.window.unsettled()
		slices.SortFunc(records, func(a, b record) int { return int(a.id) - int(b.id) })
		fmt.Fprintln(&b, node, c.incarnation, c.fenced, c.window.floor, records)
	}
	fmt.Fprintln(&b, s.undo.marks.order, s.undo.marks.last, s.batches.highest, s.batches.floor)
	for _, number := range slices.Sorted(maps.Keys(s.batches.of)) {
		fmt.Fprintln(&b, s.batches.item(number))
	}
	return b.String()
}

// TestCloseFill: a source that closes changes nothing, but answers reads, and a copy that is
// being filled answers nothing.
func TestCloseFill(t *testing.T) {
	s := newTestStore(1 << 20)
	ask := func(s *Store, op dsmpacket.Op, p dsmpacket.Pointer, id, n uint64) (Answer, Drop) {
		return s.Handle(&Request{Node: rackaddr.Node(1), To: p.With(op), Data: make([]byte, n), Header: dsmpacket.Header{
			Kind: dsmpacket.Request, Request: id, Floor: 1, Incarnation: 1, Length: n,
		}})
	}
	a, _ := ask(s, dsmpacket.OpAlloc, choose(s, rackaddr.Node(1)), 1, 100)
	p := a.From.Bare()
	s.Fill()
	if _, drop := ask(s, dsmpacket.OpWrite, p, 2, 10); drop != NotDropped {
		t.Errorf("a write while another copy is filled: %v", drop)
	}
	s.CloseFill()
	for _, op := range []dsmpacket.Op{dsmpacket.OpAlloc, dsmpacket.OpWrite, dsmpacket.OpFree, dsmpacket.OpSettle} {
		if _, drop := ask(s, op, p, 3, 10); drop != Filling {
			t.Errorf("%v while the source closes: %v", op, drop)
		}
	}
	if a, drop := ask(s, dsmpacket.OpRead, p, 4, 10); drop != NotDropped || a.Header.Status != fault.OK {
		t.Errorf("read while the source closes: %v, %v", a.Header.Status, drop)
	}
	if !s.Withholds() {
		t.Error("it takes commands")
	}
	next := newTestStore(1 << 20)
	next.BeFilled(2)
	if _, drop := ask(next, dsmpacket.OpRead, p, 1, 10); drop != Filling {
		t.Errorf("read of a copy that is being filled: %v", drop)
	}
	if err := next.Become(control.Mirror{Epoch: 1, Incarnation: 2, Members: 1}); fault.CodeOf(err) != fault.Stale {
		t.Errorf("it becomes a copy before it is filled: %v", err)
	}
	if err := s.Become(control.Mirror{Epoch: 1, Members: 1}); err != nil || s.Withholds() {
		t.Errorf("a new epoch ends the filling: %v, %v", err, s.Withholds())
	}
	if _, drop := ask(s, dsmpacket.OpWrite, p, 3, 10); drop != NotDropped {
		t.Errorf("a write after that: %v", drop)
	}
}

// FuzzTake: items of a hostile or broken source are errors and nothing else.
func FuzzTake(f *testing.F) {
	s := newTestStore(1 << 20)
	s.KeepUndo(1 << 20)
	s.Fill()
	s.CloseFill()
	for item, ok := s.FillNext(5000); ok; item, ok = s.FillNext(5000) {
		f.Add(item)
	}
	f.Add(encode(itemPages, pagesItem{ID: dsmpacket.IDOf(1, 1), Class: 12}))
	f.Add(encode(itemRegion, regionItem{ID: dsmpacket.IDOf(1, 1), Class: 12, Changed: true}))
	f.Add(encode(itemUndo, undoItem{ID: dsmpacket.IDOf(1, 1), Zero: true}))
	f.Add(append(encode(itemClient, clientItem{Node: [16]byte{1}, Floor: 1}), encode(0, recordItem{ID: 1})[1:]...))
	f.Add(encode(itemMark, markItem{}))
	f.Add(encode(itemGone, dsmpacket.IDOf(1, 1)))
	f.Add(encode(itemLevelled, levelledItem{}))
	f.Add(encode(itemBatch, batchItem{Batch: 1}))
	f.Add(encode(itemBatch, batchItem{Batch: 1 << 20}))
	f.Fuzz(func(t *testing.T, item []byte) {
		second := newTestStore(1 << 20) // is complete, and made level
		second.KeepUndo(1 << 20)
		if err := second.Become(control.Mirror{Epoch: 1, Copy: 1, Members: 2}); err != nil {
			t.Fatal(err)
		}
		if a := ask(second, dsmpacket.OpAlloc, choose(second, rackaddr.Node(1)), 1, 4096, 0); a.Header.Status != fault.OK {
			t.Fatal(a.Header.Status)
		}
		if err := second.Take(item); err != nil && fault.CodeOf(err) != fault.BadRequest && fault.CodeOf(err) != fault.Stale {
			t.Fatal(err)
		}
		checkUndo(t, second)
		s := newTestStore(1 << 20)
		s.KeepUndo(1 << 20)
		s.BeFilled(1)
		for range 3 {
			if err := s.Take(item); err != nil && fault.CodeOf(err) != fault.BadRequest && fault.CodeOf(err) != fault.NoSpace {
				t.Fatal(err)
			}
		}
		// The copy is whole behind its last item only.
		end := endItem{Regions: uint64(len(s.regions.byID)), Runs: uint64(len(s.undo.byRun)), Clients: uint64(len(s.clients.byNode))}
		if s.Take(encode(itemEnd, end)) == nil {
			checkUndo(t, s)
		}
	})
}
