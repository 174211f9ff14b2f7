package gatekeeper

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// exact makes an exactly-once call of a plain client.
func (n *testNode) exact(service, method string, ps ...dsmpacket.Pointer) *rpcpacket.Message {
	m := n.message(service, method, ps...)
	m.Flags = rpcpacket.FlagHeld.WithPolicy(rpcpacket.PolicyRecover)
	return m
}

// exactReply answers one.
func (n *testNode) exactReply(to *testNode, call *rpcpacket.Message, results ...dsmpacket.Pointer) {
	m := *call
	m.Type, m.Flags, m.CalleeIncarnation = rpcpacket.Reply, rpcpacket.FlagHeld.WithPolicy(rpcpacket.PolicyRecover), n.incarnation
	m.Lists, m.Payload = rpcpacket.ListsOf(results...), []byte("the answer")
	n.send(n.address, to.address, rackaddr.PortRPC, m.Append(nil))
}

// origin is that of a direct call of the node's: a plain one, or of an execution of Arrays.
func (n *testNode) origin(call *rpcpacket.Message) []byte {
	proof, service := endpoint.NewProver(testSecret.Node(n.address)).Prove(call.Call, call.Flags.Policy()), uint64(0)
	if call.Call.Derived() {
		return originOf("Arrays", call)
	}
	return binary.BigEndian.AppendUint64(proof[:], service)
}

// forget tells the Gatekeeper that nobody asks for a direct call.
func (n *testNode) forget(id rpcpacket.ID) { n.forgets(id, 0, 0, 0) }

// forgets names a call, with its slot and number, that nobody asks for; a mark makes a question of it.
func (n *testNode) forgets(id rpcpacket.ID, s rpcpacket.Slot, number rpcpacket.Number, mark rpcpacket.Flags) {
	m := rpcpacket.Message{Header: rpcpacket.Header{
		Type: rpcpacket.Oneway, Flags: (rpcpacket.FlagHeld | rpcpacket.FlagSettled | mark).WithPolicy(rpcpacket.PolicyRecover), CallerIncarnation: n.incarnation, Call: id,
	}, Payload: binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(id[:], uint32(s)), uint64(number))}
	n.send(n.address, rackaddr.Gatekeeper, rackaddr.PortRPC, m.Append(nil))
}

// asks asks the Gatekeeper what a call has handed over. It returns what is told, and whether there is an answer.
func (n *testNode) asksOf(call *rpcpacket.Message) (has []dsmpacket.Pointer, answered bool) {
	n.messages()
	n.forgets(call.Call, call.Slot, call.Number, rpcpacket.FlagGivenUp)
	for _, m := range n.messages() {
		if m.Type == rpcpacket.Ack && m.Flags&rpcpacket.FlagGivenUp != 0 {
			has, answered = append(has, m.Bases(rackaddr.DefaultDSMPrefix)...), true
		}
	}
	return has, answered
}

// frees tells the Gatekeeper that regions go.
func (n *testNode) frees(all ...dsmpacket.Pointer) {
	n.r.t.Helper()
	var f []netip.Addr
	for _, p := range all {
		f = append(f, p.Addr())
	}
	if err := n.ask(control.KindCalls, control.NodeCalls{Node: n.address, Incarnation: n.incarnation, Frees: f}, nil); err != nil {
		n.r.t.Error(err)
	}
}

// originOf is the origin of a call that an execution of a service makes.
func originOf(service string, call *rpcpacket.Message) []byte {
	hash := serviceHash(rackaddr.Service(service))
	_, proof := endpoint.Child(testSecret.Service(hash), call.Flags.Policy(), call.Parent, call.Branch, call.Index)
	return binary.BigEndian.AppendUint64(proof[:], hash)
}

// A refusal stays one, and a late copy of a settled call does not come to its callee, also with the
// next Gatekeeper.
func TestLogged_RefusalAndFloor(t *testing.T) {
	inLogged(t, func(s *small) {
		p := s.m1.alloc(s.b, 1, 1)
		m := s.a.message("Arrays", "add", p) // not the caller's
		for range 2 {
			s.a.call("Arrays", m)
			if got := s.a.message1(); got.Type != rpcpacket.Exception || got.Code != fault.PermissionDenied {
				t.Errorf("the caller got %+v", got.Header)
			}
			s.restart()
		}
		q := s.m1.alloc(s.a, 1, 2)
		next := s.a.message("Arrays", "add", q) // its floor is its own number
		s.a.call("Arrays", next)
		s.b.message1()
		s.restart()
		s.b.take()
		s.a.call("Arrays", m)
		quiet("a late copy", s.b)
	})
}

// A copy of an allocation's answer that comes when the region is freed gives
// nobody anything, also when another Gatekeeper has seen the first one.
func TestLogged_LateAllocation(t *testing.T) {
	inLogged(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		s.a.memory(dsmpacket.OpFree, p)
		s.m1.serve()
		s.a.take()
		s.restart()
		s.m1.allocated(s.a, p)
		if got := s.a.memoryAnswers(); len(got) != 0 {
			t.Errorf("the node got %+v", got)
		}
		if may := s.a.may(s.m1, p); may != "nothing" {
			t.Errorf("the node may %s", may)
		}
	})
}

