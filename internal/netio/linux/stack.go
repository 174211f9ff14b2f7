//go:build linux

package linux

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/internal/netio"
)

// Stack is a blade's interface with the sockets above it. Changing addresses
// needs CAP_NET_ADMIN. Methods may be called concurrently.
type Stack struct {
	nl    *netlink.Handle
	link  netlink.Link
	lo    netlink.Link
	iface string
	mtu   int

	mu    sync.Mutex
	addrs map[netip.Addr]bool   // added here
	local map[netip.Prefix]bool // likewise
	held  []int                 // sockets that hold ports; see HoldPorts
}

var _ netio.Stack = (*Stack)(nil)

// Open finds an interface in the network namespace of the calling thread.
func Open(iface string) (*Stack, error) {
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	s := &Stack{nl: nl, iface: iface, addrs: map[netip.Addr]bool{}, local: map[netip.Prefix]bool{}}
	if err := s.open(); err != nil {
		nl.Close()
		return nil, err
	}
	return s, nil
}

func (s *Stack) open() error {
	var missing netlink.LinkNotFoundError
	link, err := s.nl.LinkByName(s.iface)
	switch {
	case errors.As(err, &missing):
		return fmt.Errorf("there is no interface %s (`ip link` lists them)", s.iface)
	case err != nil:
		return fmt.Errorf("interface %s: %w", s.iface, err)
	}
	s.link, s.mtu = link, link.Attrs().MTU
	if s.lo, err = s.nl.LinkByName("lo"); err != nil {
		return fmt.Errorf("interface lo: %w", err)
	}
	return nil
}

// Close takes back the addresses and prefixes that were added here, and the ports that are held; endpoints
// and policy rules stay.
func (s *Stack) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for a := range s.addrs {
		errs = append(errs, s.removeAddress(a))
	}
	for p := range s.local {
		errs = append(errs, s.removeLocal(p))
	}
	errs = append(errs, s.release())
	s.nl.Close()
	return errors.Join(errs...)
}

// MAC is the interface's Ethernet address.
func (s *Stack) MAC() net.HardwareAddr { return s.link.Attrs().HardwareAddr }

// MTU implements netio.Stack.
func (s *Stack) MTU() int { return s.mtu }

// ListenUDP implements netio.Stack, for a daemon, which serves many.
func (s *Stack) ListenUDP(local netip.AddrPort) (netio.Conn, error) {
	return Listen(local, s.mtu)
}

// AddAddress implements netio.Stack. The address is the interface's without
// duplicate detection, and brings no route to others with it. The kernel begins
// to receive for a new address from a work queue, some time after it has
// answered; a local route of our own is there at once.
func (s *Stack) AddAddress(a netip.Addr) error {
	if !a.Is6() || a.IsUnspecified() {
		return fmt.Errorf("add address %s to %s: %w", a, s.iface, unix.EINVAL)
	}
	addr := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(a, 128)), Flags: unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE}
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.nl.AddrAdd(s.link, addr)
	switch {
	case errors.Is(err, unix.EEXIST):
		return nil
	case err == nil:
		err = s.addLocal(netip.PrefixFrom(a, 128))
	}
	if err != nil {
		return fmt.Errorf("add address %s to %s: %w", a, s.iface, privileged(err))
	}
	s.addrs[a] = true
	return nil
}

// RemoveAddress implements netio.Stack.
func (s *Stack) RemoveAddress(a netip.Addr) error {
	if !a.Is6() {
		return nil // it cannot be here
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.addrs, a)
	return s.removeAddress(a)
}

func (s *Stack) removeAddress(a netip.Addr) error {
	p := netip.PrefixFrom(a, 128)
	err := s.removeLocal(p)
	if e := s.nl.AddrDel(s.link, &netlink.Addr{IPNet: ipNet(p)}); err == nil && !errors.Is(e, unix.EADDRNOTAVAIL) {
		err = e
	}
	if err != nil {
		return fmt.Errorf("remove address %s from %s: %w", a, s.iface, privileged(err))
	}
	return nil
}

// AddLocalPrefix implements netio.Stack.
func (s *Stack) AddLocalPrefix(p netip.Prefix) error {
	p = p.Masked()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.addLocal(p); err != nil {
		return fmt.Errorf("receive for %s: %w", p, privileged(err))
	}
	s.local[p] = true
	return nil
}

// addLocal makes the kernel deliver packets to addresses of p here.
func (s *Stack) addLocal(p netip.Prefix) error {
	if err := s.nl.LinkSetUp(s.lo); err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	return s.nl.RouteReplace(s.localRoute(p))
}

// removeLocal undoes addLocal; it is idempotent.
func (s *Stack) removeLocal(p netip.Prefix) error {
	if err := s.nl.RouteDel(s.localRoute(p)); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

func (s *Stack) localRoute(p netip.Prefix) *netlink.Route {
	return &netlink.Route{
		LinkIndex: s.lo.Attrs().Index, Dst: ipNet(p),
		Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST,
	}
}

// Address returns an address of the interface that lies in p.
func (s *Stack) Address(p netip.Prefix) (netip.Addr, bool) {
	addrs, err := s.nl.AddrList(s.link, unix.AF_INET6)
	if err != nil {
		return netip.Addr{}, false
	}
	for _, a := range addrs {
		if got, ok := netip.AddrFromSlice(a.IP); ok && p.Contains(got) {
			return got, true
		}
	}
	return netip.Addr{}, false
}

// privileged adds what to do to an error that says too little.
func privileged(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w (run as root, or with CAP_NET_ADMIN)", err)
	}
	return err
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
