package rpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/rpc/internal/sent"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

const maxDatagram = netio.MaxDatagram

// maxThrift is how many bytes Thrift's own checks let pass; the message that is read
// bounds what may be allocated for it.
const maxThrift = math.MaxInt32

// pointerStruct is the IDL name of the struct that carries a global pointer
// (rpc/idl/bifrost.thrift). The encoding does not tell a struct's type, but the
// generated code does while it writes.
const pointerStruct = "GlobalPointer"

// codec turns one message's Thrift part into bytes and back: a Thrift protocol
// over memory that collects the global pointers it sees. A codec serves one
// message at a time and is used again for the next.
type codec struct {
	thrift.TProtocol
	buf    buffer
	binary *thrift.TBinaryProtocol // over buf

	// Of the message being written.
	pointers []dsmpacket.Pointer                  // one to each region
	by       func(rpcpacket.Region) rpcpacket.Ref // by which use of a slot its sender has a region; nil: all are its own
	packed   []rpcpacket.List                     // of that many pointers, as listed has them
	listed   int
	kind     thrift.TMessageType
	inside   bool              // a GlobalPointer
	failed   error             // why a pointer could not be written
	trailer  []byte            // goes behind the message
	headed   int               // bytes of headers in front of the message
	protocol Protocol          // that is spoken
	answered thrift.THeaderMap // headers of the answer
	outcome  Code              // of the answer that was decoded
	// Of the message being read.
	opening opening // taken off before the generated code asks for it, if opened
	opened  bool
	depth   int                // of the struct that is read
	packet  *rpcpacket.Message // which lists regions: the rack has seen these, and no others; nil if the message has come in none
	address bool               // the field that is read may be that of a GlobalPointer
	aliased bool               // what is read may share the message's memory
}

// opening is how a Thrift message begins.
type opening struct {
	name string
	kind thrift.TMessageType
	seq  int32
}

// thriftConfig bounds what a hostile message can make the library allocate.
var thriftConfig = &thrift.TConfiguration{
	MaxMessageSize:    maxThrift,
	MaxFrameSize:      maxThrift,
	TBinaryStrictRead: new(true),
}

var codecs = sync.Pool{New: func() any {
	c := new(codec)
	c.binary = thrift.NewTBinaryProtocolConf(&c.buf, thriftConfig)
	return c
}}

// packetAt is where a packet begins in a codec's output, and payloadAt where its payload does, if it lists no regions. A first
// packet begins at 0: what it says of the whole message stands between its head and the payload.
const (
	packetAt  = rpcpacket.MorePreface
	payloadAt = packetAt + rpcpacket.HeaderSize
)

// newCodec returns a codec whose output starts behind the space for a header and
// makes messages of at most limit bytes, header included.
func newCodec(limit int) *codec {
	c := codecs.Get().(*codec)
	c.buf.limit = packetAt + limit
	c.reset()
	return c
}

// reset starts the output afresh.
func (c *codec) reset() {
	c.buf.out = append(c.buf.out[:0], make([]byte, payloadAt)...)
	c.buf.over = 0
	c.pointers, c.kind, c.inside, c.failed, c.trailer, c.headed = c.pointers[:0], thrift.INVALID_TMESSAGE_TYPE, false, nil, nil, 0
	c.by, c.packed, c.listed = nil, nil, 0
	c.answered, c.outcome = nil, OK
	c.speak(Binary)
}

func (c *codec) free() {
	c.buf.in, c.opened, c.packet = nil, false, nil
	if cap(c.buf.out) > mostKept {
		c.buf.out = nil // of a large message that was not sent
	}
	codecs.Put(c)
}

// mostKept is the largest output in bytes that a codec keeps for the next message: any datagram fits, rounded up as the allocator does.
const mostKept = 72 << 10

// payload is the output without headers of packets.
func (c *codec) payload() []byte { return c.buf.out[payloadAt:] }

// front is how many bytes of the datagram stand in front of the payload.
func (c *codec) front() int { return rpcpacket.HeaderSize + c.listSize() }

// lists are those of the message's regions.
func (c *codec) lists() []rpcpacket.List {
	if c.listed != len(c.pointers) {
		c.packed, c.listed = rpcpacket.LendingLists(c.pointers, c.by), len(c.pointers)
	}
	return c.packed
}

// listSize is how many bytes the lists of regions have.
func (c *codec) listSize() int { return len(c.lists()) * rpcpacket.ListSize }

