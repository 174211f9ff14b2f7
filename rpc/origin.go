package rpc

import (
	"encoding/binary"
	"math"

	"github.com/bifrost-rack/bifrost/internal/wirefmt"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// origin shows that a direct call or one-way is its caller's. It stands at the beginning of the
// trailer:
//
//	proof (16 bytes) | service (8) | lineage
//
// The callee cannot check it. The callee passes it on to the Gatekeeper, which does, when the
// Gatekeeper is to decide about the call. So a node that has only learnt the id of a call, from a
// parent or a lineage, cannot say that the call runs here.
type origin struct {
	proof endpoint.Proof
	// service is the hash of the service whose execution makes the call, since the id follows from
	// its key; 0 for a call of a durable main, and in a session.
	service uint64
}

const originSize = len(origin{}.proof) + 8

// originOf is that of a call which an operation makes, with the proof that belongs to its id. Begin
// adds the proof of a call in a session.
func originOf(o *operation, proof endpoint.Proof) origin {
	from := origin{proof: proof}
	if o != nil && o.b.e.export != nil {
		from.service = o.b.e.export.hash
	}
	return from
}

func (o origin) append(b []byte) []byte {
	return binary.BigEndian.AppendUint64(append(b, o.proof[:]...), o.service)
}

// originIn splits the trailer of a direct call; false if it is none.
func originIn(trailer []byte) (from []byte, l lineage, ok bool) {
	if len(trailer) < originSize {
		return make([]byte, originSize), l, false
	}
	l, ok = lineageIn(trailer[originSize:])
	return trailer[:originSize], l, ok
}

// straightTrailer goes behind a direct call: its origin, its lineage if that names somebody and, if
// the call exceeds a packet, the hash of its arguments (argumentsSize). Nobody waits for a one-way.
func (n *Node) straightTrailer(b *opSequence, codec *codec, h *rpcpacket.Header, from origin) (trailer []byte) {
	trailer = from.append(nil)
	if l := b.lineageOf(); !l.nobody() && h.Type == rpcpacket.Call {
		trailer = l.append(trailer)
	}
	if codec.size()+len(trailer) <= n.budget {
		return trailer
	}
	whole := rpcpacket.Message{Header: *h, Pointers: codec.pointers, Payload: codec.buf.out[rpcpacket.HeaderSize:]}
	return appendArguments(trailer, &whole)
}

// appendArguments appends the hash of a message's arguments, in which the trailer of a first packet
// ends.
func appendArguments(b []byte, m *rpcpacket.Message) []byte {
	return binary.BigEndian.AppendUint64(b, argumentsOf(m))
}

// measure returns how many bytes of arguments a direct call has, and their hash. If this is only
// its first packet, it takes the hash off the trailer.
func measure(m *rpcpacket.Message) (size int, arguments uint64, err error) {
	if m.Flags&rpcpacket.FlagMore == 0 {
		return len(m.Payload), argumentsOf(m), nil
	}
	o, err := m.Opening()
	at := len(m.Trailer) - argumentsSize
	if err == nil && (at < 0 || o.Total > math.MaxInt/64) {
		err = wirefmt.Errorf("first packet of a direct call: %d bytes, with a trailer of %d", o.Total, len(m.Trailer))
	}
	if err != nil {
		return 0, 0, err
	}
	arguments = binary.BigEndian.Uint64(m.Trailer[at:])
	m.Trailer = m.Trailer[:at]
	return int(o.Total), arguments, nil
}

// argumentsSize is how many bytes the hash of a call's arguments has.
const argumentsSize = 8
