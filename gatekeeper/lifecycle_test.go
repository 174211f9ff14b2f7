package gatekeeper

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// leave ends a node.
func (n *testNode) leave() {
	n.r.t.Helper()
	if err := n.ask(control.KindLeave, control.Leave{Node: n.address, Incarnation: n.incarnation}, nil); err != nil {
		n.r.t.Fatal(err)
	}
}

// beat keeps blades alive for a time in steps of a heartbeat.
func (r *rack) beat(d time.Duration, bs ...*testBlade) {
	r.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); pass(time.Second) {
		for _, b := range bs {
			r.beatOnce(b)
		}
	}
}

func (r *rack) beatOnce(b *testBlade) {
	r.t.Helper()
	if err := b.ask(control.KindHeartbeat, control.Heartbeat{Blade: b.name, Boot: b.boot}, nil); err != nil {
		r.t.Fatal(err)
	}
}

// pass lets virtual time pass.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestHello_Refused(t *testing.T) {
	inRack(t, func(r *rack) {
		b, other := r.plug(1), r.plug(2)
		good := control.Hello{Blade: "c1", Kind: control.Compute, MAC: b.mac.String(), Boot: 1, Capacity: 4}
		for what, change := range map[string]func(h *control.Hello){
			"no name":             func(h *control.Hello) { h.Blade = "" },
			"a name with spaces":  func(h *control.Hello) { h.Blade = "c 1" },
			"a name without end":  func(h *control.Hello) { h.Blade = strings.Repeat("c", 300) },
			"an unknown kind":     func(h *control.Hello) { h.Kind = "toaster" },
			"no Ethernet address": func(h *control.Hello) { h.MAC = "none" },
			"a group's address":   func(h *control.Hello) { h.MAC = "ff:ff:ff:ff:ff:ff" },
			"no boot":             func(h *control.Hello) { h.Boot = 0 },
			"another release":     func(h *control.Hello) { h.Speaks.Protocol = control.Protocol + 1 },
		} {
			h := good
			change(&h)
			if err := b.ask(control.KindHello, h, nil); fault.CodeOf(err) != fault.BadRequest {
				t.Errorf("%s: %v", what, err)
			}
		}
		if err := b.ask(control.KindHello, "not a hello", nil); fault.CodeOf(err) != fault.BadRequest {
			t.Errorf("malformed JSON: %v", err)
		}
		if err := b.ask(control.Kind(99), good, nil); fault.CodeOf(err) != fault.Unsupported {
			t.Errorf("an unknown request: %v", err)
		}
		if n := len(r.snapshot().Blades); n != 0 {
			t.Fatalf("%d blades are registered", n)
		}
		b.hello("c1", control.Compute)
		if err := other.ask(control.KindHello, good, nil); fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("a name in service: %v", err)
		}
		good.Blade = "c2"
		if err := b.ask(control.KindHello, good, nil); fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("a port in service: %v", err)
		}
	})
}

func TestHello_MachineIDs(t *testing.T) {
	inRack(t, func(r *rack) {
		ask := func(port uint16, name string, machine uint8) (control.Welcome, error) {
			var w control.Welcome
			b := r.plug(port)
			return w, b.ask(control.KindHello, control.Hello{Blade: name, Kind: control.Memory, MAC: b.mac.String(), Boot: 1, Machine: machine}, &w)
		}
		if w, err := ask(1, "m1", 2); err != nil || w.Machine != 2 {
			t.Errorf("got machine %d, %v", w.Machine, err)
		}
		if w, err := ask(2, "m2", 0); err != nil || w.Machine != 1 {
			t.Errorf("got machine %d, %v", w.Machine, err)
		}
		if w, err := ask(3, "m3", 0); err != nil || w.Machine != 3 || len(w.Rack.Memories) != 3 {
			t.Errorf("got %+v, %v", w, err)
		}
		if _, err := ask(4, "m4", 2); fault.CodeOf(err) != fault.BadRequest {
			t.Errorf("a machine id that is taken: %v", err)
		}
	})
}

