package inputs

import (
	"math/big"
	"math/rand/v2"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// ports is how many ports packets come from and go to, numbered from 1.
const ports = 4

// Maker makes packets and entries of any program. Fields take few values: those
// that the program compares them with, and some that all fields of their width
// share, so that packets meet entries and conditions.
type Maker struct {
	*rand.Rand
	// Whole leaves packets as long as their headers: what a program reads of a
	// header that is not valid is undefined, and bmv2 has there what the packet
	// before left.
	Whole bool

	prog   *v1model.Program
	shared map[int][]*big.Int              // by width
	told   map[v1model.FieldRef][]*big.Int // what a field is compared with, by conditions and the program's own entries
}

// New derives a generator from a program.
func New(prog *v1model.Program, seed uint64) *Maker {
	a := &Maker{
		Rand: rand.New(rand.NewPCG(seed, 0)), prog: prog,
		shared: map[int][]*big.Int{}, told: map[v1model.FieldRef][]*big.Int{},
	}
	for _, p := range []*v1model.Pipeline{prog.Ingress, prog.Egress} {
		for _, c := range p.Conditions {
			a.learn(c.Expr)
		}
	}
	for _, t := range prog.Tables {
		for _, e := range t.Entries {
			for i, m := range e.Match {
				f := t.Key[i].Field
				a.told[f] = append(a.told[f], new(big.Int).SetBytes(m.Value))
			}
		}
	}
	return a
}

// learn collects the constants that fields are compared with.
func (a *Maker) learn(e v1model.Expr) {
	switch e := e.(type) {
	case v1model.Unary:
		a.learn(e.X)
	case v1model.Select:
		a.learn(e.Cond)
		a.learn(e.Then)
		a.learn(e.Else)
	case v1model.Binary:
		a.learn(e.X)
		a.learn(e.Y)
		f, isField := fieldIn(e.X)
		if c, ok := e.Y.(v1model.Const); ok && isField {
			for d := int64(-1); d <= 1; d++ {
				a.told[f] = append(a.told[f], new(big.Int).Add(c.Value, big.NewInt(d)))
			}
			a.told[f] = append(a.told[f], c.Value, c.Value) // most of the time
		}
	}
}

// fieldIn is the field that an expression is about.
func fieldIn(e v1model.Expr) (v1model.FieldRef, bool) {
	switch e := e.(type) {
	case v1model.FieldValue:
		return e.Ref, true
	case v1model.Unary:
		return fieldIn(e.X)
	case v1model.Binary:
		return fieldIn(e.X)
	}
	return v1model.FieldRef{}, false
}

// random is a number of some bits.
func (a *Maker) random(width int) *big.Int {
	v := new(big.Int)
	for n := 0; n < width; n += 64 {
		v.Lsh(v, 64).Or(v, new(big.Int).SetUint64(a.Uint64()))
	}
	return cut(v, width)
}

func cut(v *big.Int, width int) *big.Int {
	one := big.NewInt(1)
	return new(big.Int).And(v, new(big.Int).Sub(new(big.Int).Lsh(one, uint(width)), one))
}

// common is one of the values that all fields of a width share.
func (a *Maker) common(width int) *big.Int {
	vs := a.shared[width]
	if vs == nil {
		for i := range int64(3) {
			vs = append(vs, cut(big.NewInt(i), width), a.random(width))
		}
		a.shared[width] = vs
	}
	return vs[a.IntN(len(vs))]
}

// value is a value for a field.
func (a *Maker) value(f v1model.FieldRef, width int) *big.Int {
	switch told := a.told[f]; {
	case len(told) > 0 && a.IntN(4) > 0:
		return cut(told[a.IntN(len(told))], width)
	case a.IntN(5) > 0:
		return a.common(width)
	}
	return a.random(width)
}

// bytesOf is a value, big-endian.
func bytesOf(v *big.Int, width int) []byte { return v.FillBytes(make([]byte, (width+7)/8)) }

// Entry is an entry of a table that has a key and whose entries are not the
// program's own; ok is false if there is none.
func (a *Maker) Entry() (e datapath.Entry, ok bool) {
	var open []*v1model.Table
	for _, t := range a.prog.Tables {
		if len(t.Key) > 0 && !t.Const && t.Profile == nil && len(t.Actions) > 0 {
			open = append(open, t)
		}
	}
	if len(open) == 0 {
		return e, false
	}
	t := open[a.IntN(len(open))]
	e.Table = t.Name
	for i := range t.Key {
		e.Match = append(e.Match, a.match(&t.Key[i]))
	}
	if t.Kind == v1model.MatchTernary || t.Kind == v1model.MatchRange {
		// Of equal priorities any may win, so each is given only once.
		e.Priority = 1 + a.Int32N(1<<20)
	}
	e.Action = a.action(t.Actions[a.IntN(len(t.Actions))])
	return e, true
}

func (a *Maker) match(k *v1model.Key) datapath.Match {
	w := k.Field.Width()
	v := a.value(k.Field, w)
	if k.Mask != nil { // other bits make an entry of its own on bmv2
		v = new(big.Int).And(v, new(big.Int).SetBytes(k.Mask))
	}
	m := datapath.Match{Value: bytesOf(v, w)}
	if k.Field == a.prog.Std.IngressPort {
		v = big.NewInt(int64(1 + a.IntN(ports)))
		m.Value = bytesOf(v, w)
	}
	switch k.Kind {
	case v1model.MatchLPM:
		if m.PrefixLen = a.IntN(w + 1); a.IntN(2) == 0 {
			m.PrefixLen = w
		}
		high := cut(new(big.Int).Lsh(big.NewInt(-1), uint(w-m.PrefixLen)), w)
		m.Value = bytesOf(new(big.Int).And(v, high), w)
		if m.PrefixLen == 0 {
			m.Wildcard = true
		}
	case v1model.MatchTernary:
		mask := a.random(w)
		switch a.IntN(3) {
		case 0:
			mask = cut(big.NewInt(-1), w)
		case 1:
			mask = new(big.Int)
		}
		m.Mask = bytesOf(mask, w)
		m.Value = bytesOf(new(big.Int).And(v, mask), w)
		m.Wildcard = mask.Sign() == 0
	case v1model.MatchRange:
		high := a.value(k.Field, w)
		if high.Cmp(v) < 0 {
			v, high = high, v
		}
		m.Value, m.High = bytesOf(v, w), bytesOf(high, w)
		m.Wildcard = v.Sign() == 0 && high.Cmp(cut(big.NewInt(-1), w)) == 0
	}
	return m
}

// action is an action with arguments; those as wide as a port are mostly one.
func (a *Maker) action(def *v1model.Action) *datapath.Action {
	out := &datapath.Action{Name: def.Name}
	for _, p := range def.Params {
		v := a.common(p.Width)
		if p.Width == a.prog.Std.EgressSpec.Width() {
			v = big.NewInt(int64(1 + a.IntN(ports)))
		}
		out.Params = append(out.Params, bytesOf(v, p.Width))
	}
	return out
}
