//go:build linux

package dsm_test

import (
	"context"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/memory"
	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/netio/linux"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// kernelPair starts a memory server and a client on the kernel's sockets, each in a
// network namespace of its own, with a cable and no switch between them.
func kernelPair(t testing.TB) *dsm.Client {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	runtime.LockOSThread() // the thread ends with the test, the namespaces with it
	server, err := netns.New()
	must(t, err)
	t.Cleanup(func() { server.Close() })
	client, err := netns.New()
	must(t, err)
	t.Cleanup(func() { client.Close() })

	macs := [2]net.HardwareAddr{{2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 2}}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = "eth0", rackaddr.DefaultMTU, macs[0]
	must(t, netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: attrs, PeerName: "eth0", PeerHardwareAddr: macs[1],
		PeerMTU: rackaddr.DefaultMTU, PeerNamespace: netlink.NsFd(server),
	}))
	node := netip.PrefixFrom(rackaddr.Node(1), 128)
	stack := up(t, macs[1], packet.MachinePrefix(prefix, 1))
	must(t, stack.AddAddress(node.Addr()))
	must(t, netns.Set(server))
	serve(t, up(t, macs[0], node))
	must(t, netns.Set(client))
	return dial(t, stack)
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

func serve(t testing.TB, stack netio.Stack) {
	t.Helper()
	s, err := memory.NewServer(memory.Config{Stack: stack, Prefix: prefix, Machine: 1, Capacity: 4 << 30, Epoch: 1})
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
}

func dial(t testing.TB, stack netio.Stack) *dsm.Client {
	t.Helper()
	view := control.Rack{DSMPrefix: prefix, MTU: rackaddr.DefaultMTU, Memories: []control.MemoryBlade{{Machine: 1, Free: 1 << 30}}}
	c, err := dsm.NewClient(dsm.Config{
		Stack: stack, Address: rackaddr.Node(1), Incarnation: 1, Rack: func() control.Rack { return view },
	})
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func TestOverTheKernel(t *testing.T) { transfers(t, kernelPair(t)) }

// Over the kernel's sockets and a cable.
func BenchmarkCable(b *testing.B) { benchmark(b, kernelPair(b)) }
