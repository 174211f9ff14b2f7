package unixjoin

import (
	"errors"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
)

// A socket goes with the first byte of its line, so whoever has read the line has the socket.

// lend returns a file of an endpoint's socket, to be sent.
func lend(endpoint netio.Conn) (f *os.File, err error) {
	lent, ok := endpoint.(netio.Lent)
	if !ok { // its network is not the kernel's: its programs are in the daemon's process
		return nil, fault.New(fault.Unsupported, opListen, "this daemon's sockets cannot be handed over")
	}
	e := lent.Socket(func(of uintptr) {
		var fd int
		if fd, err = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 0); err == nil {
			f = os.NewFile(uintptr(fd), endpoint.LocalAddr().String())
		}
	})
	if e != nil || err != nil {
		return nil, &fault.Error{Code: fault.Unavailable, Op: opListen, Err: errors.Join(e, err)}
	}
	return f, nil
}

// send writes a line that a socket goes with, and closes the socket's file.
func send(to net.Conn, line []byte, f *os.File) error {
	defer f.Close()
	conn, ok := to.(*net.UnixConn)
	if !ok {
		return fault.New(fault.Internal, opListen, "%s takes no sockets", to.LocalAddr())
	}
	raw, err := f.SyscallConn() // Fd would make it a socket that blocks, for everybody
	if err != nil {
		return err
	}
	var n int
	e := raw.Control(func(fd uintptr) { n, _, err = conn.WriteMsgUnix(line, unix.UnixRights(int(fd)), nil) })
	if err = errors.Join(e, err); err == nil && n < len(line) {
		_, err = conn.Write(line[n:])
	}
	return err
}

// arrivals reads a connection, and keeps what sockets come with its bytes. It belongs to one goroutine.
type arrivals struct {
	conn *net.UnixConn
	came []*os.File
	oob  [64]byte // room for a few at a time
}

// Read implements io.Reader.
func (s *arrivals) Read(p []byte) (int, error) {
	n, oob, _, _, err := s.conn.ReadMsgUnix(p, s.oob[:])
	if e := s.take(s.oob[:max(oob, 0)]); e != nil {
		err = errors.Join(err, e)
	}
	return max(n, 0), err
}

// take takes the sockets out of what has come beside bytes.
func (s *arrivals) take(oob []byte) error {
	if len(oob) == 0 {
		return nil
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return err
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue // it is about something else
		}
		for _, fd := range fds {
			s.came = append(s.came, os.NewFile(uintptr(fd), "socket of the daemon's"))
		}
	}
	return nil
}

// next returns the first socket that has come and was not returned yet, nil if there is none.
func (s *arrivals) next() *os.File {
	if len(s.came) == 0 {
		return nil
	}
	f := s.came[0]
	s.came = s.came[1:]
	return f
}

// close closes what nobody has taken.
func (s *arrivals) close() {
	for f := s.next(); f != nil; f = s.next() {
		f.Close()
	}
}
