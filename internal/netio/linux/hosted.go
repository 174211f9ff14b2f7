//go:build linux

package linux

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/internal/netio"
)

// The sockets of nodes belong to the blade's daemon, whoever uses them. The daemon holds their ports at all addresses from
// its start, so nobody else binds one of them at any address:
//
//	[::]:port      of the daemon, takes nothing, shares its port with sockets of the daemon's user
//	[node]:port    made by the daemon with the same user, and handed to the program
//	[::]:port      of the daemon, bound to the interface: what goes to none of those, such as to services
//
// The kernel lets two sockets share a port if both ask for it and have one user, which is that of whoever made them. A node's
// socket is bound to the blade's interface: to end it, the daemon binds it to the loopback interface, where nothing arrives.
// So it stands in nobody's way while a program keeps it. (A program can undo that. The next socket of the node's address
// still goes before: it is bound to the interface.)

// holdPause is how long to wait between two looks at a port that somebody has.
const holdPause = 20 * time.Millisecond

var _ netio.Hoster = (*Stack)(nil)

// HoldPorts makes this Stack the only one of the network namespace that opens endpoints at these ports (ListenNode), until
// Close. As long as somebody has one of them, such as a program of the daemon before, it waits, until ctx ends: then it fails
// with who that is. It needs CAP_NET_ADMIN and CAP_NET_RAW.
func (s *Stack) HoldPorts(ctx context.Context, ports ...uint16) error {
	if err := s.mayHost(); err != nil {
		return fmt.Errorf("sockets of nodes at interface %s: %w", s.iface, err)
	}
	for _, port := range ports {
		fd, err := holdFree(ctx, port)
		if errors.Is(err, unix.EADDRINUSE) {
			return fmt.Errorf("UDP port %d is a port of nodes: %w%s", port, err, usersOf(port))
		}
		if err != nil {
			return fmt.Errorf("hold UDP port %d: %w", port, err)
		}
		s.mu.Lock()
		s.held = append(s.held, fd)
		s.mu.Unlock()
	}
	return nil
}

// holdFree holds a port as soon as nobody has it.
func holdFree(ctx context.Context, port uint16) (int, error) {
	for {
		fd, err := hold(port)
		if !errors.Is(err, unix.EADDRINUSE) {
			return fd, err
		}
		select {
		case <-ctx.Done():
			return 0, err
		case <-time.After(holdPause):
		}
	}
}

// mayHost tries what ListenNode and the end of its endpoints need.
func (s *Stack) mayHost() error {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }() // nothing was done with it
	if err := s.tie(fd, 1); err != nil {
		return err
	}
	return cutOff(fd)
}

// hold binds a port at all addresses, with nobody else at any of them.
func hold(port uint16) (int, error) {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	if err := holdWith(fd, port); err != nil {
		_ = unix.Close(fd)
		return 0, err
	}
	return fd, nil
}

func holdWith(fd int, port uint16) error {
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
		return err
	}
	nothing := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}} // of each packet
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &nothing[0]}); err != nil {
		return err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet6{Port: int(port)}); err != nil {
		return err
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) // with ListenNode's
}

// release gives the ports back. The caller holds s.mu.
func (s *Stack) release() error {
	var errs []error
	for _, fd := range s.held {
		errs = append(errs, unix.Close(fd))
	}
	s.held = nil
	return errors.Join(errs...)
}

// usersOf names the users who have sockets at a port, as far as the kernel tells.
func usersOf(port uint16) string {
	f, err := os.Open("/proc/thread-self/net/udp6")
	if err != nil {
		return ""
	}
	defer f.Close()
	var users []string
	end := fmt.Sprintf(":%04X", port)
	for lines := bufio.NewScanner(f); lines.Scan(); {
		const local, uid = 1, 7
		if c := strings.Fields(lines.Text()); len(c) > uid && strings.HasSuffix(c[local], end) {
			if id, err := strconv.Atoi(c[uid]); err == nil {
				users = append(users, strconv.Itoa(id))
			}
		}
	}
	if len(users) == 0 {
		return ""
	}
	return fmt.Sprintf(": a program of user %s has it: end that one (`ss -ulnp6 sport = :%d` shows it)", strings.Join(users, ", "), port)
}

// ListenNode implements netio.Hoster for ports that are held. The caller opens one endpoint for each address and port at a time:
// the kernel does not see to it.
func (s *Stack) ListenNode(local netip.AddrPort, mark uint32) (netio.Conn, error) {
	fd, err := s.nodeSocket(local, mark)
	if err != nil {
		return nil, fmt.Errorf("socket of a node at %s: %w", local, err)
	}
	if local.Addr().IsUnspecified() {
		return adopt(os.NewFile(uintptr(fd), local.String()), s.mtu)
	}
	return &nodeConn{local: local, mtu: s.mtu, fd: fd}, nil
}

