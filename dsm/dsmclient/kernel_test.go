//go:build linux

package dsmclient_test

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/memory"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/memrack"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/netio/linux"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4switch/shared/privilege"
)

// apart runs f on a thread of its own, which may enter network namespaces and
// ends with f. What f opens stays. (A test that stayed on such a thread itself
// would pay for every hand-over to another goroutine.)
func apart(t testing.TB, f func()) {
	t.Helper()
	privilege.Need(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		f()
	}()
	<-done
	if t.Failed() {
		t.FailNow()
	}
}

// cable makes two network namespaces with a cable and no switch between them: a
// memory blade's and a compute blade's. enter puts the calling thread, which is
// apart, into one of them.
func cable(t testing.TB) (blade, compute *linux.Stack, enter func(*linux.Stack)) {
	t.Helper()
	var ns [2]netns.NsHandle
	for i := range ns {
		var err error
		ns[i], err = netns.New()
		must(t, err)
		t.Cleanup(func() { ns[i].Close() })
	}
	macs := [2]net.HardwareAddr{{2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 2}}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = "eth0", rackaddr.DefaultMTU, macs[1]
	must(t, netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: attrs, PeerName: "eth0", PeerHardwareAddr: macs[0],
		PeerMTU: rackaddr.DefaultMTU, PeerNamespace: netlink.NsFd(ns[0]),
	}))
	compute = up(t, macs[0], dsmpacket.MachinePrefix(prefix, 1))
	must(t, compute.AddAddress(rackaddr.Node(1)))
	must(t, netns.Set(ns[0]))
	blade = up(t, macs[1], netip.PrefixFrom(rackaddr.Node(1), 128))
	waitUp(t)
	must(t, netns.Set(ns[1]))
	waitUp(t)
	return blade, compute, func(s *linux.Stack) {
		if s == blade {
			must(t, netns.Set(ns[0]))
		} else {
			must(t, netns.Set(ns[1]))
		}
	}
}

// kernelPair starts a memory server and a client on the kernel's sockets.
func kernelPair(t testing.TB) (c *dsmclient.Client, s *memory.Server) {
	t.Helper()
	apart(t, func() {
		blade, compute, enter := cable(t)
		enter(blade)
		s = serve(t, blade)
		enter(compute)
		c = dial(t, compute, s)
	})
	return c, s
}

// up brings the interfaces of the present namespace up, with everything in a
// prefix beyond the cable, and returns its stack.
func up(t testing.TB, far net.HardwareAddr, beyond netip.Prefix) *linux.Stack {
	t.Helper()
	must(t, os.WriteFile("/proc/sys/net/ipv6/conf/eth0/addr_gen_mode", []byte("1"), 0o644))
	for _, name := range []string{"lo", "eth0"} {
		link, err := netlink.LinkByName(name)
		must(t, err)
		must(t, netlink.LinkSetUp(link))
	}
	stack, err := linux.Open("eth0")
	must(t, err)
	t.Cleanup(func() { stack.Close() })
	link, err := netlink.LinkByName("eth0")
	must(t, err)
	i, gateway := link.Attrs().Index, net.ParseIP("fe80::1")
	must(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: i, IP: gateway, HardwareAddr: far, State: netlink.NUD_PERMANENT}))
	dst := &net.IPNet{IP: beyond.Addr().AsSlice(), Mask: net.CIDRMask(beyond.Bits(), 128)}
	must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: i, Dst: dst, Gw: gateway}))
	return stack
}

// waitUp waits until eth0 carries packets: before that, the kernel drops them
// without a word.
func waitUp(t testing.TB) {
	t.Helper()
	for range 1_000_000 {
		link, err := netlink.LinkByName("eth0")
		must(t, err)
		if link.Attrs().OperState == netlink.OperUp {
			return
		}
	}
	t.Fatal("eth0 does not come up")
}

func serve(t testing.TB, stack netio.Stack) *memory.Server {
	t.Helper()
	s, err := memory.NewServer(memory.Config{Stack: stack, Prefix: prefix, Machine: 1, Capacity: 4 << 30})
	must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

func dial(t testing.TB, stack netio.Stack, s *memory.Server) *dsmclient.Client {
	t.Helper()
	view := control.Rack{DSMPrefix: prefix, MTU: rackaddr.DefaultMTU, Memories: []control.MemoryBlade{{Machine: 1, Free: 1 << 30}}}
	c, err := dsmclient.NewClient(dsmclient.Config{
		Stack: stack, Address: rackaddr.Node(1), Incarnation: 1, Rack: func() control.Rack { return view },
		Batches: memrack.Batches(rackaddr.Node(1), func(uint8) *memory.Server { return s }),
	})
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func TestOverTheKernel(t *testing.T) {
	c, _ := kernelPair(t)
	transfers(t, c, append(sizes, 48<<20)...)
}

// The largest transfer there is: 1 GiB in one Write and one Read, every word of it.
func TestOneGiB(t *testing.T) {
	size := 1 << 30
	if racing {
		size = 1 << 26
	}
	c, _ := kernelPair(t)
	p := alloc(t, c, uint64(size))
	b := make([]byte, size)
	for at := 0; at < size; at += 8 {
		binary.BigEndian.PutUint64(b[at:], uint64(at)+1)
	}
	if n, err := c.Write(t.Context(), p, b); n != size || err != nil {
		t.Fatalf("wrote %d bytes: %v", n, err)
	}
	clear(b)
	if n, err := c.Read(t.Context(), p, b); n != size || err != nil {
		t.Fatalf("read %d bytes: %v", n, err)
	}
	for at := 0; at < size; at += 8 {
		if got := binary.BigEndian.Uint64(b[at:]); got != uint64(at)+1 {
			t.Fatalf("%d at %d", got, at)
		}
	}
}

// Over the kernel's sockets and a cable, beside a bare echo over the same.
func BenchmarkCable(b *testing.B) {
	c, _ := kernelPair(b)
	benchmark(b, c)
}

func BenchmarkCableUndo(b *testing.B) {
	c, s := kernelPair(b)
	must(b, s.KeepUndo(true))
	benchmarkUndo(b, c)
}

func BenchmarkCableEcho(b *testing.B) {
	var near, far netio.Conn
	apart(b, func() {
		blade, compute, enter := cable(b)
		var err error
		enter(blade)
		must(b, blade.AddLocalPrefix(dsmpacket.MachinePrefix(prefix, 1)))
		far, err = blade.ListenUDP(netip.AddrPortFrom(netip.IPv6Unspecified(), rackaddr.PortDSM))
		must(b, err)
		enter(compute)
		near, err = compute.ListenUDP(netip.AddrPortFrom(rackaddr.Node(1), rackaddr.PortDSM))
		must(b, err)
	})
	defer far.Close()
	defer near.Close()
	go func() {
		in, buf := make([]netio.Message, 1), make([]byte, netio.MaxDatagram)
		for {
			in[0].Buf = buf
			if _, err := far.ReadBatch(in); err != nil {
				return
			}
			_, _ = far.WriteBatch(in)
		}
	}()
	to := netip.AddrPortFrom(dsmpacket.Make(prefix, 1, 0).Addr(), rackaddr.PortDSM)
	for _, size := range []int{8, 4 << 10} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			m, buf := make([]netio.Message, 1), make([]byte, netio.MaxDatagram)
			for b.Loop() {
				m[0] = netio.Message{Buf: buf[:dsmpacket.HeaderSize+size], Remote: to}
				_, err := near.WriteBatch(m)
				must(b, err)
				m[0] = netio.Message{Buf: buf}
				_, err = near.ReadBatch(m)
				must(b, err)
			}
		})
	}
}
