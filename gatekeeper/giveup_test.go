package gatekeeper

import (
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// giver is the id of an execution of node b's service.
var giver = rpcpacket.ID{1, 2, 3}

// makes is a direct call that giver makes, the index-th in one slot.
func (s *small) makes(index uint32, ps ...dsmpacket.Pointer) *rpcpacket.Message {
	m := s.b.exact("Arrays", "add", ps...)
	m.Parent, m.Branch, m.Index = giver, 0, index
	s.b.place(m, 9, uint64(index))
	m.Call, _ = endpoint.Child(testSecret.Service(serviceHash(rackaddr.Service("Arrays"))), rpcpacket.PolicyRecover, giver, 0, index)
	return m
}

// gaveUp asks the Gatekeeper what calls have handed over that an execution has given up, and frees it, as its node does or another one. It reports whether
// all is answered.
func (n *testNode) gaveUp(calls ...*rpcpacket.Message) (answered bool) {
	answered = true
	for _, m := range calls {
		has, ok := n.asksOf(m)
		n.frees(has...)
		answered = answered && ok
	}
	return answered
}

// owned checks who controls a region: one of the nodes, or none.
func (s *small) owned(what string, owner *testNode, p dsmpacket.Pointer) {
	s.t.Helper()
	for _, n := range []*testNode{s.a, s.b, s.c} {
		want := map[bool]string{true: "read+write", false: "nothing"}[n == owner]
		if got := n.may(s.m1, p); got != want {
			s.t.Errorf("%s: node %s may %q, want %q", what, n.address, got, want)
		}
	}
}

// TestGivenUp: an execution has given a call up, and has ended. Its node hears what the call has returned before that, and frees it. What it returns later
// stays its callee's, and what it was lent comes back. That
// holds over a restart of the Gatekeeper before the execution's end, and after that.
func TestGivenUp(t *testing.T) {
	for _, lends := range []bool{false, true} {
		for _, before := range []bool{false, true} {
			for restart := range 3 {
				inLoans(t, func(s *small, _ dsmpacket.Pointer) {
					lent, q := s.m1.alloc(s.b, 1, 2), s.m1.alloc(s.a, 1, 3)
					call := s.makes(5)
					if lends {
						call = s.makes(5, lent)
						s.b.lend(s.a, call)
						s.a.take()
					}
					if before {
						s.a.returns(s.b, call, q)
						s.owned("returned before the end", s.b, q)
					}
					if restart == 1 {
						s.anew()
					}
					if !s.b.gaveUp(call) {
						t.Error("no answer")
					}
					if restart == 2 {
						s.anew()
					}
					s.b.take()
					if before {
						s.owned("returned before the end", nil, q)
					} else {
						s.a.returns(s.b, call, q)
						s.owned("returned after the end", s.a, q)
						s.a.returns(s.b, call, q)
						s.owned("returned again", s.a, q)
					}
					s.owned("what was lent", s.b, lent)
				})
			}
		}
	}
}

// TestGivenUp_LateCall: a call that an execution has given up comes when the execution has ended. It is late, also if the
// Gatekeeper is another one by then.
func TestGivenUp_LateCall(t *testing.T) {
	inLoans(t, func(s *small, _ dsmpacket.Pointer) {
		call := s.makes(5, s.m1.alloc(s.b, 1, 2))
		if !s.b.gaveUp(call) {
			t.Error("no answer")
		}
		for range 2 {
			s.b.lend(s.a, call)
			quiet("a late call", s.a, s.b)
			s.onRecord(0)
			s.anew()
		}
		s.b.lend(s.a, s.makes(6, s.m1.alloc(s.b, 1, 3)))
		if got := s.a.directly(); len(got) != 1 {
			t.Errorf("the callee got %d later calls of the slot, want 1", len(got))
		}
	})
}

// TestGivenUp_UnderWay: an execution ends while the answer to a call that it has given up waits for the end of another call's
// leases. The Gatekeeper hears of the execution's end when the answer has handed its region over, and not before.
func TestGivenUp_UnderWay(t *testing.T) {
	inLoans(t, func(s *small, _ dsmpacket.Pointer) {
		if err := s.c.export("Numbers", "add"); err != nil {
			t.Fatal(err)
		}
		lent, q := s.m1.alloc(s.b, 1, 2), s.m1.alloc(s.a, 1, 3)
		call := s.makes(5, lent)
		s.b.lend(s.a, call)
		nested := s.a.exact("Numbers", "add", lent)
		nested.Parent = call.Call
		s.a.lend(s.c, nested)
		s.a.returns(s.b, call, q)
		s.owned("while another call has leases", s.a, q)
		if s.b.gaveUp(call) {
			t.Error("there is an answer while that of the call is under way")
		}
		s.c.exactReply(s.a, nested)
		s.owned("when that has ended", s.b, q)
		if !s.b.gaveUp(call) {
			t.Error("no answer")
		}
		s.owned("when the execution has ended", nil, q)
	})
}

// TestHostile_GivenUp: what another node says of a call and its slot counts for nothing, and it is told nothing.
func TestHostile_GivenUp(t *testing.T) {
	inLoans(t, func(s *small, _ dsmpacket.Pointer) {
		open, answered, third := s.makes(5, s.m1.alloc(s.b, 1, 2)), s.makes(6, s.m1.alloc(s.b, 1, 3)), s.makes(7)
		p, q, r := s.m1.alloc(s.a, 1, 4), s.m1.alloc(s.a, 1, 5), s.m1.alloc(s.a, 1, 6)
		for _, m := range []*rpcpacket.Message{open, answered} {
			s.b.lend(s.a, m)
		}
		s.a.returns(s.b, answered, q)
		s.owned("answered", s.b, q)
		s.c.gaveUp(open, answered, third)
		s.owned("answered", s.b, q)
		s.a.returns(s.b, open, p)
		s.owned("answered after that", s.b, p)
		s.a.returns(s.b, third, r)
		s.owned("answered without a record", s.b, r)
	})
}
