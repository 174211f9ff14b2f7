//go:build linux

package linux

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/p4switch/shared/spin"
)

const mtu = rackaddr.DefaultMTU

// blade is a stack on a cable that sends everything back.
func blade(t testing.TB, addrs ...netip.Addr) (*cable, *Stack) {
	t.Helper()
	c := plug(t, mtu)
	route(t)
	s, err := Open("eth0")
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	for _, a := range addrs {
		must(t, s.AddAddress(a))
	}
	must(t, s.SendOwnTrafficOut(rackaddr.RackPrefix))
	return c, s
}

func listen(t testing.TB, s *Stack, a netip.Addr, port uint16) netio.Conn {
	t.Helper()
	conn, err := s.ListenUDP(netip.AddrPortFrom(a, port))
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// patience bounds what must come on a busy machine.
const patience = time.Minute

// read returns count datagrams.
func read(t testing.TB, c netio.Conn, count int) (got []netio.Message) {
	t.Helper()
	for len(got) < count {
		ms := make([]netio.Message, 3)
		for i := range ms {
			ms[i].Buf = make([]byte, netio.MaxDatagram)
		}
		must(t, c.SetReadDeadline(time.Now().Add(patience)))
		n, err := c.ReadBatch(ms)
		if err != nil {
			t.Errorf("after %d of %d: %v", len(got), count, err)
			return got
		}
		got = append(got, ms[:n]...)
	}
	return got
}

// TestNodesOfOneBladeMeetAtTheSwitch: what a blade sends to itself goes out of
// its interface and comes back, in batches and at every size.
func TestNodesOfOneBladeMeetAtTheSwitch(t *testing.T) {
	one, two := rackaddr.Node(1), rackaddr.Node(2)
	c, s := blade(t, one, two)
	c.reflect(t)
	from, to := listen(t, s, one, 7), listen(t, s, two, 9)
	var out []netio.Message
	for i := range 2*batchSize + 5 {
		size := []int{0, 1, 1472, 8952, mtu - netio.Overhead}[i%5]
		out = append(out, netio.Message{Buf: bytes.Repeat([]byte{byte(i)}, size), Remote: to.LocalAddr()})
	}
	if n, err := from.WriteBatch(out); n != len(out) || err != nil {
		t.Fatalf("sent %d of %d: %v", n, len(out), err)
	}
	for i, m := range read(t, to, len(out)) {
		if !bytes.Equal(m.Buf, out[i].Buf) || m.Remote != from.LocalAddr() || m.Local != two {
			t.Errorf("datagram %d: %d bytes from %s to %s", i, len(m.Buf), m.Remote, m.Local)
		}
	}
	if n := c.seen.Load(); n != int64(len(out)) {
		t.Errorf("the switch saw %d frames of %d", n, len(out))
	}
}

// TestPieces: datagrams are sent from several buffers and received into several,
// side by side with others in a batch.
func TestPieces(t *testing.T) {
	one, two := rackaddr.Node(1), rackaddr.Node(2)
	c, s := blade(t, one, two)
	c.reflect(t)
	from, to := listen(t, s, one, 7), listen(t, s, two, 9)
	sizes := [][3]int{{64, 60_000, 0}, {64, 0, 500}, {0, 0, 9}, {30, 20, 10}, {100, 0, 0}}
	var out []netio.Message
	for i, n := range sizes {
		b := func(k int) []byte { return bytes.Repeat([]byte{byte(16*i + k)}, n[k]) }
		out = append(out, netio.Message{Buf: b(0), More: [netio.MaxMore][]byte{b(1), b(2)}, Remote: to.LocalAddr()})
	}
	if n, err := from.WriteBatch(out); n != len(out) || err != nil {
		t.Fatalf("sent %d of %d: %v", n, len(out), err)
	}
	in, room := make([]netio.Message, len(sizes)), make([]byte, netio.MaxDatagram)
	for got := 0; got < len(sizes); {
		for i := range in {
			in[i] = netio.Message{Buf: make([]byte, 64), More: [netio.MaxMore][]byte{make([]byte, 1000), bytes.Clone(room)}}
		}
		must(t, to.SetReadDeadline(time.Now().Add(patience)))
		front := netio.Message{Buf: make([]byte, 16)}
		size, ok, err := to.(netio.Peeker).Peek(&front)
		for ; !ok && err == nil; size, ok, err = to.(netio.Peeker).Peek(&front) {
			runtime.Gosched() // it is on its way
		}
		if want := out[got].Append(nil); err != nil || size != len(want) || !bytes.Equal(front.Buf, want[:min(16, len(want))]) || front.Remote != from.LocalAddr() || front.Local != two {
			t.Errorf("datagram %d looks like %+v of %d bytes, %v", got, front, size, err)
		}
		n, err := to.ReadBatch(in)
		must(t, err)
		for i := range in[:n] {
			if want := out[got].Append(nil); !bytes.Equal(in[i].Append(nil), want) || len(in[i].Buf) != min(64, len(want)) {
				t.Errorf("datagram %d: %d bytes of %d, %d in front", got, in[i].Size(), len(want), len(in[i].Buf))
			}
			got++
		}
	}
}

// TestMemoryBlade receives for a prefix and answers from the address that was
// asked; the frames are ours, so kernel and package frame check each other.
func TestMemoryBlade(t *testing.T) {
	c, s := blade(t, rackaddr.Blade(1))
	prefix := netip.MustParsePrefix("0:0:1001::/48")
	for range 2 {
		must(t, s.AddLocalPrefix(prefix))
	}
	conn := listen(t, s, netip.IPv6Unspecified(), rackaddr.PortDSM)
	client := netip.AddrPortFrom(rackaddr.Node(7), rackaddr.PortDSM)
	pointer := netip.AddrPortFrom(netip.MustParseAddr("0:0:1001:200:1:2:3:40"), rackaddr.PortDSM)
	ask := frame.UDP6{DstMAC: bladeMAC, SrcMAC: switchMAC, Src: client, Dst: pointer, Payload: []byte("read this")}
	c.put(t, ask.Append(nil))

	m := read(t, conn, 1)[0]
	if string(m.Buf) != "read this" || m.Remote != client || m.Local != pointer.Addr() {
		t.Fatalf("got %q from %s to %s", m.Buf, m.Remote, m.Local)
	}
	if _, err := conn.WriteBatch([]netio.Message{{Buf: []byte("data"), Remote: m.Remote, Local: m.Local}}); err != nil {
		t.Fatal(err)
	}
	b, ok := c.next()
	if !ok {
		t.Fatal("no answer")
	}
	u, err := frame.ParseUDP6(b)
	if err != nil || string(u.Payload) != "data" || u.Src != pointer || u.Dst != client || u.DstMAC != switchMAC {
		t.Errorf("answer %+v, %v", u, err)
	}
	// A wrong checksum does not get through the kernel, a right one does.
	bad := ask.Append(nil)
	bad[len(bad)-1] ^= 1
	c.put(t, bad)
	c.put(t, ask.Append(nil))
	if m := read(t, conn, 1)[0]; string(m.Buf) != "read this" {
		t.Errorf("got %q", m.Buf)
	}
}

func TestAddressesComeAndGo(t *testing.T) {
	_, s := blade(t)
	a := rackaddr.Node(3)
	for range 2 {
		must(t, s.AddAddress(a))
	}
	if got, ok := s.Address(rackaddr.NodePrefix); !ok || got != a {
		t.Errorf("address %s, %v", got, ok)
	}
	for range 2 {
		must(t, s.RemoveAddress(a))
	}
	if got, ok := s.Address(rackaddr.NodePrefix); ok {
		t.Errorf("address %s remains", got)
	}
	if err := s.AddAddress(netip.MustParseAddr("10.0.0.1")); !errors.Is(err, unix.EINVAL) {
		t.Errorf("IPv4: %v", err)
	}
	// Listening comes before the address, in programs that the daemon adds it for.
	listen(t, s, rackaddr.Service("Arrays"), rackaddr.PortRPC)
}

func TestCloseTakesBack(t *testing.T) {
	plug(t, mtu)
	theirs := rackaddr.Blade(1)
	eth0, err := netlink.LinkByName("eth0")
	must(t, err)
	must(t, netlink.AddrAdd(eth0, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(theirs, 128)), Flags: unix.IFA_F_NODAD}))
	s, err := Open("eth0")
	must(t, err)
	must(t, s.AddAddress(rackaddr.Node(1)))
	must(t, s.AddAddress(theirs))
	must(t, s.AddLocalPrefix(netip.MustParsePrefix("0:0:1001::/48")))
	must(t, s.Close())
	addrs, err := netlink.AddrList(eth0, unix.AF_INET6)
	must(t, err)
	routes, err := netlink.RouteListFiltered(unix.AF_INET6, &netlink.Route{Table: unix.RT_TABLE_LOCAL}, netlink.RT_FILTER_TABLE)
	must(t, err)
	for _, r := range routes {
		if r.Dst != nil && strings.HasPrefix(r.Dst.String(), "0:0:1001") {
			t.Errorf("route %s remains", r.Dst)
		}
	}
	if len(addrs) != 1 || !addrs[0].IP.Equal(theirs.AsSlice()) {
		t.Errorf("addresses %v remain, want the one that was there before", addrs)
	}
}

