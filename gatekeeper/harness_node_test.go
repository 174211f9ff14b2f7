package gatekeeper

import (
	"encoding/binary"
	"net/netip"
	"strings"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// testNode is a node on a blade.
type testNode struct {
	*testBlade
	address     netip.Addr
	incarnation uint32
	row         uint16
	blocks      []uint32 // of call slots
	at          uint32   // which of its slots the next call is in
	count       uint64   // of calls
	request     uint64
}

// join makes a node on the blade.
func (b *testBlade) join(blade, name string) *testNode {
	b.r.t.Helper()
	var j control.Joined
	b.tokens++
	if err := b.ask(control.KindJoin, control.Join{Blade: blade, Name: name, Token: b.tokens}, &j); err != nil {
		b.r.t.Fatal(err)
	}
	return &testNode{testBlade: b, address: j.Address, incarnation: j.Incarnation, row: j.Row, blocks: j.Blocks}
}

// export makes the node serve methods.
func (n *testNode) export(service string, methods ...string) error {
	e := control.Export{Node: n.address, Incarnation: n.incarnation, Service: service}
	for _, m := range methods {
		e.Methods = append(e.Methods, control.Method{Name: m})
	}
	err := n.ask(control.KindExport, e, nil)
	if err == nil {
		n.r.served(service, n)
	}
	return err
}

// served notes that a node has exported a service.
func (r *rack) served(service string, n *testNode) {
	if r.exporters == nil {
		r.exporters = map[string]*testNode{}
	}
	r.exporters[service] = n
}

// slot is one of the node's call slots, of which it gets more if need be.
func (n *testNode) slot(i uint32) rpcpacket.Slot {
	n.r.t.Helper()
	if have := uint32(len(n.blocks)); i >= have*rpcpacket.BlockSlots {
		var r control.BlockReply
		if err := n.ask(control.KindBlocks, control.BlockQuery{Node: n.address, Incarnation: n.incarnation, Want: int(i/rpcpacket.BlockSlots) + 1}, &r); err != nil {
			n.r.t.Fatal(err)
		}
		n.blocks = r.Blocks
	}
	return rpcpacket.Slot(n.blocks[i/rpcpacket.BlockSlots]*rpcpacket.BlockSlots + i%rpcpacket.BlockSlots)
}

// place puts a call into one of the node's slots. A plain one has its id from that.
func (n *testNode) place(m *rpcpacket.Message, i uint32, count uint64) {
	n.r.t.Helper()
	m.Slot, m.Number = n.slot(i), rpcpacket.NumberOf(n.incarnation, count)
	if !m.Call.Derived() {
		m.Call = rpcpacket.PlainID(n.address, m.Slot, m.Number)
	}
}

// message makes a call that lends pointers.
func (n *testNode) message(service, method string, ps ...dsmpacket.Pointer) *rpcpacket.Message {
	n.r.t.Helper()
	n.count++
	wire, err := rpcpacket.MethodOf(method)
	if err != nil {
		n.r.t.Fatal(err)
	}
	a := rackaddr.Service(service).As16()
	m := &rpcpacket.Message{Header: rpcpacket.Header{
		Type: rpcpacket.Call, NameLength: uint8(len(method)), Method: wire, CallerIncarnation: n.incarnation, Service: binary.BigEndian.Uint64(a[8:]),
	}, Lists: rpcpacket.ListsOf(ps...), Payload: []byte("thrift")}
	n.place(m, n.at, n.count)
	return m
}

// call sends a call to the node that has exported a service last, to whose incarnation it is bound.
func (n *testNode) call(service string, m *rpcpacket.Message) {
	to := n.r.exporters[service]
	if to == nil {
		n.r.t.Fatalf("nobody has exported %s", service)
	}
	if m.CalleeIncarnation == 0 {
		m.CalleeIncarnation = to.incarnation
	}
	n.send(n.address, to.address, rackaddr.PortDirect, m.Append(nil))
}

// reply answers a call that has arrived.
func (n *testNode) reply(to netip.Addr, call *rpcpacket.Message, results ...dsmpacket.Pointer) {
	m := *call
	m.Type, m.Flags, m.CalleeIncarnation = rpcpacket.Reply, 0, n.incarnation
	m.Lists = rpcpacket.ListsOf(results...)
	n.send(n.address, to, rackaddr.PortRPC, m.Append(nil))
}

// message1 returns the one call message that has arrived.
func (n *testNode) message1() rpcpacket.Message {
	n.r.t.Helper()
	ms := n.messages()
	if len(ms) != 1 {
		n.r.t.Fatalf("%d messages have arrived at %s, want 1: %+v", len(ms), n.address, ms)
	}
	return ms[0]
}

func (n *testNode) messages() []rpcpacket.Message {
	n.r.t.Helper()
	var out []rpcpacket.Message
	for _, u := range n.take() {
		if u.Dst.Port() != rackaddr.PortRPC && u.Dst.Port() != rackaddr.PortDirect {
			continue
		}
		m, err := rpcpacket.Parse(u.Payload)
		if err != nil {
			n.r.t.Fatal(err)
		}
		out = append(out, m)
	}
	return out
}

// memory sends a memory request and returns the answers that have arrived.
func (n *testNode) memory(op dsmpacket.Op, p dsmpacket.Pointer) []dsmpacket.Header {
	n.r.t.Helper()
	n.request++
	h := dsmpacket.Header{Kind: dsmpacket.Request, Request: n.request, Floor: 1, Incarnation: n.incarnation}
	n.send(n.address, p.With(op).Addr(), rackaddr.PortDSM, h.Append(nil))
	return n.memoryAnswers()
}

func (n *testNode) memoryAnswers() []dsmpacket.Header {
	n.r.t.Helper()
	var out []dsmpacket.Header
	for _, u := range n.take() {
		if u.Dst.Port() != rackaddr.PortDSM {
			continue
		}
		h, _, err := dsmpacket.Parse(u.Payload)
		if err != nil {
			n.r.t.Fatal(err)
		}
		out = append(out, h)
	}
	return out
}

// serve makes a memory blade answer the requests that have arrived, all with ok,
// and returns their operations.
func (b *testBlade) serve() (ops []dsmpacket.Op) {
	b.r.t.Helper()
	for _, u := range b.take() {
		if u.Dst.Port() != rackaddr.PortDSM {
			continue
		}
		h, _, err := dsmpacket.Parse(u.Payload)
		if err != nil {
			b.r.t.Fatal(err)
		}
		ops = append(ops, dsmpacket.FromAddr(u.Dst.Addr()).Op())
		h.Kind, h.Status = dsmpacket.Reply, fault.OK
		b.send(u.Dst.Addr(), u.Src.Addr(), rackaddr.PortDSM, h.Append(nil))
	}
	return ops
}

// alloc has a node allocate a region of 4 KiB: the k-th of its first batch at a machine.
func (b *testBlade) alloc(n *testNode, machine uint8, k uint64) dsmpacket.Pointer {
	b.r.t.Helper()
	all, err := n.wantsBatches(machine, 1)
	if err != nil {
		b.r.t.Fatal(err)
	}
	p := dsmpacket.Make(rackaddr.DefaultDSMPrefix, machine, dsmpacket.IDOf(all[0]*dsmpacket.BatchSlots+uint32(k), 1))
	n.memory(dsmpacket.OpAlloc, p)
	if ops := b.serve(); len(ops) != 1 || ops[0] != dsmpacket.OpAlloc {
		b.r.t.Fatalf("the memory blade got %v", ops)
	}
	if got := n.memoryAnswers(); len(got) != 1 || got[0].Kind != dsmpacket.Reply || got[0].Status != fault.OK {
		b.r.t.Fatalf("the allocation was answered with %+v", got)
	}
	return p
}

// may reports which of read and write the switch lets a node do, by trying them.
// The requests that pass end at the memory blade unanswered.
func (n *testNode) may(m *testBlade, p dsmpacket.Pointer) string {
	n.r.t.Helper()
	var can []string
	for _, op := range []dsmpacket.Op{dsmpacket.OpRead, dsmpacket.OpWrite} {
		got := n.memory(op, p)
		passed := len(m.take()) == 1
		if passed == (len(got) == 1 && got[0].Kind == dsmpacket.Nack && got[0].Status == fault.PermissionDenied) {
			n.r.t.Fatalf("%s: passed %v, answers %+v", op, passed, got)
		}
		if passed {
			can = append(can, op.String())
		}
	}
	if len(can) == 0 {
		return "nothing"
	}
	return strings.Join(can, "+")
}
