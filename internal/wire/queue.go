package wire

import (
	"net/netip"
	"sync"

	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
)

// queue is an endpoint's receive queue: a ring that grows up to its bound.
type queue struct {
	ring  []datagram
	head  int // of the oldest
	count int
	bytes int
}

type datagram struct {
	payload []byte
	buf     *[]byte // from grab, which has the payload; nil if that is of a frame that nobody changes
	remote  netip.AddrPort
	local   netip.Addr
}

// push appends u, or a copy if it is lent; false if there is no room.
func (q *queue) push(u *frame.UDP6, lent bool) bool {
	if q.count >= queueDatagrams || q.bytes+len(u.Payload) > queueBytes {
		return false
	}
	if q.count == len(q.ring) {
		q.grow()
	}
	d := datagram{payload: u.Payload, remote: u.Src, local: u.Dst.Addr()}
	if lent {
		d.buf = grab(len(u.Payload))
		*d.buf = append((*d.buf)[:0], u.Payload...)
		d.payload = *d.buf
	}
	q.ring[(q.head+q.count)%len(q.ring)] = d
	q.count++
	q.bytes += len(u.Payload)
	return true
}

// pop moves the oldest datagram into m and counts it in n; one that does not fit
// is dropped. It is false when the queue is empty.
func (q *queue) pop(m *netio.Message, n *int) bool {
	if q.count == 0 {
		return false
	}
	d := q.ring[q.head]
	q.ring[q.head] = datagram{}
	q.head = (q.head + 1) % len(q.ring)
	q.count--
	q.bytes -= len(d.payload)
	if m.Fill(d.payload) {
		m.Remote, m.Local = d.remote, d.local
		*n++
	}
	release(d.buf)
	return true
}

func (q *queue) grow() {
	bigger := make([]datagram, max(16, 2*len(q.ring)))
	for i := range q.count {
		bigger[i] = q.ring[(q.head+i)%len(q.ring)]
	}
	q.ring, q.head = bigger, 0
}

func (q *queue) clear() {
	for i := range q.count {
		release(q.ring[(q.head+i)%len(q.ring)].buf)
	}
	*q = queue{}
}

// Buffers come in two sizes: most packets are small, and a large one must not
// pin 64 KiB for each.
const (
	smallBuffer = 2 << 10
	largeBuffer = 66 << 10 // the largest frame: 14 + 40 + 65,535 bytes
)

var (
	smallBuffers = sync.Pool{New: func() any { b := make([]byte, 0, smallBuffer); return &b }}
	largeBuffers = sync.Pool{New: func() any { b := make([]byte, 0, largeBuffer); return &b }}
)

// grab returns a buffer with room for n bytes.
func grab(n int) *[]byte {
	if n <= smallBuffer {
		return smallBuffers.Get().(*[]byte)
	}
	return largeBuffers.Get().(*[]byte)
}

// release takes a buffer of grab back; nil is none.
func release(b *[]byte) {
	switch {
	case b == nil:
	case cap(*b) == smallBuffer:
		smallBuffers.Put(b)
	default:
		largeBuffers.Put(b)
	}
}
