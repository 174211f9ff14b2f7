package gatekeeper

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

func TestLimits(t *testing.T) {
	l, err := Limits{Held: 7}.withDefaults()
	if want := DefaultLimits; err != nil || l.Held != 7 {
		t.Errorf("%+v, %v", l, err)
	} else if want.Held = 7; l != want {
		t.Errorf("%+v, want %+v", l, want)
	}
	if _, err := (Limits{Scan: -1}).withDefaults(); err == nil || !strings.Contains(err.Error(), "Limits.Scan of -1") {
		t.Errorf("a negative limit: %v", err)
	}
}

// A node has a bounded number of methods routed to it.
func TestQuota_Routes(t *testing.T) {
	inRack(t, func(r *rack) {
		s := newSmall(r)
		var methods []string
		for i := range maxMethods {
			methods = append(methods, fmt.Sprint("m", i))
		}
		exported := 0
		var err error
		for ; exported < 10 && err == nil; exported++ {
			err = s.c.export(fmt.Sprint("Squat", exported), methods...)
		}
		if exported-1 != maxRoutes/maxMethods || fault.CodeOf(err) != fault.Overloaded {
			t.Errorf("%d services of %d methods, then %v", exported-1, maxMethods, err)
		}
		if err := s.c.export("Squat0", methods...); err != nil {
			t.Errorf("what it exports already: %v", err)
		}
		if err := s.a.export("Small", "do"); err != nil {
			t.Errorf("another node: %v", err)
		}
	})
}

// A node has a bounded number of calls on record, and of sessions. What is beyond is refused to it, and
// not to others.
func TestQuota_Calls(t *testing.T) {
	inSmall(t, func(s *small) {
		s.gk.ctl.cfg.Limits.NodeCalls, s.gk.ctl.cfg.Limits.NodeSessions = 3, 2
		lent := map[*testNode]dsmpacket.Pointer{s.a: s.m1.alloc(s.a, 1, 1), s.c: s.m1.alloc(s.c, 1, 2)}
		call := func(n *testNode, session uint32, floor uint64) {
			m := n.message("Arrays", "add", lent[n])
			m.Call, m.Floor = rpcpacket.SessionID(rpcpacket.SessionOf(n.address, session), n.sequence), floor
			n.call("Arrays", m)
		}
		for range 3 {
			call(s.a, 1, 1)
		}
		call(s.a, 1, 1)
		s.a.refused("a call beyond those on record", fault.Overloaded)
		call(s.a, 2, 1)
		s.a.refused("one in another session", fault.Overloaded)
		call(s.c, 1, 1)
		call(s.c, 2, 1)
		call(s.c, 3, 1)
		s.c.refused("one in a session too many", fault.Overloaded)
		if n := len(s.b.messages()); n != 5 {
			t.Errorf("%d calls have arrived, want 3 of one node and 2 of another", n)
		}
	})
}

// Who owns as many names as one may own gets no more. Others do.
func TestQuota_Names(t *testing.T) {
	inSmall(t, func(s *small) {
		begin := func(n *testNode, name string) error {
			return n.ask(control.KindMain, control.BeginMain{Node: n.address, Incarnation: n.incarnation, Name: name}, nil)
		}
		var err error
		begun := 0
		for ; begun <= maxClaims && err == nil; begun++ {
			if begun%500 == 499 {
				pass(time.Second) // a port has a rate of control packets
			}
			err = begin(s.a, fmt.Sprint("m", begun))
		}
		if begun-1 != maxClaims || fault.CodeOf(err) != fault.Overloaded {
			t.Errorf("one owner has %d names, then %v", begun-1, err)
		}
		if err := begin(s.c, "another's"); err != nil {
			t.Errorf("another one: %v", err)
		}
	})
}
