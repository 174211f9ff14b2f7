package interp

import "encoding/binary"

// deparser writes a packet.
type deparser struct {
	c         *compiler
	checksums []checksum
	steps     []step
	order     []int
	packs     []func(b []byte, w []uint64) // parallel to order; nil if the length varies
}

func (c *compiler) deparser() *deparser {
	d := &deparser{c: c}
	for _, sum := range c.prog.Checksums {
		if sum.Update {
			d.checksums = append(d.checksums, c.checksum(sum))
		}
	}
	for _, st := range c.prog.Deparser.Body {
		d.steps = append(d.steps, c.stmt(st))
	}
	for _, h := range c.prog.Deparser.Order {
		d.order = append(d.order, h.Index)
		if t := c.lay.types[h.Type]; t.Varbit < 0 {
			d.packs = append(d.packs, t.packer())
		} else {
			d.packs = append(d.packs, nil)
		}
	}
	return d
}

// run updates the checksums and returns the packet. If inPlace, it may overwrite
// the frame's parsed part, so that the payload need not move; otherwise it
// uses buf, which it returns grown. The packet lies in one of the two.
func (d *deparser) run(s *state, buf []byte, inPlace bool) (packet, grown []byte) {
	for i := range d.checksums {
		d.checksums[i].update(s)
	}
	for _, f := range d.steps {
		f(s)
	}
	n := d.size(s)
	if inPlace && n <= s.pos {
		packet = s.frame[s.pos-n:]
	} else {
		buf = append(append(buf[:0], make([]byte, n)...), s.payload()...)
		packet = buf
	}
	d.write(s, packet[:n])
	if s.limit >= 0 && len(packet) > s.limit {
		packet = packet[:s.limit]
	}
	return packet, buf
}

// size is the length of the valid headers in bytes.
func (d *deparser) size(s *state) int {
	n := 0
	for _, i := range d.order {
		if s.w[d.c.lay.bases[i]] != 0 {
			n += int(d.c.headerBytes(s, i))
		}
	}
	return n
}

func (d *deparser) write(s *state, b []byte) {
	lay := d.c.lay
	for k, i := range d.order {
		w := s.w[lay.bases[i]:]
		if w[0] == 0 {
			continue
		}
		n := int(d.c.headerBytes(s, i))
		if pack := d.packs[k]; pack != nil {
			pack(b[:n], w)
		} else {
			out := bitWriter{b: b[:0]}
			d.c.appendHeader(s, i, &out)
		}
		b = b[n:]
	}
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
