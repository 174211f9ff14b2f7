package wire

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rack returns a direct wire with a router and hosts a and b.
func rack(t *testing.T, cfg Config) (n *Net, a, b *Host) {
	t.Helper()
	n = New(cfg)
	n.Connect(n.Router())
	return n, host(t, n, "a", 1), host(t, n, "b", 2)
}

func host(t *testing.T, n *Net, name string, port datapath.Port) *Host {
	t.Helper()
	h, err := n.AddHost(HostConfig{Name: name, Port: port, Address: rackaddr.Blade(uint64(port))})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func listen(t *testing.T, h *Host, at string) netio.Conn {
	t.Helper()
	c, err := h.ListenUDP(netip.MustParseAddrPort(at))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func send(t *testing.T, c netio.Conn, to netip.AddrPort, payloads ...string) {
	t.Helper()
	var ms []netio.Message
	for _, p := range payloads {
		ms = append(ms, netio.Message{Buf: []byte(p), Remote: to})
	}
	if n, err := c.WriteBatch(ms); n != len(ms) || err != nil {
		t.Fatalf("sent %d of %d: %v", n, len(ms), err)
	}
}

// read returns what comes next.
func read(t *testing.T, c netio.Conn) []netio.Message {
	t.Helper()
	ms := make([]netio.Message, 8)
	for i := range ms {
		ms[i].Buf = make([]byte, netio.MaxDatagram)
	}
	if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	n, err := c.ReadBatch(ms)
	if err != nil {
		t.Fatal(err)
	}
	return ms[:n]
}

func TestDatagramsArriveWithTheirAddresses(t *testing.T) {
	_, a, b := rack(t, Config{})
	from, to := listen(t, a, "[fd00:b1f0:0:1::1]:7"), listen(t, b, "[::]:9")
	big := string(bytes.Repeat([]byte("x"), rackaddr.DefaultMTU-netio.Overhead))
	send(t, from, netip.AddrPortFrom(b.Address(), 9), "one", "", big)
	got := read(t, to)
	if len(got) != 3 {
		t.Fatalf("%d datagrams", len(got))
	}
	for i, want := range []string{"one", "", big} {
		m := got[i]
		if string(m.Buf) != want || m.Remote != from.LocalAddr() || m.Local != b.Address() {
			t.Errorf("datagram %d: %d bytes from %s to %s", i, len(m.Buf), m.Remote, m.Local)
		}
	}
	if n := b.Stats.Received.Load(); n != 3 {
		t.Errorf("counted %d", n)
	}
}

// TestPrefix is a memory blade: it receives for every address of its prefix, and
// answers from the one that was addressed.
func TestPrefix(t *testing.T) {
	_, a, b := rack(t, Config{})
	prefix := netip.MustParsePrefix("0:0:1001::/48")
	pointer := netip.MustParseAddr("0:0:1001:200::1:40")
	client, server := listen(t, a, "[fd00:b1f0:0:1::1]:0"), listen(t, b, "[::]:45101")
	send(t, client, netip.AddrPortFrom(pointer, 45101), "lost: the prefix is not there yet")
	for range 2 {
		if err := b.AddLocalPrefix(prefix); err != nil {
			t.Fatal(err)
		}
	}
	send(t, client, netip.AddrPortFrom(pointer, 45101), "read")
	m := read(t, server)[0]
	if string(m.Buf) != "read" || m.Local != pointer {
		t.Fatalf("got %q to %s", m.Buf, m.Local)
	}
	if _, err := server.WriteBatch([]netio.Message{{Buf: []byte("data"), Remote: m.Remote, Local: m.Local}}); err != nil {
		t.Fatal(err)
	}
	if m := read(t, client)[0]; string(m.Buf) != "data" || m.Remote != netip.AddrPortFrom(pointer, 45101) {
		t.Errorf("got %q from %s", m.Buf, m.Remote)
	}
}

// TestOwnTrafficCrossesTheSwitch: two nodes of one blade see each other only by
// way of the switch.
func TestOwnTrafficCrossesTheSwitch(t *testing.T) {
	n, a, _ := rack(t, Config{})
	seen := 0
	route := n.Router()
	n.Connect(func(p datapath.Port, b []byte) { seen++; route(p, b) })
	if err := a.AddAddress(rackaddr.Node(1)); err != nil {
		t.Fatal(err)
	}
	from, to := listen(t, a, "[fd00:b1f0:0:1::1]:7"), listen(t, a, "[fd00:b1f0:0:2::1]:9")
	send(t, from, to.LocalAddr(), "hello")
	if m := read(t, to)[0]; string(m.Buf) != "hello" || seen != 1 {
		t.Errorf("got %q, the switch saw %d frames", m.Buf, seen)
	}
	if err := a.RemoveAddress(rackaddr.Node(1)); err != nil {
		t.Fatal(err)
	}
	before := a.Stats.Foreign.Load() + a.Stats.Received.Load()
	send(t, from, to.LocalAddr(), "gone")
	if a.Stats.Foreign.Load()+a.Stats.Received.Load() != before {
		t.Error("a removed address was routed")
	}
}

func TestListenErrors(t *testing.T) {
	_, a, _ := rack(t, Config{})
	held := listen(t, a, "[::]:9")
	cases := map[string]error{
		"[::]:9":          syscall.EADDRINUSE,
		"[fd00::77]:9":    syscall.EADDRNOTAVAIL,
		"127.0.0.1:9":     syscall.EINVAL,
		"[2001:db8::1]:0": syscall.EADDRNOTAVAIL,
	}
	for at, want := range cases {
		if _, err := a.ListenUDP(netip.MustParseAddrPort(at)); !errors.Is(err, want) {
			t.Errorf("%s: error %v, want %v", at, err, want)
		}
	}
	held.Close()
	listen(t, a, "[::]:9")
	one, two := listen(t, a, "[::]:0"), listen(t, a, "[::]:0")
	if one.LocalAddr().Port() == 0 || one.LocalAddr() == two.LocalAddr() {
		t.Errorf("ephemeral ports %s, %s", one.LocalAddr(), two.LocalAddr())
	}
}

func TestWriteErrors(t *testing.T) {
	_, a, b := rack(t, Config{MTU: 1500})
	c := listen(t, a, "[::]:7")
	to := netip.AddrPortFrom(b.Address(), 9)
	ms := []netio.Message{{Buf: make([]byte, 1452), Remote: to}, {Buf: make([]byte, 1453), Remote: to}}
	if n, err := c.WriteBatch(ms); n != 1 || !errors.Is(err, syscall.EMSGSIZE) {
		t.Errorf("over the MTU: %d, %v", n, err)
	}
	if _, err := c.WriteBatch([]netio.Message{{Remote: netip.MustParseAddrPort("10.0.0.1:1")}}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("IPv4: %v", err)
	}
	c.Close()
	if _, err := c.WriteBatch(ms[:1]); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// TestShortBuffer: a datagram that does not fit is dropped, never cut.
func TestShortBuffer(t *testing.T) {
	_, a, b := rack(t, Config{})
	from, to := listen(t, a, "[::]:7"), listen(t, b, "[::]:9")
	send(t, from, netip.AddrPortFrom(b.Address(), 9), "too long", "fits")
	ms := []netio.Message{{Buf: make([]byte, 4)}}
	if n, err := to.ReadBatch(ms); n != 1 || err != nil || string(ms[0].Buf) != "fits" {
		t.Errorf("got %d, %v, %q", n, err, ms[0].Buf)
	}
}

func TestReadEnds(t *testing.T) {
	_, a, _ := rack(t, Config{})
	cases := map[string]struct {
		end  func(c netio.Conn)
		want error
	}{
		"deadline": {func(c netio.Conn) { c.SetReadDeadline(time.Now()) }, os.ErrDeadlineExceeded},
		"close":    {func(c netio.Conn) { c.Close() }, net.ErrClosed},
		"crash":    {func(netio.Conn) { a.Crash() }, net.ErrClosed},
	}
	for name, tc := range cases {
		a.SetLink(true)
		c := listen(t, a, "[::]:9")
		done := make(chan error)
		go func() {
			_, err := c.ReadBatch([]netio.Message{{Buf: make([]byte, 1)}})
			done <- err
		}()
		tc.end(c)
		if err := <-done; !errors.Is(err, tc.want) {
			t.Errorf("%s: error %v, want %v", name, err, tc.want)
		}
		c.Close()
	}
}

func TestBadFramesAreCountedDrops(t *testing.T) {
	n, a, b := rack(t, Config{})
	listen(t, b, "[::]:9")
	good := frame.UDP6{
		DstMAC: b.MAC(), SrcMAC: DefaultSwitchMAC, Payload: []byte("payload"),
		Src: netip.AddrPortFrom(a.Address(), 9), Dst: netip.AddrPortFrom(b.Address(), 9),
	}
	stranger, port := good, good
	stranger.Dst = netip.MustParseAddrPort("[fd00::99]:9")
	port.Dst = netip.AddrPortFrom(b.Address(), 10)
	mac := good
	mac.DstMAC = a.MAC()
	broken := good.Append(nil)
	broken[len(broken)-1] ^= 1
	cases := []struct {
		name  string
		frame []byte
		count interface{ Load() uint64 }
	}{
		{"checksum", broken, &b.Stats.BadChecksum},
		{"runt", good.Append(nil)[:30], &b.Stats.Malformed},
		{"cut", good.Append(nil)[:60], &b.Stats.Malformed},
		{"other MAC", mac.Append(nil), &b.Stats.Foreign},
		{"other address", stranger.Append(nil), &b.Stats.Foreign},
		{"no endpoint", port.Append(nil), &b.Stats.NoEndpoint},
		{"good", good.Append(nil), &b.Stats.Received},
	}
	for _, tc := range cases {
		before := tc.count.Load()
		n.Output(b.Port(), tc.frame)
		if got := tc.count.Load() - before; got != 1 {
			t.Errorf("%s: counted %d", tc.name, got)
		}
	}
	n.Output(77, good.Append(nil)) // nobody there
}

func TestQueueIsBounded(t *testing.T) {
	_, a, b := rack(t, Config{})
	from, to := listen(t, a, "[::]:7"), listen(t, b, "[::]:9")
	at := netip.AddrPortFrom(b.Address(), 9)
	for range queueDatagrams + 5 {
		send(t, from, at, "x")
	}
	if got := b.Stats.QueueFull.Load(); got != 5 {
		t.Errorf("%d drops, want 5", got)
	}
	for left := queueDatagrams; left > 0; {
		left -= len(read(t, to))
	}
	big := string(make([]byte, 60000))
	for range queueBytes/len(big) + 3 {
		send(t, from, at, big)
	}
	if got := b.Stats.QueueFull.Load(); got != 5+3 {
		t.Errorf("%d drops, want 8", got)
	}
}

func TestEchoIsAnswered(t *testing.T) {
	n, a, _ := rack(t, Config{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { n.Run(ctx); close(done) }()
	defer func() { cancel(); <-done }()

	got := make(chan frame.Echo, 1)
	n.Connect(func(_ datapath.Port, b []byte) {
		p, err := frame.Parse(b)
		if e, ok := p.Echo(); err == nil && ok {
			e.Payload = bytes.Clone(e.Payload)
			got <- e
		}
	})
	ask := frame.Echo{Packet: frame.Packet{
		DstMAC: a.MAC(), SrcMAC: DefaultSwitchMAC, Src: rackaddr.Blade(2), Dst: a.Address(), Payload: []byte("ping"),
	}, Seq: 5}
	n.Output(a.Port(), ask.Append(nil))
	if e := <-got; !e.Reply || e.Seq != 5 || string(e.Payload) != "ping" || e.Src != a.Address() || e.DstMAC != DefaultSwitchMAC {
		t.Errorf("answer %+v", e)
	}
	ask.Dst = rackaddr.Blade(9)
	n.Output(a.Port(), ask.Append(nil))
	if a.Stats.Foreign.Load() != 1 {
		t.Error("an echo for another host was answered")
	}
}

func TestLinkDownLosesFrames(t *testing.T) {
	_, a, b := rack(t, Config{})
	from, to := listen(t, a, "[::]:7"), listen(t, b, "[::]:9")
	at := netip.AddrPortFrom(b.Address(), 9)
	a.SetLink(false)
	send(t, from, at, "lost at a")
	a.SetLink(true)
	b.SetLink(false)
	send(t, from, at, "lost at b")
	b.SetLink(true)
	send(t, from, at, "arrives")
	if m := read(t, to); len(m) != 1 || string(m[0].Buf) != "arrives" {
		t.Errorf("got %d datagrams, first %q", len(m), m[0].Buf)
	}
	up, _ := a.LinkStats()
	_, down := b.LinkStats()
	if up.Down.Load() != 1 || down.Down.Load() != 1 {
		t.Errorf("counted %d and %d", up.Down.Load(), down.Down.Load())
	}
}

func TestHostsAreUnique(t *testing.T) {
	n, _, _ := rack(t, Config{})
	for _, cfg := range []HostConfig{{Name: "c", Port: 1}, {Name: "a", Port: 3}} {
		if _, err := n.AddHost(cfg); err == nil {
			t.Errorf("%+v: no error", cfg)
		}
	}
	if n.Host("a") == nil || n.Host("z") != nil {
		t.Error("Host does not find by name")
	}
}

func BenchmarkRoundTrip(b *testing.B) {
	n := New(Config{})
	n.Connect(n.Router())
	var conns [2]netio.Conn
	for i := range conns {
		h, err := n.AddHost(HostConfig{Name: string(rune('a' + i)), Port: datapath.Port(i), Address: rackaddr.Blade(uint64(i + 1))})
		if err != nil {
			b.Fatal(err)
		}
		if conns[i], err = h.ListenUDP(netip.AddrPortFrom(h.Address(), 9)); err != nil {
			b.Fatal(err)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		ms := []netio.Message{{}}
		buf := make([]byte, netio.MaxDatagram)
		for {
			ms[0].Buf = buf
			if _, err := conns[1].ReadBatch(ms); err != nil {
				return
			}
			if _, err := conns[1].WriteBatch(ms); err != nil {
				return
			}
		}
	}()
	ms := []netio.Message{{}}
	buf := make([]byte, netio.MaxDatagram)
	b.ReportAllocs()
	for b.Loop() {
		ms[0] = netio.Message{Buf: buf[:64], Remote: conns[1].LocalAddr()}
		if _, err := conns[0].WriteBatch(ms); err != nil {
			b.Fatal(err)
		}
		ms[0].Buf = buf
		if _, err := conns[0].ReadBatch(ms); err != nil {
			b.Fatal(err)
		}
	}
	conns[1].Close()
	<-done
}
