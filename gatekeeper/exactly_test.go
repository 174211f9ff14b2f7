package gatekeeper

import (
	"bytes"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// What makes no sense of an exactly-once call is refused, or dropped, and changes
// nothing for the call whose id it has.
func TestExactly_Refused(t *testing.T) {
	inLogged(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		good := s.a.exact("Arrays", "add", p)
		s.a.call("Arrays", good)
		s.b.message1()
		edit := func(f func(m *rpcpacket.Message)) *rpcpacket.Message {
			m := *good
			f(&m)
			return &m
		}
		for what, c := range map[string]struct {
			m    *rpcpacket.Message
			want fault.Code
		}{
			"other arguments": {edit(func(m *rpcpacket.Message) { m.Payload = []byte("others") }), fault.Nondeterminism},
			"no pointer":      {edit(func(m *rpcpacket.Message) { m.Pointers = nil }), fault.Nondeterminism},
			"not to be held":  {edit(func(m *rpcpacket.Message) { m.Flags &^= rpcpacket.FlagHeld }), fault.BadRequest},
			"a parent that does not run": {edit(func(m *rpcpacket.Message) {
				m.Flags &^= rpcpacket.FlagSession
				m.Call, m.Parent, m.Floor = childOf("Arrays", rpcpacket.ID{2}, 0), rpcpacket.ID{2}, 0
			}), fault.Stale},
			"floor above itself": {edit(func(m *rpcpacket.Message) { m.Call, m.Floor = rpcpacket.SessionID(s.a.session, 9), 10 }), fault.BadRequest},
		} {
			s.a.call("Arrays", c.m)
			s.a.refused(what, c.want)
			if got := s.b.messages(); len(got) != 0 {
				t.Errorf("%s: the callee got %+v", what, got)
			}
		}
		s.a.call("Arrays", edit(func(m *rpcpacket.Message) { m.CallerIncarnation++ }))
		quiet("a caller of another incarnation", s.a, s.b)

		call := *good
		call.CalleeIncarnation = 1
		s.c.exactReply(s.a, &call)
		quiet("a reply from another node", s.a, s.c)
		stale := call
		s.b.incarnation++
		s.b.exactReply(s.a, &stale)
		s.b.incarnation--
		quiet("a reply of another incarnation", s.a, s.b)
		s.b.exactReply(s.a, &call)
		if got := s.a.message1(); got.Type != rpcpacket.Reply {
			t.Errorf("the caller got %+v", got.Header)
		}
	})
}

// A message that is larger than a packet comes in parts, in any order, and its
// trailer reaches nobody.
func TestExactly_Parts(t *testing.T) {
	inLogged(t, func(s *small) {
		m := s.a.exact("Arrays", "add")
		m.Trailer = trailer.Section{Type: trailer.Effect, Data: bytes.Repeat([]byte{7}, 5000)}.Append(nil)
		parts := rpcpacket.Split(m.Append(nil), 1232)
		for i := range parts {
			if got := s.b.messages(); len(got) != 0 {
				t.Fatalf("after %d of %d parts the callee got %+v", i, len(parts), got)
			}
			s.a.send(s.a.address, rackaddr.Service("Arrays"), rackaddr.PortRPC, parts[len(parts)-1-i])
		}
		if got := s.b.message1(); got.Call != m.Call || len(got.Trailer) != 0 || string(got.Payload) != "thrift" {
			t.Errorf("the callee got %+v", got)
		}
	})
}

// A call that commits nothing needs no word with the memory blades; one whose callee
// has had a region does.
func TestExactly_Commit(t *testing.T) {
	inLogged(t, func(s *small) {
		done := func(want int) {
			t.Helper()
			m := s.a.exact("Arrays", "add")
			s.a.call("Arrays", m)
			call := s.b.message1()
			s.b.exactReply(s.a, &call)
			if got := s.a.message1(); got.Type != rpcpacket.Reply {
				t.Errorf("the caller got %+v", got.Header)
			}
			s.b.take()
			s.m1.mu.Lock()
			defer s.m1.mu.Unlock()
			if len(s.m1.undone) != want || want > 0 && s.m1.undone[want-1].Kind != control.KindCommit {
				t.Errorf("the memory blade was told %v, want %d commits", s.m1.undone, want)
			}
		}
		done(0)
		s.m1.alloc(s.b, 1, 1)
		done(1)
		done(2)
	})
}

// While a blade does not answer its commit, nobody gets the answer; it goes on when
// the blade has failed.
func TestExactly_CommitWithoutAnswer(t *testing.T) {
	inLogged(t, func(s *small) {
		s.m1.alloc(s.b, 1, 1)
		s.m1.undoing = true
		s.a.call("Arrays", s.a.exact("Arrays", "add"))
		call := s.b.message1()
		s.b.exactReply(s.a, &call)
		quiet("before the commit", s.a, s.b)
		s.beat(missedHeartbeats*time.Second+time.Second, s.a.testBlade, s.b.testBlade, s.c.testBlade)
		if got := s.a.message1(); got.Type != rpcpacket.Reply {
			t.Errorf("the caller got %+v", got.Header)
		}
		if got := s.b.message1(); got.Type != rpcpacket.Ack {
			t.Errorf("the callee got %+v", got.Header)
		}
	})
}

// An execution ends while a call that it has given up still runs: what that results in
// is nobody's, and freed.
func TestExactly_ResultForNobody(t *testing.T) {
	inLogged(t, func(s *small) {
		if err := s.c.export("Third", "do"); err != nil {
			t.Fatal(err)
		}
		m := s.a.exact("Arrays", "add")
		s.a.call("Arrays", m)
		call := s.b.message1()
		nested := s.b.exact("Third", "do")
		nested.Flags, nested.Call, nested.Parent, nested.Floor = rpcpacket.FlagHeld.WithPolicy(rpcpacket.PolicyRecover), childOf("Arrays", m.Call, 0), m.Call, 0
		s.b.call("Third", nested)
		inner := s.c.message1()
		p := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, 1<<12)
		s.m1.allocatedFor(s.c, p, inner.Call)
		s.b.exactReply(s.a, &call)
		if got := s.a.message1(); got.Type != rpcpacket.Reply {
			t.Fatalf("the caller got %+v", got.Header)
		}
		answer := inner
		answer.Type, answer.CalleeIncarnation, answer.Flags = rpcpacket.Reply, s.c.incarnation, rpcpacket.FlagHeld.WithPolicy(rpcpacket.PolicyRecover)
		answer.Pointers = []dsmpacket.Pointer{p}
		s.c.send(s.c.address, s.b.address, rackaddr.PortRPC, answer.Append(nil))
		s.m1.converse()
		if state := s.snapshot(); len(state.Regions) != 0 {
			t.Errorf("left: %+v", state.Regions)
		}
		s.m1.expectReclaimed("nobody's result", 1<<12)
	})
}
