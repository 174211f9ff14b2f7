//go:build linux

package guard

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"github.com/google/nftables"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/netio/linux"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4switch/shared/privilege"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The users of the tests, and the addresses of their nodes.
const (
	alice = 60001
	bob   = 60002
)

var (
	ofAlice  = rackaddr.Node(1)
	ofBob    = rackaddr.Node(2)
	nobodys  = rackaddr.Node(3)
	service  = rackaddr.Service("Arrays") // alice's
	ofBlade  = rackaddr.Blade(1)
	gateway  = netip.MustParseAddr("fe80::1")
	remote   = rackaddr.Node(9)
	interior = netip.IPv6Loopback()
)

// blade makes the calling test's thread a blade, whose eth0 leads nowhere. The thread
// never leaves the namespace: it ends with the test, and the namespace with it.
func blade(t *testing.T) netns.NsHandle {
	t.Helper()
	privilege.Need(t)
	runtime.LockOSThread()
	ns, err := netns.New()
	must(t, err)
	t.Cleanup(func() { ns.Close() })
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "eth0"
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "port1"}))
	must(t, os.WriteFile("/proc/sys/net/ipv6/conf/eth0/accept_dad", []byte("0"), 0o644))
	for _, name := range []string{"lo", "port1", "eth0"} {
		link, err := netlink.LinkByName(name)
		must(t, err)
		must(t, netlink.LinkSetUp(link))
	}
	eth0, err := netlink.LinkByName("eth0")
	must(t, err)
	rack := &net.IPNet{IP: rackaddr.RackPrefix.Addr().AsSlice(), Mask: net.CIDRMask(rackaddr.RackPrefix.Bits(), 128)}
	index := eth0.Attrs().Index
	must(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: index, IP: gateway.AsSlice(), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 2}, State: netlink.NUD_PERMANENT}))
	must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: index, Dst: rack, Gw: gateway.AsSlice()}))
	stack, err := linux.Open("eth0")
	must(t, err)
	t.Cleanup(func() { must(t, stack.Close()) })
	for _, a := range []netip.Addr{ofAlice, ofBob, nobodys, service, ofBlade} {
		must(t, stack.AddAddress(a))
	}
	must(t, stack.SendOwnTrafficOut(rackaddr.RackPrefix))
	return ns
}

// as runs f as a user without privileges in a namespace, on a thread that ends with it.
func as(ns netns.NsHandle, uid int, f func() error) error {
	ended := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		ended <- func() error {
			if err := netns.Set(ns); err != nil {
				return err
			}
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
				return errno
			}
			return f()
		}()
	}()
	return <-ended
}

// send sends a datagram from any address and port, as every program may.
func send(from, to netip.AddrPort) func() error {
	return func() error {
		c, err := linux.Listen(netip.AddrPortFrom(interior, from.Port()), 1500)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.WriteBatch([]netio.Message{{Buf: []byte("hello"), Remote: to, Local: from.Addr()}})
		return err
	}
}

// drops are how many packets were dropped so far.
type drops map[Reason]uint64

// check takes what became of one packet more: it was dropped for a reason, or, with "", for none.
func (d drops) check(t *testing.T, g *Guard, what string, err error, want Reason) {
	t.Helper()
	if want == "" && err != nil || want != "" && !errors.Is(err, unix.EPERM) {
		t.Errorf("%s: %v, want it dropped for %q", what, err, want)
	}
	if want != "" {
		d[want]++
	}
	dropped, err := g.Dropped()
	must(t, err)
	for _, r := range Reasons {
		if dropped[r] != d[r] {
			t.Errorf("%s: %d packets were dropped for %s, want %d", what, dropped[r], r, d[r])
			d[r] = dropped[r]
		}
	}
}

