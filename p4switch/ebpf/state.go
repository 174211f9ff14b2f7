//go:build linux

package ebpf

import (
	"slices"

	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/cilium/ebpf/asm"
)

// Where things lie in a packet's state. All of it is in one value of a per-CPU
// map, which the generated code addresses by constant offsets.
//
//	run │ packet: own words, valid, dirty, at, metadata and headers, frame │ key │ out │ digest │ entry │ spills │ private │ tables
//
// The words of the run are about the frame that came in. A packet's own words
// are those that its copies have too.
const (
	stPort   = 0  // ingress port
	stGSOLen = 8  // of a super-packet: length of its headers; else 0
	stTest   = 16 // the packet is a test's: not sent
	stTag    = 24 // the frame's VLAN tag as on the wire; 0 if it has none
	stDelta  = 32 // bytes by which the packet grows
	stBuilt  = 40 // 1 if the headers were laid out anew
	stPad    = 48 // padding before a packet to the CPU port
	stOutLen = 56 // length of the deparsed headers

	stJobs    = 64  // how many jobs are on the stack (jobs.go)
	stTail    = 80  // how many bytes copies share
	stFinal   = 88  // interface index that the last copy goes to; 0 for none
	stSent    = 96  // copies that a test was shown
	stCut     = 72  // how many bytes of that were cut off at the end
	stEnd     = 104 // how many bytes the copy being sent has cut off
	stScratch = 120 // any number, for a moment
	stMore    = 112 // 1 if a packet's original has become a job
	stGSOSum  = 128 // where the checksum of a super-packet's transport header is

	stInLen   = 136 // length that counters count, packet_out header included
	stWireLen = 144 // length from the Ethernet header on, VLAN tag included
	stParsed  = 152 // how far the parser got, from the Ethernet header on
	stError   = 160 // parser's error code
	stDigest  = 168 // index of the digest to send, plus one
	stOutPort = 176 // egress port
	stLength  = 184 // packet_length in egress
	stWindow  = 192 // how many bytes of the packet are in frame
	stSession = 200 // clone session, plus one; 0 for no clone
	stKeep    = 208 // index of the clone's field list
	stAgain   = 216 // index of the list of a resubmission, plus one
	stRound   = 224 // index of the list of a recirculation, plus one
	stLimit   = 232 // longest that the packet may leave, plus one; 0 for any length
	stSum     = 240 // where a checksum is still to be written; noSum if nowhere
	stSumFrom = 248 // where the part begins that it sums
	stBase    = 256 // what the parser's positions are relative to behind something of variable length (varbit.go)
	stBaseSum = 264 // stSum and stGSOLen, relative to it
	stBaseGSO = 272
	stBaseLen = 280 // how much of the packet there is from there on
	stSteps   = 288 // how many statements the turns of an action's loops have had; how many states a parser that loops has passed
	stWords   = 296

	stOwn = stInLen // where a packet's own words begin
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
	headers          []location
	zeroFrom, zeroTo int    // what is zeroed when a packet comes
	lazy             []bool // headers that are not (defined.go)
	key, frame       int
	window           int // how many bytes of a packet frame holds
	copied           int // where what a job keeps of a packet ends
	out, outMask     int
	kept, keptSize   int // fields that a copy keeps, while it is made
	digest           int
	entry            int // the entry that wins in a tuple space
	spills           int // values that wait while others are computed (gen.pair)
	trace            int // what the packet has met, while packets are traced (traced.go)
	tables           int // misses and hits of every table, counted up
	size             int
}

// location is where a header or metadata instance lies. A header is as on the
// wire; a metadata field has words of its own in host order, low word first.
type location struct {
	base, size int
	fields     []int // of metadata: where each field begins
	varbit     varbit
}

// place gives headers and metadata their places: first what is zeroed when a packet comes.
func (s *state) place(p *v1model.Program, at int, need *needs, private privates) (end int) {
	isPrivate, needed := map[v1model.FieldRef]bool{}, need.atStart(p)
	s.lazy = lazyHeaders(p)
	private.place(0, func(r v1model.FieldRef, _ int) { isPrivate[r] = true })
	s.headers, end = make([]location, len(p.Headers)), at
	for _, first := range []bool{true, false} {
		for _, h := range p.Headers {
			pl := &s.headers[h.Index]
			if h.Metadata {
				pl.fields = slices.Grow(pl.fields, len(h.Type.Fields))[:len(h.Type.Fields)]
				for i, f := range h.Type.Fields {
					r := v1model.FieldRef{Header: h, Field: i}
					if number, _ := need.number(r); needed.has(number) == first && !isPrivate[r] {
						pl.fields[i] = end
						end += 8 * words(f.Width)
					}
				}
			}
			if s.lazy[h.Index] == first || h.Metadata && !first {
				continue
			}
			pl.base = end
			if !h.Metadata {
				end += align8(h.Type.Bits/8) + 8 // fields may be read with what follows
			}
			v, more := varbitOf(h.Type, end)
			end += more
			pl.varbit, pl.size = v, end-pl.base
		}
		if first {
			s.zeroTo = end
		}
	}
	return end
}

