package difftest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4/rights"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Rights compares an executor of Bifröst's program with the model of rights in the switch, packet by packet: what
// becomes of each, and what the registers have afterwards. Packets follow what the registers have, get lost, and come again late.
//
// Nodes 1 to 3 have rows 1 to 3, incarnation 1, and live at ports 1 to 3. At port 4 is the memory of machines 1 and 2, boot 1. At port 5 lives
// what says that it is a node and is a daemon, with row 5. Node 6 has no row.
type Rights struct {
	*rand.Rand
	Model *rights.Switch
	// CallPort is where messages between nodes go; 0 is any of the three ports where they are judged.
	CallPort uint16
	x        Target
	sent     []rights.Packet
	begun    bool
}

// Target is an executor with Bifröst's program.
type Target interface {
	// Apply changes a table.
	Apply(op datapath.Op, e datapath.Entry) error
	// Run runs a frame, and returns what comes of it: frames that leave, by port, those for the CPU port with their header.
	Run(in datapath.Port, b []byte) ([]Leaves, error)
	// Cell is what a register has in a cell, big-endian.
	Cell(register string, index int) ([]byte, error)
}

// teller is a Target that knows at once which digests a frame causes.
type teller interface {
	// Told reports whether the last frame has told that a batch is half used.
	Told() bool
}

// Leaves is a frame that leaves a switch.
type Leaves struct {
	Port  datapath.Port
	Frame []byte
}

// Ports and rows of what is no node.
const (
	memoryPort = 4
	daemonPort = 5
	strange    = 6 // a node without row
	leases     = 4 // whose block the standing leases have
	boot       = 1
	elected    = 9
)

var (
	hostMAC   = frame.MAC{2, 0, 0, 0, 0, 1}
	switchMAC = frame.MAC{2, 0, 0, 0, 0, 0xff}
)

func node(n int) netip.Addr { return rackaddr.Node(uint64(n)) } //nolint:gosec // small

// memoryAddress stands for all of the machines' in the model.
var memoryAddress = dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, 0).Addr()

// batch and block are what a node has: batch and block of its row's number.
func batch(n int) uint32 { return uint32(n) * rights.Rack.Batch } //nolint:gosec // small
func block(n int) uint32 { return uint32(n) * rights.Rack.Block } //nolint:gosec // small

// NewRights gives an executor and a model the same tables and the same registers, some of which are nearly at their ends.
func NewRights(x Target, seed uint64) (*Rights, error) {
	r := &Rights{Rand: rand.New(rand.NewPCG(seed, 1)), Model: rights.New(rights.Rack), x: x}
	s := r.Model
	s.Rebuilding, s.Election = true, 0 // as a switch comes up
	for n := 1; n <= 3; n++ {
		s.Identities[rights.Source{Port: uint16(n), Address: node(n)}] = rights.Identity{Kind: rights.Node, Row: rights.Row(n), Incarnation: 1} //nolint:gosec // small
		s.Routes[node(n)] = rights.Route{Row: rights.Row(n)}                                                                                    //nolint:gosec // small
		s.Controls[rights.Control{Row: rights.Row(n), Machine: 1, Batch: uint32(n)}] = n != 2                                                   //nolint:gosec // small
		s.Blocks[rights.BlockRule{Row: rights.Row(n), Block: uint32(n)}] = true                                                                 //nolint:gosec // small
	}
	s.Identities[rights.Source{Port: memoryPort, Address: memoryAddress}] = rights.Identity{Kind: rights.Memory, Incarnation: boot}
	s.Identities[rights.Source{Port: daemonPort, Address: node(daemonPort)}] = rights.Identity{Kind: rights.Daemon, Incarnation: 1}
	for _, e := range r.entries() {
		if err := x.Apply(datapath.Insert, e); err != nil {
			return nil, fmt.Errorf("%s: %w", e.Table, err)
		}
	}
	return r, r.rebuild()
}