// TestHello_Generations: a memory blade that begins anew, or takes over another one's machine, makes regions of generations that nobody has made before; those of
// its own earlier start are lost.
func TestHello_Generations(t *testing.T) {
	inRack(t, func(r *rack) {
		ask := func(b *testBlade, name string, boot uint64, generation uint32) (w control.Welcome) {
			t.Helper()
			h := control.Hello{Blade: name, Kind: control.Memory, MAC: b.mac.String(), Boot: boot, Generation: generation}
			if err := b.ask(control.KindHello, h, &w); err != nil {
				t.Fatal(err)
			}
			return w
		}
		first := r.plug(1)
		if w := ask(first, "m1", 1, 0); w.Lost != 0 {
			t.Errorf("a machine that has had no regions has lost some: %+v", w)
		}
		ask(first, "m1", 1, 1000)
		if w := ask(r.plug(2), "m2", 1, 0); w.Floor <= 1000 || w.Lost != 0 {
			t.Errorf("another blade: floor %d, lost %d", w.Floor, w.Lost)
		}
		if w := ask(first, "m1", 2, 0); w.Lost <= 1000 || w.Floor < w.Lost {
			t.Errorf("the next start: floor %d, lost %d", w.Floor, w.Lost)
		}
		former := ask(first, "m1", 3, 0)
		if w := ask(first, "m1", 4, 0); w.Lost <= former.Floor || w.Floor < w.Lost {
			t.Errorf("after a start that was not heard again, above %d: floor %d, lost %d", former.Floor, w.Floor, w.Lost)
		}
	})
}

// TestHello_Words: nodes allocate while there is no Gatekeeper, so nobody tells it which generations a memory blade gets to. The next start of the blade makes regions
// above those all the same. Else a region would get the address of one that another node had, which could write it.
func TestHello_Words(t *testing.T) {
	inLogged(t, func(s *small) {
		all, err := s.a.wantsBatches(1, 1)
		if err != nil {
			t.Fatal(err)
		}
		s.crash()
		for generation := range uint32(300) { // of one slot
			p := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(all[0]*dsmpacket.BatchSlots, generation+1))
			s.a.memory(dsmpacket.OpAlloc, p)
			s.m1.serve()
		}
		s.start(Config{})
		s.settle()
		s.m1.boot++
		if w := s.m1.hello("m1", control.Memory); w.Floor < 300 || w.Lost < 300 {
			t.Errorf("regions of 300 generations were in a slot, and the next start begins above %d; up to %d they are lost", w.Floor, w.Lost)
		}
	})
}

func TestJoinAndExport_Refused(t *testing.T) {
	inSmall(t, func(s *small) {
		stranger := s.plug(9)
		if err := stranger.ask(control.KindJoin, control.Join{Blade: "c1", Name: "x", Token: 1}, nil); fault.CodeOf(err) != fault.Stale {
			t.Errorf("join before hello: %v", err)
		}
		for what, j := range map[string]control.Join{
			"another blade's name": {Blade: "s1", Name: "x", Token: 9}, "no name": {Blade: "c1", Token: 9}, "no token": {Blade: "c1", Name: "x"},
		} {
			if err := s.a.ask(control.KindJoin, j, nil); fault.CodeOf(err) != fault.BadRequest {
				t.Errorf("join with %s: %v", what, err)
			}
		}
		if err := s.m1.ask(control.KindJoin, control.Join{Blade: "m1", Name: "x", Token: 1}, nil); fault.CodeOf(err) != fault.BadRequest {
			t.Errorf("join on a memory blade: %v", err)
		}
		again := s.a.testBlade
		again.tokens-- // the same program again
		if n := again.join("c1", "program"); n.address != s.a.address {
			t.Errorf("a repeated join gave %s, not %s", n.address, s.a.address)
		}
		alike := []string{"a_very_long_method_name", "a_very_long_method_name"}
		for what, err := range map[string]error{
			"no methods":        s.a.export("S"),
			"no name":           s.a.export("", "m"),
			"the same twice":    s.a.export("S", alike...),
			"an empty method":   s.a.export("S", ""),
			"too long a method": s.a.export("S", strings.Repeat("m", 256)),
		} {
			if fault.CodeOf(err) != fault.BadRequest {
				t.Errorf("export of %s: %v", what, err)
			}
		}
		e := control.Export{Node: s.b.address, Incarnation: s.b.incarnation, Service: "S", Methods: []control.Method{{Name: "m"}}}
		if err := s.a.ask(control.KindExport, e, nil); fault.CodeOf(err) != fault.NotFound {
			t.Errorf("export for another blade's node: %v", err)
		}
		e.Node, e.Incarnation = s.a.address, s.a.incarnation+1
		if err := s.a.ask(control.KindExport, e, nil); fault.CodeOf(err) != fault.Stale {
			t.Errorf("export for another incarnation: %v", err)
		}
		e = control.Export{Node: s.c.address, Incarnation: s.c.incarnation, Service: "Arrays", Stateful: true, Methods: []control.Method{{Name: "add"}}}
		if err := s.c.ask(control.KindExport, e, nil); fault.CodeOf(err) != fault.BadRequest {
			t.Errorf("a stateful service twice: %v", err)
		}
		neighbour := s.b.join("s1", "second")
		if err := neighbour.export("Arrays", "add"); fault.CodeOf(err) != fault.BadRequest {
			t.Errorf("a service twice on a blade: %v", err)
		}
	})
}

