package gatekeeper

import (
	"context"
	"math"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/trace"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// TestTimeline follows a call, one made on its behalf, and one that is refused: what
// is remembered of them, and who is told when they are over.
func TestTimeline(t *testing.T) {
	inSmall(t, func(s *small) {
		type over struct {
			call trace.Call
			root rpcpacket.ID
		}
		var told []over
		if err := s.gk.do(context.Background(), func() {
			s.gk.ctl.cfg.Over = func(c trace.Call, root rpcpacket.ID) { told = append(told, over{c, root}) }
		}); err != nil {
			t.Fatal(err)
		}
		p, outer, inner := s.chain()
		bad := s.c.message("Arrays", "add", p.Add(1<<20))
		s.c.call("Arrays", bad)
		s.c.refused("a pointer into nothing", fault.PermissionDenied)
		s.c.reply(s.b.address, &inner)
		s.b.message1()
		s.b.reply(s.a.address, &outer)
		s.a.message1()
		s.settle()
		tree, more, err := s.gk.Timeline(context.Background(), inner.Call, 10)
		if err != nil || more || len(tree) != 2 || tree[0].ID != outer.Call || tree[1].ID != inner.Call || tree[1].Depth != 1 || tree[0].Method != "add" || tree[1].Service != "Inner" {
			t.Fatalf("the tree: %+v, %v", tree, err)
		}
		for _, k := range tree {
			if k.A1.IsZero() || k.B1.Before(k.A1) || k.B2.Before(k.B1) || k.A2.Before(k.B2) || !k.Over || k.Sampled || k.Failed() || len(k.Steps) != 4 {
				t.Errorf("call %s: %+v", k.Method, k.Call)
			}
		}
		failed, next, err := s.gk.Timelines(context.Background(), trace.Query{Failed: true, Limit: 10})
		if err != nil || next != 0 || len(failed) != 1 || failed[0].ID != bad.Call || failed[0].Code != fault.PermissionDenied || !failed[0].Over {
			t.Errorf("what has failed: %+v, %v", failed, err)
		}
		if len(told) != 3 || told[0].call.ID != bad.Call || told[1].call.ID != inner.Call || told[1].root != outer.Call || told[2].root != outer.Call {
			t.Errorf("told %+v", told)
		}
	})
}

// An exception of the callee's is a failure, too.
func TestTimeline_Exception(t *testing.T) {
	inSmall(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		s.a.call("Arrays", s.a.message("Arrays", "add", p))
		call := s.b.message1()
		call.Type, call.Code, call.Pointers = rpcpacket.Exception, fault.Overloaded, nil
		call.Flags, call.CalleeIncarnation = rpcpacket.FlagSession|rpcpacket.FlagHeld, s.b.incarnation
		s.b.send(s.b.address, s.a.address, rackaddr.PortRPC, call.Append(nil))
		s.a.message1()
		failed, _, err := s.gk.Timelines(context.Background(), trace.Query{Failed: true, Limit: 10})
		if err != nil || len(failed) != 1 || failed[0].ID != call.Call || failed[0].Code != fault.Overloaded || !failed[0].Over {
			t.Errorf("what has failed: %+v, %v", failed, err)
		}
	})
}

// Of a call that is not held the digests tell, and it is marked.
func TestTimeline_Sampled(t *testing.T) {
	inSmall(t, func(s *small) {
		m := s.a.message("Arrays", "add")
		s.a.call("Arrays", m)
		call := s.b.message1()
		s.b.replyFlags(s.a.address, &call, 0)
		s.a.message1()
		s.digested()
		tree, _, err := s.gk.Timeline(context.Background(), m.Call, 10)
		if err != nil || len(tree) != 1 || !tree[0].Sampled || !tree[0].Over || tree[0].A2.Before(tree[0].A1) || !tree[0].B1.IsZero() {
			t.Errorf("the call: %+v, %v", tree, err)
		}
	})
}

// EventKinds has every kind that trace.go declares.
func TestEventKinds(t *testing.T) {
	source, err := os.ReadFile("trace.go")
	if err != nil {
		t.Fatal(err)
	}
	declared := regexp.MustCompile(`EventKind = "([a-z.]+)"`).FindAllStringSubmatch(string(source), -1)
	kinds := EventKinds()
	if len(declared) < 30 || len(kinds) != len(declared) {
		t.Errorf("%d kinds are declared, %d listed", len(declared), len(kinds))
	}
	for _, d := range declared {
		if !slices.Contains(kinds, d[1]) {
			t.Errorf("%s is not listed", d[1])
		}
	}
}

// A node says how long its calls have lasted. However long that is, the call has begun before it ended, and ended by now.
func TestTimeline_Ages(t *testing.T) {
	const ever = math.MaxInt64
	inSmall(t, func(s *small) {
		q := control.NodeCalls{Node: s.b.address, Incarnation: s.b.incarnation, First: true}
		for i, d := range []control.DirectCall{{Began: ever, Took: ever}, {Began: ever, Took: 1}, {Began: 1, Took: ever}, {Took: ever}, {Began: 9300000000000000, Took: 1}} {
			d.ID, d.Caller, d.Incarnation, d.Service, d.Method = control.ExecutionID{1, byte(i)}, s.a.address, s.a.incarnation, "Arrays", "add"
			q.Ended = append(q.Ended, d)
			q.Counts = []control.MethodCount{{Service: "Arrays", Method: "add", Calls: uint64(i + 1)}}
		}
		if err := s.b.ask(control.KindCalls, q, nil); err != nil {
			t.Fatal(err)
		}
		all, _, err := s.gk.Timelines(context.Background(), trace.Query{Limit: 10})
		if err != nil || len(all) != len(q.Ended) {
			t.Fatalf("%d calls, %v", len(all), err)
		}
		for _, k := range all {
			if k.A2.Before(k.A1) || k.A2.After(time.Now()) || k.ID[1] != 2 && k.ID[1] != 3 && k.A1.Year() > 1800 {
				t.Errorf("call %d: from %v to %v", k.ID[1], k.A1, k.A2)
			}
		}
	})
}
