package rpc

import (
	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
)

// GlobalPointer is a pointer as Thrift structs carry it. The rack lends or hands
// over the region that it points to when a call, or its answer, carries it.
func GlobalPointer(p dsm.Pointer) *bifrost.GlobalPointer {
	if p.IsNil() {
		return &bifrost.GlobalPointer{Address: []byte{}}
	}
	return &bifrost.GlobalPointer{Address: p[:]}
}

// PointerOf returns the pointer that a Thrift struct carries; nil for one that is
// absent or empty. What is no global pointer is refused as BadRequest.
func PointerOf(g *bifrost.GlobalPointer) (dsm.Pointer, error) {
	if g == nil || len(g.Address) == 0 {
		return dsm.Pointer{}, nil
	}
	p, err := packet.FromBytes(g.Address)
	if err != nil {
		return p, &Error{Code: BadRequest, Op: "pointer", Err: err}
	}
	return p, nil
}
