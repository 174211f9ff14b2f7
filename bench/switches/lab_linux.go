package switches

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// The two hosts.
var hosts = [2]struct {
	addr netip.Addr
	mac  net.HardwareAddr
}{
	{netip.MustParseAddr("fd00:b1::1"), net.HardwareAddr{2, 0, 0, 0, 0, 1}},
	{netip.MustParseAddr("fd00:b1::2"), net.HardwareAddr{2, 0, 0, 0, 0, 2}},
}

// lab is three namespaces: of the hosts, and of what joins them.
type lab struct {
	home  netns.NsHandle
	hosts [2]netns.NsHandle
	mid   netns.NsHandle
}

// near is the end of a host's cable in the middle namespace.
func near(i int) string { return fmt.Sprintf("port%d", i+1) }

// newLab makes the namespaces. The calling goroutine must be locked to its
// thread.
func newLab() (*lab, error) {
	home, err := netns.Get()
	if err != nil {
		return nil, err
	}
	l := &lab{home: home, hosts: [2]netns.NsHandle{-1, -1}, mid: -1}
	for _, ns := range []*netns.NsHandle{&l.hosts[0], &l.hosts[1], &l.mid} {
		if *ns, err = netns.New(); err != nil {
			return nil, errors.Join(err, l.close())
		}
	}
	return l, netns.Set(home)
}

func (l *lab) close() error {
	err := netns.Set(l.home)
	for _, ns := range []*netns.NsHandle{&l.hosts[0], &l.hosts[1], &l.mid, &l.home} {
		if *ns >= 0 {
			err = errors.Join(err, ns.Close())
		}
	}
	return err
}

// in runs f in a namespace.
func (l *lab) in(ns netns.NsHandle, f func() error) error {
	if err := netns.Set(ns); err != nil {
		return err
	}
	return errors.Join(f(), netns.Set(l.home))
}

// cables joins each host to the middle, or the hosts to each other.
func (l *lab) cables(direct bool) error {
	var err error
	if direct {
		err = l.cable(0, l.hosts[1], "host")
	} else {
		err = errors.Join(l.cable(0, l.mid, near(0)), l.cable(1, l.mid, near(1)))
	}
	err = errors.Join(err, l.configure(0), l.configure(1))
	if !direct {
		err = errors.Join(err, l.in(l.mid, func() error { return raise(near(0), near(1)) }))
	}
	for i := range hosts {
		err = errors.Join(err, l.in(l.hosts[i], func() error { return awaitUp("host") }))
	}
	return err
}

func (l *lab) cable(i int, to netns.NsHandle, name string) error {
	return l.in(l.hosts[i], func() error {
		mac := hosts[1-i].mac
		if to == l.mid {
			mac = net.HardwareAddr{2, 0, 0, 0, 1, byte(i)}
		}
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: "host", MTU: mtu, HardwareAddr: hosts[i].mac},
			PeerName:  name, PeerMTU: mtu, PeerNamespace: netlink.NsFd(int(to)), PeerHardwareAddr: mac,
		})
	})
}

// configure gives a host its address and tells it of the other.
func (l *lab) configure(i int) error {
	return l.in(l.hosts[i], func() error {
		link, err := netlink.LinkByName("host")
		if err != nil {
			return err
		}
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/host/router_solicitations", []byte("0"), 0o600)
		addr, err := netlink.ParseAddr(hosts[i].addr.String() + "/64")
		if err != nil {
			return err
		}
		addr.Flags = unix.IFA_F_NODAD
		other := &netlink.Neigh{
			LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT,
			IP: hosts[1-i].addr.AsSlice(), HardwareAddr: hosts[1-i].mac,
		}
		return errors.Join(netlink.LinkSetUp(link), netlink.AddrAdd(link, addr), netlink.NeighSet(other))
	})
}

// raise brings interfaces up, which the kernel uses for nothing of its own.
func raise(names ...string) error {
	for _, name := range names {
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("1"), 0o600)
		link, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(link)
		}
		if err != nil {
			return err
		}
	}
	var err error
	for _, name := range names {
		err = errors.Join(err, awaitUp(name))
	}
	return err
}

// awaitUp waits until an interface carries packets: one that was up before the
// cable's other end drops them until the kernel has noticed.
func awaitUp(name string) error {
	for deadline := time.Now().Add(5 * time.Second); ; {
		link, err := netlink.LinkByName(name)
		if err != nil || time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("interface %s does not come up", name), err)
		}
		if link.Attrs().OperState == netlink.OperUp {
			return nil
		}
		runtime.Gosched()
	}
}

// withoutOffload makes the hosts finish checksums and segments themselves, for
// what only takes whole packets.
func (l *lab) withoutOffload() error {
	var err error
	for i := range hosts {
		err = errors.Join(err, l.in(l.hosts[i], func() error { return call("ethtool", "-K", "host", "tx", "off") }))
	}
	return err
}
