package switches

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// quietAfter is how long nothing comes when a flood is over.
const quietAfter = 100 * time.Millisecond

// connected opens a datagram socket of the first host that sends to the second.
func (l *lab) connected() (int, error) {
	fd, err := l.socket(0, unix.SOCK_DGRAM)
	if err != nil {
		return -1, err
	}
	err = unix.Connect(fd, &unix.SockaddrInet6{Port: benchPort, Addr: hosts[1].addr.As16()})
	if err != nil {
		closeFD(fd)
		return -1, fmt.Errorf("connect: %w", err)
	}
	return fd, nil
}

// flood sends datagrams for some time as fast as the kernel takes them and tells
// how many a second arrive.
func (l *lab) flood(size int, d time.Duration) (rate float64, err error) {
	client, err := l.connected()
	if err != nil {
		return 0, err
	}
	defer closeFD(client)
	server, err := l.socket(1, unix.SOCK_DGRAM)
	if err != nil {
		return 0, err
	}
	defer closeFD(server)
	quiet := unix.NsecToTimeval(int64(quietAfter))
	err = errors.Join(
		unix.SetsockoptTimeval(server, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &quiet),
		unix.SetsockoptInt(server, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20))
	if err != nil {
		return 0, err
	}
	var both sync.WaitGroup
	both.Go(func() { rate, err = count(server, d) })
	both.Go(func() {
		pin(0)
		buf := make([]byte, size)
		for start := time.Now(); time.Since(start) < d; {
			for range 16 {
				_, _ = unix.Write(client, buf) // a full queue is an error, and passes
			}
		}
	})
	both.Wait()
	return rate, err
}

// count takes datagrams until none come any more.
func count(fd int, d time.Duration) (float64, error) {
	pin(1)
	var first, last time.Time
	n, silent := 0, 0
	for buf := make([]byte, 2*fullDatagram); ; {
		_, err := again(func() (int, error) { return unix.Read(fd, buf) })
		switch {
		case err == nil:
			last = time.Now()
			if n == 0 {
				first = last
			}
			n++
		case !errors.Is(err, unix.EAGAIN):
			return 0, fmt.Errorf("read: %w", err)
		case n > 1 && time.Since(first) > d:
			return float64(n-1) / last.Sub(first).Seconds(), nil
		default:
			if silent++; time.Duration(silent)*quietAfter > d+5*time.Second {
				return 0, errors.New("no datagram arrives")
			}
		}
	}
}
