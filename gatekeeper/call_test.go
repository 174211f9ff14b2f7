package gatekeeper

import (
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// refused expects that a node has got an exception with a code, and nothing else.
func (n *testNode) refused(what string, code fault.Code) {
	n.r.t.Helper()
	ms := n.messages()
	if len(ms) != 1 || ms[0].Type != rpcpacket.Exception || ms[0].Code != code || ms[0].Flags&rpcpacket.FlagReleased == 0 || len(ms[0].Payload) == 0 {
		n.r.t.Errorf("%s: got %+v, want an exception: %s", what, ms, code)
	}
}

// quiet expects that nothing has arrived at nodes.
func quiet(what string, ns ...*testNode) {
	for _, n := range ns {
		n.r.t.Helper()
		if got := n.take(); len(got) != 0 {
			n.r.t.Errorf("%s: node %s got %+v", what, n.address, got)
		}
	}
}

// unchanged runs f and expects that it writes no rule.
func (s *small) unchanged(what string, f func()) {
	s.t.Helper()
	before := s.snapshot().Counters.RulesWritten
	f()
	if after := s.snapshot().Counters.RulesWritten; after != before {
		s.t.Errorf("%s: %d rules were written", what, after-before)
	}
}

func TestCall_RefusedWithoutRight(t *testing.T) {
	inSmall(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		s.unchanged("refusals", func() {
			for what, q := range map[string]dsmpacket.Pointer{
				"a stranger's pointer": p, "a pointer to nowhere": p.Add(1 << 20),
				"no memory machine": dsmpacket.Make(rackaddr.DefaultDSMPrefix, 9, dsmpacket.IDOf(1, 1)),
			} {
				call := s.c.message("Arrays", "add", q)
				s.c.call("Arrays", call)
				s.c.refused(what, fault.PermissionDenied)
				s.c.call("Arrays", call) // sent again: the same answer
				s.c.refused(what+", again", fault.PermissionDenied)
			}
			oneway := s.c.message("Arrays", "add", p)
			oneway.Type = rpcpacket.Oneway
			s.c.call("Arrays", oneway)
			s.c.refused("a stranger's one-way", fault.PermissionDenied)
		})
		quiet("refusals", s.a, s.b)
	})
}

func TestCall_PassedOnByLessee(t *testing.T) {
	inSmall(t, func(s *small) {
		if err := s.c.export("Inner", "sum"); err != nil {
			t.Fatal(err)
		}
		p := s.m1.alloc(s.a, 1, 1)
		s.a.call("Arrays", s.a.message("Arrays", "add", p))
		outer := s.b.message1()
		nested := s.b.message("Inner", "sum", p.Add(8))
		nested.Parent = outer.Call
		s.b.call("Inner", nested)
		inner := s.c.message1()
		if got := s.c.may(s.m1, p); got != "read" {
			t.Errorf("the inner callee may %s", got)
		}
		s.b.reply(s.a.address, &outer) // too early: the nested call still reads
		quiet("the nested call has not ended", s.a)
		s.c.reply(s.b.address, &inner)
		s.b.message1()
		s.a.message1()
		if a, b, c := s.a.may(s.m1, p), s.b.may(s.m1, p), s.c.may(s.m1, p); a != "read+write" || b != "nothing" || c != "nothing" {
			t.Errorf("in the end: a may %s, b %s, c %s", a, b, c)
		}
	})
}

func TestReply_BadResultBecomesException(t *testing.T) {
	inSmall(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		s.a.call("Arrays", s.a.message("Arrays", "add", p))
		call := s.b.message1()
		s.b.reply(s.a.address, &call, p) // what it was only lent
		s.a.refused("a result that is not the callee's", fault.PermissionDenied)
		if a, b := s.a.may(s.m1, p), s.b.may(s.m1, p); a != "read+write" || b != "nothing" {
			t.Errorf("a may %s, b %s", a, b)
		}
		s.b.reply(s.a.address, &call, p)
		s.a.refused("the same reply again", fault.PermissionDenied)
	})
}

func TestReply_ExceptionEndsLease(t *testing.T) {
	inSmall(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		s.a.call("Arrays", s.a.message("Arrays", "add", p))
		call := s.b.message1()
		call.Type, call.Flags, call.CalleeIncarnation, call.Lists = rpcpacket.Exception, rpcpacket.FlagHeld, s.b.incarnation, nil
		call.Code = fault.Overloaded
		s.b.send(s.b.address, s.a.address, rackaddr.PortRPC, call.Append(nil))
		s.a.refused("the callee's own exception", fault.Overloaded)
		if a, b := s.a.may(s.m1, p), s.b.may(s.m1, p); a != "read+write" || b != "nothing" {
			t.Errorf("a may %s, b %s", a, b)
		}
	})
}

