package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// udp is one datagram each way, as netperf's UDP_RR does it.
var udp = Peer{
	Name: "udp", Title: "raw UDP", Serve: serveUDP, Dial: dialBare(unix.SOCK_DGRAM),
	Setup: "blocking system calls, one datagram each way: the role of netperf's UDP_RR",
}

// udpSpin is what is possible where both ends keep a CPU busy waiting, as
// Bifröst's runtime does for a moment before it lets the kernel wake it.
var udpSpin = Peer{
	Name: "udp-spin", Title: "raw UDP, spinning", Serve: serveSpinning, Dial: dialSpinning,
	Setup: "as raw UDP, but both ends ask for the answer again and again for up to 200 µs before they block",
}

// spinTime is how long a spinning peer asks before it blocks.
const spinTime = 200 * time.Microsecond

// maxUDP is the largest datagram that is sent, in bytes.
const maxUDP = 65535 - 48

// bareServer is the server of udp or tcp.
type bareServer struct {
	fd     int
	closed atomic.Bool
	done   chan struct{}
}

func serveUDP(_ context.Context, s Site) (Server, error) { return serveDatagrams(s, blocking) }

func serveSpinning(_ context.Context, s Site) (Server, error) { return serveDatagrams(s, spinning) }

// wait receives a datagram in some way.
type wait func(fd int, b []byte) (n int, from unix.Sockaddr, err error)

func blocking(fd int, b []byte) (int, unix.Sockaddr, error) { return unix.Recvfrom(fd, b, 0) }

func spinning(fd int, b []byte) (int, unix.Sockaddr, error) {
	for start := time.Now(); time.Since(start) < spinTime; {
		if n, from, err := unix.Recvfrom(fd, b, unix.MSG_DONTWAIT); err == nil {
			return n, from, nil
		}
	}
	return blocking(fd, b)
}

func serveDatagrams(s Site, w wait) (Server, error) {
	fd, err := open(unix.SOCK_DGRAM, s.main())
	if err != nil {
		return nil, err
	}
	u := &bareServer{fd: fd, done: make(chan struct{})}
	go u.serveDatagrams(w)
	return u, nil
}

// serveDatagrams answers with as many bytes as the last preamble has asked for.
func (u *bareServer) serveDatagrams(receive wait) {
	runtime.LockOSThread()
	defer close(u.done)
	buf, reply := make([]byte, maxUDP), []byte{0}
	for !u.closed.Load() {
		n, from, err := receive(u.fd, buf)
		if err != nil || from == nil {
			continue // the time-out, a signal, or the end
		}
		out := reply
		if _, r, ok := parsePreamble(buf[:n]); ok {
			reply, out = make([]byte, min(r, maxUDP)), buf[:n]
		}
		_ = unix.Sendto(u.fd, out, 0, from) // a loss is the client's to see
	}
}

// Close ends the server.
func (u *bareServer) Close() error {
	u.closed.Store(true)
	_ = unix.Shutdown(u.fd, unix.SHUT_RDWR) // wakes the reader; ENOTCONN is no news
	<-u.done
	return unix.Close(u.fd)
}

// bareClient is the client of udp or tcp; each operation has a socket of its own.
type bareClient struct {
	kind int
	to   netip.AddrPort
	wait wait // for datagrams
}

func dialBare(kind int) func(context.Context, Site) (Client, error) {
	return func(_ context.Context, s Site) (Client, error) { return bareClient{kind, s.main(), blocking}, nil }
}

func dialSpinning(_ context.Context, s Site) (Client, error) {
	return bareClient{unix.SOCK_DGRAM, s.main(), spinning}, nil
}

// Close does nothing.
func (bareClient) Close() error { return nil }

// Prepare implements Client. The operation stays on its thread.
func (c bareClient) Prepare(_ context.Context, w Work) (Operation, func(), error) {
	w, err := shape(w)
	if err != nil {
		return nil, nil, err
	}
	w.Size, w.Reply = max(1, w.Size), max(1, w.Reply)
	if c.kind == unix.SOCK_DGRAM && max(w.Size, w.Reply) > maxUDP {
		return nil, nil, fmt.Errorf("%d bytes do not fit a datagram", max(w.Size, w.Reply))
	}
	fd, err := open(c.kind, netip.AddrPort{})
	if err != nil {
		return nil, nil, err
	}
	x := &exchange{fd: fd, out: make([]byte, w.Size), in: make([]byte, w.Reply), datagram: c.kind == unix.SOCK_DGRAM, wait: c.wait}
	if err := x.begin(c.to, preamble(w)); err != nil {
		closeFD(fd)
		return nil, nil, fmt.Errorf("%s: %w", c.to, err)
	}
	runtime.LockOSThread()
	release := func() {
		runtime.UnlockOSThread()
		closeFD(fd)
	}
	return x.once, release, nil
}

// exchange is a request and its reply.
type exchange struct {
	fd       int
	datagram bool
	wait     wait
	out, in  []byte
}

// begin connects and agrees on sizes.
func (x *exchange) begin(to netip.AddrPort, hello []byte) error {
	if err := unix.Connect(x.fd, sockaddr(to)); err != nil && !errors.Is(err, unix.EINTR) {
		return os.NewSyscallError("connect", err)
	}
	echo := make([]byte, len(hello))
	if err := errors.Join(writeFull(x.fd, hello), readFull(x.fd, echo)); err != nil {
		return err
	}
	if !bytes.Equal(echo, hello) {
		return errors.New("somebody else answers")
	}
	return nil
}

func (x *exchange) once(context.Context, *Clock) error {
	if err := writeFull(x.fd, x.out); err != nil {
		return err
	}
	if !x.datagram {
		return readFull(x.fd, x.in)
	}
	n, err := again(func() (n int, err error) { n, _, err = x.wait(x.fd, x.in); return n, err })
	if err == nil && n != len(x.in) {
		err = fmt.Errorf("%d bytes came back, not %d", n, len(x.in))
	}
	return os.NewSyscallError("read", err)
}
