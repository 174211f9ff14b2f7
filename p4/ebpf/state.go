//go:build linux

package ebpf

import "github.com/bifrost-rack/bifrost/p4/v1model"

// Where things lie in a packet's state. All of it is in one value of a per-CPU
// map, which the generated code addresses by constant offsets.
//
//	words │ zeroed: valid, dirty, at, headers, metadata │ key │ frame │ out │ digest │ tables
const (
	stPort    = 0   // ingress port
	stInLen   = 8   // length that counters count, packet_out header included
	stWireLen = 16  // length from the Ethernet header on, VLAN tag included
	stParsed  = 24  // how far the parser got, from the Ethernet header on
	stError   = 32  // parser's error code
	stDigest  = 40  // index of the digest to send, plus one
	stOutPort = 48  // egress port
	stOutLen  = 56  // length of the deparsed headers
	stGSOLen  = 64  // of a super-packet: length of its headers; else 0
	stTest    = 72  // the packet is a test's: not sent
	stLength  = 80  // packet_length in egress
	stDelta   = 88  // bytes by which the packet grows
	stTag     = 96  // the frame's VLAN tag as on the wire; 0 if it has none
	stBuilt   = 104 // 1 if the headers were laid out anew
	stPad     = 112 // padding before a packet to the CPU port
	stWords   = 120
)

// tableStat is the size of a table's counters: misses, then hits.
const tableStat = 16

// maxParse bounds how many bytes a parser may look at.
const maxParse = 1024

// state is where a program's packets have their fields.
type state struct {
	// prefix is the length of what is before the Ethernet header of a frame from
	// the CPU port; the parser's positions are relative to the Ethernet header.
	prefix int

	valid, dirty, at int // arrays, by header: u8, u8, u16
	headers          []place
	zeroFrom, zeroTo int
	key, frame       int
	out, outMask     int
	digest           int
	tables           int // misses and hits of every table, counted up
	size             int
}

// place is where a header or metadata instance lies. A header is as on the
// wire; a metadata field has words of its own in host order, low word first.
type place struct {
	base, size int
	fields     []int // of metadata: where each field begins
}

func align8(n int) int { return (n + 7) &^ 7 }

func newState(p *v1model.Program, prefix, window, digest int) *state {
	s := &state{prefix: prefix}
	n := len(p.Headers)
	s.valid = stWords
	s.dirty = align8(s.valid + n)
	s.at = align8(s.dirty + n)
	end := align8(s.at + 2*n)
	s.zeroFrom = s.valid
	for _, h := range p.Headers {
		pl := place{base: end}
		if h.Metadata {
			for _, f := range h.Type.Fields {
				pl.fields = append(pl.fields, end+pl.size)
				pl.size += 8 * words(f.Width)
			}
		} else {
			pl.size = align8(h.Type.Bits/8) + 8 // fields may be read with what follows
		}
		end += pl.size
		s.headers = append(s.headers, pl)
	}
	s.zeroTo = end
	s.key = end
	s.frame = align8(s.key + 4 + maxKey + 16)
	s.out = align8(s.frame + align8(prefix) + window + 32)
	total := minImage
	for _, h := range p.Deparser.Order {
		total += h.Type.Bits / 8
	}
	s.outMask = 63
	for s.outMask < total {
		s.outMask = s.outMask<<1 | 1
	}
	s.digest = align8(s.out + s.outMask + 1 + maxHeader + 32)
	s.tables = align8(s.digest + digest + 16)
	s.size = s.tables + tableStat*len(p.Tables)
	return s
}

// ethernet is where the frame's first byte is, of which the parser's positions
// count.
func (s *state) ethernet() int { return s.frame + align8(s.prefix) }

// words is how many words hold a number of n bits.
func words(n int) int { return max((n+63)/64, 1) }
