package inputs

import (
	"math/big"

	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// maxStates bounds how long a packet's way through the parser is.
const maxStates = 16

// packet is one being made: its bits, where headers lie in it, and what the parser
// will see ahead.
type packet struct {
	b      []byte
	at     map[*v1model.Header]int     // in bits
	ahead  map[v1model.FieldRef]forced // what the parser has copied to a field, by where it is and how wide
	forced []forced
}

// forced is a value that some bits get in the end.
type forced struct {
	at, width int
	value     *big.Int
}

// Packet is a frame that goes some way through the parser, and the port where it
// comes in; now and then it is cut off, or the parser's choices meet none.
func (a *Maker) Packet() (port int, frame []byte) {
	p := &packet{at: map[*v1model.Header]int{}, ahead: map[v1model.FieldRef]forced{}}
	st := a.prog.Parser.Start
	for n := 0; st != nil && n < maxStates; n++ {
		for _, s := range st.Body {
			a.extend(p, s)
		}
		st = a.choose(p, st)
	}
	for range a.IntN(40) {
		p.b = append(p.b, byte(a.Uint64()))
	}
	for _, f := range p.forced {
		p.set(f.at, f.width, f.value)
	}
	for len(p.b) < ShortestFrame {
		p.b = append(p.b, 0)
	}
	if !a.Whole && a.IntN(8) == 0 {
		p.b = p.b[:ShortestFrame+a.IntN(len(p.b)-ShortestFrame+1)]
	}
	return 1 + a.IntN(ports), p.b
}

// ShortestFrame is how short the packets are that Packet makes, in bytes: an Ethernet header's length.
const ShortestFrame = 14

// extend appends what a statement of the parser takes from the packet.
func (a *Maker) extend(p *packet, s v1model.Stmt) {
	switch s := s.(type) {
	case v1model.Extract:
		switch {
		case s.Header != nil:
			p.at[s.Header] = 8 * len(p.b)
			a.header(p, s.Header, s.Header.Type)
		default:
			if of, ok := s.Next.(v1model.StackValue); ok {
				a.header(p, of.Stack.Headers[0], of.Stack.Type)
			}
		}
	case v1model.Assign:
		to, ok := s.Dst.(v1model.FieldValue)
		if e, looks := s.Src.(v1model.Lookahead); ok && looks {
			p.ahead[to.Ref] = forced{at: 8*len(p.b) + e.Offset, width: e.Width}
		}
	case v1model.Advance:
		if c, ok := s.Bits.(v1model.Const); ok && c.Value.IsInt64() && c.Value.Int64() <= 1024 {
			p.b = append(p.b, bytesOf(a.random(int(c.Value.Int64())), int(c.Value.Int64()))...)
		}
	}
}

// header appends a header.
func (a *Maker) header(p *packet, h *v1model.Header, t *v1model.HeaderType) {
	at := 8 * len(p.b)
	p.b = append(p.b, make([]byte, t.Bits/8)...)
	for i := range t.Fields {
		f := &t.Fields[i]
		if f.Varbit {
			continue
		}
		p.set(at+f.Offset, f.Width, a.value(v1model.FieldRef{Header: h, Field: i}, f.Width))
	}
}

// choose takes one of a state's cases and makes the packet such that the parser
// does, as far as the key lies in it.
func (a *Maker) choose(p *packet, st *v1model.State) *v1model.State {
	if len(st.Cases) == 0 || a.IntN(10) == 0 {
		return st.Default
	}
	c := st.Cases[a.IntN(len(st.Cases))]
	if c.Set != nil {
		return st.Default
	}
	for i, k := range st.Key {
		v := new(big.Int).SetBytes(c.Values[i])
		if c.Masks != nil {
			m := new(big.Int).SetBytes(c.Masks[i])
			v.Or(v, new(big.Int).AndNot(a.random(k.Width), m))
		}
		switch e := k.Value.(type) {
		case v1model.FieldValue:
			at, ok := p.at[e.Ref.Header]
			if ok && e.Ref.Field >= 0 {
				p.set(at+e.Ref.Def().Offset, e.Ref.Width(), v)
			}
			if f, ok := p.ahead[e.Ref]; ok {
				f.value = v
				p.forced = append(p.forced, f)
			}
		case v1model.Lookahead:
			p.forced = append(p.forced, forced{8*len(p.b) + e.Offset, e.Width, v})
		}
	}
	return c.Next
}

// set writes some bits, as far as there are any.
func (p *packet) set(at, width int, v *big.Int) {
	for i := range width {
		n := at + width - 1 - i
		if n/8 >= len(p.b) {
			continue
		}
		mask := byte(0x80) >> (n % 8)
		p.b[n/8] &^= mask
		if v.Bit(i) == 1 {
			p.b[n/8] |= mask
		}
	}
}