// rebuild is the Gatekeeper's hand on registers that were lost.
func (r *Rights) rebuild() error {
	full := batch(1) + 40
	lentOn := rights.Slot{Number: rights.MakeNumber(1, 2), State: rights.Open, Slots: 2, Caller: 1, Callee: 2}
	second := lentOn
	second.Place, second.Children = 1, 1
	ops := []rights.Operation{
		{Op: rights.SetSlot, First: block(1) + 14, Slot: lentOn},
		{Op: rights.SetSlot, First: block(1) + 15, Slot: second},
		{Op: rights.SetWord, First: full, Word: rights.Word{Generation: 3, Owner: 1, Lent: rights.Rack.Lent - 1}},
		{Op: rights.SetSlot, First: block(2) + 15, Slot: rights.Slot{
			Number: rights.MakeNumber(1, 2), State: rights.Open, Slots: 1, Caller: 2, Callee: 1, Children: rights.Rack.Children - 1,
		}},
		{Op: rights.SetSlot, First: block(3) + 15, Slot: rights.Slot{Number: rights.MakeNumber(1, 2), State: rights.Closed, Slots: 1, Caller: 3, Callee: 1}},
		{Op: rights.Rebuilt},
	}
	for i := range ops {
		p := r.packet()
		if err := errorsOf(r.judge(&p), r.hand(&ops[i])); err != nil { // before it is rebuilt nothing passes
			return err
		}
	}
	return nil
}

// ends brings counts to their ends, fails a call, and lets a region's slot be used again while a call is open that lists the former region. Random packets
// seldom do that.
func (r *Rights) ends() error {
	full, on := rights.Region{Slot: batch(1) + 40, Generation: 3}, rights.Block{Parent: rights.Ref{Slot: block(2) + 15, Number: rights.MakeNumber(1, 2)}}
	calls := uint64(0)
	call := func(place uint32, blocks ...rights.Block) rights.Packet {
		calls++
		return rights.Packet{
			Kind: rights.Call, Source: NodeSource(1), To: node(2), Incarnation: 1, Machine: 1, Blocks: blocks,
			Ref: rights.Ref{Slot: block(1) + place, Number: rights.MakeNumber(1, 2*calls)},
		}
	}
	answer := func(p rights.Packet, results ...rights.Region) rights.Packet {
		p.Kind, p.Source, p.To, p.Blocks, p.Results = rights.Reply, NodeSource(2), node(1), nil, results
		return p
	}
	fails, lends, lendsOn := call(6, rights.Block{}), call(0, rights.Block{Regions: []rights.Region{full}}), call(1, on)
	if err := r.judgeAll([]rights.Packet{
		fails, call(2, on, on), lendsOn, call(4, on), answer(lendsOn), lends, call(5, rights.Block{Regions: []rights.Region{full}}),
	}); err != nil {
		return err
	}
	for _, o := range []rights.Operation{
		{Op: rights.Lend, Election: elected, Ref: rights.Ref{Slot: block(leases), Number: rights.MakeNumber(1, 2)}, Regions: []rights.Region{full}, Owner: 1, Lessee: 2},
		{Op: rights.FailCall, Election: elected, Ref: rights.Ref{Slot: block(1) + 15, Number: rights.MakeNumber(1, 2)}}, // the second slot of a call
		{Op: rights.FailCall, Election: elected, Ref: rights.Ref{Slot: fails.Ref.Slot, Number: fails.Ref.Number + 2}},
		{Op: rights.FailCall, Election: elected, Ref: fails.Ref},
	} {
		if err := r.hand(&o); err != nil {
			return err
		}
	}
	var five []rights.Region
	for i := range uint32(5) {
		five = append(five, rights.Region{Slot: batch(1) + 41 + i, Generation: 1})
	}
	former, allocated := five[0], func(g rights.Region) rights.Packet {
		return rights.Packet{Kind: rights.AllocAnswer, Source: MemorySource(), To: node(1), Incarnation: boot, Machine: 1, Region: g, OK: true}
	}
	late := call(7, rights.Block{Regions: []rights.Region{former}})
	five[0].Generation++
	if err := r.judgeAll([]rights.Packet{
		fails, answer(lends), answer(lends, slices.Repeat([]rights.Region{full}, rights.Rack.Results+1)...),
		allocated(former), allocated(five[1]), allocated(five[2]), allocated(five[3]), allocated(five[4]),
		late, allocated(five[0]), call(8, rights.Block{Regions: five[:1]}), answer(late),
	}); err != nil {
		return err
	}
	return r.hand(&rights.Operation{Op: rights.Lend, Election: elected, Ref: rights.Ref{Slot: block(leases) + 1, Number: rights.MakeNumber(1, 2)}, Regions: five, Owner: 1, Lessee: 2})
}

func errorsOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Step does one packet or operation, perhaps with some that are nearly the same, and says what differs.
func (r *Rights) Step() error {
	if !r.begun {
		r.begun = true
		return r.ends()
	}
	switch r.IntN(24) {
	case 0, 1:
		o := r.operation()
		return r.hand(&o)
	case 2:
		return r.turnRoute(1 + r.IntN(3))
	case 3, 4, 5, 6:
		if len(r.sent) > 0 { // a copy, perhaps late
			p := r.sent[len(r.sent)-1-min(r.IntN(len(r.sent)), r.IntN(40))]
			return r.judge(&p)
		}
	}
	p := r.packet()
	if err := r.judgeAll(slices.Concat(r.nearly(&p), r.nearlyCalls(&p))); err != nil {
		return err
	}
	if r.sent = append(r.sent, p); r.IntN(8) == 0 {
		return nil // it is lost before the switch, or comes later
	}
	if err := r.judge(&p); err != nil {
		return err
	}
	return r.judgeAll(r.nearlyCopies(&p))
}

// judgeAll has both judge some packets, one after the other.
func (r *Rights) judgeAll(all []rights.Packet) error {
	for i := range all {
		if err := r.judge(&all[i]); err != nil {
			return err
		}
	}
	return nil
}

// turnRoute changes whether a node is going.
func (r *Rights) turnRoute(n int) error {
	route := r.Model.Routes[node(n)]
	route.Going = r.IntN(5) == 0
	r.Model.Routes[node(n)] = route
	return r.x.Apply(datapath.Modify, r.l3(n))
}

// ---- tables

func exactly(b []byte) datapath.Match { return datapath.Match{Value: b} }

func be16[N ~int | ~uint16](n N) []byte { return binary.BigEndian.AppendUint16(nil, uint16(n)) } //nolint:gosec // small

func (r *Rights) l3(n int) datapath.Entry {
	a := node(n).As16()
	e := datapath.Entry{Table: "BifrostIngress.l3", Match: []datapath.Match{{Value: a[:], PrefixLen: 128}}}
	route, ok := r.Model.Routes[node(n)]
	if !ok {
		e.Action = &datapath.Action{Name: "BifrostIngress.to_hop", Params: [][]byte{be16(n)}}
		return e
	}
	going := byte(0)
	if route.Going {
		going = 1
	}
	e.Action = &datapath.Action{Name: "BifrostIngress.to_node", Params: [][]byte{be16(n), be16(uint16(route.Row)), {going}}}
	return e
}

func (r *Rights) entries() (all []datapath.Entry) {
	known := func(port int, a netip.Addr, bits int, kind p4.Sender, row int) {
		b := a.As16()
		all = append(all, datapath.Entry{
			Table: "BifrostIngress.identity", Match: []datapath.Match{exactly(be16(port)), {Value: b[:], PrefixLen: bits}},
			Action: &datapath.Action{Name: "BifrostIngress.known", Params: p4.Known(kind, uint16(row), 1)}, //nolint:gosec // small
		})
	}
	for _, n := range []int{1, 2, 3, strange} {
		all = append(all, r.l3(n))
	}
	for n := 1; n <= 3; n++ {
		known(n, node(n), 128, p4.Node, n)
	}
	known(daemonPort, node(daemonPort), 128, p4.Daemon, daemonPort)
	for machine := range uint8(2) {
		at := dsmpacket.Make(rackaddr.DefaultDSMPrefix, machine+1, 0).Addr()
		known(memoryPort, at, 48, p4.MemoryServer, 0)
		a := at.As16()
		all = append(all, datapath.Entry{
			Table: "BifrostIngress.dsm_home", Match: []datapath.Match{exactly(a[:6])},
			Action: &datapath.Action{Name: "BifrostIngress.to_hop", Params: [][]byte{be16(memoryPort)}},
		})
	}
	for hop := 1; hop <= strange; hop++ {
		all = append(all, datapath.Entry{
			Table: "BifrostIngress.next_hop", Match: []datapath.Match{exactly(be16(hop))},
			Action: &datapath.Action{Name: "BifrostIngress.forward", Params: [][]byte{be16(hop), hostMAC[:], switchMAC[:]}},
		})
	}
	for c, tells := range r.Model.Controls {
		told := []byte{0}
		if tells {
			told[0] = 1
		}
		all = append(all, datapath.Entry{
			Table: "BifrostIngress.rights.control_rule", Action: &datapath.Action{Name: "BifrostIngress.rights.allocates", Params: [][]byte{told}},
			Match: []datapath.Match{exactly(be16(uint16(c.Row))), exactly([]byte{c.Machine}), exactly(be16(uint16(c.Batch)))}, //nolint:gosec // small
		})
	}
	for b := range r.Model.Blocks {
		all = append(all, datapath.Entry{
			Table: "BifrostIngress.rights.block_rule", Action: &datapath.Action{Name: "BifrostIngress.rights.may"},
			Match: []datapath.Match{exactly(be16(uint16(b.Row))), exactly(binary.BigEndian.AppendUint32(nil, b.Block))},
		})
	}
	return all
}

