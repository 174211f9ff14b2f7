package interp

import "github.com/bifrost-rack/bifrost/p4/v1model"

// bitWriter appends fields to bytes, bit by bit where it has to.
type bitWriter struct {
	b    []byte
	bits int // written; b is as long as they need
}

// grow makes room for n more bits and returns the offset of the first.
func (w *bitWriter) grow(n int) int {
	at := w.bits
	w.bits += n
	for need := (w.bits + 7) / 8; len(w.b) < need; {
		w.b = append(w.b, 0)
	}
	return at
}

func (w *bitWriter) words(v []uint64, width int) {
	if width > 0 {
		storeWords(w.b, w.grow(width), width, v)
	}
}

func (w *bitWriter) bytes(b []byte) {
	if w.bits%8 == 0 {
		w.b = append(w.b, b...)
		w.bits += len(b) * 8
		return
	}
	for _, x := range b {
		storeBits(w.b, w.grow(8), 8, uint64(x))
	}
}

// calculation compiles a calculation to the function of its value.
func (c *compiler) calculation(calc *v1model.Calculation) func(*state) uint64 {
	hash := algorithm(calc.Algorithm)
	var inputs []func(*state, *bitWriter)
	for _, in := range calc.Input {
		inputs = append(inputs, c.input(in))
	}
	return func(s *state) uint64 {
		w := bitWriter{b: s.hash[:0]}
		for _, in := range inputs {
			in(s, &w)
		}
		if calc.Payload {
			w.bytes(s.payload())
		}
		s.hash = w.b
		return hash(s, w.b)
	}
}

// input compiles one part of a calculation's input.
func (c *compiler) input(in v1model.Input) func(*state, *bitWriter) {
	switch {
	case in.Header != nil:
		i := in.Header.Index
		return func(s *state, w *bitWriter) {
			if s.w[c.lay.bases[i]] != 0 {
				c.appendHeader(s, i, w)
			}
		}
	case in.Field.Valid():
		i, sl := in.Field.Header.Index, c.lay.slot(in.Field)
		varbit := in.Field.Def().Varbit
		base := c.lay.bases[i]
		return func(s *state, w *bitWriter) {
			switch {
			case s.w[base] == 0:
			case varbit:
				w.bytes(s.varbit[i])
			default:
				w.words(s.w[sl.at:sl.at+sl.n], sl.width)
			}
		}
	}
	k, n := bytesToWords(in.Const, in.Bits), in.Bits
	return func(_ *state, w *bitWriter) { w.words(k, n) }
}

// appendHeader appends a header as it is on the wire.
func (c *compiler) appendHeader(s *state, i int, w *bitWriter) {
	t, words := c.lay.heads[i], s.w[c.lay.bases[i]:]
	for k, f := range t.fields {
		if k == t.Varbit {
			w.bytes(s.varbit[i])
			continue
		}
		w.words(words[f.at:f.at+f.n], f.width)
	}
}

// checksum is a checksum to verify or to update.
type checksum struct {
	target slot
	base   int // the target's header
	cond   pred
	value  func(*state) uint64
}

func (c *compiler) checksum(sum *v1model.Checksum) checksum {
	x := checksum{
		target: c.lay.slot(sum.Target),
		base:   c.lay.bases[sum.Target.Header.Index],
		value:  c.calculation(sum.Calculation),
	}
	if sum.Cond != nil {
		x.cond = c.cond(sum.Cond)
	}
	return x
}

// verify tells whether the checksum is right or does not apply.
func (x *checksum) verify(s *state) bool {
	if s.w[x.base] == 0 || x.cond != nil && !x.cond(s) {
		return true
	}
	at, n := x.target.at, x.target.n
	for _, high := range s.w[at : at+n-1] {
		if high != 0 {
			return false
		}
	}
	return s.w[at+n-1] == x.value(s)
}

func (x *checksum) update(s *state) {
	if x.cond != nil && !x.cond(s) {
		return
	}
	at, n := x.target.at, x.target.n
	clear(s.w[at : at+n-1])
	s.w[at+n-1] = x.value(s) & mask64(x.target.width)
}
