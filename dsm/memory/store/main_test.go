package store

import (
	"math"
	"net/netip"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// choose returns a region that a node may allocate, in a batch of its own.
func choose(s *Store, node netip.Addr) dsmpacket.Pointer {
	for number := uint32(1); ; number++ {
		b := s.batches.at(number)
		if !b.node.IsValid() {
			b.node = node
		}
		for i := range b.slots {
			slot, k := number*dsmpacket.BatchSlots+uint32(i), &b.slots[i] //nolint:gosec // 64
			next := max(k.last, s.batches.floor) + 1
			if b.node == node && !s.lives(dsmpacket.IDOf(slot, k.last)) && s.free(k, next) {
				return dsmpacket.Make(rackaddr.DefaultDSMPrefix, testMachine, dsmpacket.IDOf(slot, next))
			}
		}
	}
}

// world is a store, and nodes that change it by executions.
type world struct {
	*Store
	t            *testing.T
	incarnations map[netip.Addr]uint32
	requests     map[netip.Addr]uint64
}

func newWorld(t *testing.T) *world {
	w := &world{Store: newTestStore(1 << 20), t: t, incarnations: map[netip.Addr]uint32{}, requests: map[netip.Addr]uint64{}}
	w.KeepUndo(1 << 20)
	w.begins(rackaddr.Node(1))
	w.begins(rackaddr.Node(2))
	return w
}

// begins begins the next incarnation of a node.
func (w *world) begins(node netip.Addr) {
	w.incarnations[node], w.requests[node] = w.incarnations[node]+1, 0
}

func (w *world) ask(node netip.Addr, op dsmpacket.Op, p dsmpacket.Pointer, execution control.ExecutionID, data string, n uint64) Answer {
	w.t.Helper()
	w.requests[node]++
	a, drop := w.Handle(&Request{Node: node, To: p, Data: []byte(data), Header: dsmpacket.Header{
		Kind: dsmpacket.Request, Request: w.requests[node], Floor: 1, Execution: execution, Incarnation: w.incarnations[node], Length: n,
	}})
	if drop != NotDropped {
		w.t.Fatalf("%s: %v", op, drop)
	}
	return a
}

// done is ask, and must succeed.
func (w *world) done(node netip.Addr, op dsmpacket.Op, p dsmpacket.Pointer, execution control.ExecutionID, data string, n uint64) Answer {
	w.t.Helper()
	a := w.ask(node, op, p, execution, data, n)
	if a.Header.Status != fault.OK {
		w.t.Fatalf("%s: %v", op, a.Header.Status)
	}
	return a
}

func (w *world) alloc(node netip.Addr, execution control.ExecutionID) dsmpacket.Pointer {
	w.t.Helper()
	return w.done(node, dsmpacket.OpAlloc, choose(w.Store, node).With(dsmpacket.OpAlloc), execution, "", 64).From.With(dsmpacket.OpNone)
}

func (w *world) write(node netip.Addr, p dsmpacket.Pointer, execution control.ExecutionID, data string) {
	w.t.Helper()
	w.done(node, dsmpacket.OpWrite, p.With(dsmpacket.OpWrite), execution, data, uint64(len(data)))
}

// holds checks what a region begins with.
func (w *world) holds(p dsmpacket.Pointer, want string) {
	w.t.Helper()
	if got := w.regions.byID[p.ID()].data; string(got[:len(want)]) != want {
		w.t.Errorf("memory holds %q, want %q", got[:len(want)], want)
	}
}

// TestWords_Main: a node commits what a durable main has written up to a checkpoint. A copy of that which comes
// late does not commit what the main has written since, and does not take it back. So it is with a
// rollback, also one within an incarnation. A node cannot have the words of others forgotten.
func TestWords_Main(t *testing.T) {
	id, at, other := control.ExecutionID{1}, rackaddr.Node(1), rackaddr.Node(2)
	w := newWorld(t)
	region := w.alloc(at, control.ExecutionID{})
	write := func(data string) {
		t.Helper()
		w.write(at, region, id, data)
	}
	word := func(what string, obey func(control.Run, uint32) fault.Code, incarnation uint32, main uint64, checkpoint uint32, want fault.Code) {
		t.Helper()
		run := control.Run{Execution: id, Node: at, Incarnation: incarnation, Main: main, Checkpoint: checkpoint}
		if got := obey(run, w.incarnations[at]); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	write("one")
	word("the first checkpoint", w.Commit, 1, 8, 5, fault.OK)
	write("two")
	word("a late copy", w.Commit, 1, 8, 5, fault.OK)
	word("the main's next run begins", w.Rollback, 1, 8, 5, fault.OK)
	w.holds(region, "one")
	write("six")
	word("a late copy of that", w.Rollback, 1, 8, 5, fault.OK)
	word("a late commit", w.Commit, 1, 8, 5, fault.Stale)
	w.holds(region, "six")
	w.Fence(control.Fence{Node: at, Incarnation: 1})
	w.begins(at)
	word("taken back by the next incarnation", w.Rollback, 2, 9, 5, fault.OK)
	w.holds(region, "one")
	write("ten")
	word("a commit for the former incarnation", w.Commit, 1, math.MaxUint64, 5, fault.Stale)
	w.holds(region, "ten")
	word("the next checkpoint", w.Commit, 2, 9, 6, fault.OK)

	mine := w.undo.marks.last[markKey{id, at}]
	run := control.Run{Node: other, Incarnation: 1, Main: 99, Checkpoint: 99}
	for i := range 3 * nodeMarks {
		run.Execution = control.ExecutionID{2, byte(i)}
		w.Commit(run, 1)
	}
	if u := w.undo.marks; u.last[markKey{id, at}] != mine || len(u.order) != 1+nodeMarks || u.dropped != 2*nodeMarks {
		t.Errorf("a node's words have taken %d marks, and the main's is %+v", len(u.order), u.last[markKey{id, at}])
	}
}
