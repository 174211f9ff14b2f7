package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"
	"strconv"

	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/internal/testrack"
	"github.com/bifrost-rack/bifrost/rpc/internal/testsvc"
	"github.com/apache/thrift/lib/go/thrift"
)

type loopback struct {
	mu   sync.RWMutex
	Real map[string]string
	real map[netip.AddrPort]netip.AddrPort
	rack map[netip.AddrPort]netip.AddrPort
}

func newLoopback() *loopback {
	return &loopback{Real: map[string]string{}, real: map[netip.AddrPort]netip.AddrPort{}, rack: map[netip.AddrPort]netip.AddrPort{}}
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
	at := c.LocalAddr().(*net.UDPAddr).AddrPort()
	l.mu.Lock()
	l.real[local], l.rack[at] = at, local
	l.Real[local.String()] = at.String()
	l.mu.Unlock()
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
	ms[0].Remote = from
	ms[0].Buf, ms[0].Local = ms[0].Buf[:n], c.local.Addr()
	return 1, nil
}
func (c *loopConn) WriteBatch(ms []netio.Message) (int, error) {
	for i := range ms {
		c.net.mu.RLock()
		to, ok := c.net.real[ms[i].Remote]
		c.net.mu.RUnlock()
		if !ok {
			to = ms[i].Remote
		}
		if _, err := c.WriteToUDPAddrPort(ms[i].Buf, to); err != nil {
			return i, err
		}
	}
	return len(ms), nil
}
func (c *loopConn) LocalAddr() netip.AddrPort { return c.local }

func node(l *loopback, n uint64) *rpc.Node {
	s := testrack.NewSession(l, join.Identity{Name: "bench", Address: rackaddr.Node(n), Incarnation: 1})
	node, err := rpc.Join(context.Background(), rpc.WithJoiner(testrack.Fixed(s)))
	if err != nil {
		panic(err)
	}
	return node
}

var rawAt = netip.MustParseAddrPort("[fd00::9]:9")

func server() {
	if os.Getenv("NOCHECK") != "" { thrift.ServerConnectivityCheckInterval = 0 }
	l := newLoopback()
	n := node(l, 2)
	n.Export(context.Background(), "Test", testsvc.NewTestProcessor(&testsvc.Handler{}))
	raw, _ := l.ListenUDP(rawAt)
	json.NewEncoder(os.Stdout).Encode(l)
	buf := make([]byte, netio.MaxDatagram)
	ms := []netio.Message{{}}
	for {
		ms[0].Buf = buf
		raw.ReadBatch(ms)
		raw.WriteBatch(ms)
	}
}

func main() {
	if len(os.Args) > 1 {
		server()
		return
	}
	cmd := exec.Command(os.Args[0], "server")
	cmd.Stderr = os.Stderr
	out, _ := cmd.StdoutPipe()
	cmd.Start()
	defer cmd.Process.Kill()
	l := newLoopback()
	var remote loopback
	line, _ := bufio.NewReader(out).ReadBytes('\n')
	json.Unmarshal(line, &remote)
	for k, v := range remote.Real {
		l.real[netip.MustParseAddrPort(k)] = netip.MustParseAddrPort(v)
	}
	n := node(l, 1)
	client := testsvc.NewTestClient(n.Client("Test"))
	raw, _ := l.ListenUDP(netip.MustParseAddrPort("[fd00::8]:9"))
	in, outm := []netio.Message{{}}, []netio.Message{{Buf: make([]byte, 150), Remote: rawAt}}
	buf := make([]byte, netio.MaxDatagram)
	rounds, _ := strconv.Atoi(os.Getenv("ROUNDS"))
	if rounds == 0 { rounds = 10 }
	var rs, ps []time.Duration
	ctx := context.Background()
	for range rounds {
		for range 2000 {
			t := time.Now()
			raw.WriteBatch(outm)
			in[0].Buf = buf
			raw.ReadBatch(in)
			rs = append(rs, time.Since(t))
		}
		for range 2000 {
			t := time.Now()
			if err := client.Ping(ctx); err != nil {
				panic(err)
			}
			ps = append(ps, time.Since(t))
		}
	}
	slices.Sort(rs)
	slices.Sort(ps)
	fmt.Printf("raw p10 %v p50 %v p90 %v   ping p10 %v p50 %v p90 %v  ratio p10 %.2f p50 %.2f\n", rs[len(rs)/10], rs[len(rs)/2], rs[len(rs)*9/10], ps[len(ps)/10], ps[len(ps)/2], ps[len(ps)*9/10],
		float64(ps[len(ps)/10])/float64(rs[len(rs)/10]), float64(ps[len(ps)/2])/float64(rs[len(rs)/2]))
}
