package interp

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