func align8(n int) int { return (n + 7) &^ 7 }

func newState(p *v1model.Program, f forks, prefix, window, digest, cells int) *state {
	s := &state{prefix: prefix, window: window}
	n := len(p.Headers)
	s.valid = stWords
	s.dirty = align8(s.valid + n)
	s.at = align8(s.dirty + n)
	s.zeroFrom = s.valid
	need := newNeeds(p, cells)
	private := privatesOf(p, need)
	end := s.place(p, align8(s.at+2*n), need, private)
	s.copied = end
	total, varied := minImage, false
	for _, h := range p.Deparser.Order {
		total += h.Type.Bits/8 + s.headers[h.Index].varbit.max
		varied = varied || h.Type.Varbit >= 0
	}
	if f.recirculate {
		s.window = align8(window + total)
	}
	if f.any() {
		total += s.window
	}
	s.outMask = 63
	for s.outMask < total {
		s.outMask = s.outMask<<1 | 1
	}
	s.frame = end
	end = align8(s.frame + align8(prefix) + s.window + 32)
	if f.again() {
		s.copied = end
	}
	s.key = end
	s.out = align8(s.key + 2*maxKey + 32) // a key, and that of a tuple space's trie (tuplegen.go)
	longest := max(maxHeader, s.window)
	if varied {
		longest = max(3*maxHeader, s.window) // the fields before a variable-length one, its greatest length, and those behind
	}
	s.kept = align8(s.out + s.outMask + 1 + longest + 32)
	s.keptSize = keptSize(p)
	s.digest = s.kept + s.keptSize
	s.entry = align8(s.digest + digest + 16)
	s.spills = s.entry
	for _, t := range p.Tables {
		if scans(t) {
			s.spills = max(s.spills, s.entry+align8(entrySize(t)))
		}
	}
	s.tables = private.place(s.spills+8*maxSpills, func(r v1model.FieldRef, at int) { s.headers[r.Header.Index].fields[r.Field] = at })
	s.size = s.tables + tableStat*len(p.Tables)
	// What the verifier thinks that positions may be stays within.
	s.trace = align8(s.size)
	if room := s.trace + traceSteps + traceRoom; room <= maxState {
		s.size = room
	}
	s.size = max(s.size, s.ethernet()+s.windowMask()+s.window+8, s.out+max(s.windowMask(), 2*sumChunk)+8)
	return s
}

// ethernet is where the frame's first byte is, of which the parser's positions
// count.
func (s *state) ethernet() int { return s.frame + align8(s.prefix) }

// words is how many words hold a number of n bits.
func words(n int) int { return max((n+63)/64, 1) }

// windowMask has all bits of a position in what frame holds of a packet.
func (s *state) windowMask() int {
	m := 63
	for m < s.window {
		m = m<<1 | 1
	}
	return m
}

// bits is a run of at most 64 bits of a field.
type bits struct {
	ref   v1model.FieldRef
	low   int // distance from the field's lowest bit
	width int
}

// wordOf is the i-th word of a field, the lowest being 0.
func wordOf(ref v1model.FieldRef, i int) bits {
	return bits{ref, 64 * i, max(min(64, ref.Width()-64*i), 0)}
}

var sizes = map[int]asm.Size{1: asm.Byte, 2: asm.Half, 4: asm.Word, 8: asm.DWord}

// window is the load that covers bits of a header: where, how many bytes (a
// power of two), and how far the bits are from the low end. ok is false if they
// spread over nine bytes.
func (g *gen) window(b bits) (at, n, shift int, ok bool) {
	f := b.ref.Def()
	first := f.Offset + f.Width - b.low - b.width // in bits from the header's start
	at = g.st.headers[b.ref.Header.Index].base + first/8
	n = (first+b.width+7)/8 - first/8
	ok = n <= 8
	for n&(n-1) != 0 {
		n++
	}
	return at, n, n*8 - first%8 - b.width, ok
}

