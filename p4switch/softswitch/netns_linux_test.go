package softswitch

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/shared/privilege"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// lab is a host in a network namespace of its own, behind one end of a veth
// pair; the other end is the switch's, in the test's own namespace.
type lab struct {
	t     testing.TB
	ns    netns.NsHandle
	iface string // the switch's end
	addr  netip.Addr
	mac   net.HardwareAddr
	index int // of the host's end, in ns
}

var labs atomic.Int32

// needRoot skips where namespaces cannot be made; CI runs as root.
func needRoot(t testing.TB) {
	t.Helper()
	privilege.Need(t)
}

// within runs f in the host's namespace.
func within(t testing.TB, ns netns.NsHandle, f func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer home.Close()
	if err := netns.Set(ns); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := netns.Set(home); err != nil {
			panic(err) // the thread is lost
		}
	}()
	f()
}

// changeHost changes the other end of a port's cable.
func changeHost(t testing.TB, ns netns.NsHandle, change func(netlink.Link) error) {
	t.Helper()
	within(t, ns, func() {
		link, err := netlink.LinkByName("host")
		if err == nil {
			err = change(link)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
}

func newNamespace(t testing.TB) netns.NsHandle {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer home.Close()
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	if err := netns.Set(home); err != nil {
		panic(err) // the thread is lost
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}

// newLab makes a host with an address and static neighbours for its peers.
func newLab(t testing.TB, mtu int) *lab {
	t.Helper()
	n := labs.Add(1)
	h := &lab{
		t: t, ns: newNamespace(t), iface: fmt.Sprintf("bfs%d.%d", os.Getpid()%10000, n),
		addr: netip.MustParseAddr(fmt.Sprintf("fd00:b1::%d", n)),
		mac:  net.HardwareAddr{2, 0, 0, 0, 1, byte(n)},
	}
	h.plug(mtu)
	t.Cleanup(h.unplug)
	return h
}

// plug makes the veth pair and configures both ends.
func (h *lab) plug(mtu int) {
	h.t.Helper()
	must := func(err error) {
		h.t.Helper()
		if err != nil {
			h.t.Fatal(err)
		}
	}
	must(os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("0"), 0o600))
	must(netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: h.iface, MTU: mtu}, PeerName: "host", PeerMTU: uint32(mtu),
		PeerNamespace: netlink.NsFd(int(h.ns)), PeerHardwareAddr: h.mac,
	}))
	must(os.WriteFile("/proc/sys/net/ipv6/conf/"+h.iface+"/disable_ipv6", []byte("1"), 0o600))
	link, err := netlink.LinkByName(h.iface)
	must(err)
	must(netlink.LinkSetUp(link))
	within(h.t, h.ns, func() {
		must(os.WriteFile("/proc/sys/net/ipv6/conf/host/accept_dad", []byte("0"), 0o600))
		link, err := netlink.LinkByName("host")
		must(err)
		must(netlink.LinkSetUp(link))
		h.index = link.Attrs().Index
		addr, err := netlink.ParseAddr(h.addr.String() + "/64")
		must(err)
		addr.Flags = 2 // IFA_F_NODAD
		must(netlink.AddrAdd(link, addr))
		// The kernel begins to take packets for an address some time after it has
		// been added, in a work queue.
		until(h.t, func() bool {
			rs, err := netlink.RouteGet(h.addr.AsSlice())
			return err == nil && len(rs) == 1 && rs[0].Type == unix.RTN_LOCAL
		})
	})
	// An end that was up before its peer drops what it is given to send until a
	// work queue has noticed the carrier; only then is it "up".
	until(h.t, func() bool {
		link, err := netlink.LinkByName(h.iface)
		must(err)
		return link.Attrs().OperState == netlink.OperUp
	})
}

// unplug removes the pair; the host loses its interface as well.
func (h *lab) unplug() {
	if link, err := netlink.LinkByName(h.iface); err == nil {
		if err := netlink.LinkDel(link); err != nil {
			h.t.Error(err)
		}
	}
}

// knows gives the host a static neighbour.
func (h *lab) knows(other *lab) {
	h.t.Helper()
	within(h.t, h.ns, func() {
		err := netlink.NeighSet(&netlink.Neigh{
			LinkIndex: h.index, State: netlink.NUD_PERMANENT, IP: net.IP(other.addr.AsSlice()), HardwareAddr: other.mac,
		})
		if err != nil {
			h.t.Fatal(err)
		}
	})
}

// udp opens a socket in the host's namespace.
func (h *lab) udp(port uint16) *net.UDPConn {
	h.t.Helper()
	var c *net.UDPConn
	within(h.t, h.ns, func() {
		var err error
		if c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(h.addr, port))); err != nil {
			h.t.Fatal(err)
		}
	})
	h.t.Cleanup(func() { c.Close() })
	return c
}
