package gatekeeper

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/callgraph"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// exportStateful makes the node serve one call at a time.
func (n *testNode) exportStateful(service, method string) {
	n.r.t.Helper()
	e := control.Export{Node: n.address, Incarnation: n.incarnation, Service: service, Stateful: true, Methods: []control.Method{{Name: method}}}
	if err := n.ask(control.KindExport, e, nil); err != nil {
		n.r.t.Fatal(err)
	}
}

// nested is a call made by the execution that serves another.
func (n *testNode) nested(parent rpcpacket.ID, service, method string, ps ...dsmpacket.Pointer) *rpcpacket.Message {
	m := n.message(service, method, ps...)
	m.Parent = parent
	return m
}

// underWay returns the calls in the graph, oldest first.
func (r *rack) underWay() (all []callgraph.View) {
	r.t.Helper()
	r.digested()
	if err := r.gk.do(context.Background(), func() { all = slices.Collect(r.gk.ctl.graph.All()) }); err != nil {
		r.t.Fatal(err)
	}
	return all
}

// throughB makes A call S, which runs one call at a time, and S call B, and returns both
// calls: a call of B's to S would wait for itself.
func (s *small) throughB(held rpcpacket.Flags) (first, second rpcpacket.Message) {
	s.t.Helper()
	s.b.exportStateful("S", "do")
	if err := s.c.export("B", "do"); err != nil {
		s.t.Fatal(err)
	}
	first = s.a.do(s.b, rpcpacket.ID{}, "S", held)
	return first, s.b.do(s.c, first.Call, "B", held)
}

// do calls a service of another node's, and returns what arrives there.
func (n *testNode) do(to *testNode, parent rpcpacket.ID, service string, held rpcpacket.Flags) rpcpacket.Message {
	m := n.nested(parent, service, "do")
	m.Flags |= held
	n.call(service, m)
	return to.message1()
}

// TestGraph_DeadlockIsRefused is A → S, which runs one call at a time, → B → S: it
// would wait for itself, and is refused; whether the calls are held or not.
func TestGraph_DeadlockIsRefused(t *testing.T) {
	for name, held := range map[string]rpcpacket.Flags{"held": rpcpacket.FlagHeld, "not held": 0} {
		t.Run(name, func(t *testing.T) {
			inSmall(t, func(s *small) {
				first, second := s.throughB(held)
				bad := s.c.nested(second.Call, "S", "do")
				bad.Flags |= held
				for range 2 { // and again
					s.c.call("S", bad)
					s.digested()
					ms := s.c.messages()
					if len(ms) != 1 || ms[0].Type != rpcpacket.Exception || ms[0].Code != fault.Deadlock || !strings.Contains(string(ms[0].Payload), "S.do") {
						t.Fatalf("the call that waits for itself: got %+v", ms)
					}
				}
				quiet("a refused call", s.b)
				if all := s.underWay(); len(all) != 2 || all[1].Parent != first.Call || !all[0].Serial {
					t.Errorf("under way: %+v", all)
				}

				// Another client's call only waits; and what waits for nobody is let through.
				other := s.a.do(s.b, rpcpacket.ID{}, "S", held)
				if v, _ := s.view(other.Call); v.Behind != first.Call {
					t.Errorf("the other call: %+v", v)
				}
				answer := func(from, to *testNode, m rpcpacket.Message) {
					from.replyFlags(to.address, &m, held)
					if got := to.message1(); got.Type != rpcpacket.Reply || got.Call != m.Call {
						t.Errorf("the reply: %+v", got)
					}
				}
				answer(s.c, s.b, second)
				answer(s.b, s.a, first)
				answer(s.b, s.a, other)
				over := s.c.nested(second.Call, "S", "do") // its parent is over
				over.Flags |= held
				s.c.call("S", over)
				s.digested()
				third := s.b.message1()
				answer(s.b, s.c, third)
				if all := s.underWay(); len(all) != 0 {
					t.Errorf("in the end: %+v", all)
				}
				if n := s.snapshot().Counters.Deadlocks; n == 0 {
					t.Error("no deadlock was counted")
				}
			})
		})
	}
}

