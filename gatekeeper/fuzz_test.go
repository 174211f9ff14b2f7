package gatekeeper

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// solo is a controller with a switch that obeys at once.
type solo struct {
	*controller
	sent  int
	asked uint64
}

// nobody is a connection that is never used.
type nobody struct{ grpc.ClientConnInterface }

// newSolo makes a controller with two compute blades, at ports 1 and 2, with a
// node each, of which the second serves Arrays.add, and a memory blade at port 3.
func newSolo(t testing.TB) *solo {
	t.Helper()
	cfg, err := (Config{Conn: nobody{}, Secret: testSecret, Boot: 1, Open: true, Ports: map[uint16]Port{
		1: {Blade: "c1", Kind: control.Compute}, 2: {Blade: "s1", Kind: control.Compute}, 3: {Blade: "m1", Kind: control.Memory},
	}, Election: control.Election{Low: 1}}).withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	s := &solo{controller: newController(cfg)}
	s.now = time.Unix(1e9, 0)
	for i, name := range []string{"c1", "s1"} {
		p := uint16(i + 1)
		s.ask(t, p, control.KindHello, control.Hello{Blade: name, Kind: control.Compute, MAC: "02:00:00:00:00:01", Boot: 1})
		s.ask(t, p, control.KindJoin, control.Join{Blade: name, Name: "program", Token: 1})
	}
	s.ask(t, 3, control.KindHello, control.Hello{Blade: "m1", Kind: control.Memory, MAC: "02:00:00:00:00:01", Boot: 1, Machine: 1, Capacity: 1 << 40})
	s.ask(t, 2, control.KindExport, control.Export{Node: rackaddr.Node(2), Incarnation: 2, Service: "Arrays", Methods: []control.Method{{Name: "add"}}})
	if len(s.nodes) != 2 || len(s.services) != 1 || s.machines[1] == nil {
		t.Fatalf("the rack is not up: %+v", s.snapshot())
	}
	return s
}

// obey carries out plans until there are none, and counts what is sent.
func (s *solo) obey() {
	for {
		out := s.take()
		s.sent += len(out.packets)
		if len(out.plans) == 0 {
			return
		}
		for _, p := range out.plans {
			if p.then != nil {
				p.then(nil)
			}
		}
	}
}

// ask is a daemon's request.
func (s *solo) ask(t testing.TB, port uint16, kind control.Kind, body any) {
	t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	s.asked++
	m := control.Message{Kind: kind, ID: s.asked, Floor: s.asked, Sender: uint64(port), Body: data}
	s.in(port, reasonControl, rackaddr.Blade(uint64(port)), rackaddr.Gatekeeper, rackaddr.PortControl, m.Append(nil))
}

// in is a held packet.
func (s *solo) in(port uint16, why reason, src, dst netip.Addr, udp uint16, payload []byte) {
	s.packetIn(port, why, frame.UDP6{
		SrcMAC: frame.MAC{2, 0, 0, 0, 0, byte(port)}, Src: netip.AddrPortFrom(src, udp), Dst: netip.AddrPortFrom(dst, udp), Payload: payload,
	}.Append(nil))
	s.obey()
}

// at adds the blades at a port to those that it is given.
func (s *solo) at(port uint16, blades map[string]bool) map[string]bool {
	for _, b := range s.sortedBlades() {
		if b.port != nil && b.port.num == port {
			blades[b.hello.Blade] = true
		}
	}
	return blades
}

// belongs is what blades have that are not among those given, and their nodes.
func (s *solo) belongs(not map[string]bool) (all []string) {
	for _, n := range s.withRights() {
		if !not[n.blade.hello.Blade] {
			services := []string{}
			for a := range n.exports {
				services = append(services, a.String())
			}
			slices.Sort(services)
			all = append(all, fmt.Sprint(n.name, n.address, n.incarnation, n.blade.hello.Blade, n.joined, n.gone, n.going, n.over, n.user, n.row, n.blocks, n.batches, services))
		}
	}
	for _, b := range s.sortedBlades() {
		if !not[b.hello.Blade] {
			all = append(all, fmt.Sprint(b.hello.Blade, b.hello.Kind, b.hello.Boot, b.alive(), b.hello.Machine))
		}
	}
	return all
}

