package relay

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/bifrost-rack/bifrost/internal/child"
	"github.com/bifrost-rack/bifrost/internal/netio"
)

// Stack is a blade's network whose nodes may be other processes: a netio.Hoster over a netio.Stack that knows this process only.
type Stack struct {
	netio.Stack
	// Dropped counts the datagrams of programs that the network has not taken: they are longer than the MTU allows, or go to no IPv6
	// address.
	Dropped atomic.Uint64
}

var _ netio.Hoster = (*Stack)(nil)

// ListenNode implements netio.Hoster. The endpoint of a node is the daemon's own until its socket is asked for, for the first and only
// time. What is sent bears no mark: nothing but the stream can send from the endpoint.
func (s *Stack) ListenNode(local netip.AddrPort, _ uint32) (netio.Conn, error) {
	c, err := s.ListenUDP(local)
	if err != nil || local.Addr().IsUnspecified() {
		return c, err
	}
	return &endpoint{Conn: c, stack: s}, nil
}

// Relayed reports whether the socket of an endpoint, which another process gets, is a stream of frames.
func Relayed(c netio.Conn) bool {
	_, ok := c.(*endpoint)
	return ok
}

// endpoint is the daemon's end of a stream, and the endpoint of the network behind it.
type endpoint struct {
	netio.Conn
	stack *Stack

	mu     sync.Mutex
	stream net.Conn // nil until the socket is lent
	closed bool
}

var _ netio.Lent = (*endpoint)(nil)

// Socket implements netio.Lent.
func (e *endpoint) Socket(use func(fd uintptr)) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.closed:
		return net.ErrClosed
	case e.stream != nil:
		return fmt.Errorf("the socket of %s has been handed over already", e.LocalAddr())
	}
	ours, theirs, err := child.Pair()
	if err != nil {
		return fmt.Errorf("socket of %s: %w", e.LocalAddr(), err)
	}
	defer theirs.Close()
	fd := int(theirs.Fd()) //nolint:gosec // a descriptor
	if err := errors.Join(
		ours.SetReadBuffer(streamBuffer), ours.SetWriteBuffer(streamBuffer),
		os.NewSyscallError("setsockopt", syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUF, streamBuffer)),
		os.NewSyscallError("setsockopt", syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_SNDBUF, streamBuffer)),
	); err != nil {
		return errors.Join(fmt.Errorf("socket of %s: %w", e.LocalAddr(), err), ours.Close())
	}
	use(theirs.Fd())
	e.stream = ours
	go e.up()
	go e.down()
	return nil
}

// up passes on what the program sends, until the stream ends. A program that sends no frames has its stream closed.
func (e *endpoint) up() {
	defer e.Close() //nolint:errcheck // it may be closed already
	in := newFrames(e.stream)
	for {
		remote, datagram, _, err := in.next(true)
		if err != nil {
			return
		}
		_, err = e.WriteBatch([]netio.Message{{Buf: datagram, Remote: remote}})
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			e.stack.Dropped.Add(1)
		}
	}
}

// down passes on what comes for the program, until the endpoint ends. While the program does not read, the endpoint's queue fills.
func (e *endpoint) down() {
	defer e.Close() //nolint:errcheck // it may be closed already
	buf := make([]byte, HeaderSize+netio.MaxDatagram)
	ms := make([]netio.Message, 1)
	for {
		ms[0] = netio.Message{Buf: buf[HeaderSize:]}
		if _, err := e.ReadBatch(ms); err != nil {
			return
		}
		n := len(ms[0].Buf)
		appendHeader(buf[:0], ms[0].Remote, n)
		if _, err := e.stream.Write(buf[:HeaderSize+n]); err != nil {
			return
		}
	}
}

// Close implements netio.Hoster's: for the program, too.
func (e *endpoint) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return net.ErrClosed
	}
	e.closed = true
	err := e.Conn.Close()
	if e.stream != nil {
		err = errors.Join(err, e.stream.Close())
	}
	return err
}