// replyFlags answers a call, held or not.
func (n *testNode) replyFlags(to netip.Addr, call *rpcpacket.Message, held rpcpacket.Flags) {
	m := *call
	m.Type, m.Flags, m.CalleeIncarnation = rpcpacket.Reply, rpcpacket.FlagSession|held, n.incarnation
	n.send(n.address, to, rackaddr.PortRPC, m.Append(nil))
}

// digested lets the time pass that a digest may take, and a call that waits for one.
func (r *rack) digested() {
	r.t.Helper()
	r.settle()
	<-time.After(2 * digestPatience) // of the rack's time
	r.settle()
}

func (r *rack) view(id rpcpacket.ID) (v callgraph.View, ok bool) {
	r.t.Helper()
	r.digested()
	if err := r.gk.do(context.Background(), func() { v, ok = r.gk.ctl.graph.Call(id) }); err != nil {
		r.t.Fatal(err)
	}
	return v, ok
}

// TestGraph_StagesOfHeldCall follows a call with a pointer from a1 to a2.
func TestGraph_StagesOfHeldCall(t *testing.T) {
	inSmall(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		m := s.a.message("Arrays", "add", p)
		sent := time.Now()
		s.a.call("Arrays", m)
		call := s.b.message1()
		v, ok := s.view(m.Call)
		if !ok || v.Stage != callgraph.B1 || v.Caller.Address != s.a.address || v.Callee != (callgraph.Node{Address: s.b.address, Incarnation: 1}) ||
			v.Service != "Arrays" || v.Method != "add" || v.Policy != rpcpacket.PolicyNone || len(v.Pointers) != 1 || v.Pointers[0] != p || v.Loose {
			t.Errorf("with the callee: %+v", v)
		}
		if v.Times[callgraph.A1].Before(sent) || v.Times[callgraph.B1].Before(v.Times[callgraph.A1]) {
			t.Errorf("times %v, sent at %v", v.Times, sent)
		}
		s.b.reply(s.a.address, &call)
		s.a.message1()
		if v, ok := s.view(m.Call); ok {
			t.Errorf("after the reply: %+v", v)
		}

		s.a.call("Arrays", s.a.message("Arrays", "add", p))
		s.b.message1()
		s.b.leave()
		s.a.refused("the callee is gone", fault.Unavailable)
		if all := s.underWay(); len(all) != 0 {
			t.Errorf("after the callee's end: %+v", all)
		}
	})
}

// TestGraph_LooseCallsAge loses the end of a call that is not held: it stays while
// its caller sends it again, and no longer.
func TestGraph_LooseCallsAge(t *testing.T) {
	inSmall(t, func(s *small) {
		m := s.a.message("Arrays", "add")
		held := s.a.message("Arrays", "add", s.m1.alloc(s.a, 1, 1))
		s.a.call("Arrays", held)
		for range 15 {
			s.a.call("Arrays", m)
			s.beat(time.Second, s.a.testBlade, s.b.testBlade, s.c.testBlade, s.m1)
		}
		v, ok := s.view(m.Call)
		if !ok || !v.Loose || v.Method != "add" || v.Caller.Address != s.a.address || v.Callee.Address != s.b.address {
			t.Fatalf("while it is sent: %+v, %t", v, ok)
		}
		oneway := s.a.message("Arrays", "add")
		oneway.Type = rpcpacket.Oneway
		s.a.call("Arrays", oneway)
		if v, ok := s.view(oneway.Call); !ok || !v.Oneway {
			t.Errorf("a one-way: %+v", v)
		}
		s.beat(looseAge+time.Second, s.a.testBlade, s.b.testBlade, s.c.testBlade, s.m1)
		if all := s.underWay(); len(all) != 1 || all[0].ID != held.Call {
			t.Errorf("after a silence: %+v", all)
		}
	})
}

// chain has a call from a to b, which lends a region, and one on its behalf from b to c.
func (s *small) chain() (p dsmpacket.Pointer, outer, inner rpcpacket.Message) {
	s.t.Helper()
	if err := s.c.export("Inner", "sum"); err != nil {
		s.t.Fatal(err)
	}
	p = s.m1.alloc(s.a, 1, 1)
	s.a.call("Arrays", s.a.message("Arrays", "add", p))
	outer = s.b.message1()
	s.b.call("Inner", s.b.nested(outer.Call, "Inner", "sum", p))
	return p, outer, s.c.message1()
}