// The caller is gone and the reply was lost: nobody but the Gatekeeper asks for it.
func TestLeave_OrphanedCallIsAskedFor(t *testing.T) {
	inSmall(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		m := s.a.message("Arrays", "add", p)
		s.a.call("Arrays", m)
		call := s.b.message1()
		s.a.leave()
		s.beat(3*time.Second, s.b.testBlade, s.m1)
		probes := s.b.messages()
		if len(probes) == 0 || probes[0].Type != rpcpacket.Ask || probes[0].Slot != call.Slot || probes[0].Number != call.Number {
			t.Fatalf("the callee was asked %+v", probes)
		}
		s.b.reply(s.a.address, &call)
		s.beat(3*time.Second, s.b.testBlade, s.m1)
		if len(s.m1.reclaimed) != 1 {
			t.Errorf("reclaimed %+v", s.m1.reclaimed)
		}
		quiet("after the reply", s.b)
	})
}

func TestBlade_SilentHasFailed(t *testing.T) {
	inSmall(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		s.a.call("Arrays", s.a.message("Arrays", "add", p))
		s.b.message1()
		s.beat(4*time.Second, s.a.testBlade, s.m1)
		if got := s.a.may(s.m1, p); got != "read+write" {
			t.Errorf("its call has failed, and a may %s", got)
		}
		if got := s.b.memory(dsmpacket.OpRead, p); len(got) != 0 {
			t.Errorf("the fenced node got %+v", got)
		}
		status := map[string]string{}
		for _, b := range s.snapshot().Blades {
			status[b.Name] = b.Status
		}
		if status["s1"] != StatusFailed || status["c1"] != StatusInUse || status["m1"] != StatusFree {
			t.Errorf("statuses %v", status)
		}
		var reply control.HeartbeatReply
		if err := s.b.ask(control.KindHeartbeat, control.Heartbeat{Blade: "s1", Boot: s.b.boot}, &reply); err != nil || reply.Known {
			t.Errorf("heartbeat of a failed blade: %+v, %v", reply, err)
		}
		s.b.hello("s1", control.Compute)
		if err := s.b.ask(control.KindHeartbeat, control.Heartbeat{Blade: "s1", Boot: s.b.boot}, &reply); err != nil || !reply.Known {
			t.Errorf("heartbeat after hello: %+v, %v", reply, err)
		}
	})
}

func TestBlade_MemoryComesBack(t *testing.T) {
	inSmall(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		s.beat(4*time.Second, s.a.testBlade, s.b.testBlade)
		if got := s.a.memory(dsmpacket.OpRead, p); len(got) != 1 || got[0].Status != fault.Unavailable {
			t.Errorf("a lost blade's memory: %+v", got)
		}
		if w := s.m1.hello("m1", control.Memory); w.Machine != 1 {
			t.Errorf("it is now machine %d", w.Machine)
		}
		if got := s.a.may(s.m1, p); got != "read+write" {
			t.Errorf("it was only unreachable: a may %s", got)
		}
		s.m1.boot++ // and now it restarts, and has lost its content
		s.m1.peer = control.NewPeer(control.PeerConfig{Boot: s.m1.boot, Follow: true})
		s.m1.hello("m1", control.Memory)
	})
}

func TestBlade_DaemonRestarts(t *testing.T) {
	inSmall(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		b := s.a.testBlade
		b.boot++
		b.peer = control.NewPeer(control.PeerConfig{Boot: b.boot, Follow: true})
		b.hello("c1", control.Compute)
		s.m1.converse()
		if len(s.m1.reclaimed) != 1 || len(s.snapshot().Nodes) != 2 {
			t.Errorf("reclaimed %+v, nodes %+v", s.m1.reclaimed, s.snapshot().Nodes)
		}
		if got := s.a.memory(dsmpacket.OpRead, p); len(got) != 0 {
			t.Errorf("a node of the old daemon got %+v", got)
		}
		var reply control.HeartbeatReply
		h := control.Heartbeat{Blade: "c1", Boot: b.boot}
		h.Nodes = append(h.Nodes, s.a.address)
		if err := b.ask(control.KindHeartbeat, h, &reply); err != nil || len(reply.Gone) != 1 || reply.Gone[0] != s.a.address {
			t.Errorf("heartbeat: %+v, %v", reply, err)
		}
	})
}

