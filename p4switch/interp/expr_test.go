package interp

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// fieldWidths are around every boundary that the evaluators know.
var fieldWidths = []int{1, 7, 8, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 200}

// exprProgram is a program whose metadata has an unsigned and a signed field of
// every width, to read, and the same to write.
func exprProgram(t testing.TB) *v1model.Program {
	t.Helper()
	var fields []string
	for _, prefix := range []string{"", "to_"} {
		for _, w := range fieldWidths {
			fields = append(fields, fmt.Sprintf(`["%su%d",%d,false]`, prefix, w, w))
			if w > 1 {
				fields = append(fields, fmt.Sprintf(`["%ss%d",%d,true]`, prefix, w, w))
			}
		}
	}
	total := 0
	for _, w := range fieldWidths {
		total += 4 * w
	}
	fields = append(fields, fmt.Sprintf(`["pad",%d]`, 8-(total-2)%8+8))
	return loadText(t, `{"__meta__":{"version":[2,23]},
	"header_types":[{"name":"std","fields":[["ingress_port",9],["egress_spec",9],["egress_port",9],["instance_type",32],["packet_length",32],["pad",5]]},
	{"name":"m","fields":[`+strings.Join(fields, ",")+`]}],
	"headers":[{"name":"standard_metadata","id":0,"header_type":"std","metadata":true},{"name":"m","id":1,"header_type":"m","metadata":true}],
	"parsers":[{"name":"p","init_state":null}],"deparsers":[{"name":"d"}],
	"pipelines":[{"name":"ingress"},{"name":"egress"}]}`)
}