// TestGraph_Answers asks the graph about a chain of three calls over four nodes.
func TestGraph_Answers(t *testing.T) {
	inSmall(t, func(s *small) {
		ctx := context.Background()
		p, _, inner := s.chain()
		ids := func(calls []CallState) (all []string) {
			for _, k := range calls {
				all = append(all, k.Method)
			}
			return all
		}
		for what, q := range map[string]struct {
			ask  func() ([]CallState, error)
			want []string
		}{
			"a waits for": {func() ([]CallState, error) { n, err := s.gk.NodeCalls(ctx, s.a.address); return n.Waits, err }, []string{"add"}},
			"b waits for": {func() ([]CallState, error) { n, err := s.gk.NodeCalls(ctx, s.b.address); return n.Waits, err }, []string{"sum"}},
			"b serves":    {func() ([]CallState, error) { n, err := s.gk.NodeCalls(ctx, s.b.address); return n.Serves, err }, []string{"add"}},
			"c waits for": {func() ([]CallState, error) { n, err := s.gk.NodeCalls(ctx, s.c.address); return n.Waits, err }, nil},
			"the chain":   {func() ([]CallState, error) { return s.gk.Chain(ctx, inner.Call) }, []string{"sum", "add"}},
			"p is in":     {func() ([]CallState, error) { h, err := s.gk.Holders(ctx, p); return h.Calls, err }, []string{"sum", "add"}},
			"c's blade":   {func() ([]CallState, error) { d, err := s.gk.FailureDomain(ctx, "s2"); return d.Cut, err }, []string{"sum"}},
			"behind it":   {func() ([]CallState, error) { d, err := s.gk.FailureDomain(ctx, "s2"); return d.Waiting, err }, []string{"add"}},
			"b's blade":   {func() ([]CallState, error) { d, err := s.gk.FailureDomain(ctx, "s1"); return d.Out, err }, []string{"sum"}},
		} {
			if got, err := q.ask(); err != nil || !slices.Equal(ids(got), q.want) {
				t.Errorf("%s: %v, %v; want %v", what, ids(got), err, q.want)
			}
		}
		h, err := s.gk.Holders(ctx, p.Add(8))
		if err != nil || h.Region.Controller != s.a.address || len(h.Region.Leases) != 2 || len(h.Calls) != 0 {
			t.Errorf("into the middle: %+v, %v", h, err)
		}
		if d, err := s.gk.FailureDomain(ctx, "m1"); err != nil || len(d.Regions) != 1 || len(d.Nodes) != 0 {
			t.Errorf("a memory blade: %+v, %v", d, err)
		}
		for _, f := range []func() error{
			func() error { _, err := s.gk.NodeCalls(ctx, rackaddr.Node(77)); return err },
			func() error { _, err := s.gk.Chain(ctx, rpcpacket.ID{1}); return err },
			func() error { _, err := s.gk.Holders(ctx, p.Add(1<<30)); return err },
			func() error { _, err := s.gk.FailureDomain(ctx, "x9"); return err },
		} {
			if err := f(); fault.CodeOf(err) != fault.NotFound {
				t.Errorf("about nothing: %v", err)
			}
		}
		calls := s.snapshot().Calls
		if len(calls) != 2 || calls[0].Checkpoint != "b1" || len(calls[0].Pointers) != 1 || calls[0].A1.IsZero() || !calls[0].B2.IsZero() {
			t.Errorf("the snapshot's calls: %+v", calls)
		}
	})
}

