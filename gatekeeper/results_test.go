package gatekeeper

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// returns answers a direct call with regions.
func (n *testNode) returns(to *testNode, call *rpcpacket.Message, results ...dsmpacket.Pointer) {
	m := *call
	m.Type, m.CalleeIncarnation = rpcpacket.Reply, n.incarnation
	m.Flags &^= rpcpacket.FlagHeld
	m.Lists, m.Payload, m.Trailer = rpcpacket.ListsOf(results...), []byte("the answer"), to.origin(call)
	n.send(n.address, to.address, rackaddr.PortRPC, m.Append(nil))
}

// ends says that nobody asks for the answer to a call any more.
func (n *testNode) ends(call *rpcpacket.Message) {
	n.forgets(call.Call, call.Slot, call.Number, 0)
	n.messages()
}

// gotResults checks that one answer with regions has arrived, and that they are the caller's.
func (s *small) gotResults(what string, p dsmpacket.Pointer) {
	s.t.Helper()
	if m := s.a.message1(); m.Type != rpcpacket.Reply || m.Flags&rpcpacket.FlagReleased == 0 || len(m.Lists) != 1 {
		s.t.Errorf("%s: the caller got %+v", what, m.Header)
	}
	s.owns(what, s.a, p)
}

// owns checks who of the caller and the callee controls a region.
func (s *small) owns(what string, owner *testNode, p dsmpacket.Pointer) {
	s.t.Helper()
	for _, n := range []*testNode{s.a, s.b} {
		want := map[bool]string{true: "read+write", false: "nothing"}[n == owner]
		if got := n.may(s.m1, p); got != want {
			s.t.Errorf("%s: node %s may %q, want %q", what, n.address, got, want)
		}
	}
}

// onRecord checks how many direct calls are on record.
func (s *small) onRecord(want int) {
	s.t.Helper()
	var loans, lenders int
	err := s.gk.query(s.t.Context(), func(c *controller) error {
		loans = len(c.loans)
		for _, k := range c.lenders {
			lenders += k
		}
		return nil
	})
	if err != nil || loans != want || lenders != want {
		s.t.Errorf("%d calls are on record, and %d charged, %v; want %d", loans, lenders, err, want)
	}
}

// anew ends the Gatekeeper at once, and starts the next one with its log.
func (s *small) anew() {
	s.t.Helper()
	s.crash()
	s.start(Config{})
	s.settle()
}

// ofSlots checks of how many slots the Gatekeeper knows, by the word of their callees, which answers are late, and that its log has the
// same.
func (s *small) ofSlots(what string, want int) {
	s.t.Helper()
	var known, logged int
	err := s.gk.query(s.t.Context(), func(c *controller) error {
		for _, slots := range c.handedOver {
			known += len(slots)
		}
		for r, err := range c.cfg.Store.Records() {
			if err != nil {
				return err
			}
			if r.Kind == wal.KindReturned {
				logged++
			}
		}
		return nil
	})
	if err != nil || known != want || logged != want {
		s.t.Errorf("%s: %d slots are known, and %d on the log, %v; want %d", what, known, logged, err, want)
	}
}

// TestResults: the answer to a direct call hands its regions over, once. Its copies pass. When nobody
// asks for the answer any more the record is gone. A late copy does nothing then, though the callee has
// the region again. That holds over a restart of the Gatekeeper at each step.
func TestResults(t *testing.T) {
	for _, restart := range []int{0, 1, 2, 3} {
		inLoans(t, func(s *small, _ dsmpacket.Pointer) {
			again := func(step int) {
				if step == restart {
					s.anew()
				}
			}
			p := s.m1.alloc(s.b, 1, 2)
			call := s.a.exact("Arrays", "add")
			s.b.returns(s.a, call, p)
			s.gotResults("first", p)
			again(1)
			s.b.returns(s.a, call, p)
			s.gotResults("again", p)
			s.onRecord(1)
			back := s.b.exact("Arrays", "add")
			s.a.returns(s.b, back, p)
			s.b.message1()
			s.owns("returned", s.b, p)
			again(2)
			s.b.returns(s.a, call, p)
			s.a.message1()
			s.owns("a copy after that", s.b, p)
			s.b.ends(call)
			s.a.ends(back)
			s.onRecord(0)
			again(3)
			s.b.returns(s.a, call, p)
			quiet("a late copy", s.a)
			s.owns("a late copy", s.b, p)
			s.onRecord(0)
			s.ofSlots("at the end", 2)
		})
	}
}

