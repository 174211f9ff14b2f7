package gatekeeper

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// over says that a durable main has come to its end.
func (n *testNode) over(name string, index uint32) error {
	return n.ask(control.KindCalls, control.NodeCalls{
		Node: n.address, Incarnation: n.incarnation, Main: &control.EndedMain{Execution: control.ExecutionID(endpoint.MainID(name)), Index: index},
	}, nil)
}

// runs asks to run a durable main.
func (n *testNode) runs(name string) (part control.BegunMain, err error) {
	err = n.ask(control.KindMain, control.BeginMain{Node: n.address, Incarnation: n.incarnation, Name: name}, &part)
	return part, err
}

// TestMain_Over: a node says that its durable main is over. That is logged when the answer comes, and may be told again. A new
// run at that node begins afresh, above the former one's operations.
func TestMain_Over(t *testing.T) {
	withLedgers(t, func(r *rack, c1, m1 *testBlade) {
		m1.hello("m1", control.Memory)
		c2 := r.plug(2)
		c2.hello("c2", control.Compute)
		s := &small{rack: r, m1: m1, a: c1.join("c1", "job"), b: c2.join("c2", "job")}
		if p, err := s.a.runs("m"); err != nil || p.Over {
			t.Fatalf("the main may begin: %+v, %v", p, err)
		}
		if _, err := s.b.runs("m"); fault.CodeOf(err) != fault.PermissionDenied {
			t.Errorf("another program runs it, too: %v", err)
		}
		if err := s.b.over("m", 9); fault.CodeOf(err) != fault.Stale {
			t.Errorf("another node says that it is over: %v", err)
		}
		for _, again := range []bool{false, true} {
			if err := s.a.over("m", 4); err != nil {
				t.Errorf("it is over, again %v: %v", again, err)
			}
			s.anew()
		}
		if p, err := s.a.runs("m"); err != nil || p.Over || p.Index != 4 {
			t.Errorf("a new run begins with %+v, %v", p, err)
		}
	})
}

// inMains runs a test in a rack with ledgers, where node a has two regions, p and q, and runs the main m.
func inMains(t *testing.T, f func(s *small, p, q dsmpacket.Pointer)) {
	t.Helper()
	inLoans(t, func(s *small, p dsmpacket.Pointer) {
		q := s.m1.alloc(s.a, 1, 2)
		if part, err := s.a.runs("m"); err != nil || part.Over {
			t.Fatalf("the main may begin: %+v, %v", part, err)
		}
		f(s, p, q)
	})
}

// lends has the main m of a node call another one, which it lends a region.
func (n *testNode) lends(to *testNode, index uint32, p dsmpacket.Pointer) *rpcpacket.Message {
	id := endpoint.MainID("m")
	m := n.exact("Arrays", "add", p)
	m.Parent, m.Branch, m.Index = id, 0, index
	n.place(m, 9, uint64(index))
	var proof endpoint.Proof
	m.Call, proof = endpoint.Child(testSecret.Main(id), rpcpacket.PolicyRecover, id, 0, index)
	m.Trailer = binary.BigEndian.AppendUint64(proof[:], 0)
	n.send(n.address, to.address, rackaddr.PortRPC, m.Append(nil))
	return m
}

// asks sends a question for the main m, which may not be answered at once. It returns its id.
func (n *testNode) asks() uint64 {
	n.r.t.Helper()
	data, err := json.Marshal(control.BeginMain{Node: n.address, Incarnation: n.incarnation, Name: "m"})
	if err != nil {
		n.r.t.Fatal(err)
	}
	id, err := n.peer.Ask(time.Now(), control.KindMain, data)
	if err != nil {
		n.r.t.Fatal(err)
	}
	return id
}

// answered reports whether a question has been answered since the last look, and with what.
func (n *testNode) answered(id uint64) (part control.BegunMain, ok bool) {
	n.r.t.Helper()
	for _, m := range n.converse() {
		if m.ID == id {
			if err := m.Decode(&part); err != nil || m.Status != fault.OK {
				n.r.t.Errorf("answered %s: %s, %v", m.Status, m.Body, err)
			}
			return part, true
		}
	}
	return part, false
}