func loadText(t testing.TB, text string) *v1model.Program {
	t.Helper()
	p, err := v1model.Load([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// exprGen makes random expressions and evaluates them as the model defines:
// with numbers of unlimited precision.
type exprGen struct {
	*rand.Rand
	prog  *v1model.Program
	lay   *layout
	state *state
}

func (g *exprGen) leaf() v1model.Expr {
	m := g.prog.Headers[1]
	if g.IntN(4) > 0 {
		n := len(fieldWidths)*2 - 1
		return v1model.FieldValue{Ref: v1model.FieldRef{Header: m, Field: g.IntN(n)}}
	}
	k := g.random(fieldWidths[g.IntN(len(fieldWidths))])
	if g.IntN(3) == 0 {
		k.Neg(k)
	}
	return v1model.Const{Value: k}
}

// random is a number of at most n bits, often an extreme one.
func (g *exprGen) random(n int) *big.Int {
	z := new(big.Int)
	switch g.IntN(4) {
	case 0:
		return z.SetInt64(int64(g.IntN(2)))
	case 1: // all ones, or one more than the largest signed number
		z.Lsh(big.NewInt(1), uint(n-g.IntN(2)))
		return z.Sub(z, big.NewInt(1))
	}
	for range n {
		z.Lsh(z, 1).Or(z, big.NewInt(int64(g.IntN(2))))
	}
	return z
}

func (g *exprGen) number(depth int) v1model.Expr {
	if depth == 0 || g.IntN(8) == 0 {
		return g.leaf()
	}
	x := g.number(depth - 1)
	width := v1model.Const{Value: big.NewInt(int64(fieldWidths[1+g.IntN(len(fieldWidths)-1)]))}
	switch g.IntN(12) {
	case 0:
		return v1model.Unary{Op: v1model.OpNot, X: x}
	case 1:
		return v1model.Unary{Op: v1model.OpNeg, X: x}
	case 2:
		return v1model.Binary{Op: v1model.OpWrap, X: x, Y: width}
	case 3:
		return v1model.Binary{Op: v1model.OpSaturate, X: x, Y: width}
	case 4:
		return v1model.Binary{Op: v1model.OpSaturateUnsigned, X: x, Y: width}
	case 5:
		return v1model.Select{Cond: g.truth(depth - 1), Then: x, Else: g.number(depth - 1)}
	case 6:
		return v1model.Unary{Op: v1model.OpToData, X: g.truth(depth - 1)}
	case 7: // shifts by amounts that are numbers of their own
		amount := v1model.Binary{Op: v1model.OpAnd, X: g.number(depth - 1), Y: v1model.Const{Value: big.NewInt(0xff)}}
		return v1model.Binary{Op: []v1model.Op{v1model.OpShl, v1model.OpShr}[g.IntN(2)], X: x, Y: amount}
	}
	ops := []v1model.Op{
		v1model.OpAdd, v1model.OpSub, v1model.OpMul, v1model.OpAnd, v1model.OpOr, v1model.OpXor,
		v1model.OpDiv, v1model.OpMod,
	}
	return v1model.Binary{Op: ops[g.IntN(len(ops))], X: x, Y: g.number(depth - 1)}
}

func (g *exprGen) truth(depth int) v1model.Expr {
	ops := []v1model.Op{
		v1model.OpEqual, v1model.OpNotEqual, v1model.OpLess, v1model.OpLessEqual,
		v1model.OpGreater, v1model.OpGreaterEqual,
	}
	switch g.IntN(6) {
	case 0:
		return v1model.Unary{Op: v1model.OpToBool, X: g.number(depth)}
	case 1:
		if depth > 0 {
			return v1model.Unary{Op: v1model.OpLogicalNot, X: g.truth(depth - 1)}
		}
	case 2:
		if depth > 0 {
			op := []v1model.Op{v1model.OpLogicalAnd, v1model.OpLogicalOr, v1model.OpEqual, v1model.OpNotEqual}[g.IntN(4)]
			return v1model.Binary{Op: op, X: g.truth(depth - 1), Y: g.truth(depth - 1)}
		}
	}
	return v1model.Binary{Op: ops[g.IntN(len(ops))], X: g.number(depth), Y: g.number(depth)}
}

// value evaluates a number.
func (g *exprGen) value(e v1model.Expr) *big.Int {
	z := new(big.Int)
	switch e := e.(type) {
	case v1model.Const:
		return z.Set(e.Value)
	case v1model.FieldValue:
		sl := g.lay.slot(e.Ref)
		for _, w := range g.state.w[sl.at : sl.at+sl.n] {
			z.Lsh(z, 64).Or(z, new(big.Int).SetUint64(w))
		}
		if sl.signed && z.Bit(sl.width-1) == 1 {
			z.Sub(z, new(big.Int).Lsh(big.NewInt(1), uint(sl.width)))
		}
		return z
	case v1model.Select:
		if g.holds(e.Cond) {
			return g.value(e.Then)
		}
		return g.value(e.Else)
	case v1model.Unary:
		switch e.Op {
		case v1model.OpNot:
			return z.Not(g.value(e.X))
		case v1model.OpNeg:
			return z.Neg(g.value(e.X))
		}
		if g.holds(e.X) {
			z.SetInt64(1)
		}
		return z
	}
	b := e.(v1model.Binary)
	x, y := g.value(b.X), g.value(b.Y)
	one := big.NewInt(1)
	switch b.Op {
	case v1model.OpAdd:
		return z.Add(x, y)
	case v1model.OpSub:
		return z.Sub(x, y)
	case v1model.OpMul:
		return z.Mul(x, y)
	case v1model.OpAnd:
		return z.And(x, y)
	case v1model.OpOr:
		return z.Or(x, y)
	case v1model.OpXor:
		return z.Xor(x, y)
	case v1model.OpShl:
		return z.Lsh(x, uint(y.Uint64()))
	case v1model.OpShr:
		return z.Rsh(x, uint(y.Uint64()))
	case v1model.OpDiv, v1model.OpMod:
		if y.Sign() == 0 {
			return z
		}
		if b.Op == v1model.OpDiv {
			return z.Quo(x, y)
		}
		return z.Rem(x, y)
	}
	w := uint(y.Uint64())
	low, high := new(big.Int), new(big.Int).Lsh(one, w)
	if b.Op != v1model.OpSaturateUnsigned {
		high.Lsh(one, w-1)
		low.Neg(high)
	}
	high.Sub(high, one)
	if b.Op == v1model.OpWrap {
		z.And(x, new(big.Int).Sub(new(big.Int).Lsh(one, w), one))
		if z.Cmp(high) > 0 {
			z.Sub(z, new(big.Int).Lsh(one, w))
		}
		return z
	}
	switch {
	case x.Cmp(low) < 0:
		return low
	case x.Cmp(high) > 0:
		return high
	}
	return x
}

// holds evaluates a truth.
func (g *exprGen) holds(e v1model.Expr) bool {
	if u, ok := e.(v1model.Unary); ok {
		if u.Op == v1model.OpToBool {
			return g.value(u.X).Sign() != 0
		}
		return !g.holds(u.X)
	}
	b := e.(v1model.Binary)
	if v1model.KindOf(b.X) == v1model.KindBool {
		x, y := g.holds(b.X), g.holds(b.Y)
		switch b.Op {
		case v1model.OpLogicalAnd:
			return x && y
		case v1model.OpLogicalOr:
			return x || y
		}
		return (x == y) == (b.Op == v1model.OpEqual)
	}
	c := g.value(b.X).Cmp(g.value(b.Y))
	switch b.Op {
	case v1model.OpEqual:
		return c == 0
	case v1model.OpNotEqual:
		return c != 0
	case v1model.OpLess:
		return c < 0
	case v1model.OpLessEqual:
		return c <= 0
	case v1model.OpGreater:
		return c > 0
	}
	return c >= 0
}

// TestExpressions compares what is compiled with the definition: every random
// expression is assigned to every field, and every condition decided.
func TestExpressions(t *testing.T) {
	prog := exprProgram(t)
	c := newCompiler(prog, nil, nil)
	g := &exprGen{rand.New(rand.NewPCG(1, 2)), prog, c.lay, newState(c.lay, 2)}
	n := 3000
	if testing.Short() {
		n = 300
	}
	for i := range n {
		for f := range prog.Headers[1].Type.Fields {
			sl := c.lay.slot(v1model.FieldRef{Header: prog.Headers[1], Field: f})
			putBig(g.state.w[sl.at:sl.at+sl.n], g.random(sl.width), sl.width)
		}
		e := g.number(1 + i%4)
		want := g.value(e)
		if sp := v1model.SpanOf(e); sp.Signed && want.BitLen() > sp.Bits || !sp.Signed && (want.Sign() < 0 || want.BitLen() > sp.Bits) {
			t.Fatalf("%v is beyond its span %+v\n%#v", want, sp, e)
		}
		for f := len(fieldWidths)*2 - 1; f < len(prog.Headers[1].Type.Fields)-1; f++ {
			to := v1model.FieldRef{Header: prog.Headers[1], Field: f}
			c.assign(v1model.FieldValue{Ref: to}, e)(g.state)
			sl := c.lay.slot(to)
			expect := make([]uint64, sl.n)
			putBig(expect, want, sl.width)
			if got := g.state.w[sl.at : sl.at+sl.n]; compareWords(got, expect) != 0 {
				t.Fatalf("%v becomes %x, not %x\n%#v", to, got, expect, e)
			}
		}
		b := g.truth(1 + i%3)
		if got := c.cond(b)(g.state); got != g.holds(b) {
			t.Fatalf("condition is %v\n%#v", got, b)
		}
	}
}