// TestResults_Asked: a callee asks whether its answer has handed regions over, once nobody asks for that any more. It hears so as often as it asks, until it
// has the record forgotten. An answer that has handed nothing over never does.
func TestResults_Asked(t *testing.T) {
	inLoans(t, func(s *small, _ dsmpacket.Pointer) {
		p, q := s.m1.alloc(s.b, 1, 2), s.m1.alloc(s.b, 1, 3)
		call, unheard := s.a.exact("Arrays", "add"), s.a.exact("Arrays", "add")
		s.b.returns(s.a, call, p)
		s.gotResults("the answer", p)
		s.a.frees(p)
		for range 2 {
			if has, ok := s.b.asksOf(call); !ok || !slices.Equal(has, []dsmpacket.Pointer{p}) {
				t.Errorf("its callee hears of %v, %v", has, ok)
			}
			s.anew()
		}
		s.b.ends(call)
		s.onRecord(0)
		for range 2 {
			if has, ok := s.b.asksOf(unheard); !ok || len(has) > 0 {
				t.Errorf("of an answer that has not come its callee hears %v, %v", has, ok)
			}
			s.b.returns(s.a, unheard, q)
			s.owns("an answer that came late", s.b, q)
		}
	})
}

// TestFrees: a node frees what it has, after the last lease, and nothing else. It may say so again.
func TestFrees(t *testing.T) {
	inLoans(t, func(s *small, lent dsmpacket.Pointer) {
		p, q, r := s.m1.alloc(s.a, 1, 2), s.m1.alloc(s.a, 1, 3), s.m1.alloc(s.b, 1, 4)
		call := s.a.exact("Arrays", "add", lent)
		s.a.lend(s.b, call)
		s.got("a loan", call, "read")
		for range 2 {
			s.a.frees(lent, p, r)
			s.owns("freed", nil, p)
			s.owns("it stays", s.a, q)
			s.owns("another node's", s.b, r)
			s.may("what is lent", lent, "read")
			s.anew()
		}
		s.b.exactReply(s.a, call)
		s.may("what was lent", lent, "nothing")
	})
}

// TestResults_Large: the first packet of an answer with regions hands them over like a whole one. So does that
// of the answer to a call that lends memory: the caller does not look for the rest of it in the log.
func TestResults_Large(t *testing.T) {
	inLoans(t, func(s *small, lent dsmpacket.Pointer) {
		p, q := s.m1.alloc(s.b, 1, 2), s.m1.alloc(s.b, 1, 3)
		for _, call := range []*rpcpacket.Message{s.a.exact("Arrays", "add"), s.a.exact("Arrays", "add", lent)} {
			if len(call.Lists) > 0 {
				p = q
				s.a.lend(s.b, call)
				s.got("a loan", call, "read")
			}
			answer := begins(*call)
			answer.Type, answer.CalleeIncarnation, answer.Lists, answer.Trailer = rpcpacket.Reply, s.b.incarnation, rpcpacket.ListsOf(p), s.a.origin(call)
			if len(call.Lists) == 0 {
				answer.Flags &^= rpcpacket.FlagHeld
			}
			s.b.send(s.b.address, s.a.address, rackaddr.PortRPC, answer.Append(nil))
			m := s.a.message1()
			if o, err := m.Opening(); err != nil || o.Total != 64<<10 || m.Flags&rpcpacket.FlagReleased == 0 {
				t.Errorf("the caller got %+v, %v", m.Header, err)
			}
			s.owns("a large answer", s.a, p)
		}
	})
}

// TestResults_CrashAtEveryStep: the Gatekeeper crashes before each message to the switch while an answer hands a
// region over, with its log at the same time or before. The next copy of the answer is let through, and the region is the
// caller's. The switch is told of rules, or has to be asked: then the rules are written some time after the judgement.
func TestResults_CrashAtEveryStep(t *testing.T) {
	for _, asks := range []bool{false, true} {
		for before := range 3 {
			for after, blown := before, true; blown; after++ {
				synctest.Test(t, func(t *testing.T) {
					r := &rack{asks: asks}
					r.fill(t)
					r.settle, r.disk, r.fuse = synctest.Wait, new(wal.Disk), &fuse{ClientConnInterface: r.conn, r: r}
					r.start(Config{})
					s := newSmall(r)
					p := s.m1.alloc(s.b, 1, 2)
					call := s.a.exact("Arrays", "add")
					r.fuse.arm(after, before)
					s.b.returns(s.a, call, p)
					if blown = s.died(); blown {
						s.anew()
					}
					r.fuse.disarm()
					s.a.take()
					s.b.returns(s.a, call, p)
					s.gotResults(fmt.Sprintf("asked %v, crash before message %d, log %d before", asks, after, before), p)
				})
			}
		}
	}
}