// TestMain_WaitsForLeases: the next run of a main does not begin while a call has leases that the former run has given: its callee
// reads what that run has written. Others' calls, which only say that they are the main's, hold up nobody; nor does a restart let it
// begin.
func TestMain_WaitsForLeases(t *testing.T) {
	for _, policy := range []rpcpacket.Policy{rpcpacket.PolicyRecover, rpcpacket.PolicyNone} {
		t.Run(policy.String(), func(t *testing.T) {
			inMains(t, func(s *small, p, q dsmpacket.Pointer) {
				other := s.a.lends(s.b, 1, q)
				s.got("the main's other call", other, "read")
				var call *rpcpacket.Message
				if policy == rpcpacket.PolicyNone {
					call = s.a.message("Arrays", "add", p)
					call.Parent = endpoint.MainID("m")
					s.a.call("Arrays", call)
					*call = s.b.message1()
				} else {
					call = s.a.lends(s.b, 2, p)
					s.got("the main's call", call, "read")
				}
				id := s.a.asks()
				if part, ok := s.a.answered(id); ok {
					t.Errorf("it begins under a lease: %+v", part)
				}
				s.anew()
				s.a.peer.Tick(time.Now().Add(time.Minute)) // it asks again
				if part, ok := s.a.answered(id); ok {
					t.Errorf("after a restart it begins under a lease: %+v", part)
				}
				s.b.take()
				s.b.exactReply(s.a, other)
				if part, ok := s.a.answered(id); ok {
					t.Errorf("one of two calls has ended, and it begins: %+v", part)
				}
				if policy == rpcpacket.PolicyNone {
					s.b.reply(s.a.address, call)
				} else {
					s.b.exactReply(s.a, call)
				}
				if part, ok := s.a.answered(id); !ok || part.Over || part.Run != id {
					t.Errorf("the lease has ended, and the run begins: %v, %+v", ok, part)
				}
			})
		})
	}
}

// TestMain_OthersLend: a node that lends memory and says that it is a main's call does not keep that from beginning again.
func TestMain_OthersLend(t *testing.T) {
	inMains(t, func(s *small, _, _ dsmpacket.Pointer) {
		lent := s.c.message("Arrays", "add", s.m1.alloc(s.c, 1, 3))
		lent.Parent = endpoint.MainID("m")
		s.c.call("Arrays", lent)
		if got := s.b.messages(); len(got) != 1 {
			t.Fatalf("the callee got %+v", got)
		}
		if part, err := s.a.runs("m"); err != nil || part.Over {
			t.Errorf("the main may begin again: %+v, %v", part, err)
		}
	})
}

// TestMain_ItsNodeFails: whoever waits to run a main, and fails, is not answered, and its node's next incarnation may run it.
func TestMain_ItsNodeFails(t *testing.T) {
	inMains(t, func(s *small, p, _ dsmpacket.Pointer) {
		call := s.a.lends(s.b, 1, p)
		s.got("the main's call", call, "read")
		s.a.asks()
		crash := control.Leave{Node: s.a.address, Incarnation: s.a.incarnation, Crashed: true}
		if err := s.a.ask(control.KindLeave, crash, nil); err != nil {
			t.Fatal(err)
		}
		next := s.a.join("c1", "program")
		if next.address != s.a.address || next.incarnation <= s.a.incarnation {
			t.Fatalf("the next one is node %s, incarnation %d", next.address, next.incarnation)
		}
		id := next.asks()
		if part, ok := next.answered(id); ok {
			t.Errorf("it begins under a lease: %+v", part)
		}
		s.b.exactReply(s.a, call)
		if part, ok := next.answered(id); !ok || part.Over {
			t.Errorf("the lease has ended, and the run begins: %v, %+v", ok, part)
		}
	})
}

// TestMain_Frees: what a main has got stays while its node is to come back, and goes when its node is gone for good. Its node frees it when the main is over.
func TestMain_Frees(t *testing.T) {
	for _, gone := range []bool{false, true} {
		inMains(t, func(s *small, _, _ dsmpacket.Pointer) {
			own := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(9, 1))
			s.m1.allocatedFor(s.a, own, testSecret.ToMemory(endpoint.MainID("m")))
			if got := s.a.may(s.m1, own); got != "read+write" {
				t.Fatalf("the main's node may %q", got)
			}
			program := s.m1.alloc(s.a, 1, 8)
			s.anew()
			if gone {
				crash := control.Leave{Node: s.a.address, Incarnation: s.a.incarnation, Crashed: true}
				if err := s.a.ask(control.KindLeave, crash, nil); err != nil {
					t.Fatal(err)
				}
				if _, there := s.gk.ctl.leases.Find(own); !there {
					t.Error("its node is to come back, and the main's region is freed")
				}
				if _, there := s.gk.ctl.leases.Find(program); there {
					t.Error("its node is to come back, and what its program had on its own account stays")
				}
				if err := s.gk.ForgetNode(s.t.Context(), s.a.address); err != nil {
					t.Fatal(err)
				}
			} else if err := s.a.over("m", 3); err != nil {
				t.Fatal(err)
			} else {
				s.a.frees(own)
			}
			s.settle()
			if _, there := s.gk.ctl.leases.Find(own); there {
				t.Errorf("gone for good %v: the main's region stays", gone)
			}
		})
	}
}

