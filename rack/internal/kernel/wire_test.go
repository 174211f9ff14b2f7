package kernel

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rack/config"
	"github.com/bifrost-rack/bifrost/rack/plan"
)

// testWire makes the namespaces and returns the wire that would join them.
func testWire(t *testing.T) (plan.Wire, *Namespace, *Namespace) {
	t.Helper()
	sw, blade := newNamespace(t, "sw"), newNamespace(t, "c1")
	p := plan.Make(config.Thesis(), "/nowhere")
	w := p.Wires[0]
	w.SwitchNamespace, w.BladeNamespace, w.ChecksumOffload = sw.name, blade.name, false
	return w, sw, blade
}

// capture opens a packet socket on the switch's end, before anything is sent.
func capture(t *testing.T, ns *Namespace, iface string) int {
	t.Helper()
	fd := -1
	if err := ns.Do(func() (err error) {
		i, err := net.InterfaceByName(iface)
		if err != nil {
			return err
		}
		const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // network byte order
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: i.Index})
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// frame reads one captured frame; nil if there is none for a while.
func frame(t *testing.T, fd int, wait time.Duration) []byte {
	t.Helper()
	tv := unix.NsecToTimeval(wait.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1<<16+64)
	for {
		n, err := unix.Read(fd, b)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return nil
		case errors.Is(err, unix.ENETDOWN): // the socket was bound before the port came up
		case err != nil:
			t.Fatal(err)
		default:
			return b[:n]
		}
	}
}

// Everything goes to the switch at once: no neighbour discovery, no reports, no
// solicitations before it, and the checksum is complete.
func TestEverythingGoesToTheSwitch(t *testing.T) {
	w, sw, blade := testWire(t)
	if err := addVeth(sw, blade, w); err != nil {
		t.Fatal(err)
	}
	fd := capture(t, sw, w.SwitchInterface)
	if err := errors.Join(
		sw.Do(func() error { return quietPort(w.SwitchInterface) }),
		blade.Do(func() error { return quietBlade(w) }),
		raisePort(sw, w.SwitchInterface),
		raiseBlade(blade, w),
	); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{"fd00:b1f0::1", "fd00:b1f0:0:2::7", "0:0:1003:200::40"} {
		sendFrom(t, blade, netip.MustParseAddr(to), 1200)
		f := frame(t, fd, 5*time.Second)
		checkFrame(t, f, w, netip.MustParseAddr(to), 1200)
	}
	if f := frame(t, fd, 300*time.Millisecond); f != nil {
		t.Errorf("the blade sent of its own accord: % x", f)
	}
}

// Connect does all of it, also for the largest packet.
func TestConnect(t *testing.T) {
	w, sw, blade := testWire(t)
	if err := Connect(w); err != nil {
		t.Fatal(err)
	}
	fd := capture(t, sw, w.SwitchInterface)
	const size = 65535 - 40 - 8
	sendFrom(t, blade, rackaddr.Node(1), size)
	checkFrame(t, frame(t, fd, 5*time.Second), w, rackaddr.Node(1), size)
	if err := Connect(w); err == nil {
		t.Error("connected twice")
	}
}

