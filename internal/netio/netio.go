// Package netio is what a node or daemon needs of a network: UDP endpoints that
// see and choose addresses. The kernel's sockets (package netio/linux) and the
// virtual wire (package wire) both provide it, so all of Bifröst above it is the
// same code in either.
package netio

import (
	"context"
	"net/netip"
	"time"
)

// Message is one datagram. Remote is the other end; Local is the address on
// this side: where a received datagram was sent to (it may be a global pointer
// or a service address), and the source to send from (the zero Addr means the
// address the endpoint is bound to).
type Message struct {
	Buf []byte
	// More continues Buf, so that a datagram's contents need not stand together:
	// what is sent is all of them in a row, what is received fills them in turn.
	More   [MaxMore][]byte
	Remote netip.AddrPort
	Local  netip.Addr
}

// MaxMore is how many pieces a datagram has at most behind its first one.
const MaxMore = 2

// Size is how many bytes the pieces have together.
func (m *Message) Size() int {
	n := len(m.Buf)
	for _, b := range m.More {
		n += len(b)
	}
	return n
}

// Cut shortens the pieces to those of a datagram of n bytes that fills them.
func (m *Message) Cut(n int) {
	k := min(n, len(m.Buf))
	m.Buf, n = m.Buf[:k], n-k
	for i, b := range m.More {
		k := min(n, len(b))
		m.More[i], n = b[:k], n-k
	}
}

// Fill puts a received datagram into the pieces and cuts them to it. It reports
// false if it does not fit.
func (m *Message) Fill(datagram []byte) bool {
	if len(datagram) > m.Size() {
		return false
	}
	m.Cut(len(datagram))
	n := copy(m.Buf, datagram)
	for _, b := range m.More {
		n += copy(b, datagram[n:])
	}
	return true
}

// Append appends the pieces to b.
func (m *Message) Append(b []byte) []byte {
	b = append(b, m.Buf...)
	for _, more := range m.More {
		b = append(b, more...)
	}
	return b
}

// Conn is one UDP endpoint. Methods may be called concurrently, but only one
// goroutine at a time should read.
type Conn interface {
	// ReadBatch blocks until at least one datagram is there, fills ms from the
	// front and returns how many. Each message must have room for a whole datagram
	// (netio.MaxDatagram) and is cut to the datagram's length; a datagram that
	// does not fit is dropped, never cut. The bytes behind it may have changed.
	ReadBatch(ms []Message) (int, error)
	// WriteBatch sends the datagrams in order and returns how many were handed
	// to the network. A datagram larger than the rack's MTU is an error.
	WriteBatch(ms []Message) (int, error)
	// SetReadDeadline bounds ReadBatch; the error is os.ErrDeadlineExceeded.
	SetReadDeadline(t time.Time) error
	// LocalAddr is the address and port bound to.
	LocalAddr() netip.AddrPort
	// Close ends blocked reads with net.ErrClosed.
	Close() error
}

// Peeker is a Conn that shows the datagram which the next read returns, so that its contents
// can be received where they belong.
type Peeker interface {
	// Peek fills m.Buf with the front of the datagram, and sets Remote and Local. Size is that
	// of the whole datagram in bytes. It does not block: ok is false if there is none. Only
	// the goroutine that reads may call it.
	Peek(m *Message) (size int, ok bool, err error)
}

// Buffered is a Conn that knows how many bytes of datagrams wait for ReadBatch at most,
// the kernel's own record of them included; those beyond are lost.
type Buffered interface{ ReceiveBuffer() int }

// Spinning is a Conn whose ReadBatch looks again and again for a moment before it
// sleeps, which keeps the readers of the process's other endpoints from being woken
// where there are fewer CPUs than readers. SpinWhile makes it ask each time whether to
// do so. The function must not block.
type Spinning interface{ SpinWhile(useful func() bool) }

// Network is what a node sees of its blade's network.
type Network interface {
	// ListenUDP binds an endpoint. An unspecified address receives for every
	// address and prefix that the blade accepts; a node's own addresses alone are open to it.
	ListenUDP(local netip.AddrPort) (Conn, error)
	// MTU is the largest IPv6 packet in bytes.
	MTU() int
}

// Stack is the network of one blade.
type Stack interface {
	Network
	// AddAddress makes the blade accept (and send from) a node's address;
	// RemoveAddress undoes it. Both are idempotent.
	AddAddress(a netip.Addr) error
	RemoveAddress(a netip.Addr) error
	// AddLocalPrefix makes the blade accept every address of a prefix: a
	// memory blade does so for its own, a compute blade for services.
	AddLocalPrefix(p netip.Prefix) error
}

// Hoster is a Stack that opens endpoints for programs in processes of their own: a daemon opens them, hands over their
// sockets (Lent), and keeps its own copy.
type Hoster interface {
	// ListenNode binds an endpoint of a node. All that is sent from it bears a mark (rackaddr.Mark), which the program
	// cannot change. Close ends the endpoint for every process that has its socket. At the unspecified address, with mark 0, it
	// is the daemon's own, and gets what the endpoints of nodes do not.
	ListenNode(local netip.AddrPort, mark uint32) (Conn, error)
}

// Lent is a Conn whose socket another process can have, too. Socket calls use with its descriptor, which counts until use
// returns.
type Lent interface {
	Socket(use func(fd uintptr)) error
}

// MaxDatagram is the largest UDP payload in bytes that IPv6 carries without
// jumbograms.
const MaxDatagram = 65535 - 8

// Overhead is what IPv6 and UDP headers take of the MTU, in bytes.
const Overhead = 40 + 8

// Watch makes the end of a context interrupt a reader. It stays when its caller
// leaves, who mostly comes again with the same one. It belongs to whoever reads; the
// zero Watch watches nothing.
type Watch struct {
	done <-chan struct{}
	stop func() bool
}

// Set watches ctx, and nothing else any more.
func (w *Watch) Set(ctx context.Context, interrupt func()) {
	done := ctx.Done()
	if done == nil || done == w.done {
		return
	}
	w.Clear()
	w.done, w.stop = done, context.AfterFunc(ctx, interrupt)
}

// Clear watches nothing.
func (w *Watch) Clear() {
	if w.stop != nil {
		w.stop()
	}
	*w = Watch{}
}
