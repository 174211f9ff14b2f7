//go:build linux

package ebpf

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// TestLoops: loops in actions do the same on both executors, those without an end included, and lose what is theirs.
func TestLoops(t *testing.T) {
	prog := load(t, "../interp/testdata/forloop.json")
	p := newPair(t, prog, 0)
	for op := range byte(5) {
		for _, n := range []byte{0, 1, 2, 5, 6, 7, 100, 254, 255} {
			p.Check(t, 1, append([]byte{op, n}, make([]byte, 58)...), "")
		}
	}
	if p.kernel.stats(1)[nLooped/8] == 0 {
		t.Error("no packet was counted as one that loops")
	}
}

// TestLoops_Registers: a loop that changes a register holds the lock for all of its turns.
func TestLoops_Registers(t *testing.T) {
	prog := load(t, "testdata/turns.json")
	for s, replay := range seeds(t, max(*rounds/3, 2)) {
		p, r := newPair(t, prog, 0), rand.New(rand.NewPCG(s, 8))
		for range 200 {
			frame := randomFrame(r, 60)
			frame[0], frame[1] = byte(r.IntN(4)), byte(r.IntN(20))
			p.Check(t, 1, frame, replay)
		}
		p.compareRegisters(t, replay)
	}
}

// TestAtomics: what must be atomic reaches from the first access to the last, and over all loops that it is in.
func TestAtomics(t *testing.T) {
	access, jump, other := v1model.Stmt(v1model.WriteRegister{}), func(to int) v1model.Stmt { return v1model.Jump{Target: to} }, v1model.Stmt(v1model.Exit{})
	for _, c := range []struct {
		body        []v1model.Stmt
		first, last int
	}{
		{[]v1model.Stmt{other, other}, -1, -1},
		{[]v1model.Stmt{other, access, other, access, other}, 1, 3},
		{[]v1model.Stmt{jump(3), access, other, access}, 0, 3},
		{[]v1model.Stmt{other, other, access, jump(1), other}, 1, 3},
		{[]v1model.Stmt{other, access, jump(1), other}, 1, 2},
		{[]v1model.Stmt{other, jump(4), access, jump(1), other}, 1, 3},
		{[]v1model.Stmt{access, other, jump(1), other, jump(0)}, 0, 4},
		{[]v1model.Stmt{access, other, other, jump(2)}, 0, 0},
	} {
		if got := atomicsOf(c.body); got.first != c.first || got.last != c.last {
			t.Errorf("%v: from %d to %d; want %d to %d", slices.Clone(c.body), got.first, got.last, c.first, c.last)
		}
	}
}
