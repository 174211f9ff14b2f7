package interp

import (
	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/v1model"
)

// digest is a compiled list of values for the control plane.
type digest struct {
	name   string
	fields []func(*state) []byte
}

func (c *compiler) digest(def *v1model.Digest) *digest {
	d := &digest{name: def.Name}
	for _, e := range def.Elements {
		if !e.Field.Valid() {
			d.fields = append(d.fields, func(*state) []byte { return append([]byte(nil), e.Const...) })
			continue
		}
		sl := c.lay.slot(e.Field)
		d.fields = append(d.fields, func(s *state) []byte {
			b := make([]byte, (sl.width+7)/8)
			storeWords(b, len(b)*8-sl.width, sl.width, s.w[sl.at:sl.at+sl.n])
			return b
		})
	}
	return d
}

// sample is the digest of a packet, with the values it has now.
func (d *digest) sample(s *state) datapath.Digest {
	out := datapath.Digest{Name: d.name, Fields: make([][]byte, len(d.fields))}
	for i, f := range d.fields {
		out.Fields[i] = f(s)
	}
	return out
}