// FuzzPacketIn: whatever the switch holds, nothing panics, and no packet from a port changes what the blades and nodes at other ports are and have.
func FuzzPacketIn(f *testing.F) {
	p := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(1, 1))
	service := rackaddr.Service("Arrays")
	method, _ := rpcpacket.MethodOf("add")
	call := rpcpacket.Message{Header: rpcpacket.Header{
		Type: rpcpacket.Call, Method: method, Call: rpcpacket.PlainID(rackaddr.Node(1), firstSlot, rpcpacket.NumberOf(1, 1)),
		Slot: firstSlot, Number: rpcpacket.NumberOf(1, 1), CallerIncarnation: 1, CalleeIncarnation: 2, Service: serviceHash(service),
	}, Lists: rpcpacket.ListsOf(p)}
	frameOf := func(src, dst netip.Addr, port uint16, payload []byte) []byte {
		return frame.UDP6{Src: netip.AddrPortFrom(src, port), Dst: netip.AddrPortFrom(dst, port), Payload: payload}.Append(nil)
	}
	a, b := rackaddr.Node(1), rackaddr.Node(2)
	request := dsmpacket.Header{Kind: dsmpacket.Request, Request: 2, Floor: 1, Incarnation: 1}
	f.Add(uint16(1), uint8(reasonNoRoute), frameOf(a, service, rackaddr.PortRPC, call.Append(nil)))
	f.Add(uint16(1), uint8(reasonNoHome), frameOf(a, p.With(dsmpacket.OpRead).Addr(), rackaddr.PortDSM, request.Append(nil)))
	for kind, body := range map[control.Kind]any{
		control.KindJoin: control.Join{Blade: "c1", Name: "x", Token: 7}, control.KindHello: control.Hello{Blade: "c1", Kind: control.Compute, MAC: "02:00:00:00:00:01", Boot: 2},
		control.KindHeartbeat: control.Heartbeat{Blade: "c1", Boot: 1, Nodes: []netip.Addr{a, b}, Incarnations: []uint32{1, 2}, Named: []uint32{1, 2}},
		control.KindExport:    control.Export{Node: b, Incarnation: 2, Service: "Other", Methods: []control.Method{{Name: "m"}}},
		control.KindLeave:     control.Leave{Node: b, Incarnation: 2, Crashed: true}, control.KindMain: control.BeginMain{Node: b, Incarnation: 2, Name: "m"},
		control.KindBlocks: control.BlockQuery{Node: b, Incarnation: 2, Want: 9}, control.KindBatches: control.BatchQuery{Node: b, Incarnation: 2, Machine: 1, Want: 9},
		control.KindHoldings: control.HoldingsQuery{}, control.KindAccount: control.AccountPage{Node: b, Incarnation: 2, Last: true},
		control.KindCalls: control.NodeCalls{Node: b, Incarnation: 2, Over: true}, control.KindEnded: control.Ended{Blade: "m1", Boot: 1},
		control.KindLedger: control.LedgerQuery{Node: b, Incarnation: 2}, control.KindOwners: control.Owners{Nodes: []netip.Addr{a, b}},
	} {
		body, err := json.Marshal(body)
		if err != nil {
			f.Fatal(err)
		}
		m := control.Message{Kind: kind, ID: 99, Sender: 1, Body: body}
		f.Add(uint16(1), uint8(reasonControl), frameOf(rackaddr.Blade(1), rackaddr.Gatekeeper, rackaddr.PortControl, m.Append(nil)))
	}
	f.Fuzz(func(t *testing.T, port uint16, why uint8, b []byte) {
		s := newSolo(t)
		s.narrate = true
		its := s.at(port, map[string]bool{})
		before := s.belongs(its)
		s.packetIn(port, reason(why), b)
		s.obey()
		s.now = s.now.Add(time.Second)
		s.tick()
		s.obey()
		s.snapshot()
		its = s.at(port, its) // what has left the port may have said so itself
		if after := s.belongs(its); !slices.Equal(after, before) {
			t.Errorf("a packet from port %d has changed\n%q\nto\n%q", port, before, after)
		}
	})
}