func TestOneway_MovesControl(t *testing.T) {
	inSmall(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		m := s.a.message("Arrays", "add", p)
		m.Type = rpcpacket.Oneway
		s.a.call("Arrays", m)
		if got := s.b.message1(); got.Type != rpcpacket.Oneway || got.Flags&rpcpacket.FlagReleased == 0 {
			t.Errorf("the callee got %+v", got.Header)
		}
		s.unchanged("a one-way again", func() { s.a.call("Arrays", m) })
		s.b.message1()
		if a, b := s.a.may(s.m1, p), s.b.may(s.m1, p); a != "nothing" || b != "read+write" {
			t.Errorf("a may %s, b %s", a, b)
		}
	})
}

func TestCall_SentAgain(t *testing.T) {
	inSmall(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		m := s.a.message("Arrays", "add", p)
		s.a.call("Arrays", m)
		call := s.b.message1()
		s.unchanged("copies", func() {
			s.a.call("Arrays", m)
			if again := s.b.message1(); again.Call != call.Call || again.CalleeIncarnation != s.b.incarnation {
				t.Errorf("the callee got %+v", again.Header)
			}
		})
		r := s.m1.alloc(s.b, 1, 2)
		s.b.reply(s.a.address, &call, r)
		s.a.message1()
		s.unchanged("copies after the reply", func() {
			s.a.call("Arrays", m) // the reply was lost behind the switch
			s.b.message1()
			s.b.reply(s.a.address, &call, r)
			if again := s.a.message1(); again.Type != rpcpacket.Reply || len(again.Lists) != 1 {
				t.Errorf("the caller got %+v", again)
			}
		})
		// The next call of the session settles this one: a copy that comes late is
		// refused for ever, whoever has the region then.
		s.a.call("Arrays", s.a.message("Arrays", "add", p))
		s.b.message1()
		s.unchanged("a late copy", func() { s.a.call("Arrays", m) })
		quiet("a late copy", s.a, s.b)
		if late := s.snapshot().Counters.Late; late != 1 {
			t.Errorf("%d late calls, want 1", late)
		}
	})
}

func TestReply_OnlyFromTheCallee(t *testing.T) {
	inSmall(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		s.a.call("Arrays", s.a.message("Arrays", "add", p))
		call := s.b.message1()
		s.unchanged("forged replies", func() {
			s.c.reply(s.a.address, &call) // another node
			s.b.reply(s.c.address, &call) // to another node
			s.b.incarnation++
			s.b.reply(s.a.address, &call) // another incarnation
			s.b.incarnation--
		})
		quiet("forged replies", s.a, s.c)
		if a, b := s.a.may(s.m1, p), s.b.may(s.m1, p); a != "read" || b != "read" {
			t.Errorf("a may %s, b %s", a, b)
		}
		s.b.reply(s.a.address, &call)
		s.a.message1()
	})
}