// A pulled cable shows at the port, and a plugged one brings everything back.
func TestSetPort(t *testing.T) {
	w, sw, blade := testWire(t)
	if err := Connect(w); err != nil {
		t.Fatal(err)
	}
	if err := SetPort(w, false); err != nil {
		t.Fatal(err)
	}
	if down, err := DownPorts(sw.name); err != nil || !down[w.SwitchInterface] {
		t.Errorf("ports down: %v, %v", down, err)
	}
	if err := SetPort(w, true); err != nil {
		t.Fatal(err)
	}
	if down, err := DownPorts(sw.name); err != nil || len(down) != 0 {
		t.Errorf("ports down: %v, %v", down, err)
	}
	fd := capture(t, sw, w.SwitchInterface)
	if err := AwaitLink(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	sendFrom(t, blade, rackaddr.Node(1), 100) // the first packet arrives
	checkFrame(t, frame(t, fd, 5*time.Second), w, rackaddr.Node(1), 100)
}

// After a reboot nothing is left of what processes had added, and all else is there.
func TestReboot(t *testing.T) {
	w, sw, blade := testWire(t)
	if err := Connect(w); err != nil {
		t.Fatal(err)
	}
	node, machine := rackaddr.Node(5), netip.MustParsePrefix("0:0:1001::/48")
	if err := withLink(blade, plan.Interface, func(h *netlink.Handle, link netlink.Link) error {
		if err := h.AddrAdd(link, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(node, 128)), Flags: unix.IFA_F_NODAD}); err != nil {
			return err
		}
		lo, err := h.LinkByName("lo")
		if err != nil {
			return err
		}
		return h.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: ipNet(machine), Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL})
	}); err != nil {
		t.Fatal(err)
	}
	local := []netip.Addr{node, machine.Addr().Next()}
	for _, a := range local {
		for !isLocal(t, blade, a) { // the kernel adds an address's route a moment later
			if err := t.Context().Err(); err != nil {
				t.Fatalf("%s is not local: %v", a, err)
			}
		}
	}
	if err := Reboot(w); err != nil {
		t.Fatal(err)
	}
	for _, a := range local {
		if isLocal(t, blade, a) {
			t.Errorf("%s is still local", a)
		}
	}
	fd := capture(t, sw, w.SwitchInterface)
	sendFrom(t, blade, node, 100)
	checkFrame(t, frame(t, fd, 5*time.Second), w, node, 100)
	if !isLocal(t, blade, netip.IPv6Loopback()) {
		t.Error("the loopback is down")
	}
}

// isLocal reports whether the blade takes packets to an address.
func isLocal(t *testing.T, ns *Namespace, a netip.Addr) (local bool) {
	t.Helper()
	if err := withLink(ns, "lo", func(h *netlink.Handle, _ netlink.Link) error {
		routes, err := h.RouteGet(a.AsSlice())
		local = err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return local
}

// sendFrom sends one datagram of size bytes from inside ns.
func sendFrom(t *testing.T, ns *Namespace, to netip.Addr, size int) {
	t.Helper()
	if err := ns.Do(func() error {
		conn, err := net.DialUDP("udp6", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, rackaddr.PortControl)))
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write(make([]byte, size))
		return err
	}); err != nil {
		t.Fatalf("send %d bytes to %s: %v", size, to, err)
	}
}

// checkFrame checks that f is the datagram as the switch should get it.
func checkFrame(t *testing.T, f []byte, w plan.Wire, to netip.Addr, size int) {
	t.Helper()
	if len(f) != 14+40+8+size {
		t.Fatalf("to %s: a frame of %d bytes, want %d: % x", to, len(f), 14+40+8+size, f[:min(len(f), 62)])
	}
	if got := net.HardwareAddr(f[:6]).String(); got != plan.SwitchMAC {
		t.Errorf("to %s: sent to %s, want %s", to, got, plan.SwitchMAC)
	}
	if got := net.HardwareAddr(f[6:12]).String(); got != w.BladeMAC {
		t.Errorf("to %s: sent by %s, want %s", to, got, w.BladeMAC)
	}
	if got, _ := netip.AddrFromSlice(f[22:38]); got != w.Address {
		t.Errorf("to %s: source %s, want %s", to, got, w.Address)
	}
	if sum := udpSum(f[14:]); sum != 0xffff {
		t.Errorf("to %s: checksum is wrong by %#04x", to, ^sum)
	}
}

// udpSum adds up an IPv6 packet's pseudo-header and UDP part; 0xffff is right.
func udpSum(p []byte) uint16 {
	sum := uint32(len(p)-40) + unix.IPPROTO_UDP
	add := func(b []byte) {
		for ; len(b) > 1; b = b[2:] {
			sum += uint32(binary.BigEndian.Uint16(b))
		}
		if len(b) == 1 {
			sum += uint32(b[0]) << 8
		}
	}
	add(p[8:40])
	add(p[40:])
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

func TestConnectNowhere(t *testing.T) {
	needRoot(t)
	p := plan.Make(config.Thesis(), "/nowhere")
	if err := Connect(p.Wires[0]); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without namespaces: %v", err)
	}
}
