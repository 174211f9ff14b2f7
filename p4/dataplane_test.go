package p4_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/interp"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// The rack of these tests: a client at port 1, a server at 2, a memory blade at 3. Their rows are 1 and 2, as are their blocks of call slots.
var (
	client  = rackaddr.Node(1)
	server  = rackaddr.Node(2)
	daemon  = rackaddr.Blade(1) // where the client runs
	other   = rackaddr.Blade(2)
	service = rackaddr.Service("Arrays")
	region  = dsmpacket.Region{Base: dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, 0x40000), Class: 12}
	hostMAC = frame.MAC{2, 0, 0, 0, 0, 1}
	swMAC   = frame.MAC{2, 0, 0, 0, 0, 0xff}
)

// plane is the compiled program in the Go executor, with what comes out of it.
type plane struct {
	t       *testing.T
	x       *interp.Executor
	cpu     [][]byte
	digests []datapath.Digest
	out     map[datapath.Port][][]byte
}

func (p *plane) PacketIn(f []byte)        { p.cpu = append(p.cpu, bytes.Clone(f)) }
func (p *plane) Digest(d datapath.Digest) { p.digests = append(p.digests, d) }
func (p *plane) Idle(datapath.Entry)      {}
func (p *plane) emit(port datapath.Port, f []byte) {
	p.out[port] = append(p.out[port], bytes.Clone(f))
}

func newPlane(t *testing.T) *plane {
	t.Helper()
	prog, err := v1model.Load(p4.JSON)
	if err != nil {
		t.Fatal(err)
	}
	p := &plane{t: t, out: map[datapath.Port][][]byte{}}
	if p.x, err = interp.New(prog, interp.Config{CPUPort: p4.CPUPort, Sink: p, Output: p.emit}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.x.Close() })
	for port, a := range map[uint16]netip.Addr{1: client, 2: server} {
		p.insert("identity", "known", p4.Known(p4.Node, port, 0), exact(be16(port)), lpm(bytes16(a), 128))
		p.insert("l3", "to_node", [][]byte{be16(port), be16(port), {0}}, lpm(bytes16(a), 128))
		blade := rackaddr.Blade(uint64(port))
		p.insert("identity", "known", p4.Known(p4.Daemon, 0, 0), exact(be16(port)), lpm(bytes16(blade), 128))
		p.insert("l3", "to_hop", [][]byte{be16(port)}, lpm(bytes16(blade), 128))
		p.insert("rights.block_rule", "rights.may", nil, exact(be16(port)), exact(binary.BigEndian.AppendUint32(nil, uint32(port))))
	}
	home := dsmpacket.MachinePrefix(rackaddr.DefaultDSMPrefix, 1).Addr()
	p.insert("identity", "known", p4.Known(p4.MemoryServer, 0, 0), exact(be16(3)), lpm(bytes16(home), 48))
	p.insert("dsm_home", "to_hop", [][]byte{be16(3)}, exact(bytes16(home)[:6]))
	for hop := range uint16(4) {
		if hop > 0 {
			p.insert("next_hop", "forward", [][]byte{be16(hop), hostMAC[:], swMAC[:]}, exact(be16(hop)))
		}
	}
	if err := p.x.SetRegister("BifrostIngress.rights.switch_state", 1, []byte{0, 0, 0, 0, 0, 0, 0, 1}); err != nil { // they are as they should be
		t.Fatal(err)
	}
	return p
}

// owned gives the region to the client. How often it is lent is in the word's low bits.
func (p *plane) owned(lent uint64) {
	p.t.Helper()
	id := uint64(region.Base.ID())
	word := id&(1<<dsmpacket.GenerationBits-1)<<32 | 1<<20 | lent
	if err := p.x.SetRegister("BifrostIngress.rights.words", int(id>>dsmpacket.GenerationBits), binary.BigEndian.AppendUint64(nil, word)[1:]); err != nil { // 54 bits
		p.t.Fatal(err)
	}
}

