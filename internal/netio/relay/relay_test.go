package relay_test

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
	"github.com/bifrost-rack/bifrost/internal/netio/relay"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const mtu = 65535

var (
	here  = netip.MustParseAddrPort("[fd00::1]:45105")
	there = netip.MustParseAddrPort("[fd00::2]:45105")
)

// rig is a node in another process, as far as its endpoint can tell, and a peer on the same network.
type rig struct {
	stack *relay.Stack
	host  *wire.Host
	owner netio.Conn // the daemon's
	node  netio.Conn // the program's
	peer  netio.Conn
	ended chan struct{}
}

func must[T any](t *testing.T, v T, err error) T {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func newRig(t *testing.T) *rig {
	t.Helper()
	n := wire.New(wire.Config{MTU: mtu})
	n.Connect(n.Router())
	blade := func(port datapath.Port, a netip.AddrPort) *wire.Host {
		h, err := n.AddHost(wire.HostConfig{Name: a.String(), Port: port, Address: a.Addr()})
		return must(t, h, err)
	}
	r := &rig{host: blade(1, here), ended: make(chan struct{})}
	other := blade(2, there)
	r.stack = &relay.Stack{Stack: r.host}
	var err error
	r.owner, err = r.stack.ListenNode(here, 7)
	r.owner = must(t, r.owner, err)
	r.peer, err = other.ListenUDP(there)
	r.peer = must(t, r.peer, err)
	r.node = must(adopt(t, r.owner, r.ended))
	t.Cleanup(func() {
		for _, c := range []netio.Conn{r.node, r.owner, r.peer} {
			if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
				t.Error(err)
			}
		}
	})
	return r
}

// adopt is what a program gets of the socket that a daemon hands over.
func adopt(t *testing.T, owner netio.Conn, ended <-chan struct{}) (*testing.T, netio.Conn, error) {
	var f *os.File
	err := owner.(netio.Lent).Socket(func(fd uintptr) {
		d, err := syscall.Dup(int(fd))
		if err != nil {
			t.Fatal(err)
		}
		f = os.NewFile(uintptr(d), "handed over")
	})
	if err != nil {
		return t, nil, err
	}
	c, err := relay.Adopt(f, here, mtu, ended)
	return t, c, err
}

func room() []netio.Message {
	return []netio.Message{{Buf: make([]byte, netio.MaxDatagram)}}
}

// A datagram of any size comes whole, to its address and from its sender's.
func TestSizes(t *testing.T) {
	r := newRig(t)
	for _, n := range []int{0, 1, 1400, 62000, netio.MaxDatagram - 40} {
		sent := bytes.Repeat([]byte{byte(n), 7}, n)[:n]
		for _, way := range []struct {
			from, to         netio.Conn
			source, receiver netip.AddrPort
		}{{r.node, r.peer, here, there}, {r.peer, r.node, there, here}} {
			if _, err := way.from.WriteBatch([]netio.Message{{Buf: sent[:n/2], More: [2][]byte{sent[n/2:]}, Remote: way.receiver}}); err != nil {
				t.Fatal(err)
			}
			ms := room()
			if k, err := way.to.ReadBatch(ms); k != 1 || err != nil {
				t.Fatal(k, err)
			}
			if m := ms[0]; !bytes.Equal(m.Buf, sent) || m.Remote != way.source || m.Local != way.receiver.Addr() {
				t.Errorf("%d bytes from %s to %s came as %d bytes from %s to %s", n, way.source, way.receiver, len(m.Buf), m.Remote, m.Local)
			}
		}
	}
	if n := r.stack.Dropped.Load(); n != 0 {
		t.Errorf("%d datagrams were dropped", n)
	}
}

// Many datagrams at a time keep their order, and one that does not fit into its message is left out.
func TestBatches(t *testing.T) {
	r := newRig(t)
	const many = 300
	var ms []netio.Message
	for i := range many {
		ms = append(ms, netio.Message{Buf: bytes.Repeat([]byte{byte(i)}, 1000), Remote: there})
	}
	ms[1].Buf = make([]byte, 2000)
	if n, err := r.peer.WriteBatch(readdressed(ms, here)); n != many || err != nil {
		t.Fatal(n, err)
	}
	for i := 0; i < many-1; {
		got := make([]netio.Message, 16)
		for k := range got {
			got[k].Buf = make([]byte, 1000)
		}
		n, err := r.node.ReadBatch(got)
		if err != nil {
			t.Fatal(err)
		}
		for k := range n {
			want := byte(i)
			if i > 0 {
				want++
			}
			if len(got[k].Buf) != 1000 || got[k].Buf[0] != want {
				t.Fatalf("datagram %d has %d bytes of %d", i, len(got[k].Buf), got[k].Buf[0])
			}
			i++
		}
	}
}

