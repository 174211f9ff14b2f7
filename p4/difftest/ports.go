package difftest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4/rights"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Ports checks what becomes of messages of each type at each port of calls: from nodes with a row, from one without, and from
// the Gatekeeper. It says all that differs. The executor must be new.
func Ports(x Target) error {
	r, err := NewRights(x, 1)
	if err != nil {
		return err
	}
	p := &portsOfCalls{Rights: r}
	a := node(strange).As16()
	if err := x.Apply(datapath.Insert, datapath.Entry{
		Table: "BifrostIngress.identity", Match: []datapath.Match{exactly(be16(strange)), {Value: a[:], PrefixLen: 128}},
		Action: &datapath.Action{Name: "BifrostIngress.known", Params: p4.Known(p4.Node, 0, 1)},
	}); err != nil {
		return err
	}
	for _, port := range []uint16{rackaddr.PortRPC, rackaddr.PortDirect, rackaddr.PortBulk} {
		p.fromRow(port)
		p.fromOthers(port)
	}
	p.otherBytes()
	p.sink()
	return errors.Join(p.errs...)
}

// portsOfCalls is what Ports works with.
type portsOfCalls struct {
	*Rights
	next uint64 // the last counter of the first node's numbers
	errs []error
}

// wrong notes what differs.
func (p *portsOfCalls) wrong(format string, args ...any) {
	p.errs = append(p.errs, fmt.Errorf(format, args...))
}

// use is the first node's next number in a slot of its block.
func (p *portsOfCalls) use(slot uint32) rights.Ref {
	p.next += 2
	return rights.Ref{Slot: block(1) + slot, Number: rights.MakeNumber(1, p.next)}
}

// said is a message between nodes of incarnation 1.
func said(t rpcpacket.Type, ref rights.Ref) rpcpacket.Message {
	return rpcpacket.Message{Header: rpcpacket.Header{
		Type: t, Slot: rpcpacket.Slot(ref.Slot), Number: rpcpacket.Number(ref.Number), CallerIncarnation: 1, CalleeIncarnation: 1,
	}, Payload: []byte("message")}
}

func datagram(from, to int, src, dst uint16, payload []byte) []byte {
	return frame.UDP6{
		SrcMAC: hostMAC, DstMAC: switchMAC, HopLimit: 64, Payload: payload,
		Src: netip.AddrPortFrom(node(from), src), Dst: netip.AddrPortFrom(node(to), dst),
	}.Append(nil)
}

// expect sends a datagram from a node to another and checks the port by which it leaves: 0 for none.
func (p *portsOfCalls) expect(what string, from, to int, src, dst uint16, payload []byte, want datapath.Port) {
	b := datagram(from, to, src, dst, payload)
	out, err := p.x.Run(datapath.Port(from), bytes.Clone(b)) //nolint:gosec // small
	p.leaves(fmt.Sprintf("%s from port %d of node %d to %d", what, src, from, dst), b, out, err, want)
}

// leaves checks the port by which a frame has left, and that its payload is what was sent if it has crossed.
func (p *portsOfCalls) leaves(what string, sent []byte, out []Leaves, err error, want datapath.Port) {
	switch {
	case err != nil:
		p.wrong("%s: %w", what, err)
	case want == 0 && len(out) > 0:
		p.wrong("%s: leaves at port %d, want none", what, out[0].Port)
	case want != 0 && (len(out) != 1 || out[0].Port != want):
		p.wrong("%s: %d frames leave, want one at port %d", what, len(out), want)
	case want != 0 && want < p4.CPUPort && !bytes.Equal(out[0].Frame[22:], sent[22:]):
		p.wrong("%s: leaves as\n%x, want\n%x", what, out[0].Frame[22:], sent[22:])
	}
}

// state is what the state of a slot's register says.
func (p *portsOfCalls) state(what string, ref rights.Ref, want rights.State) {
	b, err := p.x.Cell("BifrostIngress.rights.slot_state", int(ref.Slot))
	if err != nil {
		p.wrong("%s: %w", what, err)
		return
	}
	if got := rights.State(b[len(b)-1] & 7); got != want {
		p.wrong("%s: the slot's state is %d, want %d", what, got, want)
	}
}

