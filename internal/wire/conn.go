package wire

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
)

// firstEphemeral is where ports for binds to port 0 begin.
const firstEphemeral = 49152

// conn is one endpoint of a host.
type conn struct {
	host  *Host
	local netip.AddrPort

	mu       sync.Mutex
	changed  sync.Cond // queue, deadline or closed
	queue    queue
	deadline *time.Timer
	setting  uint64 // counts deadlines, so that a timer of an old one does nothing
	expired  bool
	closed   bool
}

// ListenUDP implements netio.Stack. As with the kernel's sockets, errors wrap
// EADDRINUSE and EADDRNOTAVAIL.
func (h *Host) ListenUDP(local netip.AddrPort) (netio.Conn, error) {
	if !local.Addr().Is6() {
		return nil, fmt.Errorf("host %s: listen on %s: not an IPv6 address: %w", h.name, local, syscall.EINVAL)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if a := local.Addr(); !a.IsUnspecified() && !h.accepts(a) {
		return nil, fmt.Errorf("host %s: listen on %s: %w", h.name, local, syscall.EADDRNOTAVAIL)
	}
	if local.Port() == 0 {
		local = h.freePort(local.Addr())
	}
	if !local.IsValid() || h.conns[local] != nil {
		return nil, fmt.Errorf("host %s: listen on %s: %w", h.name, local, syscall.EADDRINUSE)
	}
	c := &conn{host: h, local: local}
	c.changed.L = &c.mu
	h.conns[local] = c
	return c, nil
}

// freePort returns a with an ephemeral port that is free, or the zero AddrPort.
func (h *Host) freePort(a netip.Addr) netip.AddrPort {
	for range 1<<16 - firstEphemeral {
		if h.nextPort < firstEphemeral {
			h.nextPort = firstEphemeral
		}
		at := netip.AddrPortFrom(a, h.nextPort)
		h.nextPort++
		if h.conns[at] == nil {
			return at
		}
	}
	return netip.AddrPort{}
}

// LocalAddr implements netio.Conn.
func (c *conn) LocalAddr() netip.AddrPort { return c.local }

// ReadBatch implements netio.Conn.
func (c *conn) ReadBatch(ms []netio.Message) (int, error) {
	if len(ms) == 0 {
		return 0, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		n := 0
		for n < len(ms) && c.queue.pop(&ms[n], &n) {
		}
		switch {
		case n > 0:
			return n, nil
		case c.closed:
			return 0, net.ErrClosed
		case c.expired:
			return 0, os.ErrDeadlineExceeded
		}
		c.changed.Wait()
	}
}

// Peek implements netio.Peeker.
func (c *conn) Peek(m *netio.Message) (size int, ok bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, false, net.ErrClosed
	}
	if c.queue.count == 0 {
		return 0, false, nil
	}
	d := &c.queue.ring[c.queue.head]
	m.Buf = m.Buf[:copy(m.Buf, d.payload)]
	m.Remote, m.Local = d.remote, d.local
	return len(d.payload), true, nil
}

// WriteBatch implements netio.Conn.
func (c *conn) WriteBatch(ms []netio.Message) (int, error) {
	for i := range ms {
		if err := c.write(&ms[i]); err != nil {
			return i, err
		}
	}
	return len(ms), nil
}

func (c *conn) write(m *netio.Message) error {
	if !m.Remote.Addr().Is6() {
		return fmt.Errorf("send to %s: not an IPv6 address: %w", m.Remote, syscall.EINVAL)
	}
	if most := c.host.net.maxDatagram(); m.Size() > most {
		return fmt.Errorf("send %d bytes to %s: at most %d fit the MTU: %w", m.Size(), m.Remote, most, syscall.EMSGSIZE)
	}
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return net.ErrClosed
	}
	src := m.Local
	if !src.IsValid() {
		src = c.local.Addr()
	}
	if src.IsUnspecified() {
		src = c.host.address
	}
	payload := m.Buf
	if m.Size() > len(payload) {
		joined := grab(m.Size())
		defer release(joined)
		*joined = m.Append((*joined)[:0])
		payload = *joined
	}
	u := frame.UDP6{
		DstMAC: c.host.net.cfg.SwitchMAC, SrcMAC: c.host.mac,
		Src: netip.AddrPortFrom(src, c.local.Port()), Dst: m.Remote, Payload: payload,
	}
	if c.host.net.scheduler != nil {
		c.host.net.carry(c.host.link.up, orderKey{c.local}, u.Append(make([]byte, 0, u.Size())))
		return nil
	}
	buf := grab(u.Size())
	defer release(buf)
	*buf = u.Append((*buf)[:0])
	c.host.net.carry(c.host.link.up, orderKey{c.local}, *buf)
	return nil
}

// SetReadDeadline implements netio.Conn.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	if c.deadline != nil {
		c.deadline.Stop()
		c.deadline = nil
	}
	c.setting++
	c.expired = false
	if t.IsZero() {
		return nil
	}
	left := time.Until(t)
	if left <= 0 {
		c.expire()
		return nil
	}
	setting := c.setting
	c.deadline = time.AfterFunc(left, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.setting == setting {
			c.expire()
		}
	})
	return nil
}

// expire ends reads at their deadline. The caller holds c.mu.
func (c *conn) expire() {
	c.expired = true
	c.changed.Broadcast()
}

// Close implements netio.Conn.
func (c *conn) Close() error {
	c.host.mu.Lock()
	if c.host.conns[c.local] == c {
		delete(c.host.conns, c.local)
	}
	c.host.mu.Unlock()
	if !c.end() {
		return net.ErrClosed
	}
	return nil
}

// end closes the endpoint's own part; false if it was closed already.
func (c *conn) end() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.closed = true
	if c.deadline != nil {
		c.deadline.Stop()
	}
	c.queue.clear()
	c.changed.Broadcast()
	return true
}

// push queues a datagram, or a copy of it where the frame is lent; false if there is no room.
func (c *conn) push(u *frame.UDP6) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || !c.queue.push(u, c.host.net.scheduler == nil) {
		return false
	}
	c.changed.Signal()
	return true
}