// What a memory blade has allocated and nobody was given while the Gatekeeper
// was away goes when its owner does; what is on the log stays.
func TestLogged_Unclaimed(t *testing.T) {
	inLogged(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		late := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(3, 1))
		s.m1.regions = []control.RegionID{
			{ID: p.ID(), Class: 12, Owner: s.a.address},
			{ID: dsmpacket.IDOf(2, 1), Class: 12, Owner: s.b.address},
			{ID: late.ID(), Class: 12, Owner: s.a.address},
			{ID: dsmpacket.IDOf(4, 1), Class: 12, Owner: rackaddr.Node(99)},
		}
		s.restart()
		s.m1.converse()
		s.m1.expectReclaimed("nobody's", dsmpacket.IDOf(4, 1))
		s.m1.allocated(s.a, late) // its owner has asked again
		if got := s.a.memoryAnswers(); len(got) != 1 || s.a.may(s.m1, late) != "read+write" {
			t.Errorf("the owner got %+v, and may %s", got, s.a.may(s.m1, late))
		}
		s.b.leave()
		s.m1.converse()
		s.m1.expectReclaimed("its owner has gone", dsmpacket.IDOf(4, 1), dsmpacket.IDOf(2, 1))
		s.a.leave()
		s.m1.converse()
		s.m1.expectReclaimed("the rest", dsmpacket.IDOf(4, 1), dsmpacket.IDOf(2, 1), dsmpacket.IDOf(1, 1), dsmpacket.IDOf(3, 1))
	})
}

// A reclaim that a memory blade has not answered is asked for again.
func TestLogged_Reclaim(t *testing.T) {
	inLogged(t, func(s *small) {
		s.m1.alloc(s.a, 1, 1)
		s.m1.mute = true
		s.a.leave()
		s.m1.converse()
		s.restart()
		s.m1.mute = false
		s.m1.converse()
		s.m1.expectReclaimed("after the restart", dsmpacket.IDOf(1, 1))
		s.restart()
		s.m1.converse()
		s.m1.expectReclaimed("after the next one", dsmpacket.IDOf(1, 1))
	})
}

func (b *testBlade) expectReclaimed(when string, ids ...dsmpacket.RegionID) {
	b.r.t.Helper()
	ok := len(b.reclaimed) == len(ids)
	for i := 0; ok && i < len(ids); i++ {
		ok = b.reclaimed[i].ID == ids[i]
	}
	if !ok {
		b.r.t.Errorf("%s: reclaimed %+v, want %v", when, b.reclaimed, ids)
	}
}

// A log that fails stops the Gatekeeper, before anybody learns what is not on it.
func TestLogged_Failure(t *testing.T) {
	inLogged(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		s.disk.Crash()
		s.a.call("Arrays", s.a.message("Arrays", "add", p))
		if got := s.b.messages(); len(got) != 0 {
			t.Errorf("the callee got %+v", got)
		}
		if err := s.stop(); !errors.Is(err, wal.ErrFailed) {
			t.Errorf("the Gatekeeper ended with %v", err)
		}
		s.stop = nil
	})
}

// A later Gatekeeper rules under a higher election id, and node addresses are
// never given out twice.
func TestLogged_NumbersRise(t *testing.T) {
	inLogged(t, func(s *small) {
		last := s.gk.cfg.Election
		gone := s.c.address
		s.c.leave()
		for range 3 { // within the same nanosecond, here
			s.restart()
			now := s.gk.cfg.Election
			if !last.Less(now) {
				t.Errorf("election id %v after %v", now, last)
			}
			last = now
		}
		if n := s.c.join("s2", "next"); n.address == gone || n.address == s.a.address || n.address == s.b.address {
			t.Errorf("address %s was given out before", n.address)
		}
	})
}

// While the log stalls, copies of what is known already do not pile up behind it, and
// when it goes on, so do the calls.
func TestStalledLog(t *testing.T) {
	inLogged(t, func(s *small) {
		known := s.a.message("Arrays", "add", s.m1.alloc(s.a, 1, 1))
		s.a.call("Arrays", known)
		if call := s.b.message1(); call.Call != known.Call {
			t.Fatalf("the callee got %+v", call.Header)
		}
		p := s.m1.alloc(s.a, 1, 2)
		s.disk.Pause = func() time.Duration { return time.Hour }
		next := s.a.message("Arrays", "add", p)
		s.a.call("Arrays", next)
		for range DefaultLimits.Held + 1000 {
			s.a.call("Arrays", known)
		}
		s.gk.turn.mu.Lock()
		held := s.gk.outbox.held
		s.gk.turn.mu.Unlock()
		if held > DefaultLimits.Held {
			t.Errorf("%d packets wait for the log, %d may", held, DefaultLimits.Held)
		}
		<-time.After(2 * time.Hour)
		if all := s.b.messages(); len(all) == 0 || !slices.ContainsFunc(all, func(m rpcpacket.Message) bool { return m.Call == next.Call }) {
			t.Errorf("the log has gone on, and the callee got %d messages, not the new call", len(all))
		}
	})
}

// An answer to an exactly-once call that says it were one of policy none is not vouched for.
func TestForgedAnswer(t *testing.T) {
	inLoans(t, func(s *small, p dsmpacket.Pointer) {
		m := s.a.exact("Arrays", "add", p)
		s.a.lend(s.b, m)
		s.got("a loan", m, "read")
		forged := *m
		forged.Type, forged.Flags, forged.CalleeIncarnation, forged.Lists = rpcpacket.Reply, rpcpacket.FlagHeld, s.c.incarnation, nil
		s.c.send(s.c.address, s.a.address, rackaddr.PortRPC, forged.Append(nil))
		for _, got := range s.a.messages() {
			if got.Flags&rpcpacket.FlagReleased != 0 {
				t.Errorf("the Gatekeeper vouches for %+v", got.Header)
			}
		}
		s.may("after that", p, "read")
	})
}