// A call that needs no hold may have a result that does.
func TestReply_ResultOfUnheldCall(t *testing.T) {
	inSmall(t, func(s *small) {
		m := s.a.message("Arrays", "make")
		s.a.call("Arrays", m)
		call := s.b.message1()
		if call.Flags&rpcpacket.FlagReleased != 0 {
			t.Fatal("the call was held")
		}
		r := s.m1.alloc(s.b, 1, 1)
		for range 2 {
			s.b.reply(s.a.address, &call, r)
			if re := s.a.message1(); re.Type != rpcpacket.Reply || len(re.Lists) != 1 {
				t.Errorf("the caller got %+v", re)
			}
		}
		if a, b := s.a.may(s.m1, r), s.b.may(s.m1, r); a != "read+write" || b != "nothing" {
			t.Errorf("a may %s, b %s", a, b)
		}
		// The next such reply shows that this call is settled: its record goes.
		next := s.a.message("Arrays", "make")
		s.a.call("Arrays", next)
		call = s.b.message1()
		s.b.reply(s.a.address, &call, s.m1.alloc(s.b, 1, 2))
		s.a.message1()
		if err := s.gk.query(t.Context(), func(c *controller) error {
			if len(c.loans) != 1 {
				t.Errorf("%d calls are on record", len(c.loans))
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	})
}

// A copy of a reply that comes when the region has gone back to the callee moves
// nothing.
func TestReply_LateCopyOfUnheldCall(t *testing.T) {
	inSmall(t, func(s *small) {
		s.a.call("Arrays", s.a.message("Arrays", "make"))
		first := s.b.message1()
		r := s.m1.alloc(s.b, 1, 1)
		s.b.reply(s.a.address, &first, r)
		s.a.message1()
		back := s.a.message("Arrays", "add", r)
		back.Type = rpcpacket.Oneway
		s.a.call("Arrays", back)
		s.b.message1()
		s.unchanged("a late copy", func() { s.b.reply(s.a.address, &first, r) })
		s.a.call("Arrays", s.a.message("Arrays", "make"))
		second := s.b.message1()
		s.b.reply(s.a.address, &second, s.m1.alloc(s.b, 1, 2))
		s.a.take()
		s.unchanged("a later copy", func() { s.b.reply(s.a.address, &first, r) })
		quiet("a later copy", s.a)
		if a, b := s.a.may(s.m1, r), s.b.may(s.m1, r); a != "nothing" || b != "read+write" {
			t.Errorf("a may %s, b %s", a, b)
		}
	})
}

func TestCall_Malformed(t *testing.T) {
	inSmall(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		send := func(change func(m *rpcpacket.Message), cut func(b []byte) []byte) {
			m := s.a.message("Arrays", "add", p)
			if change != nil {
				change(m)
			}
			m.Trailer = s.a.origin(m)
			b := m.Append(nil)
			if cut != nil {
				b = cut(b)
			}
			s.a.send(s.a.address, s.b.address, rackaddr.PortRPC, b)
		}
		s.unchanged("malformed calls", func() {
			send(nil, func(b []byte) []byte { return append(b, "too long"...) })
			s.a.refused("lengths that do not add up", fault.BadRequest)
			send(nil, func(b []byte) []byte { b[94] = 0xff; return b })
			s.a.refused("too many pointers", fault.BadRequest)
			send(func(m *rpcpacket.Message) { m.CallerIncarnation++ }, nil)
			quiet("another incarnation of the caller", s.a)
			send(func(m *rpcpacket.Message) { m.CalleeIncarnation = 7 }, nil)
			s.a.refused("another incarnation of the callee", fault.Unavailable)
		})
		quiet("malformed calls", s.b)
	})
}

// TestCall_ToAService: a call goes to a node that serves it. One to a service is refused, with a pointer or without.
func TestCall_ToAService(t *testing.T) {
	inSmall(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		for what, m := range map[string]*rpcpacket.Message{
			"with a pointer": s.a.exact("Arrays", "add", p), "to be held": s.a.exact("Arrays", "add"), "of policy none": s.a.message("Arrays", "add", p),
		} {
			s.a.send(s.a.address, rackaddr.Service("Arrays"), rackaddr.PortRPC, m.Append(nil))
			s.a.refused(what, fault.BadRequest)
			quiet(what, s.b)
		}
	})
}

// What the switch stops itself never gets to the Gatekeeper.
func TestCall_StoppedBySwitch(t *testing.T) {
	inSmall(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		before := s.snapshot().Counters.Held
		for what, send := range map[string]func(m *rpcpacket.Message){
			"another node's address": func(m *rpcpacket.Message) {
				s.c.send(s.a.address, rackaddr.Service("Arrays"), rackaddr.PortRPC, m.Append(nil))
			},
			"wrong magic": func(m *rpcpacket.Message) {
				b := m.Append(nil)
				b[0]++
				s.a.send(s.a.address, rackaddr.Service("Arrays"), rackaddr.PortRPC, b)
			},
			"wrong version": func(m *rpcpacket.Message) {
				b := m.Append(nil)
				b[2]++
				s.a.send(s.a.address, rackaddr.Service("Arrays"), rackaddr.PortRPC, b)
			},
			"a truncated header": func(m *rpcpacket.Message) {
				s.a.send(s.a.address, rackaddr.Service("Arrays"), rackaddr.PortRPC, m.Append(nil)[:100])
			},
			"the Gatekeeper's flag": func(m *rpcpacket.Message) {
				m.Flags |= rpcpacket.FlagReleased
				s.a.call("Arrays", m)
			},
		} {
			send(s.a.message("Arrays", "add", p))
			quiet(what, s.a, s.b, s.c)
		}
		if after := s.snapshot().Counters.Held; after != before {
			t.Errorf("%d packets were held", after-before)
		}
	})
}

func TestCall_IDOfAnother(t *testing.T) {
	inSmall(t, func(s *small) {
		p, q := s.m1.alloc(s.a, 1, 1), s.m1.alloc(s.c, 1, 2)
		m := s.a.message("Arrays", "add", p)
		s.a.call("Arrays", m)
		s.b.message1()
		stolen := s.c.message("Arrays", "add", q)
		stolen.Call = m.Call
		s.unchanged("a stolen id", func() { s.c.call("Arrays", stolen) })
		s.c.refused("a stolen id", fault.BadRequest)
		quiet("a stolen id", s.b)
	})
}