// TestPolicyRules: doing it again changes nothing, and the local table always has
// its rule.
func TestPolicyRules(t *testing.T) {
	_, s := blade(t)
	must(t, s.SendOwnTrafficOut(rackaddr.RackPrefix))
	rules, err := netlink.RuleList(unix.AF_INET6)
	must(t, err)
	var got []string
	for _, r := range rules {
		got = append(got, fmt.Sprint(r.Priority, " ", r.Table, " ", r.IifName))
	}
	want := []string{"32 45100 lo", "64 255 ", "32766 254 "}
	if strings.Join(got, ";") != strings.Join(want, ";") {
		t.Errorf("rules %q, want %q", got, want)
	}
}

func TestOpenErrors(t *testing.T) {
	plug(t, 1500)
	if _, err := Open("eth7"); err == nil || !strings.Contains(err.Error(), "no interface eth7") {
		t.Errorf("no interface: %v", err)
	}
	s, err := Open("eth0")
	must(t, err)
	defer s.Close()
	if s.MTU() != 1500 || s.MAC().String() != bladeMAC.String() {
		t.Errorf("MTU %d, MAC %s", s.MTU(), s.MAC())
	}
	if err := s.SendOwnTrafficOut(rackaddr.RackPrefix); err == nil || !strings.Contains(err.Error(), "ip -6 route add") {
		t.Errorf("no route: %v", err)
	}
}