// TestResults_Mains: a durable main gets regions by answers. An answer that comes when it is over hands nothing over.
func TestResults_Mains(t *testing.T) {
	inLoans(t, func(s *small, p dsmpacket.Pointer) {
		q, late := s.m1.alloc(s.b, 1, 2), s.m1.alloc(s.b, 1, 3)
		if _, err := s.a.runs("m"); err != nil {
			t.Fatal(err)
		}
		id := endpoint.MainID("m")
		call := func(index uint32) *rpcpacket.Message {
			m := s.a.exact("Arrays", "add")
			m.Parent, m.Branch, m.Index = id, 0, index
			s.a.place(m, 9, uint64(index))
			var proof endpoint.Proof
			m.Call, proof = endpoint.Child(testSecret.Main(id), rpcpacket.PolicyRecover, id, 0, index)
			m.Trailer = binary.BigEndian.AppendUint64(proof[:], 0)
			return m
		}
		answers := func(m *rpcpacket.Message, result dsmpacket.Pointer) {
			k := *m
			k.Type, k.CalleeIncarnation, k.Lists = rpcpacket.Reply, s.b.incarnation, rpcpacket.ListsOf(result)
			s.b.send(s.b.address, s.a.address, rackaddr.PortRPC, k.Append(nil))
		}
		lends := call(1)
		lends.Lists = rpcpacket.ListsOf(p)
		s.a.send(s.a.address, s.b.address, rackaddr.PortRPC, lends.Append(nil))
		if got := s.b.directly(); len(got) != 1 || s.b.may(s.m1, p) != "read" {
			t.Errorf("the callee got %d calls, and may %q", len(got), s.b.may(s.m1, p))
		}
		answers(lends, q)
		s.gotResults("the main's answer", q)
		s.owns("what it has lent", s.a, p)
		if err := s.a.over("m", 3); err != nil {
			s.t.Error(err)
		}
		answers(call(2), late)
		s.owns("an answer after its end", s.b, late)
	})
}

// TestResults_Lost: no copy of the answer has come before nobody asks for it any more. The one that
// comes then does nothing, though the call is on record with what it was lent. The next Gatekeeper knows
// that, too.
func TestResults_Lost(t *testing.T) {
	inLoans(t, func(s *small, lent dsmpacket.Pointer) {
		p := s.m1.alloc(s.b, 1, 2)
		call := s.a.exact("Arrays", "add")
		s.b.ends(call)
		s.b.returns(s.a, call, p)
		quiet("a late answer", s.a)
		s.owns("a late answer", s.b, p)
		s.onRecord(0)
		call = s.a.exact("Arrays", "add", lent)
		s.a.lend(s.b, call)
		s.got("a loan", call, "read")
		s.b.ends(call)
		s.may("a loan that ends with its answer", lent, "read")
		s.anew()
		s.b.returns(s.a, call, p)
		s.owns("a late answer to a loan", s.b, p)
		s.may("a late answer to a loan", lent, "nothing")
		s.onRecord(0)
		s.a.messages()
		call = s.a.exact("Arrays", "add", lent)
		s.a.lend(s.b, call)
		s.got("the next loan", call, "read")
		next := s.a.exact("Arrays", "add", lent) // of the same session: nobody asks for the former one
		s.a.lend(s.b, next)
		s.got("the one after that", next, "read")
		s.b.returns(s.a, call, p)
		s.owns("an answer that nobody asks for", s.b, p)
		s.onRecord(1)
		s.a.messages()
		last := s.a.exact("Arrays", "add")
		s.b.ends(last) // of the same slot: nobody asks for an earlier one either
		s.b.returns(s.a, next, p)
		s.owns("an answer to an earlier call of the slot", s.b, p)
		s.may("an answer to an earlier call of the slot", lent, "nothing")
	})
}

// TestResults_Denied: a callee hands over what it does not control. Its caller gets an exception, each
// time, and not that the call has not begun.
func TestResults_Denied(t *testing.T) {
	inLoans(t, func(s *small, p dsmpacket.Pointer) {
		denied := func(what string, call *rpcpacket.Message) {
			t.Helper()
			s.b.returns(s.a, call, p)
			m := s.a.message1()
			if m.Type != rpcpacket.Exception || m.Code != fault.PermissionDenied || m.Flags&rpcpacket.FlagUnbegun != 0 {
				t.Errorf("%s: the caller got %+v", what, m.Header)
			}
		}
		call := s.a.exact("Arrays", "add")
		denied("the caller's", call)
		s.anew()
		back := s.b.exact("Arrays", "add")
		s.a.returns(s.b, back, p)
		s.b.message1()
		denied("the callee's by now", call)
		s.owns("after that", s.b, p)
	})
}

