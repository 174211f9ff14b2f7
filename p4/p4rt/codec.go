package p4rt

import (
	"github.com/bifrost-rack/bifrost/p4/p4rt/wire"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// codec decodes Writes by package wire, and leaves the rest to another.
type codec struct{ encoding.CodecV2 }

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	r, ok := v.(*p4v1.WriteRequest)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	b := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer b.Free()
	return wire.Unmarshal(b.ReadOnlyData(), r)
}
