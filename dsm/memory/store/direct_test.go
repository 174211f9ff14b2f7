package store

import (
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
	settle := func(what string, execution control.ExecutionID, run, incarnation uint32, back bool, want fault.Code) {
		t.Helper()
		if got := s.SettleRun(control.Run{Execution: execution, Node: at, Incarnation: run}, incarnation, back); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	write(id, 1, "one")
	if l := s.Executions(control.Executions{}); len(l.Runs) != 0 {
		t.Errorf("the Gatekeeper is told of %v", l.Runs)
	}
	settle("commit", id, 1, 1, false, fault.OK)
	settle("commit again", id, 1, 1, false, fault.OK)
	write(other, 1, "two")
	settle("a later run than the node's", other, 2, 1, true, fault.BadRequest)
	s.Fence(control.Fence{Node: at, Incarnation: 1})
	settle("commit of a fenced incarnation", other, 1, 1, false, fault.Stale)
	holds("two")
	settle("taken back by the next incarnation", other, 1, 2, true, fault.OK)
	holds("one")
	write(other, 2, "six")
	settle("a late copy of that", other, 1, 2, true, fault.Stale)
	settle("commit", other, 2, 2, false, fault.OK)
	holds("six")
	write(id, 2, "ten")
	if got := s.SettleRun(control.Run{Execution: id, Node: rackaddr.Node(2), Incarnation: 9}, 9, true); got != fault.OK {
		t.Errorf("another node takes back its own execution of that id: %v", got)
	}
	holds("ten")
	settle("an execution that changed nothing", control.ExecutionID{3}, 1, 2, true, fault.OK)
}
