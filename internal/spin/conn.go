package spin

import (
	"io"
	"net"
	"os"
	"syscall"
)

// Conn makes the reads of a connection spin, if it is the kernel's.
func Conn(c net.Conn) net.Conn {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return c
	}
	r, err := NewReader(sc)
	if err != nil {
		return c
	}
	return &conn{c, r}
}

// conn is a connection whose reads spin.
type conn struct {
	net.Conn
	r *Reader
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) { return c.r.Read(b) }

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

// Reader reads from a file or connection of the kernel, and spins.
type Reader struct {
	raw     syscall.RawConn
	spinner Spinner
}

// NewReader returns a reader from c.
func NewReader(c syscall.Conn) (*Reader, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &Reader{raw: raw}, nil
}

// Read implements io.Reader.
func (r *Reader) Read(b []byte) (n int, err error) {
	if len(b) == 0 {
		return 0, nil
	}
	var fd int
	try := func() bool {
		for {
			if n, err = syscall.Read(fd, b); err != syscall.EINTR {
				return err != syscall.EAGAIN
			}
		}
	}
	if waited := r.raw.Read(func(f uintptr) bool {
		fd = int(f)
		return try() || r.spinner.Spin(try)
	}); waited != nil {
		return 0, waited
	}
	switch {
	case err != nil:
		return 0, os.NewSyscallError("read", err)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}
