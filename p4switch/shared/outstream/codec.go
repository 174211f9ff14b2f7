package outstream

import (
	"sync"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that ours wraps
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// Message is a message of a Sender, whose bytes are counted until they have left.
type Message struct {
	msg    proto.Message
	sender *Sender
}

// Codec returns gRPC's protobuf codec, except that it counts the bytes of a Sender's
// messages: gRPC frees a message's buffer when it has written it out, and that
// is how the Sender learns that there is room again.
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2("proto")} }

type codec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	t, ok := v.(*Message)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	// gRPC ignores the pool of a buffer below its pooling threshold, and then
	// would not tell us; minBuffer is above.
	buf := buffers.Get().(*[]byte)
	b, err := proto.MarshalOptions{}.MarshalAppend((*buf)[:0], t.msg)
	if err != nil {
		return nil, err
	}
	*buf = b
	t.sender.inflight.Add(int64(len(b)))
	return mem.BufferSlice{mem.NewBuffer(buf, release{t.sender})}, nil
}

// minBuffer is the smallest buffer; see Marshal.
const minBuffer = 4096

var buffers = sync.Pool{New: func() any { b := make([]byte, 0, minBuffer); return &b }}

// release is the mem.BufferPool of one sender's buffers.
type release struct{ sender *Sender }

// Get is part of mem.BufferPool; nobody asks us for buffers.
func (release) Get(n int) *[]byte {
	b := make([]byte, n)
	return &b
}

// Put is called when the message has been written out, or given up.
func (r release) Put(b *[]byte) {
	n := len(*b)
	if cap(*b) <= 1<<17 { // do not hoard the rare large ones
		buffers.Put(b)
	}
	r.sender.written(n)
}
