package gatekeeper

import (
	"encoding/binary"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// inLoans is inLogged where calls go direct. Node a lends node b a region.
func inLoans(t *testing.T, f func(s *small, p dsmpacket.Pointer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRack(t)
		r.settle, r.disk = synctest.Wait, new(wal.Disk)
		r.start(Config{})
		s := newSmall(r)
		f(s, s.m1.alloc(s.a, 1, 1))
	})
}

// lend sends a direct call that lends regions.
func (n *testNode) lend(to *testNode, m *rpcpacket.Message) {
	proven := *m
	proven.Trailer = n.origin(m)
	n.send(n.address, to.address, rackaddr.PortRPC, proven.Append(nil))
}

// directly returns the messages that have arrived at the port for direct calls.
func (n *testNode) directly() (all []rpcpacket.Message) {
	n.r.t.Helper()
	for _, u := range n.take() {
		if u.Dst.Port() != rackaddr.PortDirect {
			continue
		}
		m, err := rpcpacket.Parse(u.Payload)
		if err != nil {
			n.r.t.Fatal(err)
		}
		all = append(all, m)
	}
	return all
}

// got checks that one copy of a call has arrived, with rights or without.
func (s *small) got(what string, m *rpcpacket.Message, rights string) {
	s.t.Helper()
	all := s.b.directly()
	if len(all) != 1 || all[0].Call != m.Call || all[0].Flags&rpcpacket.FlagReleased == 0 || len(all[0].Lists) != len(m.Lists) {
		s.t.Errorf("%s: the callee got %+v", what, all)
	}
	if len(m.Lists) > 0 {
		s.may(what, m.Bases(rackaddr.DefaultDSMPrefix)[0], rights)
	}
}

// asked checks that the callee is asked what has become of a call, and gets nothing else of a copy of it.
func (s *small) asked(what string, m *rpcpacket.Message) {
	s.t.Helper()
	all := s.b.directly()
	if len(all) != 1 || all[0].Call != m.Call || all[0].Flags&rpcpacket.FlagReplay == 0 || len(all[0].Lists)+len(all[0].Payload) != 0 {
		s.t.Errorf("%s: the callee got %+v", what, all)
	}
}

// may checks what the callee may do with a region.
func (s *small) may(what string, p dsmpacket.Pointer, rights string) {
	s.t.Helper()
	if got := s.b.may(s.m1, p); got != rights {
		s.t.Errorf("%s: the callee may %q, want %q", what, got, rights)
	}
}

// TestLoan: a call that lends memory is let through with the rights that it brings, each time it
// comes; its answer ends them, and later copies of the call bring none. That holds over a restart
// of the Gatekeeper at each step. When its caller forgets it, the record is gone.
func TestLoan(t *testing.T) {
	for _, restart := range []int{0, 1, 2, 3, 4} {
		inLoans(t, func(s *small, p dsmpacket.Pointer) {
			again := func(step int) {
				if step == restart {
					s.crash()
					s.start(Config{})
					s.settle()
					if rights := map[int]string{1: "read", 2: "nothing", 3: "nothing", 4: "nothing"}; s.b.may(s.m1, p) != rights[step] {
						t.Errorf("after restart %d the callee has not the rights to %s", step, rights[step])
					}
				}
			}
			call := s.a.exact("Arrays", "add", p)
			s.a.lend(s.b, call)
			s.got("first", call, "read")
			again(1)
			s.a.lend(s.b, call)
			s.got("again", call, "read")
			s.b.exactReply(s.a, call)
			if m := s.a.message1(); m.Type != rpcpacket.Reply || m.Flags&rpcpacket.FlagReleased == 0 {
				t.Errorf("the caller got %+v", m.Header)
			}
			s.may("answered", p, "nothing")
			again(2)
			s.a.lend(s.b, call)
			s.asked("a late copy", call)
			s.may("a late copy", p, "nothing")
			s.b.exactReply(s.a, call)
			if m := s.a.message1(); m.Type != rpcpacket.Reply {
				t.Errorf("again, the caller got %+v", m.Header)
			}
			again(3)
			next := s.a.exact("Arrays", "add", p) // of the same session
			s.a.lend(s.b, next)
			s.got("the next one", next, "read")
			s.b.exactReply(s.a, next)
			s.a.message1()
			var loans int
			if err := s.gk.query(t.Context(), func(c *controller) error { loans = len(c.loans); return nil }); err != nil || loans != 1 {
				t.Errorf("%d loans are on record, %v; want the last one", loans, err)
			}
			again(4)
			s.a.lend(s.b, call)
			quiet("forgotten", s.a, s.b)
			s.may("forgotten", p, "nothing")
		})
	}
}