func TestConnErrors(t *testing.T) {
	c, s := blade(t, rackaddr.Node(1))
	c.reflect(t)
	conn := listen(t, s, rackaddr.Node(1), 7)
	if _, err := s.ListenUDP(conn.LocalAddr()); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("bound twice: %v", err)
	}
	if _, err := s.ListenUDP(netip.MustParseAddrPort("127.0.0.1:7")); !errors.Is(err, unix.EINVAL) {
		t.Errorf("IPv4: %v", err)
	}
	to := conn.LocalAddr()
	ms := []netio.Message{{Buf: []byte("too long"), Remote: to}, {Buf: []byte("fits"), Remote: to}, {Buf: make([]byte, mtu-netio.Overhead+1), Remote: to}}
	if n, err := conn.WriteBatch(ms); n != 2 || !errors.Is(err, unix.EMSGSIZE) {
		t.Errorf("over the MTU: %d, %v", n, err)
	}
	if n, err := conn.WriteBatch([]netio.Message{{Remote: netip.MustParseAddrPort("10.0.0.1:9")}}); n != 0 || !errors.Is(err, unix.EINVAL) {
		t.Errorf("IPv4: %d, %v", n, err)
	}
	// A datagram that does not fit is dropped, never cut.
	in := []netio.Message{{Buf: make([]byte, 4)}, {Buf: make([]byte, 4)}}
	if n, err := conn.ReadBatch(in); n != 1 || err != nil || string(in[0].Buf) != "fits" {
		t.Errorf("short buffer: %d, %v, %q", n, err, in[0].Buf)
	}
	must(t, conn.SetReadDeadline(time.Now().Add(time.Millisecond)))
	if _, err := conn.ReadBatch(in); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("deadline: %v", err)
	}
	must(t, conn.SetReadDeadline(time.Time{}))
	ended := make(chan error)
	go func() {
		_, err := conn.ReadBatch(in)
		ended <- err
	}()
	must(t, conn.Close())
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed while reading: %v", err)
	}
	if _, err := conn.WriteBatch(ms[:1]); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// TestNoAllocations: sending and receiving leave the garbage collector alone.
func TestNoAllocations(t *testing.T) {
	c, s := blade(t, rackaddr.Node(1))
	c.reflect(t)
	conn := listen(t, s, rackaddr.Node(1), 7)
	out := []netio.Message{{Buf: []byte("ping"), Remote: conn.LocalAddr(), Local: rackaddr.Node(1)}}
	must(t, conn.SetReadDeadline(time.Now().Add(patience)))
	buf := make([]byte, netio.MaxDatagram)
	in := make([]netio.Message, 1)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := conn.WriteBatch(out); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("WriteBatch: %v allocations", n)
	}
	if n := testing.AllocsPerRun(99, func() {
		in[0].Buf = buf
		if _, err := conn.ReadBatch(in); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("ReadBatch: %v allocations", n)
	}
}

// TestSpinWhile: a reader asks before it spins, and sleeps at once if it is not to.
func TestSpinWhile(t *testing.T) {
	_, s := blade(t, rackaddr.Node(1))
	c := listen(t, s, rackaddr.Node(1), 7).(*conn)
	in := []netio.Message{{Buf: make([]byte, 9)}}
	for _, useful := range []bool{false, true} {
		asked := 0
		must(t, c.SetReadDeadline(time.Time{}))
		c.SpinWhile(func() bool {
			asked++
			must(t, c.SetReadDeadline(time.Unix(1, 0))) // ends the read, which has begun
			return useful
		})
		if _, err := c.ReadBatch(in); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		if spun := c.spinner != (spin.Spinner{}); asked == 0 || spun != useful {
			t.Errorf("spinning is useful: %v; asked %d times, has spun: %v", useful, asked, spun)
		}
	}
}
