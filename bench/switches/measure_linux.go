package switches

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// streamChunk is how many bytes are written to TCP at once; benchPort is the
// server's port.
const (
	streamChunk = 1 << 18
	benchPort   = 7000
)

// allowed are the CPUs that this process was given when it began.
var allowed = sync.OnceValue(func() (cpus []int) {
	var s unix.CPUSet
	_ = unix.SchedGetaffinity(unix.Getpid(), &s) // of none, nothing is pinned
	for i := range 8 * int(unsafe.Sizeof(s)) {
		if s.IsSet(i) {
			cpus = append(cpus, i)
		}
	}
	return cpus
})

// pin keeps the thread on one of the CPUs that the process has, counted from the
// last.
func pin(n int) {
	cpus := allowed()
	runtime.LockOSThread() // and never unlocked: the thread ends with its goroutine
	if len(cpus) == 0 {
		return
	}
	var s unix.CPUSet
	s.Set(cpus[len(cpus)-1-n%len(cpus)])
	_ = unix.SchedSetaffinity(0, &s) // unpinned is worse, but no error
}

// again repeats a call that a signal has interrupted.
func again[T any](f func() (T, error)) (T, error) {
	for {
		v, err := f()
		if !errors.Is(err, unix.EINTR) {
			return v, err
		}
	}
}

// socket opens a blocking socket of a host.
func (l *lab) socket(host, kind int) (fd int, err error) {
	port := uint16(benchPort)
	if host == 0 && kind == unix.SOCK_STREAM {
		port = 0 // another one for every connection
	}
	return l.bound(host, kind, hosts[host].addr, port)
}

// bound opens a blocking socket with an address.
func (l *lab) bound(host, kind int, addr netip.Addr, port uint16) (fd int, err error) {
	err = l.in(l.hosts[host], func() error {
		if fd, err = unix.Socket(unix.AF_INET6, kind|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		timeout := &unix.Timeval{Sec: 5}
		return errors.Join(
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, timeout),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, timeout),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
			unix.Bind(fd, &unix.SockaddrInet6{Port: int(port), Addr: addr.As16()}))
	})
	return fd, err
}

// closeFD closes a socket that nothing is expected of any more.
func closeFD(fd int) { _ = unix.Close(fd) }

// roundTrips measures UDP round trips for some time.
func (l *lab) roundTrips(d time.Duration) (took []time.Duration, err error) {
	client, err := l.socket(0, unix.SOCK_DGRAM)
	if err != nil {
		return nil, err
	}
	defer closeFD(client)
	server, err := l.socket(1, unix.SOCK_DGRAM)
	if err != nil {
		return nil, err
	}
	defer closeFD(server)
	var both sync.WaitGroup
	both.Go(func() { echo(server) })
	both.Go(func() {
		took, err = ping(client, d)
		to := &unix.SockaddrInet6{Port: benchPort, Addr: hosts[1].addr.As16()}
		_ = unix.Sendto(client, []byte{0}, 0, to) // ends the echo
	})
	both.Wait()
	return took, err
}

// echo sends datagrams back until it gets one of a byte, or nothing for long.
func echo(fd int) {
	pin(1)
	buf := make([]byte, 2*smallDatagram)
	var from unix.Sockaddr
	for {
		n, err := again(func() (n int, err error) { n, from, err = unix.Recvfrom(fd, buf, 0); return n, err })
		if err != nil || n == 1 {
			return
		}
		_ = unix.Sendto(fd, buf[:n], 0, from)
	}
}

func ping(fd int, d time.Duration) (took []time.Duration, err error) {
	pin(0)
	to := &unix.SockaddrInet6{Port: benchPort, Addr: hosts[1].addr.As16()}
	buf := make([]byte, 2*smallDatagram)
	for start := time.Now(); time.Since(start) < d; {
		sent := time.Now()
		if err := unix.Sendto(fd, buf[:smallDatagram], 0, to); err != nil {
			return took, fmt.Errorf("send: %w", err)
		}
		_, err := again(func() (n int, err error) { n, _, err = unix.Recvfrom(fd, buf, 0); return n, err })
		if err != nil {
			return took, fmt.Errorf("round trip %d: %w", len(took), err)
		}
		took = append(took, time.Since(sent))
	}
	return took, nil
}

// stream measures what TCP carries in some time, in bytes a second.
func (l *lab) stream(d time.Duration) (rate float64, err error) {
	client, err := l.socket(0, unix.SOCK_STREAM)
	if err != nil {
		return 0, err
	}
	defer closeFD(client)
	server, err := l.socket(1, unix.SOCK_STREAM)
	if err != nil {
		return 0, err
	}
	defer closeFD(server)
	if err := unix.Listen(server, 1); err != nil {
		return 0, err
	}
	var both sync.WaitGroup
	both.Go(func() { rate, err = drain(server) })
	both.Go(func() { fill(client, d) })
	both.Wait()
	return rate, err
}

// drain takes a connection and tells at which rate it brings bytes.
func drain(fd int) (float64, error) {
	pin(1)
	conn, err := again(func() (fd2 int, err error) { fd2, _, err = unix.Accept4(fd, unix.SOCK_CLOEXEC); return fd2, err })
	if err != nil {
		return 0, fmt.Errorf("accept: %w", err)
	}
	defer closeFD(conn)
	buf := make([]byte, streamChunk)
	start, total := time.Now(), 0
	for {
		n, err := again(func() (int, error) { return unix.Read(conn, buf) })
		if err != nil {
			return 0, fmt.Errorf("read: %w", err)
		}
		if n == 0 {
			return float64(total) / time.Since(start).Seconds(), nil
		}
		total += n
	}
}

func fill(fd int, d time.Duration) {
	pin(0)
	defer func() { _ = unix.Shutdown(fd, unix.SHUT_RDWR) }()
	if err := unix.Connect(fd, &unix.SockaddrInet6{Port: benchPort, Addr: hosts[1].addr.As16()}); err != nil && !errors.Is(err, unix.EINTR) {
		return
	}
	buf := make([]byte, streamChunk)
	for start := time.Now(); time.Since(start) < d; {
		if _, err := again(func() (int, error) { return unix.Write(fd, buf) }); err != nil {
			return
		}
	}
}
