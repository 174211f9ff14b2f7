package gatekeeper

import (
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// small is the rack of most tests: a caller, a callee, a third, and memory.
type small struct {
	*rack
	m1      *testBlade
	a, b, c *testNode
}

func inSmall(t *testing.T, f func(s *small)) {
	t.Helper()
	inRack(t, func(r *rack) { f(newSmall(r)) })
}

func newSmall(r *rack) *small {
	r.t.Helper()
	s := &small{rack: r, m1: r.plug(4)}
	s.m1.hello("m1", control.Memory)
	var nodes []*testNode
	for i, name := range []string{"c1", "s1", "s2"} {
		b := r.plug(uint16(i + 1))
		b.hello(name, control.Compute)
		nodes = append(nodes, b.join(name, "program"))
	}
	s.a, s.b, s.c = nodes[0], nodes[1], nodes[2]
	if err := s.b.export("Arrays", "add", "make"); err != nil {
		r.t.Fatal(err)
	}
	return s
}

// TestPath is the way of a call with a pointer, from the first hello to the last free.
func TestPath(t *testing.T) {
	inSmall(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		expect := func(when string, a, b, c string) {
			t.Helper()
			if ga, gb, gc := s.a.may(s.m1, p), s.b.may(s.m1, p), s.c.may(s.m1, p); ga != a || gb != b || gc != c {
				t.Errorf("%s: a may %s, b %s, c %s; want %s, %s, %s", when, ga, gb, gc, a, b, c)
			}
		}
		expect("after the allocation", "read+write", "nothing", "nothing")

		call := s.a.message("Arrays", "add", p)
		s.a.call("Arrays", call)
		got := s.b.message1()
		if got.Flags&rpcpacket.FlagReleased == 0 || got.CalleeIncarnation != s.b.incarnation || got.Call != call.Call {
			t.Errorf("the callee got %+v", got.Header)
		}
		expect("during the call", "read", "read", "nothing")

		result := s.m1.alloc(s.b, 1, 2)
		s.b.reply(s.a.address, &got, result)
		if re := s.a.message1(); re.Type != rpcpacket.Reply || re.Flags&rpcpacket.FlagReleased == 0 || len(re.Lists) != 1 {
			t.Errorf("the caller got %+v", re)
		}
		expect("after the reply", "read+write", "nothing", "nothing")
		p = result
		expect("of the result", "read+write", "nothing", "nothing")

		if got := s.a.memory(dsmpacket.OpFree, p); len(got) != 0 {
			t.Fatalf("the free was answered with %+v before the memory blade did", got)
		}
		if ops := s.m1.serve(); len(ops) != 1 || ops[0] != dsmpacket.OpFree {
			t.Fatalf("the memory blade got %v", ops)
		}
		if got := s.a.memoryAnswers(); len(got) != 1 || got[0].Status != fault.OK {
			t.Fatalf("the free was answered with %+v", got)
		}
		expect("after the free", "nothing", "nothing", "nothing")
		if got := s.a.memory(dsmpacket.OpFree, p); len(got) != 1 || got[0].Kind != dsmpacket.Nack {
			t.Errorf("a second free was answered with %+v", got)
		}
		pass(time.Millisecond)
		snap := s.snapshot()
		if len(snap.Regions) != 1 || snap.Counters.Frees != 1 || snap.Counters.Denied == 0 || len(snap.Denied) == 0 {
			t.Errorf("snapshot %+v", snap)
		}
	})
}
