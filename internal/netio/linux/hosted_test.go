//go:build linux

package linux

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

const stranger = 60002 // a user

// asStranger runs f as a user without privileges in the calling thread's namespace, on a thread that ends with it.
func asStranger(t *testing.T, f func() error) error {
	t.Helper()
	here, err := os.Open("/proc/thread-self/ns/net")
	must(t, err)
	defer here.Close()
	ended := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		ended <- func() error {
			if err := unix.Setns(int(here.Fd()), unix.CLONE_NEWNET); err != nil {
				return err
			}
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, stranger, stranger, stranger); errno != 0 {
				return errno
			}
			return f()
		}()
	}()
	return <-ended
}

// bindWith binds a socket with options of the kind that need no privilege.
func bindWith(at netip.AddrPort, device string, options ...int) (int, error) {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	for _, o := range options {
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, o, 1))
	}
	err = errors.Join(err, unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1))
	if device != "" {
		err = errors.Join(err, unix.BindToDevice(fd, device))
	}
	err = errors.Join(err, unix.Bind(fd, &unix.SockaddrInet6{Addr: at.Addr().As16(), Port: int(at.Port())}))
	if err != nil {
		return 0, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// lend returns another descriptor of an endpoint's socket, as its program has one.
func lend(t *testing.T, c netio.Conn) (fd int) {
	t.Helper()
	var err error
	must(t, c.(netio.Lent).Socket(func(of uintptr) { fd, err = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 0) }))
	must(t, err)
	return fd
}

// TestHoldPorts: while a daemon holds the ports of nodes nobody else binds one of them, at any address and with any option;
// the program of a node, which may set options of its own socket, does not either.
func TestHoldPorts(t *testing.T) {
	node := rackaddr.Node(1)
	_, s := blade(t, node)
	must(t, s.HoldPorts(t.Context(), rackaddr.NodePorts...))
	c, err := s.ListenNode(netip.AddrPortFrom(node, rackaddr.PortRPC), rackaddr.Mark(1))
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	program := lend(t, c)
	defer unix.Close(program)
	both := []int{unix.SO_REUSEADDR, unix.SO_REUSEPORT}
	must(t, asStranger(t, func() error {
		for _, o := range both {
			if err := unix.SetsockoptInt(program, unix.SOL_SOCKET, o, 1); err != nil {
				return err
			}
		}
		if err := unix.SetsockoptInt(program, unix.SOL_SOCKET, unix.SO_MARK, 0); !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("a program marks its node's socket: %w", err)
		}
		var all error
		for _, port := range rackaddr.NodePorts {
			for _, at := range []netip.Addr{netip.IPv6Unspecified(), netip.IPv6Loopback(), node, rackaddr.Node(2), rackaddr.Service("Arrays")} {
				for _, device := range []string{"", "eth0", "lo"} {
					for _, options := range [][]int{nil, both[:1], both[1:], both} {
						fd, err := bindWith(netip.AddrPortFrom(at, port), device, options...)
						if !errors.Is(err, unix.EADDRINUSE) {
							all = errors.Join(all, fmt.Errorf("a stranger binds [%s]:%d on %q with options %v: %w", at, port, device, options, err))
						}
						if err == nil {
							unix.Close(fd)
						}
					}
				}
			}
		}
		return all
	}))
	further, err := s.ListenNode(netip.AddrPortFrom(rackaddr.Node(2), rackaddr.PortRPC), rackaddr.Mark(2))
	must(t, err)
	must(t, further.Close())
}

// TestHoldPorts_Taken: a daemon does not begin beside a stranger's socket, or one of a node that is left of a daemon before; the
// error says whose it is.
func TestHoldPorts_Taken(t *testing.T) {
	node := rackaddr.Node(1)
	_, s := blade(t, node)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	var theirs int
	must(t, asStranger(t, func() (err error) {
		theirs, err = bindWith(netip.AddrPortFrom(netip.IPv6Unspecified(), rackaddr.PortBulk), "", unix.SO_REUSEPORT)
		return err
	}))
	err := s.HoldPorts(over, rackaddr.NodePorts...)
	if !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), "user 60002 ") || !strings.Contains(err.Error(), "45103") {
		t.Errorf("a stranger has a port: %v", err)
	}
	must(t, s.Close())
	go unix.Close(theirs) // it waits for that

	s, err = Open("eth0")
	must(t, err)
	must(t, s.HoldPorts(t.Context(), rackaddr.NodePorts...))
	c, err := s.ListenNode(netip.AddrPortFrom(node, rackaddr.PortRPC), rackaddr.Mark(1))
	must(t, err)
	program := lend(t, c)
	must(t, unix.SetsockoptInt(program, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)) // as any program may
	must(t, unix.Close(c.(*nodeConn).fd))                                       // as the end of the daemon's process does
	must(t, s.Close())
	s, err = Open("eth0")
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	if err := s.HoldPorts(over, rackaddr.NodePorts...); !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), "user 0 ") {
		t.Errorf("a node of a daemon before has a port: %v", err)
	}
	must(t, unix.Close(program))
	must(t, s.HoldPorts(t.Context(), rackaddr.NodePorts...))
}

