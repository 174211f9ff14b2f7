package gatekeeper

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// hands makes a direct one-way that hands a region over.
func (n *testNode) hands(p dsmpacket.Pointer) *rpcpacket.Message {
	m := n.exact("Arrays", "add", p)
	m.Type = rpcpacket.Oneway
	return m
}

// accepts says that a one-way has come.
func (n *testNode) accepts(to *testNode, m *rpcpacket.Message) {
	a := rpcpacket.Message{Header: m.Header}
	a.Type, a.CalleeIncarnation = rpcpacket.Reply, n.incarnation
	n.send(n.address, to.address, rackaddr.PortRPC, a.Append(nil))
}

// declines says that a one-way has not come, and never will.
func (n *testNode) declines(to *testNode, m *rpcpacket.Message) {
	a := rpcpacket.Message{Header: m.Header, Payload: []byte("it has not come")}
	a.Type, a.Code, a.CalleeIncarnation = rpcpacket.Exception, fault.Unavailable, n.incarnation
	a.Flags |= rpcpacket.FlagUnbegun
	n.send(n.address, to.address, rackaddr.PortRPC, a.Append(nil))
}

// took checks that one copy of a one-way has arrived.
func (s *small) took(what string, m *rpcpacket.Message) {
	s.t.Helper()
	if all := s.b.directly(); len(all) != 1 || all[0].Call != m.Call || all[0].Type != rpcpacket.Oneway || all[0].Flags&rpcpacket.FlagReleased == 0 {
		s.t.Errorf("%s: the receiver got %+v", what, all)
	}
}

// TestLoan_Oneway: a one-way hands its region over once, whatever copies come, also when nobody knows the one-way any
// more, and the sender has the region again. That holds over a restart of the Gatekeeper at each step.
func TestLoan_Oneway(t *testing.T) {
	for restart := range 6 {
		inLoans(t, func(s *small, p dsmpacket.Pointer) {
			again := func(step int) {
				if step == restart {
					s.anew()
				}
			}
			m := s.a.hands(p)
			s.a.lend(s.b, m)
			s.took("first", m)
			s.owns("first", s.b, p)
			again(1)
			s.a.lend(s.b, m)
			s.took("again", m)
			s.b.accepts(s.a, m)
			if r := s.a.message1(); r.Type != rpcpacket.Reply || r.Flags&rpcpacket.FlagReleased == 0 {
				t.Errorf("the sender got %+v", r.Header)
			}
			again(2)
			back := s.b.hands(p)
			s.b.lend(s.a, back)
			if all := s.a.directly(); len(all) != 1 || all[0].Call != back.Call {
				t.Errorf("the sender got %+v", all)
			}
			s.owns("handed back", s.a, p)
			again(3)
			s.a.lend(s.b, m)
			s.took("a copy after that", m)
			s.owns("a copy after that", s.a, p)
			next := s.a.exact("Arrays", "add", p) // of the same session: the first one is settled
			s.a.lend(s.b, next)
			s.got("the next one", next, "read")
			s.b.exactReply(s.a, next)
			s.a.message1()
			again(4)
			s.a.lend(s.b, m)
			quiet("a late copy", s.a, s.b)
			s.owns("a late copy", s.a, p)
			again(5)
			s.onRecord(2)
		})
	}
}

// TestLoan_OnewayDeclined: the receiver of a one-way says that it never takes it, or leaves before it has said anything.
// The sender has the region again, and may hand it over once more.
func TestLoan_OnewayDeclined(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		inLoans(t, func(s *small, p dsmpacket.Pointer) {
			m := s.a.hands(p)
			s.a.lend(s.b, m)
			s.took("first", m)
			s.owns("first", s.b, p)
			if leaves {
				s.b.leave()
				s.settle()
			} else {
				s.b.declines(s.a, m)
				s.a.refused("never run", fault.Unavailable)
			}
			if got := s.a.may(s.m1, p); got != "read+write" {
				t.Errorf("declined: the sender may %q", got)
			}
			if leaves {
				return
			}
			s.a.lend(s.b, m)
			s.a.refused("the same attempt", fault.Unavailable)
			quiet("the same attempt", s.b)
			s.owns("the same attempt", s.a, p)
			next := s.a.hands(p)
			s.a.lend(s.b, next)
			s.took("once more", next)
			s.owns("once more", s.b, p)
		})
	}
}

// TestLoan_OnewayUnheard: a receiver that says nothing is asked whether the one-way has come. If the sender has left by
// then, nobody has the region.
func TestLoan_OnewayUnheard(t *testing.T) {
	inLoans(t, func(s *small, p dsmpacket.Pointer) {
		m := s.a.hands(p)
		s.a.lend(s.b, m)
		s.took("first", m)
		s.a.leave()
		pass(loanProbe * 2)
		probe := s.b.directly()
		if len(probe) == 0 || probe[0].Call != m.Call || probe[0].Flags&rpcpacket.FlagReplay == 0 || probe[0].Type != rpcpacket.Oneway {
			t.Fatalf("the receiver is asked %+v", probe)
		}
		s.b.declines(s.a, m)
		s.settle()
		s.onRecord(0)
		if n := s.gk.ctl.leases.Len(); n != 0 {
			t.Errorf("%d regions stay", n)
		}
	})
}

// TestLoan_OnewayRefused: a node that does not control a region hands nothing over, and is told so each time. It is not
// told that another receiver might take the one-way.
func TestLoan_OnewayRefused(t *testing.T) {
	inLoans(t, func(s *small, p dsmpacket.Pointer) {
		lent := s.a.exact("Arrays", "add", p)
		s.a.lend(s.b, lent)
		s.got("a loan", lent, "read")
		m := s.b.hands(p)
		for _, what := range []string{"lent, not controlled", "again"} {
			s.b.lend(s.a, m)
			if r := s.b.message1(); r.Code != fault.PermissionDenied || r.Flags&rpcpacket.FlagUnbegun != 0 {
				t.Errorf("%s: the sender got %+v", what, r.Header)
			}
			s.may(what, p, "read")
		}
		call := *m
		call.Type = rpcpacket.Call
		s.b.lend(s.a, &call)
		s.b.refused("a call with the one-way's id", fault.BadRequest)
	})
}

// TestLoan_OnewayCrashAtEveryStep: the Gatekeeper crashes before each message to the switch while a one-way hands a
// region over, with its log at the same time or before. The next copy is let through, and the region is the receiver's.
func TestLoan_OnewayCrashAtEveryStep(t *testing.T) {
	for _, asks := range []bool{false, true} {
		for before := range 3 {
			for after, blown := before, true; blown; after++ {
				synctest.Test(t, func(t *testing.T) {
					r := &rack{asks: asks}
					r.fill(t)
					r.settle, r.disk, r.fuse = synctest.Wait, new(wal.Disk), &fuse{ClientConnInterface: r.conn, r: r}
					r.start(Config{})
					s := newSmall(r)
					p := s.m1.alloc(s.a, 1, 2)
					m := s.a.hands(p)
					r.fuse.arm(after, before)
					s.a.lend(s.b, m)
					if blown = s.died(); blown {
						s.anew()
					}
					r.fuse.disarm()
					s.b.take()
					s.a.lend(s.b, m)
					what := fmt.Sprintf("asked %v, crash before message %d, log %d before", asks, after, before)
					s.took(what, m)
					s.owns(what, s.b, p)
				})
			}
		}
	}
}