func (p *plane) insert(table, action string, params [][]byte, match ...datapath.Match) {
	p.t.Helper()
	p.apply(datapath.Insert, table, action, params, match...)
}

func (p *plane) apply(op datapath.Op, table, action string, params [][]byte, match ...datapath.Match) {
	p.t.Helper()
	e := datapath.Entry{Table: "BifrostIngress." + table, Match: match, Action: &datapath.Action{Name: "BifrostIngress." + action, Params: params}}
	if err := p.x.Apply(op, e); err != nil {
		p.t.Fatalf("%s: %v", table, err)
	}
}

func (p *plane) route(method string) {
	p.t.Helper()
	m, _ := rpcpacket.MethodOf(method)
	p.insert("rpc_route", "to_hop", [][]byte{be16(2)}, exact(bytes16(service)), exact(m[:]), lpm([]byte{0}, 0))
}

// send runs one frame and returns what came of it, cleared for the next.
func (p *plane) send(port datapath.Port, f []byte) (out map[datapath.Port][][]byte, cpu [][]byte) {
	p.x.Process(port, f, p.emit)
	out, cpu = p.out, p.cpu
	p.out, p.cpu = map[datapath.Port][][]byte{}, nil
	return out, cpu
}

func exact(v []byte) datapath.Match      { return datapath.Match{Value: v} }
func lpm(v []byte, n int) datapath.Match { return datapath.Match{Value: v, PrefixLen: n} }

func be16(v uint16) []byte        { return binary.BigEndian.AppendUint16(nil, v) }
func bytes16(a netip.Addr) []byte { b := a.As16(); return b[:] }

func udp(src, dst netip.Addr, port uint16, payload []byte) []byte {
	return frame.UDP6{
		SrcMAC: hostMAC, DstMAC: swMAC, HopLimit: 64,
		Src: netip.AddrPortFrom(src, port), Dst: netip.AddrPortFrom(dst, port), Payload: payload,
	}.Append(nil)
}

func access(src netip.Addr, op dsmpacket.Op, p dsmpacket.Pointer) []byte {
	h := dsmpacket.Header{Kind: dsmpacket.Request, Request: 7, Length: 8}
	return udp(src, p.With(op).Addr(), rackaddr.PortDSM, h.Append(nil))
}

func message(edit func(*rpcpacket.Message)) []byte {
	m := rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Call, Call: rpcpacket.ID{1, 15: 2}}, Payload: []byte("args")}
	m.Method, _ = rpcpacket.MethodOf("add")
	edit(&m)
	return m.Append(nil)
}

// call is a daemon's question who serves a method.
func call(edit func(*rpcpacket.Message)) []byte {
	return udp(daemon, service, rackaddr.PortRPC, message(edit))
}

// lend is the client's call of the server with the region, in the i-th slot of its block.
func lend(i uint32, edit func(*rpcpacket.Message)) []byte {
	return udp(client, server, rackaddr.PortDirect, message(func(m *rpcpacket.Message) {
		m.Slot, m.Number, m.Lists = rpcpacket.Slot(16+i), 2, rpcpacket.ListsOf(region.Base)
		edit(m)
	}))
}

// verdict counts the packets of a port that had a verdict.
func (p *plane) verdict(port datapath.Port, v p4.Verdict) uint64 {
	p.t.Helper()
	c, err := p.x.Counter("BifrostIngress.verdicts", v.Cell(uint16(port)))
	if err != nil {
		p.t.Fatal(err)
	}
	return c.Packets
}