// TestFailureDomain: what fails with a blade follows from what nodes have told of direct calls, by the calls' policies, and from
// the calls that the Gatekeeper sees.
func TestFailureDomain(t *testing.T) {
	inSmall(t, func(s *small) {
		if err := s.c.export("Third", "do"); err != nil {
			t.Fatal(err)
		}
		tell := func(n *testNode, service, method string, calls ...control.DirectCall) {
			for i := range calls {
				calls[i].Service, calls[i].Method = service, method
			}
			if err := n.ask(control.KindCalls, control.NodeCalls{Node: n.address, Incarnation: n.incarnation, Running: calls}, nil); err != nil {
				t.Fatal(err)
			}
		}
		outer, inner, other := control.ExecutionID{1}, control.ExecutionID{2}, control.ExecutionID{3}
		by := func(n *testNode, id, parent control.ExecutionID, began int64, policy rpcpacket.Policy) control.DirectCall {
			return control.DirectCall{ID: id, Parent: parent, Caller: n.address, Incarnation: n.incarnation, Began: began, Policy: uint8(policy)}
		}
		tell(s.b, "Arrays", "add", by(s.a, outer, control.ExecutionID{}, 3000, rpcpacket.PolicyRecover))
		tell(s.c, "Third", "do", by(s.b, inner, outer, 2000, rpcpacket.PolicyFateShare), by(s.a, other, control.ExecutionID{}, 1000, rpcpacket.PolicyRecover))
		held := s.a.message("Arrays", "add", s.m1.alloc(s.a, 1, 1))
		s.a.call("Arrays", held)
		s.b.message1()
		ids := func(calls []CallState) (all []string) {
			for _, k := range calls {
				all = append(all, k.Call)
			}
			return all
		}
		d, err := s.gk.FailureDomain(context.Background(), "s2")
		if err != nil || !slices.Equal(d.Nodes, []netip.Addr{s.c.address, s.b.address}) {
			t.Errorf("nodes %v, %v, want that of the blade, and that which shares its fate", d.Nodes, err)
		}
		if want := []string{other.String(), inner.String(), outer.String()}; !slices.Equal(ids(d.Rerun), want) {
			t.Errorf("run again %v, want %v", ids(d.Rerun), want)
		}
		if want := []string{held.Call.String()}; !slices.Equal(ids(d.Cut), want) || len(d.Out) != 0 {
			t.Errorf("cut %v, want %v; out %v", ids(d.Cut), want, ids(d.Out))
		}
		d, err = s.gk.FailureDomain(context.Background(), "c1")
		if want := []string{outer.String(), other.String(), held.Call.String()}; err != nil || !slices.Equal(ids(d.Out), want) || len(d.Rerun)+len(d.Cut) != 0 {
			t.Errorf("of the caller's blade: out %v, want %v; run again %v, cut %v, %v", ids(d.Out), want, ids(d.Rerun), ids(d.Cut), err)
		}
	})
}

// A call into a stateful service on behalf of one that nobody has heard of waits for
// its digest, once, and not for ever: that may be lost.
func TestPark_UnknownParent(t *testing.T) {
	for name, held := range map[string]rpcpacket.Flags{"held": rpcpacket.FlagHeld, "not held": 0} {
		t.Run(name, func(t *testing.T) {
			inSmall(t, func(s *small) {
				s.b.exportStateful("S", "do")
				m := s.a.nested(rpcpacket.ID{9}, "S", "do")
				m.Flags |= held
				began := time.Now()
				s.a.call("S", m)
				s.a.call("S", m) // a copy waits for the same
				quiet("before its patience ends", s.b)
				s.digested()
				if got := s.b.message1(); got.Call != m.Call || time.Since(began) > time.Second {
					t.Errorf("after %v: %+v", time.Since(began), got)
				}
				if c := s.snapshot().Counters; c.Duplicates == 0 {
					t.Errorf("counters %+v", c)
				}
				other := s.a.message("S", "do") // of a plain client: nothing to wait for
				other.Flags |= held
				s.a.call("S", other)
				s.b.message1()
			})
		})
	}
}

// No more calls wait than there is room for: others are judged at once.
func TestPark_Bounded(t *testing.T) {
	inSmall(t, func(s *small) {
		s.b.exportStateful("S", "do")
		fill := func(n int) {
			if err := s.gk.do(context.Background(), func() {
				s.gk.ctl.parked = nil
				for range n {
					s.gk.ctl.parked = append(s.gk.ctl.parked, parked{until: time.Now().Add(time.Hour)})
				}
			}); err != nil {
				t.Fatal(err)
			}
		}
		fill(maxParked)
		s.a.call("S", s.a.nested(rpcpacket.ID{9}, "S", "do"))
		s.b.message1()
		fill(0)
	})
}
