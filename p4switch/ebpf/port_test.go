//go:build linux

package ebpf

import (
	"fmt"
	"os"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/compare"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/shared/privilege"
	"github.com/vishvananda/netlink"
)

// upAt reports whether a port is up on its interface.
func upAt(x *Executor, num datapath.Port, mtu int) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.ports[num]
	return p.up.Load() && p.index != 0 && p.mtu == mtu
}

// A port follows its interface: it waits for one that is not there yet, takes up another MTU, and hears that the cable's other end goes down. It tries
// again when it could not take the interface up.
func TestPort_Follows(t *testing.T) {
	privilege.Need(t) // and no namespace of its own, since a program is attached in that of the thread that does it
	x := newPairWith(t, load(t, "testdata/offload.json"), Config{}).kernel
	link := func(name string) netlink.Link {
		t.Helper()
		l, err := netlink.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	near1, far1, near2 := fmt.Sprintf("bfa%d", os.Getpid()), fmt.Sprintf("bfb%d", os.Getpid()), fmt.Sprintf("bfc%d", os.Getpid())
	veth := func(near, far string) {
		t.Helper()
		t.Cleanup(func() {
			if l, err := netlink.LinkByName(near); err == nil {
				_ = netlink.LinkDel(l)
			}
		})
		compare.Veth(t, near, far)
	}
	if err := x.AttachPort(1, near1, true); err != nil {
		t.Fatal(err)
	}
	veth(near1, far1)
	mtu := link(near1).Attrs().MTU
	await(t, func() bool { return upAt(x, 1, mtu) })
	if err := netlink.LinkSetMTU(link(near1), 1400); err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { return upAt(x, 1, 1400) })
	if err := netlink.LinkSetDown(link(far1)); err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { return !upAt(x, 1, 1400) })
	if err := netlink.LinkDel(link(near1)); err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { return x.PortCounts(1).Vanished == 1 })

	veth(near2, far1)
	packets := func(fd int) (was int) { // a socket that is none lets no interface become promiscuous
		x.mu.Lock()
		defer x.mu.Unlock()
		was, x.links.packet = x.links.packet, fd
		return was
	}
	was := packets(-1)
	if err := x.AttachPort(2, near2, true); err != nil {
		t.Fatal(err)
	}
	if upAt(x, 2, mtu) {
		t.Error("the port is up that could not be attached")
	}
	packets(was)
	await(t, func() bool { return upAt(x, 2, mtu) })
}
