//go:build linux

package linux

import (
	"net/netip"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/internal/netio"
)

// batchSize is how many datagrams move in one system call at most.
const batchSize = 32

// pieces is how many buffers a datagram lies in at most.
const pieces = 1 + netio.MaxMore

// controlSize is room for one IPV6_PKTINFO control message: a 16-byte header and
// 20 bytes, rounded up to 8.
const controlSize = 40

// mmsghdr is struct mmsghdr (recvmmsg(2)).
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
}

// batch is the argument of recvmmsg and sendmmsg, with all it points to. It is
// filled anew for each call and must not move while in use.
type batch struct {
	hdrs     [batchSize]mmsghdr
	iovs     [batchSize][pieces]unix.Iovec
	names    [batchSize]unix.RawSockaddrInet6
	controls [batchSize]controlMessage
}

// controlMessage is an IPV6_PKTINFO control message.
type controlMessage struct {
	header unix.Cmsghdr
	info   unix.Inet6Pktinfo
	_      [controlSize - unix.SizeofCmsghdr - unix.SizeofInet6Pktinfo]byte
}

// calls are the system calls of one direction: for one message, and for several.
type calls struct{ one, several uintptr }

var (
	receive  = calls{unix.SYS_RECVMSG, unix.SYS_RECVMMSG}
	transmit = calls{unix.SYS_SENDMSG, unix.SYS_SENDMMSG}
)

// do makes the system call for the first n messages and returns how many moved. Go's
// scheduler is not told of it: the socket does not block (package rawsys).
func (b *batch) do(c calls, fd uintptr, n int) (int, syscall.Errno) {
	for {
		var r uintptr
		var errno syscall.Errno
		if first := unsafe.Pointer(&b.hdrs[0]); n == 1 {
			r, _, errno = unix.RawSyscall(c.one, fd, uintptr(first), 0)
			b.hdrs[0].len, r = uint32(r), 1
		} else {
			r, _, errno = unix.RawSyscall6(c.several, fd, uintptr(first), uintptr(n), 0, 0, 0)
		}
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return n, errno
		}
		return int(r), 0
	}
}

// release lets go of the caller's memory, in the first n messages.
func (b *batch) release(n int) {
	clear(b.iovs[:n])
}

// toRead prepares message i to be received into, with where it was sent to if asked.
func (b *batch) toRead(i int, m *netio.Message, whereTo bool) {
	h := b.prepare(i, m)
	if !whereTo {
		return
	}
	b.controls[i] = controlMessage{}
	h.Control = (*byte)(unsafe.Pointer(&b.controls[i]))
	h.SetControllen(controlSize)
}

// toWrite prepares message i to be sent.
func (b *batch) toWrite(i int, m *netio.Message) {
	h := b.prepare(i, m)
	name := &b.names[i]
	name.Family = unix.AF_INET6
	name.Addr = m.Remote.Addr().As16()
	port := (*[2]byte)(unsafe.Pointer(&name.Port)) // in network byte order
	port[0], port[1] = byte(m.Remote.Port()>>8), byte(m.Remote.Port())
	if !m.Local.IsValid() {
		return
	}
	c := &b.controls[i]
	*c = controlMessage{info: unix.Inet6Pktinfo{Addr: m.Local.As16()}}
	c.header.Level, c.header.Type = unix.IPPROTO_IPV6, unix.IPV6_PKTINFO
	c.header.SetLen(unix.CmsgLen(unix.SizeofInet6Pktinfo))
	h.Control = (*byte)(unsafe.Pointer(c))
	h.SetControllen(unix.CmsgSpace(unix.SizeofInet6Pktinfo))
}

// prepare points header i at the message's pieces and at its place for the remote
// address.
func (b *batch) prepare(i int, m *netio.Message) *unix.Msghdr {
	iovs, n := &b.iovs[i], 1
	iovs[0].Base = unsafe.SliceData(m.Buf)
	iovs[0].SetLen(len(m.Buf))
	for _, more := range m.More {
		if len(more) > 0 {
			iovs[n].Base = unsafe.SliceData(more)
			iovs[n].SetLen(len(more))
			n++
		}
	}
	b.names[i] = unix.RawSockaddrInet6{}
	h := &b.hdrs[i].hdr
	*h = unix.Msghdr{Name: (*byte)(unsafe.Pointer(&b.names[i])), Namelen: unix.SizeofSockaddrInet6, Iov: &iovs[0]}
	h.SetIovlen(n)
	return h
}

// collect turns what has been received into messages, in order and without
// those that did not fit their buffer, and returns how many there are.
func (b *batch) collect(ms []netio.Message, bound netip.Addr) int {
	out := 0
	for i := range ms {
		h := &b.hdrs[i]
		if h.hdr.Flags&unix.MSG_TRUNC != 0 {
			continue
		}
		if out != i {
			ms[out].Buf, ms[i].Buf = ms[i].Buf, ms[out].Buf
			ms[out].More, ms[i].More = ms[i].More, ms[out].More
		}
		m := &ms[out]
		m.Cut(int(h.len))
		b.origin(i, m, bound)
		out++
	}
	runtime.KeepAlive(b)
	return out
}

// origin says where message i is from, and where it was sent to.
func (b *batch) origin(i int, m *netio.Message, bound netip.Addr) {
	name := &b.names[i]
	port := (*[2]byte)(unsafe.Pointer(&name.Port))
	m.Remote = netip.AddrPortFrom(netip.AddrFrom16(name.Addr), uint16(port[0])<<8|uint16(port[1]))
	m.Local = bound
	if c := &b.controls[i]; c.header.Level == unix.IPPROTO_IPV6 && c.header.Type == unix.IPV6_PKTINFO {
		m.Local = netip.AddrFrom16(c.info.Addr)
	}
}

// peek fills message 0 with the front of the next datagram and returns that one's size.
func (b *batch) peek(fd uintptr) (size int, errno syscall.Errno) {
	for {
		r, _, errno := unix.Syscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&b.hdrs[0])), unix.MSG_PEEK|unix.MSG_TRUNC|unix.MSG_DONTWAIT)
		if errno != unix.EINTR {
			return int(r), errno //nolint:gosec // a size
		}
	}
}