// TestListenNode_Unpolled: the daemon is not woken for the datagrams of a program that has a socket of its making. A poller knows the sockets
// that it wakes its process for, and the kernel says which.
func TestListenNode_Unpolled(t *testing.T) {
	_, s := blade(t, rackaddr.Node(1))
	must(t, s.HoldPorts(t.Context(), rackaddr.NodePorts...))
	c, err := s.ListenNode(netip.AddrPortFrom(rackaddr.Node(1), rackaddr.PortRPC), rackaddr.Mark(1))
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	program := lend(t, c)
	defer unix.Close(program)
	var of unix.Stat_t
	must(t, unix.Fstat(program, &of))
	if polled(t, of.Ino) {
		t.Error("the daemon polls a socket that a program reads")
	}
	must(t, c.SetReadDeadline(time.Now()))
	if !polled(t, of.Ino) {
		t.Error("a socket that the daemon reads is not polled: the test looks at the wrong place")
	}
}

// polled reports whether a poller of this process has a socket.
func polled(t *testing.T, inode uint64) bool {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for _, fd := range all {
		if to, _ := os.Readlink("/proc/self/fd/" + fd.Name()); to != "anon_inode:[eventpoll]" { // some are closed by now
			continue
		}
		info, err := os.ReadFile("/proc/self/fdinfo/" + fd.Name())
		must(t, err)
		if strings.Contains(string(info), fmt.Sprintf(" ino:%x ", inode)) {
			return true
		}
	}
	return false
}

// TestListenNode: a program receives and sends with the socket that it was given, until the daemon ends it. The next socket at
// that address is there at once, though the program keeps the one before; that one hears nothing any more, even if its
// program unbinds it from the loopback interface.
func TestListenNode(t *testing.T) {
	for _, undo := range []bool{false, true} {
		t.Run(fmt.Sprint("undo=", undo), func(t *testing.T) { testListenNode(t, undo) })
	}
}

func testListenNode(t *testing.T, undo bool) {
	cable, s := blade(t, rackaddr.Node(1))
	cable.reflect(t)
	must(t, s.HoldPorts(t.Context(), rackaddr.NodePorts...))
	at := netip.AddrPortFrom(rackaddr.Node(1), rackaddr.PortRPC)
	open := func() (daemons, programs netio.Conn) {
		daemons, err := s.ListenNode(at, rackaddr.Mark(1))
		must(t, err)
		programs, err = Adopt(os.NewFile(uintptr(lend(t, daemons)), "node"), mtu)
		must(t, err)
		t.Cleanup(func() { programs.Close() })
		return daemons, programs
	}
	say := func(c netio.Conn, what string) error {
		_, err := c.WriteBatch([]netio.Message{{Buf: []byte(what), Remote: at}})
		return err
	}
	daemons, first := open()
	if first.LocalAddr() != at {
		t.Errorf("bound to %s", first.LocalAddr())
	}
	must(t, say(first, "to myself"))
	if m := read(t, first, 1); len(m) != 1 || string(m[0].Buf) != "to myself" || m[0].Remote != at {
		t.Errorf("got %v", m)
	}
	must(t, daemons.Close())
	if undo {
		must(t, first.(*conn).raw.Control(func(fd uintptr) {
			_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, fd, uintptr(unsafe.Pointer(&unix.RawSockaddr{Family: unix.AF_UNSPEC})), unsafe.Sizeof(unix.RawSockaddr{}))
			if errno != 0 {
				t.Error(errno)
			}
		}))
	}
	daemons, second := open()
	for range 10 {
		must(t, say(second, "to the next incarnation"))
	}
	for _, m := range read(t, second, 10) {
		if !bytes.HasPrefix(m.Buf, []byte("to the next")) {
			t.Errorf("got %q", m.Buf)
		}
	}
	must(t, first.(*conn).raw.Control(func(fd uintptr) {
		if n, _, err := unix.Recvfrom(int(fd), make([]byte, 10), unix.MSG_DONTWAIT); !errors.Is(err, unix.EAGAIN) {
			t.Errorf("the socket that was ended receives %d bytes, %v", n, err)
		}
	}))
	must(t, daemons.Close())
	if err := daemons.Close(); err == nil {
		t.Error("it can be ended twice")
	}
	if _, err := s.ListenNode(netip.AddrPortFrom(netip.IPv6Unspecified(), rackaddr.PortRPC), 1); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a socket at no node's address: %v", err)
	}
	must(t, asStranger(t, func() error {
		other, err := Open("eth0")
		if err != nil {
			return err
		}
		if err := other.HoldPorts(t.Context(), rackaddr.PortRPC); !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("somebody without privileges holds ports: %w", err)
		}
		return other.Close()
	}))
}