// TestVerdicts sends what each verdict is for and expects exactly that.
func TestVerdicts(t *testing.T) {
	plain := func(src, dst netip.Addr) []byte { return udp(src, dst, 9999, []byte("hi")) }
	short := access(client, dsmpacket.OpRead, region.Base)
	edit := func(b []byte, i int, v byte) []byte { b = bytes.Clone(b); b[i] = v; return b }
	ext := edit(plain(client, server), 14+6, 0) // hop-by-hop options
	cases := []struct {
		name    string
		port    datapath.Port
		frame   []byte
		verdict p4.Verdict
		to      datapath.Port // where it comes out; 0 for nowhere
		reason  byte          // why it is held; 0 for not held
	}{
		{"plain", 1, plain(client, server), p4.Forwarded, 2, 0},
		{"unknown destination", 1, plain(client, rackaddr.Node(9)), p4.NoRoute, 0, 0},
		{"another node's source", 2, plain(client, server), p4.NoIdentity, 0, 0},
		{"unknown source", 1, plain(rackaddr.Node(9), server), p4.NoIdentity, 0, 0},
		{"not IPv6", 1, edit(plain(client, server), 13, 0), p4.Unsupported, 0, 0},
		{"extension header", 1, ext, p4.Unsupported, 0, 0},
		{"hop limit", 1, edit(plain(client, server), 14+7, 1), p4.HopLimit, 0, 0},
		{"call from another port", 1, edit(call(func(*rpcpacket.Message) {}), 14+40+1, 1), p4.Forged, 0, 0},
		{"answer of a call to another port", 1, edit(call(func(*rpcpacket.Message) {}), 14+40+3, 1), p4.Forged, 0, 0},
		{"request to memory from another port", 1, edit(short, 14+40+1, 1), p4.Forged, 0, 0},
		{"alloc reply to another port", 3, edit(memoryReply(dsmpacket.OpAlloc, fault.OK), 14+40+3, 1), p4.Forged, 0, 0},
		{"echo request", 1, icmp(128), p4.Forwarded, 2, 0},
		{"packet too big", 1, icmp(2), p4.Forged, 0, 0},
		{"fragment of ICMPv6", 1, fragment(frame.ProtoICMPv6), p4.Unsupported, 0, 0},
		{"TCP", 1, tcp(client, server), p4.Forwarded, 2, 0},
		{"fragment of TCP", 1, fragment(6), p4.Forwarded, 2, 0},
		{"TCP that is not listed", 2, tcp(server, client), p4.Unlisted, 0, 0},
		{"TCP to memory", 1, tcp(client, region.Base.With(dsmpacket.OpRead).Addr()), p4.Unlisted, 0, 0},
		{"control", 1, udp(client, rackaddr.Gatekeeper, rackaddr.PortControl, []byte("x")), p4.Held, 0, 1},
		{"control to another blade", 1, udp(client, server, rackaddr.PortControl, []byte("x")), p4.Held, 0, 1},
		{"control of a stranger", 1, udp(rackaddr.Blade(9), rackaddr.Gatekeeper, rackaddr.PortControl, []byte("x")), p4.Held, 0, 1},
		{"call", 1, call(func(*rpcpacket.Message) {}), p4.Forwarded, 2, 0},
		{"a daemon's call with a region", 1, call(func(m *rpcpacket.Message) { m.Lists = rpcpacket.ListsOf(region.Base) }), p4.Forged, 0, 0},
		{"a daemon's answer", 1, udp(daemon, other, rackaddr.PortRPC, message(func(m *rpcpacket.Message) { m.Type = rpcpacket.Reply })), p4.Forwarded, 2, 0},
		{"call of a node", 1, lend(0, func(m *rpcpacket.Message) { m.Lists = nil }), p4.Forwarded, 2, 0},
		{"call with another's region", 1, lend(1, func(*rpcpacket.Message) {}), p4.Denied, 1, 0},
		{"call to who is gone", 1, udp(client, rackaddr.Node(9), rackaddr.PortDirect, message(func(m *rpcpacket.Message) { m.Slot, m.Number = 18, 2 })), p4.Gone, 1, 0},
		{"call without a slot", 1, udp(client, server, rackaddr.PortDirect, message(func(*rpcpacket.Message) {})), p4.Late, 0, 0},
		{"answer to no call", 1, udp(client, server, rackaddr.PortRPC, message(func(m *rpcpacket.Message) { m.Type, m.Slot, m.Number = rpcpacket.Reply, 40, 2 })), p4.Late, 0, 0},
		{"unknown method", 1, call(func(m *rpcpacket.Message) { m.Method[0]++ }), p4.Held, 0, 6},
		{"forged release", 1, call(func(m *rpcpacket.Message) { m.Flags = rpcpacket.FlagReleased }), p4.Forged, 0, 0},
		{"forged turn", 1, call(func(m *rpcpacket.Message) { m.Turned = rpcpacket.NeverBegun }), p4.Forged, 0, 0},
		{"forged results", 2, udp(server, client, rackaddr.PortRPC, message(func(m *rpcpacket.Message) { m.Type, m.Had = rpcpacket.Reply, 1 })), p4.Forged, 0, 0},
		{"a daemon asks", 1, udp(daemon, server, rackaddr.PortRPC, message(func(m *rpcpacket.Message) { m.Type = rpcpacket.Ask })), p4.Forged, 0, 0},
		{"forged ack", 1, call(func(m *rpcpacket.Message) { m.Type = rpcpacket.Ack }), p4.Forged, 0, 0},
		{"call, wrong magic", 1, edit(call(func(*rpcpacket.Message) {}), 62, 0), p4.Malformed, 0, 0},
		{"call, version 2", 1, edit(call(func(*rpcpacket.Message) {}), 64, 2), p4.Malformed, 0, 0},
		{"memory, version 3", 1, edit(short, 64, 3), p4.Malformed, 0, 0},
		{"call, truncated", 1, udp(client, service, rackaddr.PortRPC, []byte("short")), p4.Malformed, 0, 0},
		{"read denied", 1, short, p4.Denied, 1, 0},
		{"read outside", 1, access(client, dsmpacket.OpRead, region.Base.Add(4096)), p4.Denied, 1, 0},
		{"write denied", 1, access(client, dsmpacket.OpWrite, region.Base), p4.Denied, 1, 0},
		{"stranger's free", 1, access(client, dsmpacket.OpFree, region.Base), p4.Denied, 1, 0},
		{"alloc", 1, access(client, dsmpacket.OpAlloc, dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, 0)), p4.Forwarded, 3, 0},
		{"alloc in another's batch", 2, access(server, dsmpacket.OpAlloc, dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, 0)), p4.Denied, 2, 0},
		{"a daemon's alloc", 1, access(daemon, dsmpacket.OpAlloc, dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, 0)), p4.Late, 0, 0},
		{"a daemon's read", 1, access(daemon, dsmpacket.OpRead, region.Base), p4.Late, 0, 0},
		{"a memory server's write", 3, access(region.Base.With(dsmpacket.OpRead).Addr(), dsmpacket.OpWrite, region.Base), p4.Late, 0, 0},
		{"settle", 1, access(client, dsmpacket.OpSettle, dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, 0)), p4.Forwarded, 3, 0},
		{"ledger", 1, access(client, dsmpacket.OpLedger, dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, 0)), p4.Forwarded, 3, 0},
		{"slots", 1, access(client, dsmpacket.OpSlots, dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, 0)), p4.Forwarded, 3, 0},
		{"unknown operation", 1, access(client, dsmpacket.LastOp+1, region.Base), p4.Malformed, 0, 0},
		{"no operation", 1, access(client, 0, region.Base), p4.Malformed, 0, 0},
		{"memory, wrong magic", 1, edit(short, 62, 0), p4.Malformed, 0, 0},
		{"memory, truncated", 1, udp(client, region.Base.With(dsmpacket.OpRead).Addr(), rackaddr.PortDSM, []byte("short")), p4.Malformed, 0, 0},
		{"memory, other port", 1, plain(client, region.Base.With(dsmpacket.OpRead).Addr()), p4.NoRoute, 0, 0},
		{"no such machine", 1, access(client, dsmpacket.OpRead, dsmpacket.Make(rackaddr.DefaultDSMPrefix, 9, 0)), p4.Held, 0, 5},
		{"memory protocol to a node", 1, udp(client, server, rackaddr.PortDSM, (&dsmpacket.Header{Kind: dsmpacket.Reply}).Append(nil)), p4.Malformed, 0, 0},
		{"read reply", 3, memoryReply(dsmpacket.OpRead, fault.OK), p4.Forwarded, 1, 0},
		{"alloc reply", 3, memoryReply(dsmpacket.OpAlloc, fault.OK), p4.Forwarded, 1, 0},
		{"failed alloc's reply", 3, memoryReply(dsmpacket.OpAlloc, fault.NoSpace), p4.Forwarded, 1, 0},
		{"free reply", 3, memoryReply(dsmpacket.OpFree, fault.OK), p4.Forwarded, 1, 0},
		{"reply of a former boot", 3, udp(region.Base.With(dsmpacket.OpFree).Addr(), client, rackaddr.PortDSM, (&dsmpacket.Header{Kind: dsmpacket.Reply, Mirror: dsmpacket.Mirror{Incarnation: 1}}).Append(nil)), p4.Late, 0, 0},
	}
	p := newPlane(t)
	p.route("add")
	p.insert("tcp_allowed", "permit", nil, exact(be16(1)), exact(be16(2)))
	p.insert("rights.control_rule", "rights.allocates", [][]byte{{1}}, exact(be16(1)), exact([]byte{1}), exact(be16(0)))
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			before := p.verdict(c.port, c.verdict)
			out, cpu := p.send(c.port, c.frame)
			if p.verdict(c.port, c.verdict) != before+1 {
				t.Errorf("verdict %v was not counted for port %d", c.verdict, c.port)
			}
			if len(out) > 1 || c.to != 0 && len(out[c.to]) != 1 || c.to == 0 && len(out) != 0 {
				t.Errorf("came out at %v, want port %d", out, c.to)
			}
			if (c.reason != 0) != (len(cpu) == 1) {
				t.Fatalf("%d packets were held", len(cpu))
			}
			if c.reason != 0 {
				if cpu[0][1] != byte(c.port) || cpu[0][2] != c.reason || !bytes.Equal(cpu[0][4:], c.frame) {
					t.Errorf("held as %x, want port %d, reason %d, the frame unchanged", cpu[0][:4], c.port, c.reason)
				}
			}
		})
	}
}

