// Package relay carries the datagrams of programs in processes of their own whose rack has no network of the kernel's, as that of
// `bifrost dev`: a stream of frames takes the place of each UDP socket. It needs no privilege, and works wherever there are Unix
// sockets.
//
//	program ─▶ Adopt: a netio.Conn             daemon ─▶ Stack: a netio.Hoster over another netio.Stack
//	   │  ▲                                        ListenNode ─▶ endpoint ─▶ ListenUDP of the other one
//	   ▼  │                                                      │  ▲
//	 ──┴──┴── stream: header, datagram, header, datagram, … ─────┴──┴──
//
// A stream belongs to one address and port of a node, so a frame says who the other end is and no more: a program cannot send from
// elsewhere. A program that does not read holds up its own stream; the endpoint behind it drops what it has no room for, and
// counts that.
package relay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
)

// Layout is the header of a frame. The datagram follows.
var Layout = wirefmt.Layout{Name: "relay", Fields: []wirefmt.Field{
	{Name: "length", Offset: 0, Size: 2, Doc: "bytes of the datagram"},
	{Name: "port", Offset: 2, Size: 2, Doc: "UDP port of the other end"},
	{Name: "address", Offset: 4, Size: 16, Doc: "address of the other end: where the datagram goes to, or comes from"},
}}

// HeaderSize is the length of Layout in bytes.
const HeaderSize = 20

// streamBuffer is what each end asks for in each direction, in bytes; the kernel's limits apply. Some systems give 8 KiB
// unless they are asked.
const streamBuffer = 1 << 20

// batch is how many bytes of frames are written at a time, but for a frame that is longer.
const batch = 64 << 10

// appendHeader appends the header of a datagram of n bytes.
func appendHeader(b []byte, remote netip.AddrPort, n int) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(n)) //nolint:gosec // at most netio.MaxDatagram
	b = binary.BigEndian.AppendUint16(b, remote.Port())
	a := remote.Addr().As16()
	return append(b, a[:]...)
}

// frames reads frames off a stream. It belongs to one goroutine at a time.
type frames struct {
	from io.Reader
	buf  []byte // filled from r to w
	r, w int
}

func newFrames(from io.Reader) *frames {
	return &frames{from: from, buf: make([]byte, 2*(HeaderSize+netio.MaxDatagram))}
}

// next returns the next frame's datagram, which counts until the next call. If wait is false and the stream has to be read for it,
// ok is false. An error says that no frame can be read, now or any more.
func (f *frames) next(wait bool) (remote netip.AddrPort, datagram []byte, ok bool, err error) {
	for {
		if have := f.buf[f.r:f.w]; len(have) >= HeaderSize {
			n := int(binary.BigEndian.Uint16(have))
			if n > netio.MaxDatagram {
				return remote, nil, false, wirefmt.Errorf("a frame of %d bytes, %d is the most", n, netio.MaxDatagram)
			}
			if len(have) >= HeaderSize+n {
				f.r += HeaderSize + n
				remote = netip.AddrPortFrom(netip.AddrFrom16([16]byte(have[4:HeaderSize])), binary.BigEndian.Uint16(have[2:]))
				return remote, have[HeaderSize : HeaderSize+n], true, nil
			}
		}
		if !wait {
			return remote, nil, false, nil
		}
		if f.r == f.w {
			f.r, f.w = 0, 0
		} else if len(f.buf)-f.r < HeaderSize+netio.MaxDatagram { // the frame may not fit behind what there is
			f.r, f.w = 0, copy(f.buf, f.buf[f.r:f.w])
		}
		n, err := f.from.Read(f.buf[f.w:])
		f.w += n
		if n == 0 && err != nil {
			return remote, nil, false, err
		}
	}
}

// conn is the program's end of a stream.
type conn struct {
	stream net.Conn
	local  netip.AddrPort
	most   int             // largest datagram in bytes
	ended  <-chan struct{} // the node has ended
	closed chan struct{}
	once   sync.Once

	readMu sync.Mutex
	in     *frames

	writeMu sync.Mutex
	out     []byte
}

// Adopt makes an endpoint of the program's end of a stream, for packets of at most mtu bytes. It takes the file over. When the daemon has
// closed its end, a read waits until the node has ended: then it fails with net.ErrClosed.
func Adopt(f *os.File, local netip.AddrPort, mtu int, ended <-chan struct{}) (netio.Conn, error) {
	defer f.Close() // FileConn has a copy
	stream, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("socket of %s: %w", local, err)
	}
	return &conn{
		stream: stream, local: local, most: min(mtu-netio.Overhead, netio.MaxDatagram), ended: ended, closed: make(chan struct{}), in: newFrames(stream),
	}, nil
}

// LocalAddr implements netio.Conn.
func (c *conn) LocalAddr() netip.AddrPort { return c.local }

// SetReadDeadline implements netio.Conn.
func (c *conn) SetReadDeadline(t time.Time) error { return c.stream.SetReadDeadline(t) }

// Close implements netio.Conn.
func (c *conn) Close() error {
	err := net.ErrClosed
	c.once.Do(func() {
		close(c.closed)
		err = c.stream.Close()
	})
	return err
}

// ReadBatch implements netio.Conn.
func (c *conn) ReadBatch(ms []netio.Message) (int, error) {
	c.readMu.Lock()
	defer c.readMu.Unlock()
	n := 0
	for n < len(ms) {
		remote, datagram, ok, err := c.in.next(n == 0)
		switch {
		case err != nil && n == 0:
			return 0, c.readError(err)
		case err != nil || !ok:
			return n, nil // the error comes again
		case !ms[n].Fill(datagram):
			continue
		}
		ms[n].Remote, ms[n].Local = remote, c.local.Addr()
		n++
	}
	return n, nil
}

// readError is what a failed read means to the endpoint's user.
func (c *conn) readError(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return os.ErrDeadlineExceeded
	}
	select {
	case <-c.ended:
	case <-c.closed:
	}
	return net.ErrClosed
}

// WriteBatch implements netio.Conn.
func (c *conn) WriteBatch(ms []netio.Message) (int, error) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	sent := 0
	var refused error
	for i := 0; i < len(ms) && refused == nil; {
		c.out = c.out[:0]
		for ; i < len(ms) && len(c.out) < batch; i++ {
			if refused = c.check(&ms[i]); refused != nil {
				break
			}
			c.out = ms[i].Append(appendHeader(c.out, ms[i].Remote, ms[i].Size()))
		}
		if _, err := c.stream.Write(c.out); err != nil {
			return sent, net.ErrClosed // by the daemon, if not here
		}
		sent = i
	}
	return sent, refused
}

func (c *conn) check(m *netio.Message) error {
	switch {
	case !m.Remote.Addr().Is6():
		return fmt.Errorf("send to %s: not an IPv6 address: %w", m.Remote, syscall.EINVAL)
	case m.Local.IsValid() && m.Local != c.local.Addr():
		return fmt.Errorf("send from %s: this is the endpoint of %s: %w", m.Local, c.local, syscall.EADDRNOTAVAIL)
	case m.Size() > c.most:
		return fmt.Errorf("send %d bytes to %s: at most %d fit the MTU: %w", m.Size(), m.Remote, c.most, syscall.EMSGSIZE)
	}
	return nil
}
