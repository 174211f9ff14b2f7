package spin

import (
	"io"
	"net"
	"os"
	"syscall"

	"github.com/bifrost-rack/bifrost/p4switch/shared/rawsys"
)

// Conn makes the reads of a connection spin, if it is the kernel's. Neither reads nor
// writes tell Go's scheduler (package rawsys).
func Conn(c net.Conn) net.Conn {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return c
	}
	rw, err := NewReadWriter(sc)
	if err != nil {
		return c
	}
	return &conn{c, rw}
}

// conn is a connection whose reads spin.
type conn struct {
	net.Conn
	rw *ReadWriter
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) { return c.rw.Read(b) }

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) { return c.rw.Write(b) }

// Listener makes the reads of all connections spin that a listener accepts.
func Listener(l net.Listener) net.Listener { return listener{l} }

type listener struct{ net.Listener }

// Accept implements net.Listener.
func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return Conn(c), nil
}

// ReadWriter reads from a file or connection of the kernel, and spins, and writes to it.
type ReadWriter struct {
	raw     syscall.RawConn
	spinner Spinner
}

// NewReadWriter returns a reader from and writer to c, which does not block.
func NewReadWriter(c syscall.Conn) (*ReadWriter, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &ReadWriter{raw: raw}, nil
}

// Read implements io.Reader.
func (r *ReadWriter) Read(b []byte) (n int, err error) {
	if len(b) == 0 {
		return 0, nil
	}
	var errno syscall.Errno
	var fd uintptr
	try := func() bool {
		n, errno = rawsys.Read(fd, b)
		return errno != syscall.EAGAIN
	}
	if waited := r.raw.Read(func(f uintptr) bool {
		fd = f
		return try() || r.spinner.Spin(try)
	}); waited != nil {
		return 0, waited
	}
	switch {
	case errno != 0:
		return 0, os.NewSyscallError("read", errno)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// Write implements io.Writer.
func (r *ReadWriter) Write(b []byte) (n int, err error) {
	var errno syscall.Errno
	waited := r.raw.Write(func(fd uintptr) bool {
		for n < len(b) {
			var k int
			if k, errno = rawsys.Write(fd, b[n:]); errno != 0 {
				return errno != syscall.EAGAIN
			}
			n += k
		}
		return true
	})
	switch {
	case waited != nil:
		return n, waited
	case errno != 0:
		return n, os.NewSyscallError("write", errno)
	}
	return n, nil
}
