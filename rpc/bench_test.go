package rpc_test

import (
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/internal/testrack"
	"github.com/bifrost-rack/bifrost/rpc/internal/testsvc"
)

// loopback is a network of the kernel's UDP sockets on ::1: a directory tells
// which socket stands for which address of the rack.
type loopback struct {
	mu    sync.RWMutex
	real  map[netip.AddrPort]netip.AddrPort
	rack  map[netip.AddrPort]netip.AddrPort
	conns []*net.UDPConn
}

func newLoopback() *loopback {
	return &loopback{real: map[netip.AddrPort]netip.AddrPort{}, rack: map[netip.AddrPort]netip.AddrPort{}}
}

func (l *loopback) AddAddress(netip.Addr) error       { return nil }
func (l *loopback) RemoveAddress(netip.Addr) error    { return nil }
func (l *loopback) AddLocalPrefix(netip.Prefix) error { return nil }
func (l *loopback) MTU() int                          { return rackaddr.DefaultMTU }

func (l *loopback) ListenUDP(local netip.AddrPort) (netio.Conn, error) {
	c, err := net.ListenUDP("udp6", &net.UDPAddr{IP: net.IPv6loopback})
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	at := c.LocalAddr().(*net.UDPAddr).AddrPort()
	l.real[local], l.rack[at] = at, local
	l.conns = append(l.conns, c)
	return &loopConn{c, l, local}, nil
}

type loopConn struct {
	*net.UDPConn
	net   *loopback
	local netip.AddrPort
}

func (c *loopConn) ReadBatch(ms []netio.Message) (int, error) {
	n, from, err := c.ReadFromUDPAddrPort(ms[0].Buf)
	if err != nil {
		return 0, err
	}
	c.net.mu.RLock()
	ms[0].Remote = c.net.rack[from]
	c.net.mu.RUnlock()
	ms[0].Buf, ms[0].Local = ms[0].Buf[:n], c.local.Addr()
	return 1, nil
}

func (c *loopConn) WriteBatch(ms []netio.Message) (int, error) {
	for i := range ms {
		c.net.mu.RLock()
		to := c.net.real[ms[i].Remote]
		c.net.mu.RUnlock()
		if _, err := c.WriteToUDPAddrPort(ms[i].Buf, to); err != nil {
			return i, err
		}
	}
	return len(ms), nil
}

func (c *loopConn) LocalAddr() netip.AddrPort { return c.local }

// BenchmarkRawUDP is the yardstick: one datagram there and back between two
// goroutines on the loopback device.
func BenchmarkRawUDP(b *testing.B) {
	l := newLoopback()
	here, there := rackaddr.Node(1), rackaddr.Node(2)
	client, _ := l.ListenUDP(netip.AddrPortFrom(here, 1))
	server, _ := l.ListenUDP(netip.AddrPortFrom(there, 1))
	go func() {
		ms := []netio.Message{{}}
		buf := make([]byte, netio.MaxDatagram)
		for {
			ms[0].Buf = buf
			if _, err := server.ReadBatch(ms); err != nil {
				return
			}
			if _, err := server.WriteBatch(ms); err != nil {
				return
			}
		}
	}()
	out := []netio.Message{{Buf: make([]byte, 150), Remote: netip.AddrPortFrom(there, 1)}}
	in := []netio.Message{{}}
	buf := make([]byte, netio.MaxDatagram)
	for b.Loop() {
		_, _ = client.WriteBatch(out)
		in[0].Buf = buf
		if _, err := client.ReadBatch(in); err != nil {
			b.Fatal(err)
		}
	}
	_, _ = client.Close(), server.Close()
}

type fixedJoiner struct {
	stack netio.Stack
	n     uint64
}

func joinStack(b *testing.B, s netio.Stack, n uint64) *rpc.Node {
	b.Helper()
	session := testrack.NewSession(s, join.Identity{Name: "bench", Address: rackaddr.Node(n), Incarnation: 1})
	node, err := rpc.Join(b.Context(), rpc.WithJoiner(testrack.Fixed(session)))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = node.Close(b.Context()) })
	return node
}

func BenchmarkPing(b *testing.B) {
	b.Run("udp", func(b *testing.B) {
		l := newLoopback()
		benchmarkPing(b, joinStack(b, l, 1), joinStack(b, l, 2))
	})
	b.Run("wire", func(b *testing.B) {
		r := testrack.New(wire.Config{})
		benchmarkPing(b, joinNode(b, r, "server"), joinNode(b, r, "client"))
	})
}

func benchmarkPing(b *testing.B, server, client *rpc.Node) {
	if err := server.Export(b.Context(), "Test", testsvc.NewTestProcessor(&testsvc.Handler{})); err != nil {
		b.Fatal(err)
	}
	c := testsvc.NewTestClient(client.Client("Test"))
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Ping(ctx); err != nil {
			b.Fatal(err)
		}
	}
	_ = time.Now
}
