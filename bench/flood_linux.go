package bench

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"golang.org/x/sys/unix"
)

// FloodClasses are what Flood floods with: packets that the switch drops and tells nobody of,
// which cost others nothing but CPUs that they share with the flood; control packets, held
// calls, requests to a memory machine that is not there, and denied reads.
var FloodClasses = []string{Dropped, "control", "calls", "memory", "denied"}

// Flood sends packets of a class from the blade whose network this process is in, as fast
// as they leave, until ctx ends. It needs CAP_NET_RAW.
func Flood(ctx context.Context, class string) error {
	src, err := bladeAddress()
	if err != nil {
		return err
	}
	to, payload, err := floodPacket(class)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return fmt.Errorf("raw socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	const checksum = 6 // its offset in the UDP header: the kernel fills it in
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_CHECKSUM, checksum); err != nil {
		return fmt.Errorf("raw socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet6{Addr: src.As16()}); err != nil {
		return fmt.Errorf("bind to %s: %w", src, err)
	}
	// A blade has CPUs of its own; here it shares them with those that are measured.
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, 19); err != nil {
		return fmt.Errorf("lowest priority: %w", err)
	}
	length := 8 + len(payload)
	from := to.Port()
	if class == Dropped {
		from = 1 // the protocol's own port is required
	}
	b := []byte{byte(from >> 8), byte(from), byte(to.Port() >> 8), byte(to.Port()), byte(length >> 8), byte(length), 0, 0}
	b = append(b, payload...)
	for ctx.Err() == nil {
		err := unix.Sendto(fd, b, 0, &unix.SockaddrInet6{Addr: to.Addr().As16()})
		if err != nil && err != unix.ENOBUFS {
			return fmt.Errorf("send: %w", err)
		}
	}
	return nil
}

// floodPacket is where a class's packets go, and what is in them.
func floodPacket(class string) (netip.AddrPort, []byte, error) {
	read := dsmpacket.Header{Kind: dsmpacket.Request, Request: 1, Floor: 1, Length: 8, Incarnation: 1}
	memory := func(machine uint8) netip.AddrPort {
		return netip.AddrPortFrom(dsmpacket.Make(rackaddr.DefaultDSMPrefix, machine, 4096).With(dsmpacket.OpRead, 0).Addr(), rackaddr.PortDSM)
	}
	switch class {
	case "control":
		return netip.AddrPortFrom(rackaddr.Gatekeeper, rackaddr.PortControl), []byte("flood"), nil
	case "calls":
		m := rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Call, Flags: rpcpacket.FlagHeld | rpcpacket.FlagSession, Call: rpcpacket.SessionID(1, 1), Floor: 1, CallerIncarnation: 1}}
		return netip.AddrPortFrom(rackaddr.Service("Flood"), rackaddr.PortRPC), m.Append(nil), nil
	case "memory":
		return memory(200), read.Append(nil), nil
	case "denied", Dropped:
		return memory(1), read.Append(nil), nil
	}
	return netip.AddrPort{}, nil, fmt.Errorf("class %q: choose one of %v", class, FloodClasses)
}

// bladeAddress is the address of the blade in whose network this process is.
func bladeAddress() (netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Addr{}, err
	}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && rackaddr.BladePrefix.Contains(p.Addr()) {
			return p.Addr(), nil
		}
	}
	return netip.Addr{}, fmt.Errorf("no address of %s here: this is no blade's network", rackaddr.BladePrefix)
}