// icmp is an ICMPv6 message of a type.
func icmp(kind byte) []byte {
	f := udp(client, server, 9999, []byte("a message's body"))
	f[14+6], f[14+40] = frame.ProtoICMPv6, kind
	return f
}

// tcp is a packet with the header of no TCP segment in particular.
func tcp(src, dst netip.Addr) []byte {
	f := udp(src, dst, 9999, []byte("a segment that is long enough"))
	f[14+6] = 6
	return f
}

// fragment is the first fragment of a protocol's packet.
func fragment(protocol byte) []byte {
	f := udp(client, server, 9999, []byte("a fragment's body"))
	f[14+6], f[14+40] = 44, protocol
	return f
}

func memoryReply(op dsmpacket.Op, status fault.Code) []byte {
	h := dsmpacket.Header{Kind: dsmpacket.Reply, Status: status, Request: 7}
	return udp(region.Base.With(op).Addr(), client, rackaddr.PortDSM, h.Append(nil))
}

// TestMeters: what a port has held, or told by digest, has a rate for each class, which
// takes nothing from other classes and ports, and what is dropped is counted by port.
func TestMeters(t *testing.T) {
	p := newPlane(t)
	one := func(meter string, port datapath.Port) {
		t.Helper()
		if err := p.x.Meter(meter, int(port), &datapath.MeterConfig{CIR: 1, CBurst: 1, PIR: 1, PBurst: 1}); err != nil {
			t.Fatal(err)
		}
	}
	control := func(src netip.Addr) []byte { return udp(src, rackaddr.Gatekeeper, rackaddr.PortControl, []byte("x")) }
	for _, c := range []struct {
		name, meter string
		port        datapath.Port
		frame       []byte
		reason      int // why it is held
	}{
		{"control", "BifrostEgress.held_control", 1, control(client), 1},
		{"no route", "BifrostEgress.held_no_route", 1, call(func(*rpcpacket.Message) {}), 6},
		{"no home", "BifrostEgress.held_no_home", 1, access(client, dsmpacket.OpRead, dsmpacket.Make(rackaddr.DefaultDSMPrefix, 9, 0)), 5},
	} {
		one(c.meter, c.port)
		held := 0
		for range 3 {
			_, cpu := p.send(c.port, c.frame)
			held += len(cpu)
		}
		n, err := p.x.Counter("BifrostEgress.throttled", int(c.port)<<3|c.reason)
		if err != nil || held != 1 || n.Packets != 2 {
			t.Errorf("%s: of 3 packets %d are held, and %d counted as throttled, %v", c.name, held, n.Packets, err)
		}
		for range 3 {
			if _, cpu := p.send(2, control(server)); len(cpu) != 1 {
				t.Errorf("%s: another port is throttled, too", c.name)
			}
		}
	}
	one("BifrostIngress.digests", 1)
	p.digests = nil
	for range 3 {
		p.send(1, access(client, dsmpacket.OpRead, region.Base))
	}
	if n := p.verdict(1, p4.Denied); n != 3 || len(p.digests) != 1 {
		t.Errorf("of 3 denied requests %d are counted and %d told", n, len(p.digests))
	}
}

