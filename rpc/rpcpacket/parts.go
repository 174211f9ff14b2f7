package rpcpacket

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/bifrost-rack/bifrost/internal/wirefmt"
)

// MaxWhole is how many bytes a held message has at most. What goes beyond a
// datagram reaches the Gatekeeper in parts. It passes the trailer on to nobody, and of
// the payload only the beginning (First): the receiver fetches the rest from the log.
//
// A value of 1 MiB fits with what is around it.
const MaxWhole = 1<<20 + 64<<10

const (
	// ownHeader is how much of the header each part has of its own: what the switch
	// judges, and what changes when a message is sent again. The parts' contents
	// are what follows: lengths, service, pointers, payload and trailer.
	ownHeader = 94
	// partPreface opens a part's payload: bytes of the whole after ownHeader (4),
	// the part's place among them (4), their CRC-32C (4).
	partPreface = 12
	// minPart is what each part but the last carries at least, in bytes.
	minPart = 512
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Split returns a message that Append made in datagrams of at most budget bytes:
// as it is if it fits, else in parts, which an Assembler puts together in whatever
// order and however often they come. Only messages that are held may be split.
// They must have at most MaxWhole bytes.
func Split(datagram []byte, budget int) [][]byte {
	if len(datagram) <= budget {
		return [][]byte{datagram}
	}
	be := binary.BigEndian
	body := datagram[ownHeader:]
	sum := crc32.Checksum(body, castagnoli)
	var parts [][]byte
	for at := 0; at < len(body); {
		n := min(len(body)-at, budget-HeaderSize-partPreface)
		b := make([]byte, HeaderSize, HeaderSize+partPreface+n)
		copy(b, datagram[:ownHeader])
		be.PutUint16(b[4:], be.Uint16(b[4:])|uint16(FlagPart))
		be.PutUint32(b[96:], uint32(partPreface+n))
		copy(b[104:112], datagram[104:112])
		b = be.AppendUint32(b, uint32(len(body)))
		b = be.AppendUint32(b, uint32(at))
		b = be.AppendUint32(b, sum)
		parts = append(parts, append(b, body[at:at+n]...))
		at += n
	}
	return parts
}

// part is one part taken apart. Its content aliases the datagram.
type part struct {
	total, at int
	sum       uint32
	content   []byte
}

func parsePart(m *Message) (p part, err error) {
	be := binary.BigEndian
	if len(m.Pointers) > 0 || len(m.Trailer) > 0 || len(m.Payload) <= partPreface {
		return p, wirefmt.Errorf("part: %d pointers, %d bytes of payload, %d of trailer", len(m.Pointers), len(m.Payload), len(m.Trailer))
	}
	total, at := uint64(be.Uint32(m.Payload)), uint64(be.Uint32(m.Payload[4:]))
	p = part{total: int(total), at: int(at), sum: be.Uint32(m.Payload[8:]), content: m.Payload[partPreface:]}
	end := at + uint64(len(p.content))
	switch {
	case total < HeaderSize-ownHeader || total > MaxWhole-ownHeader || end > total:
		return p, wirefmt.Errorf("part: bytes %d to %d of %d", at, end, total)
	case len(p.content) < minPart && end < total:
		return p, wirefmt.Errorf("part: %d bytes, and not the last", len(p.content))
	}
	return p, nil
}