// fromRow: messages of nodes with rows are judged at all three ports. ACK and FORGET pass at the port of direct calls alone.
func (p *portsOfCalls) fromRow(port uint16) {
	for t := rpcpacket.Type(0); t <= rpcpacket.Forget+1; t++ {
		ref := p.use(0)
		m, what := said(t, ref), fmt.Sprintf("type %d", t)
		want := datapath.Port(2)
		switch t {
		case rpcpacket.Call, rpcpacket.Oneway:
			p.expect(what, 1, 2, port, port, m.Append(nil), want)
			p.state(what, ref, rights.Open)
			answer := said(rpcpacket.Reply, ref)
			p.expect(what+"'s answer", 2, 1, port, port, answer.Append(nil), 1)
			p.state(what+"'s answer", ref, rights.Closed)
			unknown := said(t, rights.Ref{Slot: block(2), Number: ref.Number})
			p.expect(what+" in another's block", 1, 2, port, port, unknown.Append(nil), 0)
		case rpcpacket.Reply, rpcpacket.Exception:
			p.expect(what+" to no call", 1, 2, port, port, m.Append(nil), 0)
			call := said(rpcpacket.Call, ref)
			p.expect("a call", 1, 2, port, port, call.Append(nil), 2)
			p.expect(what, 2, 1, port, port, m.Append(nil), 1)
			p.state(what, ref, rights.Closed)
			p.expect(what+" to another", 3, 1, port, port, m.Append(nil), 0)
		case rpcpacket.Ask:
			p.expect(what, 1, 2, port, port, m.Append(nil), want)
			nothing := said(t, rights.Ref{Slot: ref.Slot})
			p.expect(what+" without a number", 1, 2, port, port, nothing.Append(nil), 0)
		case rpcpacket.Ack, rpcpacket.Forget:
			m.Slot, m.Number, m.CallerIncarnation = 0, 0, 7
			if port != rackaddr.PortDirect {
				want = 0
			}
			p.expect(what, 1, 2, port, port, m.Append(nil), want)
		default:
			p.expect(what, 1, 2, port, port, m.Append(nil), 0)
		}
		m = said(t, p.use(1))
		for name, change := range map[string]func(*rpcpacket.Header){
			"released": func(h *rpcpacket.Header) { h.Flags = rpcpacket.FlagReleased },
			"turned":   func(h *rpcpacket.Header) { h.Turned = rpcpacket.Gone }, "with results": func(h *rpcpacket.Header) { h.Had = 1 },
		} {
			f := m
			change(&f.Header)
			p.expect(what+" that says it is "+name, 1, 2, port, port, f.Append(nil), 0)
		}
		p.expect(what+" between two ports", 1, 2, otherPort, port, m.Append(nil), 0)
		p.expect(what+" between two ports", 1, 2, port, otherPort, m.Append(nil), 0)
	}
	ref := p.use(2)
	refused := said(rpcpacket.Call, ref)
	refused.Lists = rpcpacket.ListsOf(pointer(rights.Region{Slot: batch(2), Generation: 1}))
	b := datagram(1, 2, port, port, refused.Append(nil))
	out, err := p.x.Run(1, bytes.Clone(b))
	if err == nil && len(out) == 1 && out[0].Port == 1 {
		u, bad := frame.ParseUDP6(out[0].Frame)
		if m, e := rpcpacket.Parse(u.Payload); bad != nil || e != nil || m.Turned != rpcpacket.Denied || u.Dst != netip.AddrPortFrom(node(1), port) {
			p.wrong("a refused call at port %d comes back to %s as %+v: %w", port, u.Dst, m.Header, errors.Join(bad, e))
		}
	} else {
		p.wrong("a refused call at port %d does not come back: %d frames, %w", port, len(out), err)
	}
}