// TestPermission gives a region to a node and tries what others, and other pointers, may do.
func TestPermission(t *testing.T) {
	p := newPlane(t)
	p.owned(0)
	for _, op := range []dsmpacket.Op{dsmpacket.OpRead, dsmpacket.OpWrite, dsmpacket.OpFree} {
		if out, cpu := p.send(1, access(client, op, region.Base.Add(4095))); len(out[3]) != 1 || len(cpu) != 0 {
			t.Errorf("the owner's %v does not reach the memory blade", op)
		}
		for name, try := range map[string]struct {
			port  datapath.Port
			frame []byte
		}{
			"another node":        {2, access(server, op, region.Base)},
			"a daemon":            {1, access(daemon, op, region.Base)},
			"the next generation": {1, access(client, op, dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, region.Base.ID()+1))},
			"the next slot":       {1, access(client, op, dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, region.Base.ID()+1<<dsmpacket.GenerationBits))},
			"another machine":     {1, access(client, op, dsmpacket.Make(rackaddr.DefaultDSMPrefix, 2, region.Base.ID()))},
		} {
			if out, _ := p.send(try.port, try.frame); len(out[3]) != 0 {
				t.Errorf("%v, %s: it reaches the memory blade", op, name)
			}
		}
	}
	p.owned(1)
	if out, _ := p.send(1, access(client, dsmpacket.OpWrite, region.Base)); len(out[3]) != 0 || p.verdict(1, p4.Lent) != 1 {
		t.Error("a write of what is lent is not turned around")
	}
}