// TestSent: a packet leaves if its sender may send from its address and port, and only
// then.
func TestSent(t *testing.T) {
	ns := blade(t)
	g, err := Open("eth0")
	must(t, err)
	must(t, g.Own(ofAlice, alice, rackaddr.Mark(1)))
	must(t, g.Own(service, alice, rackaddr.Mark(1)))
	must(t, g.Own(ofBob, bob, rackaddr.Mark(2)))
	const free = 40000
	before := drops{}
	check := func(what string, uid int, from netip.Addr, sport uint16, to netip.Addr, dport uint16, want Reason) {
		t.Helper()
		err := as(ns, uid, send(netip.AddrPortFrom(from, sport), netip.AddrPortFrom(to, dport)))
		before.check(t, g, what, err, want)
	}
	check("a node calls", alice, ofAlice, rackaddr.PortRPC, remote, rackaddr.PortRPC, "")
	check("a node answers from its service's address", alice, service, rackaddr.PortRPC, remote, rackaddr.PortRPC, "")
	check("a neighbour calls", bob, ofAlice, rackaddr.PortRPC, remote, rackaddr.PortRPC, Address)
	check("a neighbour reads memory", bob, ofAlice, rackaddr.PortDSM, remote, rackaddr.PortDSM, Address)
	check("a neighbour answers in the service's stead", bob, service, rackaddr.PortRPC, remote, rackaddr.PortRPC, Address)
	check("a neighbour, from any port", bob, ofAlice, free, remote, free, Address)
	check("somebody uses a node's address that is not taken", bob, nobodys, rackaddr.PortRPC, remote, rackaddr.PortRPC, Address)
	check("control in the daemon's stead", alice, ofBlade, rackaddr.PortControl, rackaddr.Gatekeeper, rackaddr.PortControl, Control)
	check("control from a node's own address", alice, ofAlice, rackaddr.PortControl, rackaddr.Gatekeeper, rackaddr.PortControl, Control)
	check("control in the Gatekeeper's stead", alice, rackaddr.Gatekeeper, rackaddr.PortControl, remote, rackaddr.PortControl, Control)
	check("control to the port alone", alice, ofAlice, free, rackaddr.Gatekeeper, rackaddr.PortControl, Control)
	check("memory's answer", alice, netip.MustParseAddr("0:0:1001::1"), rackaddr.PortDSM, remote, rackaddr.PortDSM, Port)
	check("a call from the blade's address", alice, ofBlade, rackaddr.PortRPC, remote, rackaddr.PortRPC, Port)
	check("to a port of the rack", alice, ofBlade, free, remote, rackaddr.PortBulk, Port)
	check("something else from the blade's address", alice, ofBlade, free, remote, free, "")
	check("the daemon", 0, ofBlade, rackaddr.PortControl, rackaddr.Gatekeeper, rackaddr.PortControl, "")

	values := map[string]float64{}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(g)
	families, err := registry.Gather()
	must(t, err)
	for _, m := range families[0].GetMetric() {
		values[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
	}
	if values[string(Address)] != 5 || values[string(Control)] != 4 || values[string(Port)] != 3 {
		t.Errorf("metrics %v", values)
	}
	must(t, g.Own(ofAlice, bob, rackaddr.Mark(2)))
	check("a former owner", alice, ofAlice, rackaddr.PortRPC, remote, rackaddr.PortRPC, Address)
	check("the new owner", bob, ofAlice, rackaddr.PortRPC, remote, rackaddr.PortRPC, "")
	must(t, g.Disown(ofAlice))
	must(t, g.Disown(ofAlice))
	check("the owner of before", bob, ofAlice, rackaddr.PortRPC, remote, rackaddr.PortRPC, Address)

	// A daemon that dies leaves its rules; the next one begins with none of its owners.
	next, err := Open("eth0")
	must(t, err)
	must(t, g.conn.CloseLasting())
	g, before = next, map[Reason]uint64{}
	check("a node of the daemon before", bob, ofBob, rackaddr.PortRPC, remote, rackaddr.PortRPC, Address)
	must(t, g.Close())
	if err := as(ns, bob, send(netip.AddrPortFrom(ofAlice, rackaddr.PortRPC), netip.AddrPortFrom(remote, rackaddr.PortRPC))); err != nil {
		t.Errorf("the rules are still there: %v", err)
	}
}

// TestReceived: nothing reaches a node or a memory server by the loopback interface, where
// no switch judges it.
func TestReceived(t *testing.T) {
	ns := blade(t)
	for _, to := range []netip.AddrPort{
		netip.AddrPortFrom(ofAlice, rackaddr.PortRPC), netip.AddrPortFrom(ofBlade, rackaddr.PortControl), netip.AddrPortFrom(interior, rackaddr.PortDSM),
	} {
		arrives := func() bool {
			t.Helper()
			in, err := net.ListenUDP("udp6", net.UDPAddrFromAddrPort(to))
			must(t, err)
			defer in.Close()
			must(t, as(ns, bob, func() error {
				out, err := net.ListenUDP("udp6", net.UDPAddrFromAddrPort(netip.AddrPortFrom(ofBob, 40000)))
				if err != nil {
					return err
				}
				defer out.Close()
				raw, err := out.SyscallConn()
				if err != nil {
					return err
				}
				if e := raw.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), "lo") }); e != nil || err != nil {
					return errors.Join(e, err)
				}
				_, err = out.WriteToUDPAddrPort([]byte("hello"), to)
				return err
			}))
			raw, err := in.SyscallConn()
			must(t, err)
			n := 0
			must(t, raw.Control(func(fd uintptr) { // what was sent by lo is there by now
				n, _, _ = unix.Recvfrom(int(fd), make([]byte, 10), unix.MSG_DONTWAIT)
			}))
			return n > 0
		}
		if !arrives() {
			t.Fatalf("nothing arrives at %s without a guard: the test shows nothing", to)
		}
		g, err := Open("eth0")
		must(t, err)
		must(t, g.Own(ofBob, bob, rackaddr.Mark(2)))
		if arrives() {
			t.Errorf("a packet arrives at %s by lo", to)
		}
		if d, err := g.Dropped(); err != nil || d[Loopback] != 1 {
			t.Errorf("dropped %v, %v", d, err)
		}
		must(t, g.Close())
	}
}