// Control packets that no daemon has sent are nobody's.
func TestControl_Foreign(t *testing.T) {
	inSmall(t, func(s *small) {
		before := s.snapshot().Counters.Foreign
		m := control.Message{Kind: control.KindLeave, ID: 1, Sender: 9, Body: fmt.Appendf(nil, `{"node":%q,"incarnation":1}`, s.a.address)}
		s.a.send(s.a.address, rackaddr.Gatekeeper, rackaddr.PortControl, m.Append(nil)) // a node's address
		s.b.send(s.b.addr, rackaddr.Blade(1), rackaddr.PortControl, m.Append(nil))      // to another daemon
		quiet("foreign control packets", s.a, s.b)
		snap := s.snapshot()
		if got := snap.Counters.Foreign - before; got != 2 || len(snap.Nodes) != 3 {
			t.Errorf("%d foreign packets, nodes %+v", got, snap.Nodes)
		}
	})
}

// What a port is bound to is all that its blade may be; at a port that is bound to
// nothing an open rack admits what no other port is bound to.
func TestPorts_Bound(t *testing.T) {
	ports := map[uint16]Port{1: {Blade: "c1", Kind: control.Compute, Capacity: 4}, 2: {Blade: "m1", Kind: control.Memory, Machine: 7, Capacity: 1 << 20}}
	for _, c := range []struct {
		port  uint16
		open  bool
		hello control.Hello
		want  fault.Code
	}{
		{1, false, control.Hello{Blade: "c1", Kind: control.Compute, Capacity: 4}, fault.OK},
		{1, true, control.Hello{Blade: "c2", Kind: control.Compute}, fault.PermissionDenied},
		{1, true, control.Hello{Blade: "c1", Kind: control.Memory}, fault.PermissionDenied},
		{1, false, control.Hello{Blade: "c1", Kind: control.Compute, Capacity: 5}, fault.PermissionDenied},
		{2, false, control.Hello{Blade: "m1", Kind: control.Memory, Capacity: 1 << 20}, fault.OK},
		{2, false, control.Hello{Blade: "m1", Kind: control.Memory, Machine: 7}, fault.OK},
		{2, false, control.Hello{Blade: "m1", Kind: control.Memory, Machine: 8}, fault.PermissionDenied},
		{3, false, control.Hello{Blade: "c3", Kind: control.Compute}, fault.PermissionDenied},
		{3, true, control.Hello{Blade: "c3", Kind: control.Compute}, fault.OK},
		{3, true, control.Hello{Blade: "c1", Kind: control.Compute}, fault.PermissionDenied},
		{3, true, control.Hello{Blade: "m3", Kind: control.Memory, Machine: 7}, fault.PermissionDenied},
		{3, true, control.Hello{Blade: "m3", Kind: control.Memory, Machine: 8}, fault.OK},
	} {
		cfg := Config{Ports: ports, Open: c.open}
		h := c.hello
		if err := cfg.bound(c.port, &h); fault.CodeOf(err) != c.want {
			t.Errorf("port %d, open %v, %+v: %v, want %v", c.port, c.open, c.hello, err, c.want)
		}
		if c.port == 2 && c.want == fault.OK && h.Machine != 7 {
			t.Errorf("the blade at port 2 has machine id %d", h.Machine)
		}
	}
	for _, p := range ports {
		if got, err := ParsePort(p.String()); err != nil || got != p {
			t.Errorf("%s is read as %+v, %v", p, got, err)
		}
	}
}

// A Gatekeeper that begins with a log takes the blades out of service whose ports are
// bound to others by now.
func TestPorts_Rebound(t *testing.T) {
	inLogged(t, func(s *small) {
		s.stopGatekeeper()
		s.start(Config{Ports: map[uint16]Port{
			s.a.port:  {Blade: s.a.name, Kind: control.Compute},
			s.b.port:  {Blade: "another", Kind: control.Compute},
			s.m1.port: {Blade: s.m1.name, Kind: control.Memory},
		}, Open: true})
		s.settle()
		for _, b := range s.snapshot().Blades {
			if failed := b.Status == StatusFailed; failed != (b.Name == s.b.name) {
				t.Errorf("blade %s is %s: %s", b.Name, b.Status, b.Cause)
			}
		}
	})
}