// TestLoan: a call lends its region for as long as it is not answered, and nothing of it is held.
func TestLoan(t *testing.T) {
	p := newPlane(t)
	p.owned(0)
	reads := func() bool {
		h := dsmpacket.Header{Kind: dsmpacket.Request, Request: 7, Length: 8, By: dsmpacket.Use{Slot: 16, Number: 2}}
		out, _ := p.send(2, udp(server, region.Base.With(dsmpacket.OpRead).Addr(), rackaddr.PortDSM, h.Append(nil)))
		return len(out[3]) == 1
	}
	if reads() {
		t.Error("the server reads before it is called")
	}
	if out, cpu := p.send(1, lend(0, func(*rpcpacket.Message) {})); len(out[2]) != 1 || len(cpu) != 0 {
		t.Fatalf("the call comes out at %v, held %d", out, len(cpu))
	}
	if !reads() {
		t.Error("the server may not read")
	}
	if out, _ := p.send(1, access(client, dsmpacket.OpWrite, region.Base)); len(out[3]) != 0 {
		t.Error("the client writes what is lent")
	}
	answer := message(func(m *rpcpacket.Message) { m.Type, m.Slot, m.Number = rpcpacket.Reply, 16, 2 })
	if out, cpu := p.send(2, udp(server, client, rackaddr.PortRPC, answer)); len(out[1]) != 1 || len(cpu) != 0 {
		t.Fatalf("the answer comes out at %v, held %d", out, len(cpu))
	}
	if reads() {
		t.Error("the server reads what it was lent after its answer")
	}
	if out, _ := p.send(1, access(client, dsmpacket.OpWrite, region.Base)); len(out[3]) != 1 {
		t.Error("the client may not write what it has back")
	}
}

