package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"runtime"

	"github.com/bifrost-rack/bifrost/bench/agent"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"golang.org/x/sys/unix"
)

// FloodClasses are what Flood floods with: packets that the switch drops and tells nobody of,
// which cost others nothing but CPUs that they share with the flood; control packets, questions
// who serves a method, requests to a memory machine that is not there, denied reads; and all of the
// last four in turn. What the switch holds has the names of `bifrost gatekeeper --rate`.
var FloodClasses = []string{Dropped, "control", "no-route", "no-home", "denied", everything}

// everything is the class of all classes that reach the Gatekeeper.
const everything = "all"

// Flood sends packets of a class from the blade whose network this process is in, as fast
// as they leave, until ctx ends, and tells how many it has sent. It needs CAP_NET_RAW.
// It runs on a CPU of its own; if that is negative, on all, and has the time that others leave. Then
// its goroutine must end afterwards, or its thread stays at the lowest priority.
func Flood(ctx context.Context, class string, cpu int) (sent uint64, err error) {
	if cpu >= 0 {
		if err := agent.Pin([]int{cpu}); err != nil {
			return 0, err
		}
	} else if err := giveWay(); err != nil {
		return 0, err
	}
	if class == Hog {
		for ctx.Err() == nil {
			continue
		}
		return 0, nil
	}
	src, err := bladeAddress()
	if err != nil {
		return 0, err
	}
	packets, err := floodPackets(class)
	if err != nil {
		return 0, err
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return 0, fmt.Errorf("raw socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	const checksum = 6 // its offset in the UDP header: the kernel fills it in
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_CHECKSUM, checksum); err != nil {
		return 0, fmt.Errorf("raw socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet6{Addr: src.As16()}); err != nil {
		return 0, fmt.Errorf("bind to %s: %w", src, err)
	}
	for ctx.Err() == nil {
		p := packets[sent%uint64(len(packets))]
		err := unix.Sendto(fd, p.datagram, 0, &unix.SockaddrInet6{Addr: p.to.As16()})
		if err == nil {
			sent++
		} else if err != unix.ENOBUFS {
			return sent, fmt.Errorf("send: %w", err)
		}
	}
	return sent, nil
}

// giveWay has this thread take only the CPU time that others leave, where a flood shares its
// CPUs with those that are measured. Linux gives a priority to a thread, not to a process: this
// thread ends with its goroutine. Where Linux groups sessions (sched_autogroup), the flood's gives way, too.
func giveWay() error {
	if err := os.WriteFile("/proc/self/autogroup", []byte("19"), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("lowest priority of the session: %w", err)
	}
	runtime.LockOSThread()
	if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0); err != nil {
		return fmt.Errorf("lowest priority: %w", err)
	}
	return nil
}

// flooding is a UDP datagram, without a checksum, and where it goes.
type flooding struct {
	to       netip.Addr
	datagram []byte
}

// floodPackets are the packets of a class.
func floodPackets(class string) (all []flooding, err error) {
	classes := []string{class}
	if class == everything {
		classes = FloodClasses[1 : len(FloodClasses)-1]
	}
	for _, class := range classes {
		to, payload, err := floodPacket(class)
		if err != nil {
			return nil, err
		}
		from, length := to.Port(), 8+len(payload)
		if class == Dropped {
			from = 1 // the protocol's own port is required
		}
		b := []byte{byte(from >> 8), byte(from), byte(to.Port() >> 8), byte(to.Port()), byte(length >> 8), byte(length), 0, 0}
		all = append(all, flooding{to.Addr(), append(b, payload...)})
	}
	return all, nil
}

// floodPacket is where a class's packets go, and what is in them.
func floodPacket(class string) (netip.AddrPort, []byte, error) {
	read := dsmpacket.Header{Kind: dsmpacket.Request, Request: 1, Floor: 1, Length: 8, Incarnation: 1}
	memory := func(machine uint8) netip.AddrPort {
		return netip.AddrPortFrom(dsmpacket.Make(rackaddr.DefaultDSMPrefix, machine, 4096).With(dsmpacket.OpRead).Addr(), rackaddr.PortDSM)
	}
	switch class {
	case "control":
		return netip.AddrPortFrom(rackaddr.Gatekeeper, rackaddr.PortControl), []byte("flood"), nil
	case "no-route":
		m := rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Call, Call: rpcpacket.ID{1}, Slot: 16, Number: rpcpacket.NumberOf(1, 1), CallerIncarnation: 1}}
		return netip.AddrPortFrom(rackaddr.Service("Flood"), rackaddr.PortRPC), m.Append(nil), nil
	case "no-home":
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