// large makes a message that exceeds a packet of the output, once datagram has completed it: the first packet, and the payload in whose memory
// the packet may lie. Neither changes any more: the codec lets go of them.
func (c *codec) large(budget int, pushed rpcpacket.Push) (first []byte, payload *sent.Payload) {
	whole := c.buf.out
	c.buf.out = nil
	whole = append(whole, c.trailer...)
	end := len(whole) - len(c.trailer)
	first, _ = rpcpacket.FirstIn(whole, budget, pushed) // always: see there
	return first, sent.New(whole, whole[packetAt+c.front():end:end])
}

// takeBack makes the output again what it was before it was a datagram, since the message is sent anew; the payload
// is what large has returned, if it was large.
func (c *codec) takeBack(payload *sent.Payload) {
	if payload != nil {
		c.buf.out = append(make([]byte, payloadAt, payloadAt+len(payload.Bytes())), payload.Bytes()...)
	} else {
		c.buf.out = slices.Delete(c.buf.out, payloadAt, packetAt+c.front()) // the lists
	}
	c.trailer = nil
}

// size is the length of the datagram that the output makes, in bytes.
func (c *codec) size() int {
	return len(c.buf.out) - packetAt + c.buf.over + c.listSize() + len(c.trailer)
}

// datagram completes the output with a header: the result is the whole packet,
// valid until the codec is reset or freed.
func (c *codec) datagram(h *rpcpacket.Header) []byte {
	if c.headed > 0 {
		h.Flags |= rpcpacket.FlagHeaders
	}
	if n := c.listSize(); n > 0 {
		c.buf.out = slices.Insert(c.buf.out, payloadAt, make([]byte, n)...)
	}
	m := rpcpacket.Message{Header: *h, Lists: c.lists(), Payload: c.buf.out[packetAt+c.front():], Trailer: c.trailer}
	m.AppendHead(c.buf.out[packetAt:packetAt]) // the payload is in its place behind it
	return append(c.buf.out, c.trailer...)[packetAt:]
}

// read makes the codec read a message's payload.
func (c *codec) read(payload []byte) {
	c.buf.in, c.depth, c.aliased, c.address = payload, 0, len(payload) > maxDatagram, false
}

// speak makes the codec write, or read, in a protocol. One that keeps state is made anew:
// the last message may have ended in the middle.
func (c *codec) speak(p Protocol) {
	c.protocol = p
	if p == Compact {
		c.TProtocol = thrift.NewTCompactProtocolConf(&c.buf, thriftConfig)
		return
	}
	c.TProtocol = c.binary
}

// First bytes of messages in the protocols.
const (
	binaryMessage  = 0x80
	compactMessage = 0x82
)

// hear finds out in which protocol the message is, by its first byte.
func (c *codec) hear() error {
	switch {
	case len(c.buf.in) == 0:
		return errors.New("it is empty")
	case c.buf.in[0] == binaryMessage:
		c.speak(Binary)
	case c.buf.in[0] == compactMessage:
		c.speak(Compact)
	default:
		return fmt.Errorf("protocol unknown: it begins with %#02x, a message in the binary protocol with %#02x, in the compact one with %#02x",
			c.buf.in[0], binaryMessage, compactMessage)
	}
	return nil
}

// WriteMessageBegin notes what the generated code answers with.
func (c *codec) WriteMessageBegin(ctx context.Context, name string, kind thrift.TMessageType, seq int32) error {
	c.kind = kind
	return c.TProtocol.WriteMessageBegin(ctx, name, kind, seq)
}

// WriteStructBegin notices the beginning of a global pointer.
func (c *codec) WriteStructBegin(ctx context.Context, name string) error {
	c.inside = name == pointerStruct
	return c.TProtocol.WriteStructBegin(ctx, name)
}

// WriteStructEnd notices its end.
func (c *codec) WriteStructEnd(ctx context.Context) error {
	c.inside = false
	return c.TProtocol.WriteStructEnd(ctx)
}

// WriteBinary collects the pointer.
func (c *codec) WriteBinary(ctx context.Context, value []byte) error {
	if c.inside {
		if err := c.collect(value); err != nil {
			c.failed = err
			return thrift.NewTProtocolException(err)
		}
	}
	return c.TProtocol.WriteBinary(ctx, value)
}

func (c *codec) collect(value []byte) error {
	if len(value) == 0 { // nil, as generated code that never set it writes it
		return nil
	}
	p, err := dsmpacket.FromBytes(value)
	if err != nil {
		return err
	}
	if p.IsNil() || slices.Contains(c.pointers, p.Base()) {
		return nil
	}
	if len(c.pointers) == rpcpacket.MaxRegions {
		return errManyRegions
	}
	c.pointers = append(c.pointers, p.Base())
	return nil
}