// TestByHand_Fenced: a program that goes on as a node which waits for it joins when the node's former incarnation is fenced, and
// not before.
func TestByHand_Fenced(t *testing.T) {
	withLedgers(t, func(r *rack, c1, m1 *testBlade) {
		m1.hello("m1", control.Memory)
		j := c1.joined("c1")
		m1.converse()
		e := control.Export{Node: j.Address, Incarnation: 1, Service: "Counter", Stateful: true, Methods: []control.Method{{Name: "add"}}}
		if err := c1.ask(control.KindExport, e, nil); err != nil {
			t.Fatal(err)
		}
		m1.mu.Lock()
		m1.unfencing = true
		m1.mu.Unlock()
		if err := c1.ask(control.KindLeave, control.Leave{Node: j.Address, Incarnation: 1, Crashed: true}, nil); err != nil {
			t.Fatal(err)
		}
		c1.tokens++
		if err := c1.ask(control.KindJoin, control.Join{Blade: "c1", Name: "program", Token: c1.tokens}, nil); err == nil || err.Error() != "no reply to join" {
			t.Errorf("it joins before the fence: %v", err)
		}
		m1.mu.Lock()
		m1.unfencing = false
		m1.mu.Unlock()
		pass(2 * control.Retries.Most) // the fence is asked for again
		m1.converse()
		var again control.Joined
		for _, m := range c1.converse() {
			if err := json.Unmarshal(m.Body, &again); err != nil {
				t.Fatal(err)
			}
		}
		if again.Address != j.Address || again.Incarnation != 2 || again.Ledger == nil || *again.Ledger != *j.Ledger {
			t.Errorf("it is %+v, and was %+v", again, j)
		}
		if all := r.snapshot().Nodes; len(all) != 1 || !all[0].Awaited.IsZero() {
			t.Errorf("nodes are %+v", all)
		}
		pass(time.Second)
	})
}

// TestUnheardOf_GoesAtLast: a memory blade tells of a region that an execution of a fenced incarnation has allocated, and may not have heard of. The
// next incarnation may ask for it. It goes with the node, whichever incarnation is the last.
func TestUnheardOf_GoesAtLast(t *testing.T) {
	withLedgers(t, func(r *rack, c1, m1 *testBlade) {
		m1.hello("m1", control.Memory)
		j := c1.joined("c1")
		m1.converse()
		e := control.Export{Node: j.Address, Incarnation: 1, Service: "Counter", Stateful: true, Methods: []control.Method{{Name: "add"}}}
		if err := c1.ask(control.KindExport, e, nil); err != nil {
			t.Fatal(err)
		}
		tells := func(all ...control.RegionID) {
			m1.mu.Lock()
			m1.unsettled.Regions = all
			m1.mu.Unlock()
		}
		tells(control.RegionID{ID: dsmpacket.IDOf(5, 1), Class: 12, Owner: j.Address, Execution: control.ExecutionID{1}})
		for incarnation := range uint32(2) {
			if incarnation > 0 {
				if again := c1.joined("c1"); again.Address != j.Address || again.Incarnation != incarnation+1 {
					t.Fatalf("it is %+v, and was %+v", again, j)
				}
				tells()
			}
			if err := c1.ask(control.KindLeave, control.Leave{Node: j.Address, Incarnation: incarnation + 1, Crashed: true}, nil); err != nil {
				t.Fatal(err)
			}
			m1.converse()
			if len(m1.reclaimed) != 0 {
				t.Errorf("reclaimed %+v, though incarnation %d may ask for it", m1.reclaimed, incarnation+2)
			}
		}
		if err := r.gk.ForgetNode(context.Background(), j.Address); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		m1.converse()
		if got := m1.reclaimed; len(got) != 1 || got[0].ID != dsmpacket.IDOf(5, 1) {
			t.Errorf("the node is gone: reclaimed %+v", got)
		}
	})
}
