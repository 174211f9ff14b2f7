package interp

import (
	"encoding/binary"

	"github.com/bifrost-rack/bifrost/p4/v1model"
)

// extract compiles the extraction of a header.
func (c *compiler) extract(st v1model.Extract) step {
	if st.VarbitBits != nil {
		return c.extractVarbit(st)
	}
	if st.Header == nil {
		next, advance := c.next(st)
		return func(s *state) {
			if i := next(s); i >= 0 && c.extractFixed(s, i) {
				s.w[advance]++
			}
		}
	}
	if st.Header.Union != nil {
		i := st.Header.Index
		return func(s *state) { c.extractFixed(s, i) }
	}
	// The common case, with everything known.
	base, t := c.lay.bases[st.Header.Index], c.lay.heads[st.Header.Index]
	n, tooShort := t.Bits/8, c.codes.packetTooShort
	unpack := t.unpacker()
	return func(s *state) {
		if len(s.frame)-s.pos < n {
			s.fail(tooShort)
			return
		}
		unpack(s.w[base:], s.frame[s.pos:])
		s.w[base] = 1
		s.pos += n
	}
}

// next finds the next free header of a stack, or fails and returns -1. advance
// is where the count lies that is to go up after the extraction.
func (c *compiler) next(st v1model.Extract) (find href, advance int) {
	of, at := c.elements(st.Next)
	member, full := st.Member, c.codes.stackOutOfBounds
	return func(s *state) int {
		n := s.w[at]
		if n >= uint64(len(of)) {
			s.fail(full)
			return -1
		}
		return of[n][member]
	}, at
}

// extractFixed extracts a header without a variable-length field.
func (c *compiler) extractFixed(s *state, i int) bool {
	t := c.lay.heads[i]
	n := t.Bits / 8
	if len(s.frame)-s.pos < n {
		s.fail(c.codes.packetTooShort)
		return false
	}
	c.unpackers[t](s.w[c.lay.bases[i]:], s.frame[s.pos:])
	c.makeValid(s, i)
	s.pos += n
	return true
}

func (c *compiler) extractVarbit(st v1model.Extract) step {
	length := c.count(st.VarbitBits)
	next, advance := href(nil), -1
	if st.Header == nil {
		next, advance = c.next(st)
	} else {
		i := st.Header.Index
		next = func(*state) int { return i }
	}
	return func(s *state) {
		i := next(s)
		if i < 0 || !c.extractVariable(s, i, length(s)) {
			return
		}
		if advance >= 0 {
			s.w[advance]++
		}
	}
}

// extractVariable extracts a header whose variable-length field has n bits.
func (c *compiler) extractVariable(s *state, i int, n uint64) bool {
	t := c.lay.heads[i]
	rest := uint64(len(s.frame) - s.pos)
	switch {
	case n%8 != 0:
		s.fail(c.codes.invalidArgument)
		return false
	case n/8 > rest || rest-n/8 < uint64(t.Bits/8):
		s.fail(c.codes.packetTooShort)
		return false
	case n > uint64(t.Fields[t.Varbit].MaxWidth):
		s.fail(c.codes.headerTooShort)
		return false
	}
	b, w := s.frame[s.pos:], s.w[c.lay.bases[i]:]
	offset := 0
	for k, f := range t.fields {
		if k == t.Varbit {
			s.varbit[i] = append(s.varbit[i][:0], make([]byte, n/8)...)
			copyBits(s.varbit[i], b, offset, int(n))
			w[f.at] = n
			offset += int(n)
			continue
		}
		loadWords(w[f.at:f.at+f.n], b, offset, f.width)
		offset += f.width
	}
	c.makeValid(s, i)
	s.pos += offset / 8
	return true
}

// chunk is a run of whole bytes, at most 8, on the wire with the fields in it.
type chunk struct {
	first, n int // bytes
	parts    []part
}

// part is a field, or a word of one, within a chunk.
type part struct {
	at    int // word, relative to the header
	shift int // from the chunk's low end
	mask  uint64
}

// chunks splits a header of fixed length into runs of bytes. It returns nil if
// fields lie so that they cannot be split.
func (t *typeLayout) chunks() []chunk {
	var cs []chunk
	for i := 0; i < len(t.fields); {
		start := t.Fields[i].Offset
		if f := t.fields[i]; f.width > 64 {
			if start%8 != 0 || f.width%64 != 0 {
				return nil
			}
			for k := range f.n {
				cs = append(cs, chunk{start/8 + k*8, 8, []part{{f.at + k, 0, ^uint64(0)}}})
			}
			i++
			continue
		}
		end := start
		first := i
		for ; i < len(t.fields) && (end == start || end%8 != 0); i++ {
			end += t.fields[i].width
		}
		if start%8 != 0 || end%8 != 0 || end-start > 64 {
			return nil
		}
		ch := chunk{first: start / 8, n: (end - start) / 8}
		for _, k := range seq(first, i) {
			f := t.fields[k]
			ch.parts = append(ch.parts, part{f.at, end - t.Fields[k].Offset - f.width, mask64(f.width)})
		}
		cs = append(cs, ch)
	}
	return cs
}

func seq(from, to int) []int {
	s := make([]int, 0, to-from)
	for i := from; i < to; i++ {
		s = append(s, i)
	}
	return s
}

// unpacker makes the function that reads a header's fields from its bytes.
func (t *typeLayout) unpacker() func(w []uint64, b []byte) {
	cs := t.chunks()
	if cs == nil {
		return func(w []uint64, b []byte) {
			for k, f := range t.fields {
				loadWords(w[f.at:f.at+f.n], b, t.Fields[k].Offset, f.width)
			}
		}
	}
	return func(w []uint64, b []byte) {
		for i := range cs {
			c := &cs[i]
			v := loadBytes(b[c.first:], c.n)
			for _, p := range c.parts {
				w[p.at] = v >> p.shift & p.mask
			}
		}
	}
}

// loadBytes reads n bytes, 1 to 8, as a number.
func loadBytes(b []byte, n int) uint64 {
	if len(b) >= 8 {
		return binary.BigEndian.Uint64(b) >> (64 - n*8)
	}
	var v uint64
	for _, x := range b[:n] {
		v = v<<8 | uint64(x)
	}
	return v
}

// storeBytes writes the low n bytes of v.
func storeBytes(b []byte, n int, v uint64) {
	if n == 8 {
		binary.BigEndian.PutUint64(b, v)
		return
	}
	for i := n - 1; i >= 0; i-- {
		b[i] = byte(v)
		v >>= 8
	}
}

// packer makes the function that writes a header of fixed length.
func (t *typeLayout) packer() func(b []byte, w []uint64) {
	cs := t.chunks()
	if cs == nil {
		return func(b []byte, w []uint64) {
			for k, f := range t.fields {
				storeWords(b, t.Fields[k].Offset, f.width, w[f.at:f.at+f.n])
			}
		}
	}
	return func(b []byte, w []uint64) {
		for i := range cs {
			c := &cs[i]
			var v uint64
			for _, p := range c.parts {
				v |= w[p.at] << p.shift
			}
			storeBytes(b[c.first:], c.n, v)
		}
	}
}
