package peer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// The peers udp and tcp agree on sizes by a preamble: a magic number, then the
// sizes of requests and replies.
const (
	preambleMagic = 0x62656e6368b1f057
	preambleSize  = 24
)

func preamble(w Work) []byte {
	b := binary.BigEndian.AppendUint64(nil, preambleMagic)
	b = binary.BigEndian.AppendUint64(b, uint64(w.Size))
	return binary.BigEndian.AppendUint64(b, uint64(w.Reply))
}

// parsePreamble returns the sizes; false if b is none.
func parsePreamble(b []byte) (size, reply int, ok bool) {
	if len(b) != preambleSize || binary.BigEndian.Uint64(b) != preambleMagic {
		return 0, 0, false
	}
	s, r := binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:])
	return int(s), int(r), s <= MaxTransfer && r <= MaxTransfer
}

// patience is how long a bare socket waits: a datagram that is lost fails the
// measurement instead of hanging it.
const patienceSeconds = 5

// open opens a blocking socket; a zero port lets the kernel choose.
func open(kind int, local netip.AddrPort) (fd int, err error) {
	if fd, err = unix.Socket(unix.AF_INET6, kind|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	limit := &unix.Timeval{Sec: patienceSeconds}
	err = errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, limit),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, limit),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	if err == nil && kind == unix.SOCK_STREAM {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	}
	if err == nil && local.IsValid() {
		err = unix.Bind(fd, sockaddr(local))
	}
	if err != nil {
		closeFD(fd)
		return -1, fmt.Errorf("socket at %s: %w", local, err)
	}
	return fd, nil
}

func sockaddr(a netip.AddrPort) *unix.SockaddrInet6 {
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// closeFD closes a socket that nothing is expected of any more.
func closeFD(fd int) { _ = unix.Close(fd) }

// again repeats a call that a signal has interrupted.
func again(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// readFull reads until b is full.
func readFull(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := again(func() (int, error) { return unix.Read(fd, b) })
		if err != nil {
			return os.NewSyscallError("read", err)
		}
		if n == 0 {
			return errors.New("read: the other end has closed the connection")
		}
		b = b[n:]
	}
	return nil
}

// writeFull writes all of b.
func writeFull(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := again(func() (int, error) { return unix.Write(fd, b) })
		if err != nil {
			return os.NewSyscallError("write", err)
		}
		b = b[n:]
	}
	return nil
}

// shape is the sizes that an operation moves on a bare socket.
func shape(w Work) (Work, error) {
	if err := w.check(); err != nil {
		return w, err
	}
	switch w.Op {
	case Ping: // the thesis's netperf: 29 bytes there, 1 back
		w.Size, w.Reply = 29, 1
	case Increment:
		w.Reply = w.Size
	case Add:
		w.Reply = w.Size
		w.Size *= 2
	case Read:
		w.Size, w.Reply = 1, w.Size
	case Write:
		w.Reply = 1
	case Transfer:
	default:
		return w, cannot("a bare socket", w)
	}
	return w, nil
}