// TestLoan_Refused: a call whose caller may not lend what it names is refused, each time with the
// same words, though the caller might by now; so is one that makes no sense.
func TestLoan_Refused(t *testing.T) {
	inLoans(t, func(s *small, p dsmpacket.Pointer) {
		lent := s.a.exact("Arrays", "add", p)
		s.a.place(lent, 1, 1) // so that the calls below do not end it
		s.a.lend(s.b, lent)
		s.got("a loan", lent, "read")
		free := s.a.exact("Arrays", "add", dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(2, 1)))
		s.a.lend(s.b, free)
		s.a.refused("no region", fault.PermissionDenied)
		s.crash()
		s.start(Config{})
		s.settle()
		s.m1.alloc(s.a, 1, 2)
		s.a.lend(s.b, free)
		s.a.refused("no region, again", fault.PermissionDenied)

		others := *lent
		others.CallerIncarnation, others.Number = s.c.incarnation, rpcpacket.NumberOf(s.c.incarnation, 1)
		s.c.lend(s.b, &others)
		s.c.refused("another node's call", fault.BadRequest)
		others = *s.a.exact("Arrays", "add", p)
		others.Number = rpcpacket.NumberOf(s.a.incarnation+1, 1)
		s.a.lend(s.b, &others)
		s.a.refused("a number of another incarnation", fault.BadRequest)
		others = *s.a.exact("Arrays", "add", p)
		others.Slot = s.c.slot(0)
		s.a.lend(s.b, &others)
		s.a.refused("another node's slot", fault.BadRequest)
		others.Slot = rpcpacket.Slot(rpcpacket.Blocks*rpcpacket.BlockSlots - 1)
		s.a.lend(s.b, &others)
		s.a.refused("a slot of nobody's", fault.BadRequest)
		s.a.lend(s.b, s.a.exact("Arrays", "add"))
		s.a.refused("nothing is lent", fault.BadRequest)
		stale := s.a.exact("Arrays", "add", p)
		stale.CallerIncarnation++
		stale.Number = rpcpacket.NumberOf(stale.CallerIncarnation, 1)
		s.a.lend(s.b, stale)
		quiet("another incarnation", s.a, s.b)
		s.c.exactReply(s.a, lent)
		quiet("an answer of another node", s.a, s.b)
		s.may("after all that", p, "read")
		s.b.exactReply(s.a, lent, p)
		s.a.refused("an answer with a region of another node", fault.PermissionDenied)
		s.may("after the answer", p, "nothing")
	})
}

// TestLoan_Probe: a callee is asked for the answer that does not come. One that says that it will
// never run the call ends its rights; then only another attempt of the call is let through.
func TestLoan_Probe(t *testing.T) {
	inLoans(t, func(s *small, p dsmpacket.Pointer) {
		call := s.a.exact("Arrays", "add", p)
		s.a.lend(s.b, call)
		s.got("a loan", call, "read")
		pass(loanProbe + 100*time.Millisecond)
		probe := s.b.directly()
		if len(probe) != 1 || probe[0].Call != call.Call || probe[0].Flags&rpcpacket.FlagReplay == 0 || len(probe[0].Payload)+len(probe[0].Lists) != 0 {
			t.Fatalf("the callee is asked %+v", probe)
		}
		m := rpcpacket.Message{Header: call.Header, Payload: []byte("it has not come")}
		m.Type, m.Code, m.CalleeIncarnation = rpcpacket.Exception, fault.Unavailable, s.b.incarnation
		m.Flags |= rpcpacket.FlagUnbegun
		s.b.send(s.b.address, s.a.address, rackaddr.PortRPC, m.Append(nil))
		s.a.refused("never run", fault.Unavailable)
		s.may("never run", p, "nothing")
		s.beat(3*loanProbe, s.a.testBlade, s.b.testBlade, s.c.testBlade, s.m1)
		quiet("the callee has said that it never runs the call", s.b)
		s.a.lend(s.b, call) // the answer was lost
		if again := s.b.directly(); len(again) != 1 || again[0].Call != call.Call {
			t.Fatalf("the callee is not asked for its answer again, but gets %+v", again)
		}
		s.may("the same attempt", p, "nothing")
		m.Code = fault.Deadline // whatever it is: the callee's ledger has it
		s.b.send(s.b.address, s.a.address, rackaddr.PortRPC, m.Append(nil))
		s.a.refused("the same attempt", fault.Deadline)
	})
}