// TestOpen_Refused: the error says what to do.
func TestOpen_Refused(t *testing.T) {
	ns := blade(t)
	err := as(ns, bob, func() error { _, err := Open("eth0"); return err })
	if !errors.Is(err, unix.EPERM) {
		t.Errorf("an unprivileged user opens a guard: %v", err)
	}
}

// TestSent_Nodes: a socket that the daemon has made for a node sends from the addresses of that node alone, though the kernel
// takes it for the daemon's, as long as they are that node's. Its mark is gone behind the guard.
func TestSent_Nodes(t *testing.T) {
	blade(t)
	g, err := Open("eth0")
	must(t, err)
	defer func() { must(t, g.Close()) }()
	after := nftables.ChainPolicyAccept
	later := g.conn.AddChain(&nftables.Chain{Name: "later", Table: g.table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityFilter, Policy: &after})
	g.conn.AddRule(&nftables.Rule{Table: g.table, Chain: later, Exprs: when(ofNode(), drop(Loopback))})
	must(t, g.conn.Flush())
	stack, err := linux.Open("eth0")
	must(t, err)
	defer func() { must(t, stack.Close()) }()
	must(t, stack.HoldPorts(t.Context(), rackaddr.NodePorts...))
	must(t, g.Own(ofAlice, alice, rackaddr.Mark(1)))
	must(t, g.Own(service, alice, rackaddr.Mark(1)))
	must(t, g.Own(ofBob, bob, rackaddr.Mark(2)))
	c, err := stack.ListenNode(netip.AddrPortFrom(ofAlice, rackaddr.PortRPC), rackaddr.Mark(1))
	must(t, err)
	defer c.Close()
	before := drops{}
	check := func(what string, from, to netip.Addr, port uint16, want Reason) {
		t.Helper()
		_, err := c.WriteBatch([]netio.Message{{Buf: []byte("hello"), Remote: netip.AddrPortFrom(to, port), Local: from}})
		before.check(t, g, what, err, want)
	}
	check("a node calls", ofAlice, remote, rackaddr.PortRPC, "")
	check("a node answers from its service's address", service, remote, rackaddr.PortRPC, "")
	check("from a neighbour's address", ofBob, remote, rackaddr.PortRPC, Address)
	check("from an address that is not taken", nobodys, remote, rackaddr.PortRPC, Address)
	check("from the blade's address", ofBlade, remote, rackaddr.PortRPC, Address)
	check("to the Gatekeeper", ofAlice, rackaddr.Gatekeeper, rackaddr.PortControl, Control)
	check("to the Gatekeeper, in the daemon's stead", ofBlade, rackaddr.Gatekeeper, rackaddr.PortControl, Control)
	must(t, g.Own(ofAlice, alice, rackaddr.Mark(3)))
	check("an incarnation before", ofAlice, remote, rackaddr.PortRPC, Address)
	must(t, g.Own(ofAlice, alice, rackaddr.Mark(1)))
	must(t, g.Disown(ofAlice))
	check("a node that has ended", ofAlice, remote, rackaddr.PortRPC, Address)
}
