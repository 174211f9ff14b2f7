package daemon

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
)

// hoster is a blade's network that writes down the marks of sockets.
type hoster struct {
	*wire.Host
	marks map[netip.AddrPort]uint32
}

func (h hoster) ListenNode(local netip.AddrPort, mark uint32) (netio.Conn, error) {
	h.marks[local] = mark
	return h.ListenUDP(local)
}

// TestSockets: a node has sockets at its own address and ports, all with one mark of its own, and no others. They end with the node,
// whatever the program does; the next ones are new.
func TestSockets(t *testing.T) {
	inRack(t, wire.Impairment{}, func(r *rack) {
		h := hoster{r.blade, map[netip.AddrPort]uint32{}}
		c, _, stop := r.compute(ComputeConfig{})
		c.cfg.Stack = h
		one, err := c.Host(r.ctx, join.Program{Name: "one", UID: 60001})
		if err != nil {
			t.Fatal(err)
		}
		two, err := c.Host(r.ctx, join.Program{Name: "two", UID: 60002})
		if err != nil {
			t.Fatal(err)
		}
		at := netip.AddrPortFrom
		own := one.Node().Address
		listen := func(a netip.AddrPort) netio.Conn {
			t.Helper()
			conn, err := one.Stack().ListenUDP(a)
			if err != nil {
				t.Fatal(err)
			}
			return conn
		}
		ended := func(what string, conn netio.Conn) {
			t.Helper()
			_ = conn.SetReadDeadline(time.Now().Add(time.Second)) // virtual; it may be closed
			if _, err := conn.ReadBatch(make([]netio.Message, 1)); !errors.Is(err, net.ErrClosed) {
				t.Errorf("%s: a socket receives: %v", what, err)
			}
		}
		var all []netio.Conn
		for _, port := range rackaddr.NodePorts {
			all = append(all, listen(at(own, port)))
		}
		first := all[0]
		mark := h.marks[first.LocalAddr()]
		if mark&rackaddr.MarkMask != rackaddr.MarkTag {
			t.Errorf("mark %#x is no node's", mark)
		}
		for a, m := range h.marks {
			if m != mark {
				t.Errorf("%s has mark %#x, others %#x", a, m, mark)
			}
		}
		if _, err := two.Stack().ListenUDP(at(two.Node().Address, rackaddr.PortRPC)); err != nil || h.marks[at(two.Node().Address, rackaddr.PortRPC)] == mark {
			t.Errorf("two nodes have mark %#x, %v", mark, err)
		}
		for _, a := range []netip.AddrPort{
			at(own, rackaddr.PortRPC), at(rackaddr.Service("S"), rackaddr.PortRPC), at(netip.IPv6Unspecified(), rackaddr.PortRPC), at(rackaddr.Blade(1), rackaddr.PortRPC),
			at(two.Node().Address, rackaddr.PortControl), at(two.Node().Address, 7),
		} {
			if _, err := two.Stack().ListenUDP(a); fault.CodeOf(err) != fault.PermissionDenied {
				t.Errorf("a socket at %s, which is not the node's: %v", a, err)
			}
		}

		all[0] = listen(first.LocalAddr())
		ended("the next one is there", first)
		one.Crash("test")
		for _, conn := range all {
			ended("the node has ended", conn)
		}
		if _, err := one.Stack().ListenUDP(at(own, rackaddr.PortRPC)); fault.CodeOf(err) != fault.Stale {
			t.Errorf("a socket for a node that has ended: %v", err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