func readdressed(ms []netio.Message, to netip.AddrPort) []netio.Message {
	for i := range ms {
		ms[i].Remote = to
	}
	return ms
}

func TestRefusals(t *testing.T) {
	r := newRig(t)
	for want, m := range map[error]netio.Message{
		syscall.EMSGSIZE:      {Buf: make([]byte, mtu-netio.Overhead+1), Remote: there},
		syscall.EADDRNOTAVAIL: {Remote: there, Local: there.Addr()},
		syscall.EINVAL:        {Remote: netip.MustParseAddrPort("127.0.0.1:1")},
	} {
		n, err := r.node.WriteBatch([]netio.Message{{Buf: []byte{1}, Remote: there}, m, {Buf: []byte{2}, Remote: there}})
		if n != 1 || !errors.Is(err, want) {
			t.Errorf("sent %d, %v; want 1, %v", n, err, want)
		}
	}
	if _, _, err := adopt(t, r.owner, r.ended); err == nil {
		t.Error("the socket was handed over twice")
	}
}

// What a program sends past its library is held to the same, by the daemon.
func TestForged(t *testing.T) {
	r := newRig(t)
	raw := dup(t, r)
	defer raw.Close()
	mapped := netip.AddrPortFrom(netip.MustParseAddr("::ffff:127.0.0.1").Unmap(), 1).Addr().As16()
	frame := append([]byte{0, 1, 0, 1}, mapped[:]...) // goes to nobody: the network has no such host
	frame = append(append(frame, 'x'), good()...)
	if _, err := raw.Write(frame); err != nil {
		t.Fatal(err)
	}
	ms := room()
	if n, err := r.peer.ReadBatch(ms); n != 1 || err != nil || string(ms[0].Buf) != "y" || ms[0].Remote != here {
		t.Fatal(n, err, ms[0])
	}
	if _, err := raw.Write([]byte{0xff, 0xff, 0, 0}); err != nil { // a length that no datagram has
		t.Fatal(err)
	}
	if _, err := raw.Write(make([]byte, relay.HeaderSize)); err != nil && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal(err)
	}
	if _, err := raw.Read(make([]byte, 1)); err == nil {
		t.Error("the stream goes on")
	}
}

func good() []byte {
	a := there.Addr().As16()
	return append(append([]byte{0, 1, byte(there.Port() >> 8), byte(there.Port() & 0xff)}, a[:]...), 'y')
}

// dup opens another endpoint of the node's, as a program that speaks the format itself.
func dup(t *testing.T, r *rig) (raw net.Conn) {
	t.Helper()
	if err := r.owner.Close(); err != nil {
		t.Fatal(err)
	}
	owner, err := r.stack.ListenNode(here, 8)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = owner.Close() })
	err = owner.(netio.Lent).Socket(func(fd uintptr) {
		d, err := syscall.Dup(int(fd))
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(d), "raw")
		defer f.Close()
		if raw, err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// A program that does not read is held up alone, and what it has no room for is counted.
func TestSlowProgram(t *testing.T) {
	r := newRig(t)
	b := make([]byte, 60000)
	for r.host.Stats.QueueFull.Load() == 0 {
		if _, err := r.peer.WriteBatch([]netio.Message{{Buf: b, Remote: here}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.node.WriteBatch([]netio.Message{{Buf: []byte("still here"), Remote: there}}); err != nil {
		t.Fatal(err)
	}
	ms := room()
	if n, err := r.peer.ReadBatch(ms); n != 1 || err != nil || string(ms[0].Buf) != "still here" {
		t.Fatal(n, err)
	}
}

func TestDeadline(t *testing.T) {
	r := newRig(t)
	if err := r.node.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.node.ReadBatch(room()); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
}

// When the daemon has closed an endpoint, its reader learns of the node's end, and not before that.
func TestEnd(t *testing.T) {
	r := newRig(t)
	got := make(chan error, 1)
	go func() {
		_, err := r.node.ReadBatch(room())
		got <- err
	}()
	if err := r.owner.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.owner.ReadBatch(room()); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	for { // until the stream has ended, writes may still go into its buffer
		if _, err := r.node.WriteBatch([]netio.Message{{Buf: []byte{1}, Remote: there}}); errors.Is(err, net.ErrClosed) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-got:
		t.Fatal("the reader was told before its node has ended:", err)
	default:
	}
	close(r.ended)
	if err := <-got; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// The program's own Close ends its reads, and the daemon's endpoint.
func TestClose(t *testing.T) {
	r := newRig(t)
	if err := r.node.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.node.ReadBatch(room()); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for ctx.Err() == nil { // the address is free again as soon as the daemon has seen it
		if c, err := r.host.ListenUDP(here); err == nil {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			return
		}
	}
	t.Error("the daemon's endpoint is still there")
}
