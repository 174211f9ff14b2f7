//go:build linux

package ebpf

import (
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// TestDeep: expressions that need more registers than there are do the same on both executors.
func TestDeep(t *testing.T) {
	prog := load(t, "testdata/deep.json")
	for s, replay := range seeds(t, max(*rounds/3, 2)) {
		p, r := newPair(t, prog, 0), rand.New(rand.NewPCG(s, 2))
		for range 200 {
			p.Check(t, 1, randomFrame(r, 60), replay)
		}
	}
}

func randomFrame(r *rand.Rand, n int) []byte {
	frame := make([]byte, n)
	for i := range frame {
		frame[i] = byte(r.Uint32())
	}
	return frame
}

// TestDeep_Any: so do expressions of any form and depth.
func TestDeep_Any(t *testing.T) {
	for s, replay := range seeds(t, *rounds) {
		prog, r := load(t, "testdata/deep.json"), rand.New(rand.NewPCG(s, 3))
		expressions := anyExpr{r, actionNamed(prog, "I.nested").Body[0].(v1model.Assign).Dst.(v1model.FieldValue).Ref.Header}
		for _, name := range []string{"I.nested", "I.mix"} {
			for i, st := range actionNamed(prog, name).Body {
				if a, ok := st.(v1model.Assign); ok {
					a.Src = expressions.number(4 + r.IntN(9))
					actionNamed(prog, name).Body[i] = a
				}
			}
		}
		p := newPair(t, prog, 0)
		for range 50 {
			p.Check(t, 1, randomFrame(r, 60), replay)
		}
	}
}

// anyExpr makes expressions over the fields of 32 bits of a header.
type anyExpr struct {
	*rand.Rand
	of *v1model.Header
}

// number is an expression of 32 bits, most of whose nodes lie on one way down.
func (a anyExpr) number(depth int) v1model.Expr {
	if depth == 0 {
		if a.IntN(5) == 0 {
			return v1model.Const{Value: big.NewInt(a.Int64N(1 << 32))}
		}
		return v1model.FieldValue{Ref: v1model.FieldRef{Header: a.of, Field: a.IntN(4)}}
	}
	deep, short := depth-1, a.IntN(min(depth, 3))
	if a.IntN(4) == 0 {
		deep, short = short, deep
	}
	ops := []v1model.Op{v1model.OpAdd, v1model.OpSub, v1model.OpMul, v1model.OpAnd, v1model.OpOr, v1model.OpXor, v1model.OpDiv, v1model.OpMod}
	switch a.IntN(6) {
	case 0:
		return v1model.Select{Cond: a.cond(short), Then: a.number(deep), Else: a.number(short)}
	case 1:
		by := v1model.Binary{Op: v1model.OpAnd, X: a.number(deep), Y: v1model.Const{Value: big.NewInt(63)}}
		return a.masked(v1model.Binary{Op: []v1model.Op{v1model.OpShl, v1model.OpShr}[a.IntN(2)], X: a.number(short), Y: by})
	case 2:
		return a.masked(v1model.Unary{Op: v1model.OpNeg, X: a.number(deep)})
	}
	return a.masked(v1model.Binary{Op: ops[a.IntN(len(ops))], X: a.number(short), Y: a.number(deep)})
}

func (a anyExpr) masked(e v1model.Expr) v1model.Expr {
	return v1model.Binary{Op: v1model.OpAnd, X: e, Y: v1model.Const{Value: big.NewInt(1<<32 - 1)}}
}

func (a anyExpr) cond(depth int) v1model.Expr {
	if depth > 1 && a.IntN(2) == 0 {
		return v1model.Binary{Op: []v1model.Op{v1model.OpLogicalAnd, v1model.OpLogicalOr}[a.IntN(2)], X: a.cond(depth - 1), Y: a.cond(depth - 1)}
	}
	ops := []v1model.Op{v1model.OpEqual, v1model.OpNotEqual, v1model.OpLess, v1model.OpLessEqual, v1model.OpGreater, v1model.OpGreaterEqual}
	return v1model.Binary{Op: ops[a.IntN(len(ops))], X: a.number(depth), Y: a.number(depth)}
}

// TestLacks_Deep: what needs more than may wait is refused with the number.
func TestLacks_Deep(t *testing.T) {
	prog := load(t, "testdata/deep.json")
	body := actionNamed(prog, "I.nested").Body
	a := body[0].(v1model.Assign)
	leaf := v1model.FieldValue{Ref: v1model.FieldRef{Header: a.Dst.(v1model.FieldValue).Ref.Header}}
	deep := func(n int) []Lack {
		a.Src = v1model.Expr(leaf)
		for range n {
			a.Src = v1model.Binary{Op: v1model.OpSub, X: leaf, Y: a.Src}
		}
		body[0] = a
		return Lacks(prog, 0)
	}
	most := len(pool) - 1 + maxSpills
	if lacks := deep(most); len(lacks) > 0 {
		t.Errorf("depth %d: %v", most, lacks)
	}
	lacks := deep(most + 1)
	if len(lacks) != 1 || !strings.Contains(lacks[0].String(), `action "I.nested": expression of which more than 64 values wait`) {
		t.Errorf("depth %d: %v", most+1, lacks)
	}
}

func actionNamed(p *v1model.Program, name string) *v1model.Action {
	for _, a := range p.Actions {
		if a.Name == name {
			return a
		}
	}
	return nil
}