// TestLoan_AnotherAttempt: the next run of a caller makes a call again whose leases have not ended. A callee that has never
// run the former attempt, and says so late, may be running this one: it keeps its rights, over a restart of the Gatekeeper too.
func TestLoan_AnotherAttempt(t *testing.T) {
	for _, restart := range []bool{false, true} {
		inLoans(t, func(s *small, p dsmpacket.Pointer) {
			call := s.a.exact("Arrays", "add", p)
			call.Parent = rpcpacket.ID{1}
			call.Call = childOf("Arrays", call.Parent, 0)
			var refusals [][]byte
			for slot := range uint32(2) {
				s.a.place(call, slot, 1)
				s.a.lend(s.b, call)
				s.got("an attempt", call, "read")
				m := rpcpacket.Message{Header: call.Header, Payload: []byte("it has not come")}
				m.Type, m.Code, m.CalleeIncarnation = rpcpacket.Exception, fault.Unavailable, s.b.incarnation
				m.Flags |= rpcpacket.FlagUnbegun
				refusals = append(refusals, m.Append(nil))
			}
			if restart {
				s.crash()
				s.start(Config{})
				s.settle()
				s.b.directly()
			}
			s.b.send(s.b.address, s.a.address, rackaddr.PortRPC, refusals[0])
			quiet("the former one is refused", s.a)
			s.may("the former one is refused", p, "read")
			if late := *call; !restart {
				s.a.place(&late, 0, 1)
				s.a.lend(s.b, &late)
				quiet("a late copy of the former one", s.b)
			}
			s.b.send(s.b.address, s.a.address, rackaddr.PortRPC, refusals[1])
			s.a.refused("this one is refused", fault.Unavailable)
			s.may("this one is refused", p, "nothing")
		})
	}
}

// begins makes a message the first packet of one of 64 KiB.
func begins(m rpcpacket.Message) *rpcpacket.Message {
	m.Flags |= rpcpacket.FlagMore
	m.Payload = append(binary.BigEndian.AppendUint64(nil, 64<<10), make([]byte, 520)...)
	return &m
}

// TestLoan_Large: the first packet of a call that lends memory is let through like a whole one, and its record is
// that of a call without arguments. One that does not begin as it says is refused.
func TestLoan_Large(t *testing.T) {
	inLoans(t, func(s *small, p dsmpacket.Pointer) {
		call := begins(*s.a.exact("Arrays", "add", p))
		short := *call
		short.Payload = short.Payload[:rpcpacket.MorePreface]
		s.a.lend(s.b, &short)
		s.a.refused("no beginning", fault.BadRequest)
		quiet("no beginning", s.b)
		for _, what := range []string{"first", "again"} {
			s.a.lend(s.b, call)
			got := s.b.directly()
			if len(got) != 1 || got[0].Flags&rpcpacket.FlagMore == 0 || len(got[0].Lists) != 1 || len(got[0].Payload) != len(call.Payload) {
				t.Fatalf("%s: the callee got %+v", what, got)
			}
			s.may(what, p, "read")
		}
		s.anew()
		pass(loanProbe + 100*time.Millisecond)
		if probe := s.b.directly(); len(probe) != 1 || probe[0].Flags&rpcpacket.FlagMore != 0 || len(probe[0].Payload) != 0 {
			t.Fatalf("the callee is asked %+v", probe)
		}
		s.b.exactReply(s.a, call)
		s.a.message1()
		s.may("answered", p, "nothing")
	})
}

// TestLoan_Nodes: the record outlives incarnations of both nodes. Whoever waits for the end of its rights has its callee
// asked at once. The callee's end for good ends the rights, and the caller's the record.
func TestLoan_Nodes(t *testing.T) {
	inLoans(t, func(s *small, p dsmpacket.Pointer) {
		call := s.a.exact("Arrays", "add", p)
		s.a.lend(s.b, call)
		s.got("a loan", call, "read")
		waits := func(ids ...rpcpacket.ID) error {
			q := control.NodeCalls{Node: s.a.address, Incarnation: s.a.incarnation}
			for _, id := range ids {
				q.Lent = append(q.Lent, control.ExecutionID(id))
			}
			return s.a.ask(control.KindCalls, q, nil)
		}
		pass(loanAgain)
		for range 3 {
			if err := waits(call.Call); fault.CodeOf(err) != fault.Overloaded {
				t.Errorf("while it is open: %v", err)
			}
		}
		if probe := s.b.directly(); len(probe) != 1 || probe[0].Call != call.Call || probe[0].Flags&rpcpacket.FlagReplay == 0 {
			t.Errorf("while somebody waits for its end, the callee is asked %+v, want one question", probe)
		}
		if err := waits(rpcpacket.ID{9}); err != nil {
			t.Errorf("one that nobody knows: %v", err)
		}
		s.b.leave()
		pass(time.Second)
		if err := waits(call.Call); err != nil {
			t.Errorf("its callee is gone: %v", err)
		}
		s.a.leave()
		pass(time.Second)
		var loans, lenders int
		if err := s.gk.query(t.Context(), func(c *controller) error { loans, lenders = len(c.loans), len(c.lenders); return nil }); err != nil || loans+lenders != 0 {
			t.Errorf("%d loans of %d nodes are on record, %v", loans, lenders, err)
		}
	})
}

