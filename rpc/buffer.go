package rpc

import (
	"context"
	"io"
	"sync"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/rpc/internal/sent"
	"github.com/bifrost-rack/bifrost/rpc/packet"
)

// buffer is a Thrift transport in memory: what is read comes from in, what is
// written goes behind what is in out. It stores no more than limit bytes of
// output and only counts the rest, so that a message too large costs no memory and
// its error can tell the size.
type buffer struct {
	in    []byte
	out   []byte
	limit int // len(out) at most
	over  int // bytes written beyond it
}

var _ thrift.TRichTransport = (*buffer)(nil)

func (b *buffer) Read(p []byte) (int, error) {
	if len(b.in) == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	n := copy(p, b.in)
	b.in = b.in[n:]
	return n, nil
}

func (b *buffer) ReadByte() (byte, error) {
	if len(b.in) == 0 {
		return 0, io.EOF
	}
	c := b.in[0]
	b.in = b.in[1:]
	return c, nil
}

// RemainingBytes lets Thrift refuse a container that claims to be longer than
// the message.
func (b *buffer) RemainingBytes() uint64 { return uint64(len(b.in)) }

func (b *buffer) fits(n int) bool {
	if b.over > 0 || len(b.out)+n > b.limit {
		b.over += n
		return false
	}
	return true
}

// grow makes room for n bytes more, with some for what follows in most messages. What
// exceeds a datagram gets memory of large messages (sent.Payload).
func (b *buffer) grow(n int) {
	need := len(b.out) + n + packet.HeaderSize
	if need <= cap(b.out) || need <= maxDatagram {
		return
	}
	b.out = append(sent.Buffer(need), b.out...)
}

func (b *buffer) Write(p []byte) (int, error) {
	if b.fits(len(p)) {
		b.grow(len(p))
		b.out = append(b.out, p...)
	}
	return len(p), nil
}

func (b *buffer) WriteString(s string) (int, error) {
	if b.fits(len(s)) {
		b.out = append(b.out, s...)
	}
	return len(s), nil
}

func (b *buffer) WriteByte(c byte) error {
	if b.fits(1) {
		b.out = append(b.out, c)
	}
	return nil
}

func (b *buffer) Flush(context.Context) error { return nil }
func (b *buffer) Open() error                 { return nil }
func (b *buffer) Close() error                { return nil }

// IsOpen is asked by a goroutine of the generated code while a handler runs,
// and possibly a moment longer, so it must not look at b.
func (b *buffer) IsOpen() bool { return true }

// datagrams are buffers with room for any datagram, for receiving.
var datagrams = sync.Pool{New: func() any { return new([maxDatagram]byte) }}

type datagram = [maxDatagram]byte

func newDatagram() *datagram   { return datagrams.Get().(*datagram) }
func freeDatagram(d *datagram) { datagrams.Put(d) }
