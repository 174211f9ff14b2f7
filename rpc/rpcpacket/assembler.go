package rpcpacket

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/internal/wirefmt"
)

// Assembler puts messages together that have been Split. It keeps parts of at most
// so many bytes of messages. Beyond that the oldest message of the sender that has
// most gives way, so that no sender costs another one its messages by sending many;
// it is whole when its sender has sent it again. One goroutine owns it.
type Assembler struct {
	limit   int
	bytes   int
	open    map[assembly]*gathered
	senders map[netip.Addr]*share
}

// share is what one sender has of an Assembler; there is none without messages.
type share struct {
	bytes int
	order []assembly // the oldest first
}

// assembly tells messages apart: a sender, what it says it is, and its content.
type assembly struct {
	from           netip.Addr
	call           ID
	kind           Type
	caller, callee uint32
	total          int
	sum            uint32
}

// gathered is what there is of a message.
type gathered struct {
	body []byte
	have map[int]int // length of each part, by its place
	left int         // bytes that are missing
}

// NewAssembler returns an Assembler that keeps limit bytes at most, but one
// message in any case.
func NewAssembler(limit int) *Assembler {
	return &Assembler{limit: limit, open: map[assembly]*gathered{}, senders: map[netip.Addr]*share{}}
}

// Add takes a part, parsed and as it came. When nothing is missing any more it
// returns the whole message, as a datagram that Parse takes; else nil. What it was
// given it does not keep. The error, for what is no part, wraps wirefmt.ErrFormat.
func (a *Assembler) Add(from netip.Addr, m *Message, datagram []byte) (whole []byte, err error) {
	p, err := parsePart(m)
	if err != nil {
		return nil, err
	}
	key := assembly{from, m.Call, m.Type, m.CallerIncarnation, m.CalleeIncarnation, p.total, p.sum}
	g := a.open[key]
	if g == nil {
		g = a.begin(key)
	}
	if g.have[p.at] != 0 {
		return nil, nil
	}
	copy(g.body[p.at:], p.content)
	g.have[p.at] = len(p.content)
	if g.left -= len(p.content); g.left > 0 {
		return nil, nil
	}
	a.end(key)
	if g.left < 0 || crc32.Checksum(g.body, castagnoli) != p.sum {
		return nil, wirefmt.Errorf("message in parts: they do not fit each other")
	}
	whole = append(make([]byte, 0, ownHeader+p.total), datagram[:ownHeader]...)
	binary.BigEndian.PutUint16(whole[4:], uint16(m.Flags&^FlagPart))
	return append(whole, g.body...), nil
}

// begin makes room for a message.
func (a *Assembler) begin(key assembly) *gathered {
	for len(a.open) > 0 && a.bytes+key.total > a.limit {
		a.end(a.largest(key).order[0])
	}
	g := &gathered{body: make([]byte, key.total), have: map[int]int{}, left: key.total}
	a.open[key], a.bytes = g, a.bytes+key.total
	s := a.senders[key.from]
	if s == nil {
		s = &share{}
		a.senders[key.from] = s
	}
	s.bytes += key.total
	s.order = append(s.order, key)
	return g
}

// largest is the share of the sender that has most, if a message is added; of several
// the one that adds it, or the lowest address.
func (a *Assembler) largest(adds assembly) (most *share) {
	var who netip.Addr
	size := func(from netip.Addr, s *share) int {
		if from == adds.from {
			return s.bytes + adds.total
		}
		return s.bytes
	}
	for from, s := range a.senders {
		d := 1
		if most != nil {
			d = size(from, s) - size(who, most)
		}
		if d > 0 || d == 0 && (from == adds.from || who != adds.from && from.Less(who)) {
			who, most = from, s
		}
	}
	return most
}

// end forgets a message.
func (a *Assembler) end(key assembly) {
	delete(a.open, key)
	a.bytes -= key.total
	s := a.senders[key.from]
	s.bytes -= key.total
	s.order = slices.DeleteFunc(s.order, func(k assembly) bool { return k == key })
	if len(s.order) == 0 {
		delete(a.senders, key.from)
	}
}