// valid is where a header's validity lies.
func (g *gen) validAt(h *v1model.Header) int { return g.st.valid + h.Index }

// read loads bits of a field.
func (g *gen) read(r asm.Register, b bits) {
	if b.width == 0 {
		g.set(r, 0)
		return
	}
	h := b.ref.Header
	if b.ref.Field == v1model.ValidField {
		if h.Metadata {
			g.set(r, 1)
			return
		}
		g.emit(asm.LoadMem(r, rState, int16(g.validAt(h)), asm.Byte))
		return
	}
	if h.Metadata {
		g.load(r, g.st.headers[h.Index].fields[b.ref.Field]+b.low/8)
		return
	}
	at, n, shift, ok := g.window(b)
	if !ok {
		g.lack("field %v of more than 64 bits that does not begin at a byte", b.ref)
		return
	}
	g.define(h, r)
	g.emit(asm.LoadMem(r, rState, int16(at), sizes[n]))
	if n > 1 {
		g.emit(asm.HostTo(asm.BE, r, sizes[n]))
	}
	if shift > 0 {
		g.emit(asm.RSh.Imm(r, int32(shift)))
	}
	if b.width < n*8-shift {
		g.mask(r, b.width)
	}
}

// write stores a register's low bits to a field, using another register. The
// first register is changed.
func (g *gen) write(b bits, r, scratch asm.Register) {
	h := b.ref.Header
	switch {
	case b.ref.Field == v1model.ValidField:
		g.lack("assignment of a header's validity")
		return
	case h.Metadata:
		g.mask(r, b.width)
		g.store(g.st.headers[h.Index].fields[b.ref.Field]+b.low/8, r)
		return
	}
	at, n, shift, ok := g.window(b)
	if !ok {
		g.lack("field %v of more than 64 bits that does not begin at a byte", b.ref)
		return
	}
	g.define(h, scratch)
	g.touch(h)
	if b.width < n*8 {
		g.mask(r, b.width)
		if shift > 0 {
			g.emit(asm.LSh.Imm(r, int32(shift)))
		}
		g.emit(asm.LoadMem(scratch, rState, int16(at), sizes[n]))
		if n > 1 {
			g.emit(asm.HostTo(asm.BE, scratch, sizes[n]))
		}
		// Clear the bits by shifting would lose others; so mask them out.
		keep := ^(mask64(b.width) << shift)
		g.andConst(scratch, keep, r)
		g.emit(asm.Or.Reg(r, scratch))
	}
	if n > 1 {
		g.emit(asm.HostTo(asm.BE, r, sizes[n]))
	}
	g.emit(asm.StoreMem(rState, int16(at), r, sizes[n]))
}

// andConst masks a register with a constant that may need 64 bits; other is a
// register whose value survives.
func (g *gen) andConst(r asm.Register, k uint64, other asm.Register) {
	if int64(k) == int64(int32(k)) {
		g.emit(asm.And.Imm(r, int32(k)))
		return
	}
	t := asm.R4
	for t == r || t == other {
		t++
	}
	g.emit(asm.LoadImm(t, int64(k), asm.DWord), asm.And.Reg(r, t))
}

// touch notes that a header has changed, so that it is written back.
func (g *gen) touch(h *v1model.Header) {
	if g.emits[h] {
		g.storeImm(g.st.dirty+h.Index, 1, asm.Byte)
	}
}

func mask64(n int) uint64 {
	if n >= 64 {
		return ^uint64(0)
	}
	return 1<<n - 1
}

// mask keeps a register's low n bits.
func (g *gen) mask(r asm.Register, n int) {
	switch {
	case n >= 64:
	case n == 32:
		g.emit(asm.Mov.Reg32(r, r))
	case n < 32:
		if n == 31 {
			g.emit(asm.And.Imm(r, int32(0x7fffffff)))
			return
		}
		g.emit(asm.And.Imm(r, int32(1)<<n-1))
	default:
		g.emit(asm.LSh.Imm(r, int32(64-n)), asm.RSh.Imm(r, int32(64-n)))
	}
}

// copyState moves n bytes within the state, rounded up to words.
func (g *gen) copyState(to, from, n int) {
	for i := 0; i < n; i += 8 {
		g.load(asm.R0, from+i)
		g.store(to+i, asm.R0)
	}
}
