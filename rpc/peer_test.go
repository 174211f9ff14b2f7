package rpc_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/bulk"
	"github.com/bifrost-rack/bifrost/rpc/internal/testrack"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// peer is a node made by hand, which sends and receives whatever a test likes.
type peer struct {
	t    testing.TB
	conn netio.Conn
}

// newPeer makes a peer with the address of a node or service.
func newPeer(t testing.TB, r *testrack.Rack, name string, at netip.Addr) *peer {
	t.Helper()
	return newPeerOn(t, r, name, at, rackaddr.PortRPC)
}

// newPeerOn makes one that listens on a port.
func newPeerOn(t testing.TB, r *testrack.Rack, name string, at netip.Addr, port uint16) *peer {
	t.Helper()
	h := r.Host(name)
	if err := h.AddAddress(at); err != nil {
		t.Fatal(err)
	}
	c, err := h.ListenUDP(netip.AddrPortFrom(at, port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &peer{t, c}
}

func (p *peer) send(to netip.Addr, datagram []byte) {
	p.t.Helper()
	p.sendTo(to, rackaddr.PortRPC, datagram)
}

// call sends a call to a node.
func (p *peer) call(to *rpc.Node, datagram []byte) {
	p.t.Helper()
	p.sendTo(to.Address(), rackaddr.PortDirect, datagram)
}

// first sends a large message's first packet to a node.
func (p *peer) first(to netip.Addr, datagram []byte) {
	p.t.Helper()
	p.sendTo(to, rackaddr.PortBulk, datagram)
}

// sendTo sends to a port.
func (p *peer) sendTo(to netip.Addr, port uint16, datagram []byte) {
	p.t.Helper()
	m := netio.Message{Buf: datagram, Remote: netip.AddrPortFrom(to, port)}
	if _, err := p.conn.WriteBatch([]netio.Message{m}); err != nil {
		p.t.Fatal(err)
	}
}

// receive returns the next message within d and who sent it; ok is false if
// there is none.
func (p *peer) receive(d time.Duration) (m rpcpacket.Message, from netip.Addr, ok bool) {
	p.t.Helper()
	ms := []netio.Message{{Buf: make([]byte, netio.MaxDatagram)}}
	if err := p.conn.SetReadDeadline(time.Now().Add(d)); err != nil {
		p.t.Fatal(err)
	}
	for {
		ms[0].Buf = ms[0].Buf[:cap(ms[0].Buf)]
		if _, err := p.conn.ReadBatch(ms); err != nil {
			if os.IsTimeout(err) {
				return m, from, false
			}
			p.t.Fatal(err)
		}
		if binary.BigEndian.Uint16(ms[0].Buf) == bulk.Magic {
			continue // a part, or a pull
		}
		m, err := rpcpacket.Parse(ms[0].Buf)
		if err != nil {
			p.t.Fatal(err)
		}
		if m.Flags&rpcpacket.FlagSettled == 0 {
			return m, ms[0].Remote.Addr(), true
		}
		p.forget(ms[0].Remote, &m)
	}
}

// forget says that the calls are forgotten that a message names.
func (p *peer) forget(to netip.AddrPort, m *rpcpacket.Message) {
	p.t.Helper()
	ack := rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Ack, Flags: m.Flags, CallerIncarnation: 1}}
	for b := m.Payload; len(b) >= 32; b = b[32:] {
		ack.Payload = append(ack.Payload, b[:16]...)
	}
	p.sendTo(to.Addr(), to.Port(), ack.Append(nil))
}

// must is receive for a message that has to come.
func (p *peer) must() rpcpacket.Message {
	p.t.Helper()
	m, _, ok := p.receive(5 * time.Second)
	if !ok {
		p.t.Fatal("nothing has come")
	}
	return m
}

// thriftMessage encodes a message with the binary protocol.
func thriftMessage(t testing.TB, name string, kind thrift.TMessageType, body thrift.TStruct) []byte {
	t.Helper()
	buf := thrift.NewTMemoryBuffer()
	p := thrift.NewTBinaryProtocolConf(buf, nil)
	ctx := context.Background()
	if err := p.WriteMessageBegin(ctx, name, kind, 0); err != nil {
		t.Fatal(err)
	}
	if err := body.Write(ctx, p); err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(buf.Bytes())
}

// callOf makes a call of the test service's method in slot 99 of node 77, to the first incarnation of a node.
func callOf(t testing.TB, method string, sequence uint64, payload []byte) rpcpacket.Message {
	t.Helper()
	wire, err := rpcpacket.MethodOf(method)
	if err != nil {
		t.Fatal(err)
	}
	service := rackaddr.Service("Test").As16()
	var hash uint64
	for _, b := range service[8:] {
		hash = hash<<8 | uint64(b)
	}
	m := rpcpacket.Message{
		Header: rpcpacket.Header{
			Type: rpcpacket.Call, NameLength: uint8(len(method)), Method: wire, CallerIncarnation: 1, CalleeIncarnation: 1, Service: hash,
		},
		Payload: payload,
	}
	plainCall(&m, 99, sequence)
	return m
}

// plainCall makes a call the n-th plain one of node 77's incarnation 1 in a slot.
func plainCall(m *rpcpacket.Message, slot rpcpacket.Slot, n uint64) {
	m.Slot, m.Number = slot, rpcpacket.NumberOf(1, n)
	m.Call = rpcpacket.PlainID(rackaddr.Node(77), m.Slot, m.Number)
}
