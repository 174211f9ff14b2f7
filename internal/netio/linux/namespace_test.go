//go:build linux

package linux

import (
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/p4switch/shared/privilege"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	bladeMAC  = frame.MAC{2, 0, 0, 0, 0, 1}
	switchMAC = frame.MAC{2, 0, 0, 0, 0, 2}
	gateway   = netip.MustParseAddr("fe80::1")
)

// cable is a network namespace of the test's own with a blade's interface, eth0,
// and the other end of its cable, which frames are read from and written to.
type cable struct {
	fd   int // AF_PACKET socket on the other end
	buf  [70000]byte
	seen atomic.Int64
	done sync.WaitGroup
}

// plug makes the calling test's thread a blade. The thread never leaves the
// namespace: it ends with the test, and the namespace with it.
func plug(t testing.TB, mtu int) *cable {
	t.Helper()
	privilege.Need(t)
	runtime.LockOSThread()
	ns, err := netns.New()
	must(t, err)
	t.Cleanup(func() { ns.Close() })

	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = "eth0", mtu, bladeMAC[:]
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "port1", PeerHardwareAddr: switchMAC[:], PeerMTU: uint32(mtu)}))
	must(t, os.WriteFile("/proc/sys/net/ipv6/conf/port1/disable_ipv6", []byte("1"), 0o644))
	must(t, os.WriteFile("/proc/sys/net/ipv6/conf/eth0/addr_gen_mode", []byte("1"), 0o644))
	for _, name := range []string{"lo", "port1", "eth0"} {
		link, err := netlink.LinkByName(name)
		must(t, err)
		must(t, netlink.LinkSetUp(link))
	}
	waitUp(t, "eth0")
	waitUp(t, "port1")
	c := &cable{fd: packetSocket(t, "port1")}
	t.Cleanup(func() { unix.Close(c.fd) })
	t.Cleanup(c.done.Wait)
	return c
}

// route sends the rack's prefix, and the memory's, to the switch, as the rack
// tool does.
func route(t testing.TB) {
	t.Helper()
	link, err := netlink.LinkByName("eth0")
	must(t, err)
	i := link.Attrs().Index
	must(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: i, IP: gateway.AsSlice(), HardwareAddr: switchMAC[:], State: netlink.NUD_PERMANENT}))
	for _, p := range []netip.Prefix{rackaddr.RackPrefix, netip.MustParsePrefix("0:0:1000::/40")} {
		must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: i, Dst: ipNet(p), Gw: gateway.AsSlice()}))
	}
}

// waitUp waits until an interface carries packets: before that, the kernel drops
// them without a word.
func waitUp(t testing.TB, iface string) {
	t.Helper()
	for range 1_000_000 {
		link, err := netlink.LinkByName(iface)
		must(t, err)
		if link.Attrs().OperState == netlink.OperUp {
			return
		}
	}
	t.Fatalf("%s does not come up", iface)
}

func packetSocket(t testing.TB, iface string) int {
	t.Helper()
	link, err := net.InterfaceByName(iface)
	must(t, err)
	const all = unix.ETH_P_ALL>>8 | unix.ETH_P_ALL&0xff<<8 // in network byte order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all)
	must(t, err)
	must(t, unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1))
	must(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20))
	must(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}))
	must(t, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index}))
	return fd
}

// next returns the next UDP frame that the blade has sent, its checksum finished,
// and false after a while without one. The frame is good until the next call.
func (c *cable) next() ([]byte, bool) {
	b := c.buf[:]
	for {
		n, err := unix.Read(c.fd, b)
		if err != nil || n == 0 {
			return nil, false
		}
		if frame.Fix(b[:n]) != nil {
			continue
		}
		if p, err := frame.Parse(b[:n]); err == nil && p.NextHeader == frame.ProtoUDP {
			return b[:n], true
		}
	}
}

// put hands a frame to the blade.
func (c *cable) put(t testing.TB, b []byte) {
	t.Helper()
	_, err := unix.Write(c.fd, b)
	must(t, err)
}

// reflect makes a switch of the cable that sends everything back, until stop is
// closed.
func (c *cable) reflect(t testing.TB) {
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	c.done.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if b, ok := c.next(); ok {
				c.seen.Add(1)
				copy(b, bladeMAC[:])
				copy(b[6:], switchMAC[:])
				if _, err := unix.Write(c.fd, b); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
