package control

import (
	"hash/crc32"

	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
)

// A body that does not fit a packet is sent in parts, in bursts that the other side
// answers:
//
//	asker                                     answerer
//	  │── request 0..n₁, …, n₂ (the last) ──────▶│ keeps what follows on what it has
//	  │◀──────────────────── ack: bytes to n₂ ───│
//	  │── request n₂..end ──────────────────────▶│ handles it
//	  │◀────────────── reply 0..m₁, …, m₂ (last)─│
//	  │── ack: bytes to m₂ ─────────────────────▶│
//	  │◀──────────────────────── reply m₂..end ──│
//
// The receiver takes parts in their order only: a part behind a lost one is sent
// again, as part of the burst that the next acknowledgement asks for. Only the
// asker has a timer. If nothing moves it begins anew with the first burst, and the
// acknowledgement tells it where to go on; so a side that has restarted needs no
// special treatment.
//
// Each side keeps parts per Peer, that is per switch port, so nobody can make
// another's message give way.

// outgoing is the body of a message of ours.
type outgoing struct {
	body []byte
	sum  uint32
}

func newOutgoing(body []byte) outgoing {
	return outgoing{body, crc32.Checksum(body, castagnoli)}
}

// burst returns the next packets of a message from an offset on. Each has at most
// most bytes, header included; 0 is no limit.
func (o *outgoing) burst(m Message, from, most int) (packets [][]byte) {
	room := len(o.body)
	if most > 0 {
		room = min(room, max(1, most-HeaderSize))
	}
	for at := from; ; {
		end := min(at+room, len(o.body))
		last := end == len(o.body) || len(packets)+1 == burstPackets || end-from+room > burstBytes
		m.Body, m.Part = o.body[at:end], o.part(at)
		m.Part.More = !last
		if end-at == len(o.body) {
			m.Part = Part{}
		}
		packets = append(packets, m.Append(nil))
		if last {
			return packets
		}
		at = end
	}
}

// part is the part of the body that begins at an offset.
func (o *outgoing) part(at int) Part {
	return Part{Offset: uint32(at), Total: uint32(len(o.body)), Sum: o.sum} //nolint:gosec // at most MaxMessage
}

// incoming is what has arrived of a body in parts: its beginning.
type incoming struct {
	body       []byte
	total, sum uint32
}

// take adds a packet's part, if that is the next one. It reports whether the body is whole.
// A part of another body begins anew, for its sender has. The error, which wraps
// wirefmt.ErrFormat, says that the parts do not make what their sender has split.
func (in *incoming) take(m *Message) (whole bool, err error) {
	p := m.Part
	if p.Offset == 0 && (p.Total != in.total || p.Sum != in.sum) {
		*in = incoming{total: p.Total, sum: p.Sum}
	}
	if p.Total != in.total || p.Sum != in.sum || int(p.Offset) != len(in.body) {
		return false, nil
	}
	in.body = append(in.body, m.Body...)
	if len(in.body) < int(in.total) {
		return false, nil
	}
	if crc32.Checksum(in.body, castagnoli) != in.sum {
		*in = incoming{}
		return false, wirefmt.Errorf("control message in parts: they do not fit each other")
	}
	return true, nil
}

// ack is the part that says what has arrived.
func (in *incoming) ack() Part {
	return Part{Ack: true, Offset: uint32(len(in.body)), Total: in.total, Sum: in.sum} //nolint:gosec // at most MaxMessage
}