// ---- frames

// lists are what a packet lists; too many of either count are said, and not there.
func lists(blocks []rights.Block) (all []rpcpacket.List, tooMany int) {
	for _, b := range blocks[:min(len(blocks), rpcpacket.MaxLists)] {
		l := rpcpacket.List{Parent: rpcpacket.Ref{Slot: rpcpacket.Slot(b.Parent.Slot), Number: rpcpacket.Number(b.Parent.Number)}}
		l.Count = uint8(len(b.Regions)) //nolint:gosec // small
		for i, g := range b.Regions[:min(len(b.Regions), rpcpacket.ListRegions)] {
			l.Regions[i] = rpcpacket.RegionOf(pointer(g))
		}
		all = append(all, l)
	}
	return all, len(blocks)
}

func blocksOf(results []rights.Region) (all []rights.Block) {
	for some := range slices.Chunk(results, rpcpacket.ListRegions) {
		all = append(all, rights.Block{Regions: some})
	}
	return all
}

// NodeSource is a node with a row as a sender of packets.
func NodeSource(n int) rights.Source {
	return rights.Source{Port: uint16(n), Address: node(n)} //nolint:gosec // small
}

// MemorySource is the memory server as one.
func MemorySource() rights.Source { return rights.Source{Port: memoryPort, Address: memoryAddress} }

// Frame is a packet as it comes to the switch.
func (r *Rights) Frame(p *rights.Packet) []byte { return r.frameOf(p) }

// frameOf is a packet as it comes to the switch, and the pointer that it is about if it is one of memory.
func (r *Rights) frameOf(p *rights.Packet) []byte {
	udp := func(src, dst netip.Addr, port uint16, payload []byte) []byte {
		return frame.UDP6{
			SrcMAC: hostMAC, DstMAC: switchMAC, HopLimit: 64, Src: netip.AddrPortFrom(src, port), Dst: netip.AddrPortFrom(dst, port), Payload: payload,
		}.Append(nil)
	}
	at := dsmpacket.Make(rackaddr.DefaultDSMPrefix, p.Machine, dsmpacket.IDOf(p.Region.Slot, p.Region.Generation))
	ops := map[rights.Kind]dsmpacket.Op{
		rights.Alloc: dsmpacket.OpAlloc, rights.AllocAnswer: dsmpacket.OpAlloc, rights.Write: dsmpacket.OpWrite, rights.Free: dsmpacket.OpFree,
		rights.Read: dsmpacket.OpRead, rights.MemoryAnswer: dsmpacket.OpFree, rights.Plain: dsmpacket.OpSettle,
	}
	switch p.Kind {
	case rights.Alloc, rights.Write, rights.Free, rights.Read, rights.Plain:
		h := dsmpacket.Header{Kind: dsmpacket.Request, Request: 7, Incarnation: p.Incarnation, Length: 8, By: dsmpacket.Use{Slot: p.Ref.Slot, Number: uint64(p.Ref.Number)}}
		return udp(p.Source.Address, at.With(ops[p.Kind]).Addr(), rackaddr.PortDSM, h.Append(nil))
	case rights.AllocAnswer, rights.MemoryAnswer:
		h := dsmpacket.Header{Kind: dsmpacket.Reply, Request: 7, Mirror: dsmpacket.Mirror{Incarnation: p.Incarnation, Members: 1}}
		if !p.OK {
			h.Status = fault.NoSpace
		}
		src := p.Source.Address
		if src == memoryAddress {
			src = at.With(ops[p.Kind]).Addr()
		}
		return udp(src, p.To, rackaddr.PortDSM, h.Append(nil))
	default:
	}
	m := rpcpacket.Message{Header: rpcpacket.Header{
		Type: types[p.Kind], Slot: rpcpacket.Slot(p.Ref.Slot), Number: rpcpacket.Number(p.Ref.Number), CallerIncarnation: p.Incarnation, CalleeIncarnation: p.Incarnation ^ 0xff,
	}, Payload: []byte("message")}
	if p.Kind == rights.Reply || p.Kind == rights.Exception {
		m.CallerIncarnation, m.CalleeIncarnation = m.CalleeIncarnation, m.CallerIncarnation
	}
	blocks := p.Blocks
	if p.Kind == rights.Reply || p.Kind == rights.Exception {
		blocks = blocksOf(p.Results)
	}
	many := 0
	if m.Lists, many = lists(blocks); many == 1 && m.Lists[0] == (rpcpacket.List{}) && r.IntN(2) == 0 {
		m.Lists, many = nil, 0 // says the same
	}
	b := m.Append(nil)
	b[94] = byte(many) //nolint:gosec // small
	ports := []uint16{rackaddr.PortRPC, rackaddr.PortDirect, rackaddr.PortBulk}
	port := r.CallPort
	if port == 0 {
		port = ports[r.IntN(len(ports))]
	}
	return udp(p.Source.Address, p.To, port, b)
}

