package store

import (
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// ask gives a store a request of node 1.
func ask(s *Store, op dsmpacket.Op, p dsmpacket.Pointer, id, n uint64, flags uint8) Answer {
	r := &Request{Node: rackaddr.Node(1), To: p.With(op), Header: dsmpacket.Header{
		Kind: dsmpacket.Request, Request: id, Floor: 1, Incarnation: 1, Length: n, Flags: flags,
	}}
	if op == dsmpacket.OpWrite {
		r.Data = make([]byte, n)
	}
	a, _ := s.Handle(r)
	return a
}

// TestSettleAsksFirst: at a copy of a machine with two, a settle makes a request final only if
// it says so: before, another copy may have carried the request out.
func TestSettleAsksFirst(t *testing.T) {
	s := newTestStore(1 << 20)
	if err := s.Become(control.Mirror{Epoch: 1, Members: 2}); err != nil {
		t.Fatal(err)
	}
	p := ask(s, dsmpacket.OpAlloc, choose(s, rackaddr.Node(1)), 1, 100, 0).From.Bare()
	if a := ask(s, dsmpacket.OpSettle, p, 10, 2, 0); a.Header.Status != fault.OK || a.Header.Flags != 0 {
		t.Errorf("settle of what has not come: %v, flags %#x", a.Header.Status, a.Header.Flags)
	}
	if a := ask(s, dsmpacket.OpWrite, p, 2, 8, 0); a.Header.Kind != dsmpacket.Reply || a.Header.Status != fault.OK {
		t.Errorf("a write after somebody has asked for it: %+v", a.Header)
	}
	if a := ask(s, dsmpacket.OpSettle, p, 11, 3, dsmpacket.FlagFinal); a.Header.Flags != dsmpacket.FlagFinal {
		t.Errorf("settle for good: flags %#x", a.Header.Flags)
	}
	if a := ask(s, dsmpacket.OpWrite, p, 3, 8, 0); a.Header.Kind == dsmpacket.Reply {
		t.Errorf("a write after it was settled for good: %+v", a.Header)
	}
}

// TestBecome: a copy obeys no epoch below its own, as a former Gatekeeper might give, and
// forgets everything when it becomes another one.
func TestBecome(t *testing.T) {
	s := newTestStore(1 << 20)
	must := func(m control.Mirror, want fault.Code) {
		t.Helper()
		if err := s.Become(m); fault.CodeOf(err) != want {
			t.Errorf("%+v: %v, want %v", m, err, want)
		}
	}
	must(control.Mirror{Epoch: 5, Members: 2}, fault.OK)
	ask(s, dsmpacket.OpAlloc, choose(s, rackaddr.Node(1)), 1, 100, 0)
	must(control.Mirror{Epoch: 4, Members: 1}, fault.Stale)
	must(control.Mirror{Epoch: 4, Incarnation: 9, Members: 1}, fault.Stale)
	must(control.Mirror{Epoch: 6, Copy: 2, Members: 2}, fault.BadRequest)
	must(control.Mirror{Epoch: 6, Members: 3}, fault.BadRequest)
	must(control.Mirror{Epoch: 6, Members: 1}, fault.OK)
	if s.Used() != 128 || s.Mirror().Epoch != 6 {
		t.Errorf("%d bytes, %+v", s.Used(), s.Mirror())
	}
	must(control.Mirror{Epoch: 6, Incarnation: 1, Members: 1}, fault.OK)
	if s.Used() != 0 {
		t.Errorf("another copy has %d bytes of the former one", s.Used())
	}
}
