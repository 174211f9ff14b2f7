package peer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// tcp is requests and replies on a connection, as netperf's TCP_RR does it.
var tcp = Peer{
	Name: "tcp", Title: "raw TCP", Serve: serveTCP, Dial: dialBare(unix.SOCK_STREAM),
	Setup: "TCP_NODELAY, blocking system calls, whole buffers: the role of netperf's TCP_RR",
}

// backlog is how many connections may wait to be accepted.
const backlog = 16

func serveTCP(_ context.Context, s Site) (Server, error) {
	fd, err := open(unix.SOCK_STREAM, s.main())
	if err != nil {
		return nil, err
	}
	if err := unix.Listen(fd, backlog); err != nil {
		closeFD(fd)
		return nil, fmt.Errorf("listen at %s: %w", s.main(), os.NewSyscallError("listen", err))
	}
	t := &bareServer{fd: fd, done: make(chan struct{})}
	go t.serveStreams()
	return t, nil
}

// serveStreams gives every connection a thread.
func (t *bareServer) serveStreams() {
	defer close(t.done)
	var mu sync.Mutex
	open := map[int]bool{}
	var conns sync.WaitGroup
	for !t.closed.Load() {
		conn, err := again(func() (fd int, err error) { fd, _, err = unix.Accept4(t.fd, unix.SOCK_CLOEXEC); return fd, err })
		if err != nil {
			continue // the time-out, or the end
		}
		mu.Lock()
		open[conn] = true
		mu.Unlock()
		conns.Go(func() {
			_ = serveStream(conn) // its end, good or bad, is the client's to see
			mu.Lock()
			delete(open, conn)
			mu.Unlock()
			closeFD(conn)
		})
	}
	mu.Lock()
	for conn := range open {
		_ = unix.Shutdown(conn, unix.SHUT_RDWR)
	}
	mu.Unlock()
	conns.Wait()
}

// serveStream answers requests of the sizes that the client has announced.
func serveStream(conn int) error {
	runtime.LockOSThread()
	if err := unix.SetsockoptInt(conn, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return err
	}
	hello := make([]byte, preambleSize)
	if err := readFull(conn, hello); err != nil {
		return err
	}
	size, reply, ok := parsePreamble(hello)
	if !ok {
		return errors.New("no preamble")
	}
	if err := writeFull(conn, hello); err != nil {
		return err
	}
	in, out := make([]byte, size), make([]byte, reply)
	for {
		if err := readFull(conn, in); err != nil {
			return err
		}
		if err := writeFull(conn, out); err != nil {
			return err
		}
	}
}