// open takes the opening off the message that is read.
func (c *codec) open(ctx context.Context) (o opening, err error) {
	if err := c.hear(); err != nil {
		return o, err
	}
	o.name, o.kind, o.seq, err = c.TProtocol.ReadMessageBegin(ctx)
	return o, err
}

// ReadMessageBegin gives out the opening that the runtime has taken off already.
func (c *codec) ReadMessageBegin(ctx context.Context) (string, thrift.TMessageType, int32, error) {
	if o := &c.opening; c.opened {
		c.opened = false
		return o.name, o.kind, o.seq, nil
	}
	return c.TProtocol.ReadMessageBegin(ctx)
}

// ReadBinary returns bytes that alias the message, if that is large: it has memory of
// its own, which nobody uses again. Else they are copied.
func (c *codec) ReadBinary(ctx context.Context) ([]byte, error) {
	if c.protocol == Compact {
		b, err := c.TProtocol.ReadBinary(ctx)
		if err == nil {
			err = c.mayName(b)
		}
		return b, err
	}
	b, err := c.readBytes("binary")
	if err == nil {
		err = c.mayName(b)
	}
	if err != nil || c.aliased {
		return b, err
	}
	return bytes.Clone(b), nil
}

// ReadFieldBegin notes whether the field may be the address of a GlobalPointer, which never is what is outermost. The encoding
// does not tell: the same holds for any binary that is field 1 of a struct.
func (c *codec) ReadFieldBegin(ctx context.Context) (name string, kind thrift.TType, id int16, err error) {
	name, kind, id, err = c.TProtocol.ReadFieldBegin(ctx)
	c.address = kind == thrift.STRING && id == 1 && c.depth > 1
	return name, kind, id, err
}

// mayName refuses a global pointer whose region the packet does not list: the rack has not seen it, so who reads it would use its own
// rights on the region for whoever has sent it.
func (c *codec) mayName(value []byte) error {
	if !c.address || c.packet == nil || len(value) != len(dsmpacket.Pointer{}) {
		return nil
	}
	p, err := dsmpacket.FromBytes(value)
	if err != nil || p.IsNil() || c.packet.Names(rpcpacket.RegionOf(p)) {
		return nil //nolint:nilerr // whoever uses it is told that it is no pointer
	}
	return thrift.NewTProtocolExceptionWithType(thrift.INVALID_DATA, fmt.Errorf("the message has the pointer %s, its packet does not list the region", p))
}

// ReadString reads a string.
func (c *codec) ReadString(ctx context.Context) (string, error) {
	if c.protocol == Compact {
		return c.TProtocol.ReadString(ctx)
	}
	b, err := c.readBytes("string")
	return string(b), err
}

// readBytes takes a length and as many bytes off the message.
func (c *codec) readBytes(what string) ([]byte, error) {
	in := c.buf.in
	if len(in) < 4 {
		return nil, thrift.NewTProtocolExceptionWithType(thrift.INVALID_DATA, fmt.Errorf("a %s's length in %d bytes", what, len(in)))
	}
	n := binary.BigEndian.Uint32(in)
	if uint64(n) > uint64(len(in)-4) {
		return nil, thrift.NewTProtocolExceptionWithType(thrift.INVALID_DATA, fmt.Errorf("a %s of %d bytes, the message has %d more", what, n, len(in)-4))
	}
	end := 4 + int(n)
	c.buf.in = in[end:]
	return in[4:end:end], nil
}

// ReadStructBegin counts how deep the reader is.
func (c *codec) ReadStructBegin(ctx context.Context) (string, error) {
	c.depth++
	return c.TProtocol.ReadStructBegin(ctx)
}

// ReadStructEnd refuses a message that goes on behind its outermost struct: it is
// not what it claims to be, and the handler has not seen it yet.
func (c *codec) ReadStructEnd(ctx context.Context) error {
	c.depth--
	if n := len(c.buf.in); c.depth == 0 && n > 0 {
		return thrift.NewTProtocolExceptionWithType(thrift.INVALID_DATA, fmt.Errorf("%d bytes behind the message", n))
	}
	return c.TProtocol.ReadStructEnd(ctx)
}

// answers reports whether a reply that names got can answer a call of want: a
// multiplexed processor ("Service:method") answers with the method alone.
func answers(got, want string) bool {
	if got == want {
		return true
	}
	i := strings.LastIndex(want, thrift.MULTIPLEXED_SEPARATOR)
	return i >= 0 && got == want[i+1:]
}

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
	need := len(b.out) + n + rpcpacket.HeaderSize
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