// TestHostile_OtherRegions: a copy of a call or one-way with other regions than those on record is let through at no stage of
// it, and is counted as malformed. Else the callee would use its own rights on its own regions for the caller.
func TestHostile_OtherRegions(t *testing.T) {
	copies := map[string]func(s *small, p dsmpacket.Pointer) (m *rpcpacket.Message, send func(*rpcpacket.Message), answer func()){
		"call": func(s *small, p dsmpacket.Pointer) (*rpcpacket.Message, func(*rpcpacket.Message), func()) {
			m := s.a.exact("Arrays", "add", p)
			return m, func(m *rpcpacket.Message) { s.a.lend(s.b, m) }, func() { s.b.exactReply(s.a, m) }
		},
		"one-way": func(s *small, p dsmpacket.Pointer) (*rpcpacket.Message, func(*rpcpacket.Message), func()) {
			m := s.a.hands(p)
			return m, func(m *rpcpacket.Message) { s.a.lend(s.b, m) }, func() { s.b.accepts(s.a, m) }
		},
		"call of policy none": func(s *small, p dsmpacket.Pointer) (*rpcpacket.Message, func(*rpcpacket.Message), func()) {
			m := s.a.message("Arrays", "add", p)
			return m, func(m *rpcpacket.Message) { s.a.call("Arrays", m) }, func() {}
		},
		"one-way of policy none": func(s *small, p dsmpacket.Pointer) (*rpcpacket.Message, func(*rpcpacket.Message), func()) {
			m := s.a.message("Arrays", "add", p)
			m.Type = rpcpacket.Oneway
			return m, func(m *rpcpacket.Message) { s.a.call("Arrays", m) }, func() {}
		},
	}
	for what, begin := range copies {
		for restart := range 2 {
			inLoans(t, func(s *small, p dsmpacket.Pointer) {
				own := s.m1.alloc(s.b, 1, 2)
				m, send, answer := begin(s, p)
				send(m)
				if got := s.b.take(); len(got) != 1 {
					t.Fatalf("%s: the callee got %+v", what, got)
				}
				s.b.take()
				for _, stage := range []string{"open", "answered"} {
					if restart == 1 {
						s.anew()
						s.b.take()
					}
					before := s.snapshot().Counters.Malformed
					twice := rpcpacket.List{Count: 2, Regions: [rpcpacket.ListRegions]rpcpacket.Region{rpcpacket.RegionOf(p), rpcpacket.RegionOf(p)}}
					for _, other := range [][]rpcpacket.List{rpcpacket.ListsOf(own), rpcpacket.ListsOf(p, own), {twice}} {
						c := *m
						c.Lists = other
						send(&c)
						for _, u := range s.b.take() {
							if got, err := rpcpacket.Parse(u.Payload); err != nil || len(got.Lists)+len(got.Payload) > 0 {
								t.Errorf("%s, %s, with %v listed: the callee got %+v, %v", what, stage, other, got, err)
							}
						}
					}
					if n := s.snapshot().Counters.Malformed - before; stage == "open" && n != 3 {
						t.Errorf("%s: %d malformed packets, want 3", what, n)
					}
					s.a.take()
					answer()
					s.a.take()
				}
			})
		}
	}
}

// TestLoan_OtherRun: a later run of an execution makes a call that is open with other regions: its journal is lost. It is told so as whoever makes a call
// with other arguments is, and not that its packet is malformed.
func TestLoan_OtherRun(t *testing.T) {
	inLoans(t, func(s *small, _ dsmpacket.Pointer) {
		first, other := s.m1.alloc(s.b, 1, 2), s.m1.alloc(s.b, 1, 3)
		m := s.makes(5, first)
		s.b.lend(s.a, m)
		s.b.take()
		before := s.snapshot().Counters.Malformed
		again := *m
		again.Number++
		again.Lists = rpcpacket.ListsOf(other)
		s.b.lend(s.a, &again)
		all := s.b.take()
		if len(all) != 1 {
			t.Fatalf("%d packets came back, want 1", len(all))
		}
		got, err := rpcpacket.Parse(all[0].Payload)
		if err != nil || got.Type != rpcpacket.Exception || got.Code != fault.Nondeterminism || got.Number != again.Number {
			t.Errorf("the later run is told %+v, %v", got, err)
		}
		if n := s.snapshot().Counters.Malformed - before; n != 0 {
			t.Errorf("%d packets count as malformed", n)
		}
	})
}
