// Package sent keeps the payloads of large messages while they are being sent, and the
// memory that they lie in for messages to come.
package sent

import (
	"math/bits"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Payload is that of a message that is being sent. Its memory is used again when
// nobody holds it any more. Its methods may be called concurrently.
type Payload struct {
	holders atomic.Int32
	whole   []byte // the memory
	bytes   []byte // the payload in it
}

// New returns a payload with one holder: bytes, which lie in whole, which
// nobody else may use from now on.
func New(whole, bytes []byte) *Payload {
	p := &Payload{whole: whole, bytes: bytes}
	p.holders.Store(1)
	return p
}

// Bytes is the payload, which must not be changed; nil of a nil Payload.
func (p *Payload) Bytes() []byte {
	if p == nil {
		return nil
	}
	return p.bytes
}

// Hold adds a holder; only a holder may do so, or who prevents others from releasing
// the payload meanwhile. It returns the payload, which may be nil.
func (p *Payload) Hold() *Payload {
	if p != nil {
		p.holders.Add(1)
	}
	return p
}

// Release takes a holder away.
func (p *Payload) Release() {
	if p != nil && p.holders.Add(-1) == 0 {
		recycle(p.whole)
		p.whole, p.bytes = nil, nil
	}
}

// Buffers of 2^leastClass to 2^mostClass bytes are kept for messages to come: 128 KiB to
// 16 MiB. The garbage collector takes those that are not used for a while.
const (
	leastClass = 17
	mostClass  = 24
)

var buffers [mostClass - leastClass + 1]sync.Pool // of *[]byte, by class

// Buffer returns an empty buffer with room for n bytes, whose contents are arbitrary.
func Buffer(n int) []byte {
	class := max(leastClass, bits.Len(uint(max(n, 1)-1)))
	if class > mostClass {
		return Uncleared(n)[:0]
	}
	if b, ok := buffers[class-leastClass].Get().(*[]byte); ok {
		return (*b)[:0]
	}
	return Uncleared(1 << class)[:0]
}

// Uncleared returns n bytes with any content, for n from 1 on.
func Uncleared(n int) []byte {
	var b strings.Builder // whose memory alone Go does not clear
	b.Grow(n)
	_ = b.WriteByte(0) // of an empty string the address is nothing to rely on
	return unsafe.Slice(unsafe.StringData(b.String()), n)
}

// recycle keeps a buffer for Buffer, unless it is too small or too large.
func recycle(b []byte) {
	if class := bits.Len(uint(cap(b))) - 1; class >= leastClass && class <= mostClass { //nolint:gosec // not negative
		buffers[class-leastClass].Put(&b)
	}
}
