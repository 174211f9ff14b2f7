//go:build linux

package linux

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/p4switch/shared/spin"
)

// conn is one UDP socket.
type conn struct {
	udp   *net.UDPConn
	raw   syscall.RawConn
	local netip.AddrPort
	most  int // largest payload in bytes

	readMu sync.Mutex
	in     transfer
	// The functions that raw calls are made once: a closure per call would be an
	// allocation per call.
	tryRead func(fd uintptr) bool
	spinner spin.Spinner
	useful  atomic.Pointer[func() bool] // whether to spin; nil: always

	writeMu  sync.Mutex
	out      transfer
	tryWrite func(fd uintptr) bool
}

// transfer is one direction's batch and the outcome of its last system call.
type transfer struct {
	batch batch
	n     int // messages in the batch; after the call, messages moved
	errno syscall.Errno
}

func newConn(udp *net.UDPConn, mtu int) (*conn, error) {
	raw, err := udp.SyscallConn()
	if err != nil {
		return nil, err
	}
	at := udp.LocalAddr().(*net.UDPAddr).AddrPort()
	c := &conn{udp: udp, raw: raw, local: at, most: min(mtu-netio.Overhead, netio.MaxDatagram)}
	var fd uintptr
	first := func() bool { return c.in.tryFirst(receive, fd) }
	c.tryRead = func(f uintptr) bool {
		fd = f
		return c.in.try(receive, fd) || c.maySpin() && c.spinner.Spin(first)
	}
	c.tryWrite = func(fd uintptr) bool { return c.out.try(transmit, fd) }
	return c, nil
}

// try makes one system call; false says that it would block.
func (t *transfer) try(call calls, fd uintptr) bool {
	t.n, t.errno = t.batch.do(call, fd, t.n)
	return t.errno != unix.EAGAIN
}

// tryFirst is try for the first message alone, which the kernel then returns without
// looking for another.
func (t *transfer) tryFirst(call calls, fd uintptr) bool {
	n, errno := t.batch.do(call, fd, 1)
	if errno == unix.EAGAIN {
		return false
	}
	t.n, t.errno = n, errno
	return true
}

// LocalAddr implements netio.Conn.
func (c *conn) LocalAddr() netip.AddrPort { return c.local }

// ReceiveBuffer implements netio.Buffered.
func (c *conn) ReceiveBuffer() (n int) {
	_ = c.raw.Control(func(fd uintptr) { n, _ = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF) })
	return n
}

// Socket implements netio.Lent.
func (c *conn) Socket(use func(fd uintptr)) error { return c.raw.Control(use) }

// SpinWhile implements netio.Spinning.
func (c *conn) SpinWhile(useful func() bool) { c.useful.Store(&useful) }

func (c *conn) maySpin() bool {
	useful := c.useful.Load()
	return useful == nil || (*useful)()
}

// SetReadDeadline implements netio.Conn.
func (c *conn) SetReadDeadline(t time.Time) error { return c.udp.SetReadDeadline(t) }

// Close implements netio.Conn.
func (c *conn) Close() error { return c.udp.Close() }

// ReadBatch implements netio.Conn.
func (c *conn) ReadBatch(ms []netio.Message) (int, error) {
	if len(ms) == 0 {
		return 0, nil
	}
	c.readMu.Lock()
	defer c.readMu.Unlock()
	ms = ms[:min(len(ms), batchSize)]
	for {
		for i := range ms {
			c.in.batch.toRead(i, &ms[i], c.local.Addr().IsUnspecified())
		}
		c.in.n = len(ms)
		if err := c.run(c.raw.Read, c.tryRead, &c.in); err != nil {
			return 0, err
		}
		if n := c.in.batch.collect(ms[:c.in.n], c.local.Addr()); n > 0 {
			return n, nil
		}
	}
}

// Peek implements netio.Peeker. The kernel checks the datagram's checksum when it shows it.
func (c *conn) Peek(m *netio.Message) (size int, ok bool, err error) {
	c.readMu.Lock()
	defer c.readMu.Unlock()
	c.in.batch.toRead(0, m, c.local.Addr().IsUnspecified())
	var errno syscall.Errno
	err = c.raw.Read(func(fd uintptr) bool {
		size, errno = c.in.batch.peek(fd)
		return true
	})
	c.in.batch.release(1)
	switch {
	case err != nil:
		return 0, false, err
	case errno == unix.EAGAIN:
		return 0, false, nil
	case errno != 0:
		return 0, false, errno
	}
	m.Cut(size)
	c.in.batch.origin(0, m, c.local.Addr())
	return size, true, nil
}

// WriteBatch implements netio.Conn. A datagram that finds no room in the
// interface's queue counts as sent: the network may lose it.
func (c *conn) WriteBatch(ms []netio.Message) (int, error) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	sent := 0
	for sent < len(ms) {
		n, err := c.writeSome(ms[sent:min(len(ms), sent+batchSize)])
		sent += n
		if err != nil {
			return sent, err
		}
	}
	return sent, nil
}

// writeSome sends what one system call takes.
func (c *conn) writeSome(ms []netio.Message) (int, error) {
	n := 0
	var refused error
	for ; n < len(ms) && refused == nil; n++ {
		if refused = c.check(&ms[n]); refused != nil {
			break
		}
		c.out.batch.toWrite(n, &ms[n])
	}
	if n == 0 {
		return 0, refused
	}
	c.out.n = n
	err := c.run(c.raw.Write, c.tryWrite, &c.out)
	switch {
	case errors.Is(err, unix.ENOBUFS):
		return 1, nil
	case err != nil:
		return 0, fmt.Errorf("send to %s: %w", ms[0].Remote, err)
	}
	return c.out.n, nil
}

func (c *conn) check(m *netio.Message) error {
	switch {
	case !m.Remote.Addr().Is6():
		return fmt.Errorf("send to %s: not an IPv6 address: %w", m.Remote, unix.EINVAL)
	case m.Size() > c.most:
		return fmt.Errorf("send %d bytes to %s: at most %d fit the MTU: %w", m.Size(), m.Remote, c.most, unix.EMSGSIZE)
	}
	return nil
}

// run waits until the socket is ready and makes the system call.
func (c *conn) run(wait func(func(uintptr) bool) error, try func(uintptr) bool, t *transfer) error {
	n := t.n
	err := wait(try)
	t.batch.release(n)
	if err != nil {
		return err // closed, or the deadline
	}
	if t.errno != 0 {
		return t.errno
	}
	return nil
}