// fromOthers: of what comes from a node without a row, or from the Gatekeeper, only the port of calls has anything looked at.
func (p *portsOfCalls) fromOthers(port uint16) {
	for t := rpcpacket.Type(0); t <= rpcpacket.Forget+1; t++ {
		m, what := said(t, rights.Ref{}), fmt.Sprintf("without a row, type %d", t)
		want := datapath.Port(2)
		if port == rackaddr.PortRPC {
			want = map[rpcpacket.Type]datapath.Port{rpcpacket.Call: p4.CPUPort, rpcpacket.Oneway: p4.CPUPort, rpcpacket.Reply: 2, rpcpacket.Exception: 2}[t]
		}
		p.expect(what, strange, 2, port, port, m.Append(nil), want)
		m.Lists = rpcpacket.ListsOf(pointer(rights.Region{Slot: batch(1), Generation: 1}))
		if port == rackaddr.PortRPC {
			want = 0
		}
		p.expect(what+" with a region", strange, 2, port, port, m.Append(nil), want)
		m.Lists, m.Flags, m.Turned, m.Had = nil, rpcpacket.FlagReleased, rpcpacket.Lent, 1
		p.expect(what+" that says anything", strange, 2, port, port, m.Append(nil), want)
		p.expect(what+" between two ports", strange, 2, port, otherPort, m.Append(nil), want)
		p.expect(what+" between two ports", strange, 2, otherPort, port, m.Append(nil), want)

		word := said(t, rights.Ref{Slot: block(1)})
		word.Flags = rpcpacket.FlagReleased
		for _, hop := range []byte{0, 2} {
			what, want := fmt.Sprintf("from the Gatekeeper by hop %d, type %d to %d", hop, t, port), datapath.Port(2)
			if port == rackaddr.PortRPC && hop == 0 && (t == rpcpacket.Call || t == rpcpacket.Oneway) {
				want = p4.CPUPort // nobody serves its method
			}
			b := datagram(1, 2, port, port, word.Append(nil))
			out, err := p.x.Run(p4.CPUPort, append([]byte{0, hop, 0, 0}, b...))
			p.leaves(what, b, out, err, want)
		}
	}
}

const otherPort = 9000 // of no protocol

// otherBytes: what does not begin as a call is one nowhere but at the port of parts.
func (p *portsOfCalls) otherBytes() {
	m := said(rpcpacket.Reply, rights.Ref{})
	for _, from := range []int{1, strange} {
		judged := datapath.Port(2) // where calls go that are not looked at
		if from == 1 {
			judged = 0
		}
		part := m.Append(nil)
		binary.BigEndian.PutUint16(part, rpcpacket.Magic+1)
		p.expect("another magic", from, 2, rackaddr.PortBulk, rackaddr.PortBulk, part, 2)
		p.expect("a part of three bytes", from, 2, rackaddr.PortBulk, rackaddr.PortBulk, part[:3], 2)
		p.expect("another magic", from, 2, rackaddr.PortDirect, rackaddr.PortDirect, part, judged)
		version := m.Append(nil)
		version[2]++
		for _, port := range []uint16{rackaddr.PortDirect, rackaddr.PortBulk} {
			p.expect("another version", from, 2, port, port, version, judged)
			p.expect("half a header", from, 2, port, port, version[:60], 0)
			p.expect("a byte", from, 2, port, port, version[:1], 0)
		}
		p.expect("what looks like a call", from, 2, otherPort, otherPort, version, 2)
	}
}

// sink: an answer to a node that is gone closes its slot, though its route leads nowhere.
func (p *portsOfCalls) sink() {
	for i, port := range []uint16{rackaddr.PortRPC, rackaddr.PortDirect} {
		ref := p.use(uint32(4 + i)) //nolint:gosec // small
		call, answer := said(rpcpacket.Call, ref), said(rpcpacket.Reply, ref)
		p.expect("a call", 1, 2, rackaddr.PortDirect, rackaddr.PortDirect, call.Append(nil), 2)
		e := p.l3(1)
		e.Action.Params = [][]byte{be16(99), be16(1), {1}} // no next_hop has this
		if err := p.x.Apply(datapath.Modify, e); err != nil {
			p.wrong("sink: %w", err)
		}
		p.state("before the answer", ref, rights.Open)
		p.expect("an answer to who is gone", 2, 1, port, port, answer.Append(nil), 0)
		p.state("an answer to who is gone", ref, rights.Closed)
		if err := p.x.Apply(datapath.Modify, p.l3(1)); err != nil {
			p.wrong("sink: %w", err)
		}
	}
}

// pointer is a pointer to a region's beginning.
func pointer(g rights.Region) dsmpacket.Pointer {
	return dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(g.Slot, g.Generation))
}
