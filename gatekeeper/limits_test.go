package gatekeeper

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
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

// A plain client that fills the log with calls that it never settles is refused, and counted at
// its port; another one's calls are logged. The next Gatekeeper knows what it has.
func TestQuota_Log(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRack(t)
		r.settle, r.disk, r.logLimit = synctest.Wait, new(wal.Disk), 1<<20
		r.start(Config{})
		s := newSmall(r)
		flood := func(n *testNode, calls int) (logged int) {
			for range calls {
				m := n.exact("Arrays", "add")
				m.Floor, m.Payload = 1, make([]byte, 4<<10)
				n.call("Arrays", m)
				logged += len(s.b.messages())
			}
			return logged
		}
		a := flood(s.a, 150) // of 512 KiB, it may have eight ninths
		if a < 80 || a > 115 {
			t.Errorf("%d calls of 4 KiB are logged", a)
		}
		if c := flood(s.c, 1); c != 1 {
			t.Error("a call of another client is dropped")
		}
		drops, err := s.gk.Drops(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if i := slices.IndexFunc(drops, func(d PortDrops) bool { return d.Port == s.a.port }); i < 0 || drops[i].Refused["overload"] != uint64(150-a) {
			t.Errorf("the flood is counted as %+v", drops)
		}
		r.crash()
		r.start(Config{})
		s.b.messages() // the calls again
		if n := flood(s.a, 1); n != 0 {
			t.Error("the next Gatekeeper takes more of the flood")
		}
	})
}

// inSmallLog runs a test in a rack with ledgers and a log of a mebibyte, whose third node serves
// methods, too.
func inSmallLog(t *testing.T, f func(s *small)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRack(t)
		r.settle, r.disk, r.logLimit = synctest.Wait, new(wal.Disk), 1<<20
		r.start(Config{Ledgers: LedgersTruth})
		s := newSmall(r)
		if err := s.c.export("Third", "do", "more"); err != nil {
			t.Fatal(err)
		}
		f(s)
	})
}

// overloads is how many packets of a node were dropped for want of room.
func (s *small) overloads(n *testNode) uint64 {
	s.t.Helper()
	drops, err := s.gk.Drops(context.Background())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, d := range drops {
		if d.Port == n.port {
			return d.Refused["overload"]
		}
	}
	return 0
}

// An execution that fills what of the log is for calls that executions make leaves room for those of another
// node.
func TestQuota_LogOfExecutions(t *testing.T) {
	inSmallLog(t, func(s *small) {
		begin := func(service, method string, at *testNode) rpcpacket.ID {
			m := s.a.exact(service, method)
			m.Floor = 1
			s.a.call(service, m)
			return at.message1().Call
		}
		nested := func(from *testNode, of, service, method string, parent rpcpacket.ID, index uint32) {
			m := from.exact(service, method)
			m.Flags, m.Floor, m.Parent, m.Index = rpcpacket.FlagHeld.WithPolicy(rpcpacket.PolicyRecover), 0, parent, index
			m.Call, m.Payload = childOf(of, parent, index), make([]byte, 4<<10)
			from.call(service, m)
		}
		first, second := begin("Arrays", "add", s.b), begin("Third", "do", s.c)
		for i := range uint32(250) {
			nested(s.b, "Arrays", "Third", "more", first, i)
		}
		logged := len(s.c.messages()) // of 640 KiB, eight ninths
		if logged < 120 || logged > 145 || s.overloads(s.b) != uint64(250-logged) {
			t.Errorf("of an execution's 250 calls of 4 KiB %d are logged, %d counted as dropped", logged, s.overloads(s.b))
		}
		nested(s.c, "Third", "Arrays", "make", second, 0)
		if n := len(s.b.messages()); n != 1 {
			t.Errorf("of a call of another node's execution came %d", n)
		}
	})
}

// A callee that fills the log with calls that it hands over leaves room for those of another one.
// It is charged, and not who is said to have called.
func TestQuota_LogOfHandedOver(t *testing.T) {
	inSmallLog(t, func(s *small) {
		for range 300 {
			m := s.a.exact("Arrays", "add")
			m.Payload = make([]byte, 4<<10)
			s.b.handOver(s.a, m)
		}
		logged := len(s.b.messages()) // of 896 KiB, eight ninths
		if logged < 170 || logged > 205 || s.overloads(s.b) != uint64(300-logged) {
			t.Errorf("of 300 calls of 4 KiB that are handed over %d are logged, %d counted as dropped", logged, s.overloads(s.b))
		}
		m := s.a.exact("Third", "do")
		m.Payload = make([]byte, 4<<10)
		s.c.handOver(s.a, m)
		if got := s.c.messages(); len(got) != 1 || got[0].Type != rpcpacket.Ack {
			t.Errorf("what another node hands over becomes %+v", got)
		}
	})
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
			return n.ask(control.KindState, control.State{Node: n.address, Incarnation: n.incarnation, Name: name, Main: true}, nil)
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
