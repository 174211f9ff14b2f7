package rpc_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/internal/testrack"
	"github.com/bifrost-rack/bifrost/rpc/internal/testsvc"
)

// loopback is a network of the kernel's UDP sockets, for two processes: node n is 127.0.0.n.
type loopback struct{}

// at is where an endpoint of a node is on the loopback device, and nodeAt the other way round.
func at(node netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, node.Addr().As16()[15]}), node.Port())
}

func nodeAt(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(rackaddr.Node(uint64(a.Addr().As4()[3])), a.Port())
}

// MTU implements netio.Network.
func (loopback) MTU() int { return rackaddr.DefaultMTU }

// ListenUDP implements netio.Network.
func (loopback) ListenUDP(local netip.AddrPort) (netio.Conn, error) {
	c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at(local)))
	return loopConn{c}, err
}

type loopConn struct{ *net.UDPConn }

func (c loopConn) ReadBatch(ms []netio.Message) (int, error) {
	n, from, err := c.ReadFromUDPAddrPort(ms[0].Buf)
	if err != nil {
		return 0, err
	}
	ms[0].Buf, ms[0].Remote = ms[0].Buf[:n], nodeAt(from)
	return 1, nil
}

func (c loopConn) WriteBatch(ms []netio.Message) (int, error) {
	for i := range ms {
		if _, err := c.WriteToUDPAddrPort(ms[i].Append(nil), at(ms[i].Remote)); err != nil {
			return i, err
		}
	}
	return len(ms), nil
}

func (c loopConn) LocalAddr() netip.AddrPort {
	return nodeAt(c.UDPConn.LocalAddr().(*net.UDPAddr).AddrPort())
}

// rawAddress is where the server echoes bare datagrams: the yardstick.
var rawAddress = netip.AddrPortFrom(rackaddr.Node(99), rackaddr.PortRPC)

// serverVariable makes the test binary a server for BenchmarkPing.
const serverVariable = "BIFROST_BENCH_SERVER"

func loopNode(n uint64) (*rpc.Node, error) {
	s := testrack.NewSession(loopback{}, join.Identity{Name: "bench", Address: rackaddr.Node(n), Incarnation: 1})
	s.Play(rackaddr.Node(2), "Test") // the server
	return rpc.Join(join.NewContext(context.Background(), testrack.Fixed(s)))
}

// benchServer serves until its process is killed. It says when it does.
func benchServer() error {
	n, err := loopNode(2)
	if err != nil {
		return err
	}
	if err := n.Export(context.Background(), "Test", testsvc.NewTestProcessor(&testsvc.Handler{})); err != nil {
		return err
	}
	raw, err := loopback{}.ListenUDP(rawAddress)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	buf, ms := make([]byte, netio.MaxDatagram), make([]netio.Message, 1)
	for {
		ms[0].Buf = buf
		if _, err := raw.ReadBatch(ms); err != nil {
			return err
		}
		if _, err := raw.WriteBatch(ms); err != nil {
			return err
		}
	}
}

// startBenchServer runs this binary as a server, and returns when it serves.
func startBenchServer(b *testing.B) {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serverVariable+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if said, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		b.Fatalf("the server says %q: %v", said, err)
	}
}

// BenchmarkPing measures an empty call. In "processes" the server is another
// process on the loopback device, and each call is followed by a bare datagram
// there and back: "x-raw" is the ratio of the medians, which the machine's load
// disturbs less than the times. For steady times pin both to two idle CPUs
// (taskset -c 2,3).
func BenchmarkPing(b *testing.B) {
	b.Run("processes", func(b *testing.B) {
		startBenchServer(b)
		raw, err := loopback{}.ListenUDP(netip.AddrPortFrom(rackaddr.Node(98), rackaddr.PortRPC))
		if err != nil {
			b.Fatal(err)
		}
		n, err := loopNode(1)
		if err != nil {
			b.Fatal(err)
		}
		benchmarkProcesses(b, n, raw)
		_ = n.Close(b.Context())
		_ = raw.Close()
	})
	b.Run("wire", func(b *testing.B) {
		p := newPair(b)
		b.ReportAllocs()
		for b.Loop() {
			if err := p.client.Ping(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func benchmarkProcesses(b *testing.B, n *rpc.Node, raw netio.Conn) {
	client := testsvc.NewTestClient(plain(n, "Test"))
	out := []netio.Message{{Buf: make([]byte, 145), Remote: rawAddress}} // as large as a ping
	in, buf := make([]netio.Message, 1), make([]byte, netio.MaxDatagram)
	var pings, raws []time.Duration
	measure := func(f func() error) time.Duration {
		start := time.Now()
		if err := f(); err != nil {
			b.Fatal(err)
		}
		return time.Since(start)
	}
	for b.Loop() {
		pings = append(pings, measure(func() error { return client.Ping(context.Background()) }))
		raws = append(raws, measure(func() error {
			if _, err := raw.WriteBatch(out); err != nil {
				return err
			}
			in[0].Buf = buf
			_, err := raw.ReadBatch(in)
			return err
		}))
	}
	slices.Sort(pings)
	slices.Sort(raws)
	ping, bare := pings[len(pings)/2], raws[len(raws)/2]
	b.ReportMetric(float64(ping.Nanoseconds()), "ping-ns")
	b.ReportMetric(float64(bare.Nanoseconds()), "raw-ns")
	b.ReportMetric(float64(ping)/float64(bare), "x-raw")
}

// BenchmarkCalls measures throughput: many callers of one service.
func BenchmarkCalls(b *testing.B) {
	for _, callers := range []int{1, 16, 256} {
		b.Run(fmt.Sprint("callers=", callers), func(b *testing.B) {
			p := newPair(b)
			var wg sync.WaitGroup
			share := max(1, b.N/callers)
			b.ResetTimer()
			for range callers {
				wg.Go(func() {
					c := p.newClient()
					for range share {
						if _, err := c.Add(b.Context(), 1, 2); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}