var types = map[rights.Kind]rpcpacket.Type{
	rights.Call: rpcpacket.Call, rights.Oneway: rpcpacket.Oneway, rights.Reply: rpcpacket.Reply, rights.Exception: rpcpacket.Exception, rights.Ask: rpcpacket.Ask,
}

// judge has both judge a packet.
func (r *Rights) judge(p *rights.Packet) error {
	b := r.frameOf(p)
	v := r.Model.Judge(p)
	out, err := r.x.Run(datapath.Port(p.Source.Port), bytes.Clone(b))
	if err == nil {
		err = r.is(p, b, v, out)
	}
	if x, tells := r.x.(teller); err == nil && tells && x.Told() != v.HalfUsed {
		err = fmt.Errorf("a digest says that a batch is half used: %t", !v.HalfUsed)
	}
	if err == nil {
		err = r.registers()
	}
	if err != nil {
		return fmt.Errorf("%s %+v, %v by row %q: %w", p.Kind, *p, v, v.Row, err)
	}
	return nil
}

// is checks that what has left is what a verdict wants.
func (r *Rights) is(p *rights.Packet, sent []byte, v rights.Verdict, out []Leaves) error {
	want := datapath.Port(p.Source.Port)
	switch v.Action {
	case rights.Drop:
		if len(out) != 0 {
			return fmt.Errorf("it leaves at port %d", out[0].Port)
		}
		return nil
	case rights.TurnAround:
	default:
		want = memoryPort
		if p.To != memoryAddress {
			want = datapath.Port(p.To.As16()[15])
		}
	}
	if len(out) != 1 || out[0].Port != want {
		return fmt.Errorf("%d frames leave, want one at port %d", len(out), want)
	}
	before, err := frame.ParseUDP6(sent)
	if err != nil {
		return err
	}
	after, err := frame.ParseUDP6(out[0].Frame) // checks the checksum
	if err != nil {
		return err
	}
	if v.Action == rights.TurnAround {
		before.Src, before.Dst = before.Dst, before.Src
	}
	if before.Src != after.Src || before.Dst != after.Dst || len(before.Payload) != len(after.Payload) {
		return fmt.Errorf("it leaves from %s for %s with %d bytes", after.Src, after.Dst, len(after.Payload))
	}
	wanted := before.Payload
	be := binary.BigEndian
	twins := func(at int, value uint16) { be.PutUint32(wanted[at:], uint32(value)<<16|uint32(^value)) }
	switch dsm := before.Src.Port() == rackaddr.PortDSM; {
	case v.Action == rights.TurnAround && dsm:
		status := fault.PermissionDenied
		if v.Reason == rights.Lent {
			status = fault.Overloaded
		}
		twins(4, uint16(dsmpacket.Nack)<<8|uint16(status))
	case v.Action == rights.TurnAround:
		reason := map[rights.Reason]rpcpacket.Turned{rights.PermissionDenied: rpcpacket.Denied, rights.Lent: rpcpacket.Lent, rights.Unavailable: rpcpacket.Gone}[v.Reason]
		if v.NeverBegun {
			reason = rpcpacket.NeverBegun
		}
		twins(76, uint16(reason))
	case p.Kind == rights.Reply:
		twins(112, v.Had)
	}
	if !bytes.Equal(wanted, after.Payload) {
		return fmt.Errorf("it leaves as\n%x, want\n%x", after.Payload, wanted)
	}
	return nil
}
