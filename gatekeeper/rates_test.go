package gatekeeper

import (
	"context"
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// A port that floods in a class takes nothing from the others, no healthy blade fails
// meanwhile, and what was dropped is counted by port.
func TestRates(t *testing.T) {
	inRack(t, func(r *rack) {
		r.stopGatekeeper()
		r.start(Config{Rates: Rates{Control: Rate{PerSecond: 10, Burst: 10}, NoRoute: Rate{PerSecond: 10, Burst: 10}, NoHome: Rate{PerSecond: 10, Burst: 10}, Digests: Rate{PerSecond: 10, Burst: 10}}})
		s := newSmall(r)
		p := s.m1.alloc(s.a, 1, 1)
		before := s.snapshot().Counters.Held
		foreign := s.m1.alloc(s.a, 1, 2)
		for range 100 {
			s.c.call("Arrays", s.c.message("Arrays", "add", foreign)) // refused, every one
			s.c.memory(2, p)                                          // denied
			s.c.send(s.c.address, rackaddr.Gatekeeper, rackaddr.PortControl, []byte("flood"))
		}
		if n := s.snapshot().Counters.Held - before; n > 3*10+4 {
			t.Errorf("of a flood of 200 packets %d reached the Gatekeeper", n)
		}
		s.a.call("Arrays", s.a.message("Arrays", "add", p))
		if got := s.b.message1(); len(got.Lists) != 1 {
			t.Errorf("the call of another port became %+v", got.Header)
		}
		drops, err := r.gk.Drops(context.Background())
		if err != nil || len(drops) != 1 {
			t.Fatalf("drops %+v, %v", drops, err)
		}
		d := drops[0]
		if d.Port != s.c.port || d.Blade != s.c.name || d.Denied != 200 || d.Throttled["control"] < 80 {
			t.Errorf("drops %+v", d)
		}
	})
}

// A blade whose own flood of control packets has its heartbeats dropped does not fail, until the
// flood ends; nor does any other.
func TestRates_OwnHeartbeats(t *testing.T) {
	inRack(t, func(r *rack) {
		r.stopGatekeeper()
		r.start(Config{Rates: Rates{Control: Rate{PerSecond: 20, Burst: 10}}})
		s := newSmall(r)
		const second = 100 // packets of the flood in it
		before := s.snapshot().Counters.Held
		for i := range 10 * second {
			if i%second == 0 {
				s.beatOnce(s.a.testBlade)
				s.beatOnce(s.b.testBlade)
				s.beatOnce(s.m1)
			}
			s.c.send(s.c.address, rackaddr.Gatekeeper, rackaddr.PortControl, []byte("flood"))
			pass(time.Second / second)
		}
		if n := s.snapshot().Counters.Held - before; n > 10*second/2 {
			t.Errorf("%d packets reached the Gatekeeper beside a flood of %d", n, 10*second)
		}
		if got := inService(s.snapshot()); len(got) != 4 {
			t.Errorf("in service while %s floods: %v", s.c.name, got)
		}
		s.beat((missedHeartbeats+1)*time.Second, s.a.testBlade, s.b.testBlade, s.m1)
		if got := inService(s.snapshot()); len(got) != 3 {
			t.Errorf("in service after the flood of %s, which is silent: %v", s.c.name, got)
		}
	})
}

// What the switch drops is counted at the port that it came in by, and by why. So is what
// speaks in another port's name: at the port of the liar.
func TestDrops(t *testing.T) {
	inRack(t, func(r *rack) {
		s := newSmall(r)
		edit := func(f []byte, at int, to byte) []byte { f[at] = to; return f }
		nowhere := *s.b
		nowhere.address = rackaddr.Node(999)
		call := func(change func(*rpcpacket.Message)) []byte {
			m := s.c.message("Arrays", "add")
			change(m)
			return frame.UDP6{
				SrcMAC: s.c.mac, DstMAC: frame.MAC{2, 0xb1, 0xf0, 0, 0, 1}, Src: netip.AddrPortFrom(s.c.address, rackaddr.PortRPC),
				Dst: netip.AddrPortFrom(rackaddr.Service("Arrays"), rackaddr.PortRPC), Payload: m.Append(nil),
			}.Append(nil)
		}
		const ip, transport = 14, 14 + 40
		want := map[string]uint64{}
		for _, c := range []struct {
			why   string
			frame []byte
		}{
			{"no identity", datagram(s.a, s.b)},
			{"no identity", datagram(&nowhere, s.b)},
			{"no route", datagram(s.c, &nowhere)},
			{"malformed", call(func(*rpcpacket.Message) {})[:transport+8+20]},
			{"malformed", edit(call(func(*rpcpacket.Message) {}), transport+8, 0)},
			{"forged", call(func(m *rpcpacket.Message) { m.Flags |= rpcpacket.FlagReleased })},
			{"forged", edit(call(func(*rpcpacket.Message) {}), transport, 1)}, // another source port
			{"unsupported", edit(datagram(s.c, s.b), ip+6, 0)},                // hop-by-hop options
			{"hop limit", edit(datagram(s.c, s.b), ip+7, 1)},
			{"unlisted TCP", edit(datagram(s.c, s.b), ip+6, 6)},
		} {
			want[c.why]++
			r.sw.Input(datapath.Port(s.c.port), c.frame)
		}
		drops, err := r.gk.Drops(context.Background())
		if err != nil || len(drops) != 1 || drops[0].Port != s.c.port || drops[0].Blade != s.c.name || !maps.Equal(drops[0].Dropped, want) {
			t.Errorf("drops %+v, %v, want %v at port %d", drops, err, want, s.c.port)
		}
	})
}

// TCP passes between blades that are listed, as long as both are in service.
func TestTCP(t *testing.T) {
	inRack(t, func(r *rack) {
		r.stopGatekeeper()
		r.start(Config{TCP: []string{"c1", "s1"}})
		s := newSmall(r)
		segment := func(from, to *testNode) []byte {
			f := datagram(from, to)
			f[14+6] = 6
			return f
		}
		crosses := func(from, to *testNode) bool {
			to.take()
			n := r.frames.Load()
			r.sw.Input(datapath.Port(from.port), segment(from, to))
			r.settle()
			to.mu.Lock()
			to.arrived = nil // no UDP, which take would refuse
			to.mu.Unlock()
			return r.frames.Load() > n
		}
		for _, c := range []struct {
			from, to *testNode
			want     bool
		}{{s.a, s.b, true}, {s.b, s.a, true}, {s.a, s.c, false}, {s.c, s.a, false}, {s.c, s.b, false}} {
			if got := crosses(c.from, c.to); got != c.want {
				t.Errorf("TCP from port %d to port %d: %v", c.from.port, c.to.port, got)
			}
		}
		if err := s.b.ask(control.KindLeave, control.Leave{Node: s.b.address, Incarnation: s.b.incarnation}, nil); err != nil {
			t.Fatal(err)
		}
		if crosses(s.a, s.b) {
			t.Error("TCP reaches a node that is gone")
		}
	})
}

// datagram is a frame from one node to another.
func datagram(from, to *testNode) []byte {
	return frame.UDP6{
		SrcMAC: from.mac, DstMAC: frame.MAC{2, 0xb1, 0xf0, 0, 0, 1},
		Src: netip.AddrPortFrom(from.address, 9999), Dst: netip.AddrPortFrom(to.address, 9999), Payload: []byte("long enough for a segment"),
	}.Append(nil)
}