// TestHostile_Results: who answers a call must show that the call was made to it. A node that knows the
// call's id cannot answer it, nor use up the caller's slot.
func TestHostile_Results(t *testing.T) {
	inLoans(t, func(s *small, _ dsmpacket.Pointer) {
		p, q := s.m1.alloc(s.b, 1, 2), s.m1.alloc(s.c, 1, 3)
		call := s.a.exact("Arrays", "add")
		forge := func(what string, change func(m *rpcpacket.Message)) {
			t.Helper()
			m := *call
			m.Type, m.CalleeIncarnation, m.Lists, m.Trailer = rpcpacket.Reply, s.c.incarnation, rpcpacket.ListsOf(q), s.a.origin(call)
			m.Flags &^= rpcpacket.FlagHeld
			change(&m)
			s.c.send(s.c.address, s.a.address, rackaddr.PortRPC, m.Append(nil))
			quiet(what, s.a)
			s.onRecord(0)
		}
		forge("no origin", func(m *rpcpacket.Message) { m.Trailer = nil })
		forge("no proof", func(m *rpcpacket.Message) { m.Trailer = make([]byte, originBytes) })
		forge("the proof of its own call", func(m *rpcpacket.Message) { m.Trailer = s.c.origin(s.c.exact("Arrays", "add")) })
		forge("another caller's slot", func(m *rpcpacket.Message) { s.b.place(m, 1, 1) })
		forge("an execution's call", func(m *rpcpacket.Message) { m.Call.Derive() })
		forge("another policy", func(m *rpcpacket.Message) { m.Flags = m.Flags.WithPolicy(rpcpacket.PolicyFateShare) })
		forge("another incarnation of the caller", func(m *rpcpacket.Message) { m.CallerIncarnation++ })
		forge("a later incarnation of the callee", func(m *rpcpacket.Message) { m.CalleeIncarnation++ })
		s.c.ends(call)
		s.b.returns(s.a, call, p)
		s.gotResults("the true answer", p)
		s.c.ends(call)
		s.onRecord(1)
	})
}

// TestQuota_Results: a callee has so many answers with regions on record, in so many slots. The callers
// of others do not suffer.
func TestQuota_Results(t *testing.T) {
	inLoans(t, func(s *small, _ dsmpacket.Pointer) {
		s.gk.ctl.cfg.Limits.NodeCalls, s.gk.ctl.cfg.Limits.NodeSlots = 2, 2
		answered := func(n *testNode, slot uint32, k uint64) *rpcpacket.Message {
			call := s.a.exact("Arrays", "add")
			s.a.place(call, slot, s.a.count)
			n.returns(s.a, call, s.m1.alloc(n, 1, k))
			return call
		}
		one, two := answered(s.b, 1, 2), answered(s.b, 1, 3)
		answered(s.b, 1, 4)
		answered(s.c, 1, 5)
		if n := len(s.a.messages()); n != 3 {
			t.Errorf("%d answers have arrived, want 2 of one node and 1 of another", n)
		}
		s.b.ends(one)
		s.b.ends(two)
		s.b.ends(answered(s.b, 2, 6))
		answered(s.b, 3, 7)
		if n := len(s.a.messages()); n != 1 {
			t.Errorf("%d answers have arrived, want that in the second slot", n)
		}
		s.onRecord(1)
	})
}

// TestResults_Nodes: the record goes with the callee, and so does what it has said of slots; what was
// said of a caller's goes with the caller, and nothing is kept that is said of them later.
func TestResults_Nodes(t *testing.T) {
	for _, callee := range []bool{false, true} {
		inLoans(t, func(s *small, _ dsmpacket.Pointer) {
			p := s.m1.alloc(s.b, 1, 2)
			first := s.a.exact("Arrays", "add")
			s.b.ends(first)
			s.b.returns(s.a, s.a.exact("Arrays", "add"), p)
			s.a.message1()
			s.onRecord(1)
			s.ofSlots("both are there", 1)
			if callee {
				s.b.leave()
				pass(time.Second)
			} else {
				s.a.leave()
				pass(time.Second)
				s.b.ends(first)
			}
			s.onRecord(0)
			s.ofSlots("one is gone", 0)
			s.anew()
			s.onRecord(0)
			s.ofSlots("after a restart", 0)
		})
	}
}
