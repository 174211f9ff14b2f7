package testrack

import (
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// heldStack is a node's stack in a rack whose Gatekeeper lets everything through that the switch would hold.
type heldStack struct{ netio.Network }

// ListenUDP implements netio.Network.
func (s heldStack) ListenUDP(local netip.AddrPort) (netio.Conn, error) {
	c, err := s.Network.ListenUDP(local)
	if err != nil || local.Port() != rackaddr.PortRPC {
		return c, err
	}
	return heldConn{c}, nil
}

// heldConn is the endpoint that a node's calls with pointers, and its answers, leave from.
type heldConn struct{ netio.Conn }

// WriteBatch implements netio.Conn.
func (c heldConn) WriteBatch(ms []netio.Message) (int, error) {
	all := slices.Clone(ms)
	for i := range all {
		letThrough(&all[i])
	}
	return c.Conn.WriteBatch(all)
}

// letThrough does to a held message what the Gatekeeper does.
func letThrough(m *netio.Message) {
	h, err := rpcpacket.Parse(m.Buf)
	if err != nil || h.Flags&rpcpacket.FlagHeld == 0 || !rackaddr.NodePrefix.Contains(m.Remote.Addr()) {
		return
	}
	m.Buf = slices.Clone(m.Buf)
	rpcpacket.SetReleased(m.Buf, h.CalleeIncarnation)
	if h.Type == rpcpacket.Call || h.Type == rpcpacket.Oneway {
		m.Remote = netip.AddrPortFrom(m.Remote.Addr(), rackaddr.PortDirect)
	}
}
