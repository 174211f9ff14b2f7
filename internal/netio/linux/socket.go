//go:build linux

package linux

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/internal/netio"
)

// socketBuffer is what sockets ask for in each direction, in bytes: room for a
// hundred of the largest datagrams. Without CAP_NET_ADMIN the kernel's limits
// net.core.rmem_max and wmem_max apply.
const socketBuffer = 8 << 20

// Listen opens an endpoint for packets of at most mtu bytes. The address need
// not be the machine's own yet: the blade's daemon may add it later.
func Listen(local netip.AddrPort, mtu int) (netio.Conn, error) {
	if !local.Addr().Is6() {
		return nil, fmt.Errorf("listen on %s: not an IPv6 address: %w", local, unix.EINVAL)
	}
	lc := net.ListenConfig{Control: controller(local.Addr().IsUnspecified())}
	pc, err := lc.ListenPacket(context.Background(), "udp6", local.String())
	if err != nil {
		return nil, err // says what and where
	}
	c, err := newConn(pc.(*net.UDPConn), mtu)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %s: %w", local, err), pc.Close())
	}
	return c, nil
}

// controller sets a socket's options before it is bound: to one address, or to any.
func controller(anyAddress bool) func(_, _ string, raw syscall.RawConn) error {
	return func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) {
			if failed = setOptions(int(fd), anyAddress); failed == nil {
				failed = setBuffers(int(fd))
			}
		})
		if err != nil {
			return err
		}
		return failed
	}
}

func setOptions(fd int, anyAddress bool) error {
	options := []struct {
		level, name int
		what        string
	}{
		{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, "IPV6_V6ONLY"},
		{unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, "IPV6_FREEBIND"},       // any source: the switch decides what it may say
		{unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, "IPV6_DONTFRAG"},       // a packet too large is an error
		{unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, "IPV6_RECVPKTINFO"}, // where a datagram was sent to
	}
	if !anyAddress {
		options = options[:len(options)-1] // to the address that it is bound to
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, o.level, o.name, 1); err != nil {
			return fmt.Errorf("set %s: %w", o.what, err)
		}
	}
	return nil
}

func setBuffers(fd int) error {
	for force, plain := range map[int]int{unix.SO_RCVBUFFORCE: unix.SO_RCVBUF, unix.SO_SNDBUFFORCE: unix.SO_SNDBUF} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, socketBuffer) == nil {
			continue
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, socketBuffer); err != nil {
			return fmt.Errorf("set socket buffer: %w", err)
		}
	}
	return nil
}
