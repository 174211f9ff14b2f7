package store

import (
	"net/netip"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// TestWords: a node commits what one of its executions has written, or takes it back. Other nodes have
// no say, and no word that comes late harms a later run.
func TestWords(t *testing.T) {
	id, other := control.ExecutionID{1}, control.ExecutionID{2}
	at := rackaddr.Node(1)
	w := newWorld(t)
	region := w.alloc(at, control.ExecutionID{})
	word := func(what string, obey func(control.Run, uint32) fault.Code, execution control.ExecutionID, run, says uint32, want fault.Code) {
		t.Helper()
		if got := obey(control.Run{Execution: execution, Node: at, Incarnation: run}, says); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	w.write(at, region, id, "one")
	word("commit", w.Commit, id, 1, 1, fault.OK)
	word("commit again", w.Commit, id, 1, 1, fault.OK)
	w.write(at, region, other, "two")
	word("a later run than the node's", w.Rollback, other, 2, 1, fault.BadRequest)
	w.Fence(control.Fence{Node: at, Incarnation: 1})
	word("commit of a fenced incarnation", w.Commit, other, 1, 1, fault.Stale)
	w.holds(region, "two")
	word("taken back by the next incarnation", w.Rollback, other, 1, 2, fault.OK)
	w.holds(region, "one")
	w.begins(at)
	w.write(at, region, other, "six")
	word("a late copy of that", w.Rollback, other, 1, 2, fault.Stale)
	word("commit", w.Commit, other, 2, 2, fault.OK)
	w.holds(region, "six")
	w.write(at, region, id, "ten")
	if got := w.Rollback(control.Run{Execution: id, Node: rackaddr.Node(2), Incarnation: 9}, 9); got != fault.OK {
		t.Errorf("another node takes back its own execution of that id: %v", got)
	}
	w.holds(region, "ten")
	word("an execution that changed nothing", w.Rollback, control.ExecutionID{3}, 1, 2, fault.OK)
	word("no execution", w.Commit, control.ExecutionID{}, 2, 2, fault.BadRequest)
}

// TestForsaken: what a node has not decided about is in doubt when it is fenced: its next incarnation
// does not read it. Others that it was lent to do. If nobody is left who could decide, it is taken back, and what the
// execution has allocated is freed, also by a run that was taken back before.
func TestForsaken(t *testing.T) {
	at, other := rackaddr.Node(1), rackaddr.Node(2)
	w := newWorld(t)
	read := func(node netip.Addr, p dsmpacket.Pointer, want fault.Code, holds string) {
		t.Helper()
		a := w.ask(node, dsmpacket.OpRead, p.With(dsmpacket.OpRead), control.ExecutionID{}, "", 3)
		if a.Header.Status != want || want == fault.OK && string(a.Data) != holds {
			t.Errorf("somebody reads %q, %v; want %q, %v", a.Data, a.Header.Status, holds, want)
		}
	}
	doubtful, back, committed := control.ExecutionID{1}, control.ExecutionID{2}, control.ExecutionID{3}
	first, second := w.alloc(at, control.ExecutionID{}), w.alloc(at, control.ExecutionID{})
	own, again := w.alloc(at, doubtful), w.alloc(at, back)
	for _, p := range []dsmpacket.Pointer{first, second} {
		w.write(at, p, control.ExecutionID{}, "old")
	}
	w.write(at, first, doubtful, "bad")
	w.write(at, second, committed, "new")
	for _, got := range []fault.Code{
		w.Commit(control.Run{Execution: committed, Node: at, Incarnation: 1}, 1),
		w.Rollback(control.Run{Execution: back, Node: at, Incarnation: 1}, 1),
	} {
		if got != fault.OK {
			t.Error(got)
		}
	}
	read(at, first, fault.OK, "bad")
	w.Fence(control.Fence{Node: at, Incarnation: 1})
	w.begins(at)
	read(at, first, fault.Overloaded, "")
	read(other, first, fault.OK, "bad")
	read(at, second, fault.OK, "new")
	read(at, again, fault.OK, "\x00\x00\x00")
	w.Fence(control.Fence{Node: at, Incarnation: 1, Forsaken: true})
	read(at, first, fault.OK, "old")
	read(at, second, fault.OK, "new")
	read(at, own, fault.NotFound, "")
	read(at, again, fault.NotFound, "")
	w.Fence(control.Fence{Node: at, Incarnation: 1, Forsaken: true})
	if u := w.Undo(); u.Executions != 0 || u.Bytes != 0 || u.Commits != 1 || u.Rollbacks != 2 {
		t.Errorf("undo: %+v", u)
	}
}