// TestDenialIsAValidAnswer: the client gets its own packet back as a NACK with
// a right checksum, and the digest names what was tried.
func TestDenialIsAValidAnswer(t *testing.T) {
	p := newPlane(t)
	out, _ := p.send(1, access(client, dsmpacket.OpWrite, region.Base))
	u, err := frame.ParseUDP6(out[1][0])
	if err != nil {
		t.Fatal(err)
	}
	h, _, err := dsmpacket.Parse(u.Payload)
	if err != nil || h.Kind != dsmpacket.Nack || h.Status != fault.PermissionDenied || h.Request != 7 {
		t.Errorf("header %+v, %v", h, err)
	}
	if u.Dst.Addr() != client || dsmpacket.FromAddr(u.Src.Addr()).Bare() != region.Base || u.DstMAC != hostMAC {
		t.Errorf("from %s to %s at %s", u.Src, u.Dst, u.DstMAC)
	}
	if len(p.digests) != 1 {
		t.Fatalf("%d digests", len(p.digests))
	}
	f := p.digests[0].Fields
	if !bytes.Equal(f[1], bytes16(client)) || !bytes.Equal(f[2], bytes16(region.Base.With(dsmpacket.OpWrite).Addr())) {
		t.Errorf("digest %x", f)
	}
}

// TestReleaseFindsTheWay: what the Gatekeeper hands back is routed by the
// tables, or to the hop it names, and is never held or refused again.
func TestReleaseFindsTheWay(t *testing.T) {
	p := newPlane(t)
	p.route("add")
	question := message(func(m *rpcpacket.Message) { m.Type, m.Flags = rpcpacket.Ask, rpcpacket.FlagReleased })
	for name, c := range map[string]struct {
		hop   byte
		frame []byte
		to    datapath.Port
	}{
		"question":        {0, udp(client, server, rackaddr.PortDirect, question), 2},
		"question by hop": {1, udp(client, server, rackaddr.PortDirect, question), 1},
		"ack":             {0, udp(rackaddr.Gatekeeper, server, rackaddr.PortRPC, message(func(m *rpcpacket.Message) { m.Type = rpcpacket.Ack })), 2},
		"control":         {0, udp(rackaddr.Gatekeeper, server, rackaddr.PortControl, []byte("x")), 2},
		"control by hop":  {3, udp(rackaddr.Gatekeeper, rackaddr.Blade(7), rackaddr.PortControl, []byte("x")), 3},
		"alloc's answer":  {0, memoryReply(dsmpacket.OpAlloc, fault.OK), 1},
		"refused by name": {0, udp(service, client, rackaddr.PortRPC, message(func(m *rpcpacket.Message) { m.Type = rpcpacket.Exception })), 1},
	} {
		p.out = map[datapath.Port][][]byte{}
		if err := p.x.PacketOut(append([]byte{0, c.hop, 0, 0}, c.frame...)); err != nil {
			t.Fatal(err)
		}
		if len(p.out) != 1 || len(p.out[c.to]) != 1 {
			t.Errorf("%s: came out at %v, want port %d", name, p.out, c.to)
		}
	}
}