// nodeSocket makes a node's socket.
func (s *Stack) nodeSocket(local netip.AddrPort, mark uint32) (fd int, err error) {
	if !local.Addr().Is6() || local.Addr().IsUnspecified() && mark != 0 {
		return 0, fmt.Errorf("not the address of a node: %w", unix.EINVAL)
	}
	if fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		return 0, err
	}
	err = setOptions(fd, local.Addr().IsUnspecified())
	if err == nil {
		err = s.tie(fd, mark)
	}
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) // with the one that holds the port
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet6{Addr: local.Addr().As16(), Port: int(local.Port())})
	}
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 0) // the kernel need not choose one for each datagram
	}
	if err != nil {
		return 0, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// tie makes a socket one of a node of this blade.
func (s *Stack) tie(fd int, mark uint32) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(mark)); err != nil {
		return fmt.Errorf("mark: %w", privileged(err))
	}
	if err := unix.BindToDevice(fd, s.iface); err != nil {
		return fmt.Errorf("bind to %s: %w", s.iface, privileged(err))
	}
	return nil
}

// cutOff binds a socket to where nothing arrives.
func cutOff(fd int) error {
	err := unix.BindToDevice(fd, "lo")
	if errors.Is(err, unix.EPERM) {
		err = fmt.Errorf("%w (run as root, or with CAP_NET_RAW beside CAP_NET_ADMIN)", err)
	}
	return err
}

// nodeConn is the daemon's copy of a node's endpoint. Go's poller, which wakes its process for each datagram whoever reads it, does
// not know the socket until the daemon itself reads or sends: it does so only with those that no program has.
type nodeConn struct {
	local netip.AddrPort
	mtu   int
	mu    sync.Mutex
	fd    int   // -1 when it is closed
	own   *conn // of another descriptor; nil until the daemon reads or sends
}

var (
	_ netio.Conn = (*nodeConn)(nil)
	_ netio.Lent = (*nodeConn)(nil)
)

// Socket implements netio.Lent.
func (c *nodeConn) Socket(use func(fd uintptr)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd < 0 {
		return net.ErrClosed
	}
	use(uintptr(c.fd))
	return nil
}

// polled is the endpoint for the daemon itself.
func (c *nodeConn) polled() (*conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd < 0 {
		return nil, net.ErrClosed
	}
	if c.own == nil {
		fd, err := unix.FcntlInt(uintptr(c.fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		if c.own, err = adopt(os.NewFile(uintptr(fd), c.local.String()), c.mtu); err != nil {
			return nil, err
		}
	}
	return c.own, nil
}

// ReadBatch implements netio.Conn.
func (c *nodeConn) ReadBatch(ms []netio.Message) (int, error) {
	own, err := c.polled()
	if err != nil {
		return 0, err
	}
	return own.ReadBatch(ms)
}

// WriteBatch implements netio.Conn.
func (c *nodeConn) WriteBatch(ms []netio.Message) (int, error) {
	own, err := c.polled()
	if err != nil {
		return 0, err
	}
	return own.WriteBatch(ms)
}

// SetReadDeadline implements netio.Conn.
func (c *nodeConn) SetReadDeadline(t time.Time) error {
	own, err := c.polled()
	if err != nil {
		return err
	}
	return own.SetReadDeadline(t)
}

// LocalAddr implements netio.Conn.
func (c *nodeConn) LocalAddr() netip.AddrPort { return c.local }

// Close implements netio.Hoster's: for the program, too.
func (c *nodeConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd < 0 {
		return net.ErrClosed
	}
	err := errors.Join(cutOff(c.fd), unix.Close(c.fd))
	c.fd = -1
	if c.own != nil {
		err = errors.Join(err, c.own.Close())
	}
	return err
}

// Adopt makes an endpoint for packets of at most mtu bytes of a socket that somebody else has made (netio.Lent). It
// closes f.
func Adopt(f *os.File, mtu int) (netio.Conn, error) {
	c, err := adopt(f, mtu)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", f.Name(), err)
	}
	// Whoever made it has not asked for more memory than its user may have.
	if e := c.raw.Control(func(fd uintptr) { err = setBuffers(int(fd)) }); e != nil || err != nil {
		return nil, errors.Join(fmt.Errorf("socket %s: %w", f.Name(), errors.Join(e, err)), c.Close())
	}
	return c, nil
}

func adopt(f *os.File, mtu int) (*conn, error) {
	pc, err := net.FilePacketConn(f)
	if e := f.Close(); err == nil && e != nil {
		err = errors.Join(e, pc.Close())
	}
	if err != nil {
		return nil, err
	}
	udp, ok := pc.(*net.UDPConn)
	if !ok {
		return nil, errors.Join(errors.New("no UDP socket"), pc.Close())
	}
	c, err := newConn(udp, mtu)
	if err != nil {
		return nil, errors.Join(err, pc.Close())
	}
	return c, nil
}
