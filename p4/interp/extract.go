package interp

import "github.com/bifrost-rack/bifrost/p4/v1model"

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
