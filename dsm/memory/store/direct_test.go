package store

import (
	"net/netip"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// TestSettleRun: a node commits what one of its executions has written, or takes it back. The
// Gatekeeper does not hear of the execution, other nodes have no say, and no request that comes
// late harms a later run.
func TestSettleRun(t *testing.T) {
	id, other := control.ExecutionID{1}, control.ExecutionID{2}
	at := rackaddr.Node(1)
	s := newTestStore(1 << 20)
	s.KeepUndo(1 << 20)
	ids := map[uint32]uint64{}
	do := func(op dsmpacket.Op, p dsmpacket.Pointer, execution control.ExecutionID, incarnation uint32, data string, n uint64) Answer {
		ids[incarnation]++
		var flags uint8
		if execution != (control.ExecutionID{}) {
			flags = dsmpacket.FlagDirect
		}
		a, drop := s.Handle(&Request{Node: at, To: p, Data: []byte(data), Header: dsmpacket.Header{
			Kind: dsmpacket.Request, Request: ids[incarnation], Floor: 1, Execution: [16]byte(execution), Incarnation: incarnation, Length: n, Flags: flags,
		}})
		if drop != NotDropped || a.Header.Status != fault.OK {
			t.Fatalf("%s: %v, %v", op, drop, a.Header.Status)
		}
		return a
	}
	machine := dsmpacket.Make(rackaddr.DefaultDSMPrefix, testMachine, 0)
	region := do(dsmpacket.OpAlloc, machine.With(dsmpacket.OpAlloc, 6), control.ExecutionID{}, 1, "", 64).From.With(dsmpacket.OpNone, 0)
	write := func(execution control.ExecutionID, incarnation uint32, data string) {
		do(dsmpacket.OpWrite, region.With(dsmpacket.OpWrite, 0), execution, incarnation, data, uint64(len(data)))
	}
	holds := func(want string) {
		t.Helper()
		if got := s.regions.find(region.Offset()).data; string(got[:len(want)]) != want {
			t.Errorf("memory holds %q, want %q", got[:len(want)], want)
		}
	}
	settle := func(what string, execution control.ExecutionID, run, incarnation uint32, word Word, want fault.Code) {
		t.Helper()
		if got := s.SettleRun(control.Run{Execution: execution, Node: at, Incarnation: run}, incarnation, word); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	write(id, 1, "one")
	if l := s.Executions(control.Executions{}); len(l.Runs) != 0 {
		t.Errorf("the Gatekeeper is told of %v", l.Runs)
	}
	settle("commit", id, 1, 1, Keep, fault.OK)
	settle("commit again", id, 1, 1, Keep, fault.OK)
	write(other, 1, "two")
	settle("a later run than the node's", other, 2, 1, TakeBack, fault.BadRequest)
	s.Fence(control.Fence{Node: at, Incarnation: 1})
	settle("commit of a fenced incarnation", other, 1, 1, Keep, fault.Stale)
	holds("two")
	settle("taken back by the next incarnation", other, 1, 2, TakeBack, fault.OK)
	holds("one")
	write(other, 2, "six")
	settle("a late copy of that", other, 1, 2, TakeBack, fault.Stale)
	settle("commit", other, 2, 2, Keep, fault.OK)
	holds("six")
	write(id, 2, "ten")
	if got := s.SettleRun(control.Run{Execution: id, Node: rackaddr.Node(2), Incarnation: 9}, 9, TakeBack); got != fault.OK {
		t.Errorf("another node takes back its own execution of that id: %v", got)
	}
	holds("ten")
	settle("an execution that changed nothing", control.ExecutionID{3}, 1, 2, TakeBack, fault.OK)
}

// TestForsaken: what a node has not decided about is in doubt when it is fenced: its next incarnation
// does not read it. Others that it was lent to do. If nobody is left who could decide, it is taken back, and what the
// execution has allocated is freed. What was handed over is the Gatekeeper's.
func TestForsaken(t *testing.T) {
	at, other := rackaddr.Node(1), rackaddr.Node(2)
	s := newTestStore(1 << 20)
	s.KeepUndo(1 << 20)
	ids := map[netip.Addr]uint64{}
	incarnations := map[netip.Addr]uint32{at: 1, other: 1}
	ask := func(node netip.Addr, op dsmpacket.Op, p dsmpacket.Pointer, execution control.ExecutionID, data string, n uint64) Answer {
		ids[node]++
		var flags uint8
		if execution != (control.ExecutionID{}) {
			flags = dsmpacket.FlagDirect
		}
		a, drop := s.Handle(&Request{Node: node, To: p, Data: []byte(data), Header: dsmpacket.Header{
			Kind: dsmpacket.Request, Request: ids[node], Floor: 1, Execution: execution, Incarnation: incarnations[node], Length: n, Flags: flags,
		}})
		if drop != NotDropped {
			t.Fatalf("%s: %v", op, drop)
		}
		return a
	}
	machine := dsmpacket.Make(rackaddr.DefaultDSMPrefix, testMachine, 0)
	alloc := func(execution control.ExecutionID) dsmpacket.Pointer {
		return ask(at, dsmpacket.OpAlloc, machine.With(dsmpacket.OpAlloc, 6), execution, "", 64).From.With(dsmpacket.OpNone, 0)
	}
	write := func(p dsmpacket.Pointer, execution control.ExecutionID, data string) fault.Code {
		return ask(at, dsmpacket.OpWrite, p.With(dsmpacket.OpWrite, 0), execution, data, uint64(len(data))).Header.Status
	}
	read := func(node netip.Addr, p dsmpacket.Pointer, want fault.Code, holds string) {
		t.Helper()
		a := ask(node, dsmpacket.OpRead, p.With(dsmpacket.OpRead, 0), control.ExecutionID{}, "", 3)
		if a.Header.Status != want || want == fault.OK && string(a.Data) != holds {
			t.Errorf("somebody reads %q, %v; want %q, %v", a.Data, a.Header.Status, holds, want)
		}
	}
	doubtful, handed := control.ExecutionID{1}, control.ExecutionID{2}
	first, second := alloc(control.ExecutionID{}), alloc(control.ExecutionID{})
	own := alloc(doubtful)
	for _, p := range []dsmpacket.Pointer{first, second} {
		write(p, control.ExecutionID{}, "old")
	}
	write(first, doubtful, "bad")
	write(second, handed, "new")
	if got := s.SettleRun(control.Run{Execution: handed, Node: at, Incarnation: 1}, 1, HandOver); got != fault.OK {
		t.Errorf("handed over: %v", got)
	}
	if got := write(second, handed, "NEW"); got != fault.OK { // it was under way
		t.Errorf("a write of an execution that was handed over: %v", got)
	}
	if l := s.Executions(control.Executions{}); len(l.Runs) != 1 || l.Runs[0].Execution != handed {
		t.Errorf("the Gatekeeper is told of %v", l.Runs)
	}
	read(at, first, fault.OK, "bad")
	s.Fence(control.Fence{Node: at, Incarnation: 1})
	incarnations[at]++
	ids[at] = 0
	read(at, first, fault.Overloaded, "")
	read(other, first, fault.OK, "bad")
	read(at, second, fault.OK, "NEW")
	s.Fence(control.Fence{Node: at, Incarnation: 1, Forsaken: true})
	read(at, first, fault.OK, "old")
	read(at, second, fault.OK, "NEW")
	read(at, own, fault.NotFound, "")
	s.Fence(control.Fence{Node: at, Incarnation: 1, Forsaken: true})
	if u := s.Undo(); u.Executions != 1 || u.Rollbacks != 1 {
		t.Errorf("undo: %+v", u)
	}
}
