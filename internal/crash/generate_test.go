package crash

import (
	"reflect"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/rpc"
)

// TestGenerate looks at many programs: they are the same for a seed, make sense to
// the model, and together do all that there is.
func TestGenerate(t *testing.T) {
	policies := map[rpc.Policy]int{}
	kinds, deep, lent, mains, plain := map[Kind]int{}, 0, 0, 0, 0
	for seed := range uint64(300) {
		p := mixedProgram(seed)
		if again := mixedProgram(seed); !reflect.DeepEqual(p, again) {
			t.Fatalf("seed %d: two programs:\n%s\n%s", seed, p, again)
		}
		if _, err := Model(p); err != nil {
			t.Errorf("seed %d: %v\n%s", seed, err, p)
		}
		for _, c := range p.Clients {
			mains += btoi(c.Main)
			plain += btoi(!c.Main)
			c.Script.each(-1, func(service int, op *Op) {
				kinds[op.Kind]++
				policies[op.Policy]++
				lent += len(op.Lend)
				deep += btoi(op.Kind == Call && service >= 0)
			})
		}
	}
	for _, k := range []Kind{Try, Alloc, Write, Read, Free, Call, Post, Fork, Race, Add, Bump, Effect, Look, Checkpoint, Fail} {
		if kinds[k] < 50 {
			t.Errorf("%d operations %s", kinds[k], k)
		}
	}
	if policies[rpc.PolicyFateShare] < 100 || policies[rpc.PolicyTainted] < 100 {
		t.Errorf("policies %v", policies)
	}
	if deep < 100 || lent < 100 || mains < 50 || plain < 50 {
		t.Errorf("%d nested calls, %d regions lent, %d mains, %d plain clients", deep, lent, mains, plain)
	}
}

func mixedProgram(seed uint64) *Program {
	p := Generate(seed)
	p.Mix(seed)
	return p
}

// TestSimplify: many programs of the wide mix have distributed memory, and some have large
// regions.
func TestSimplify(t *testing.T) {
	const programs = 10 * seeds
	memory, large := 0, 0
	for seed := range uint64(programs) {
		p := mixedProgram(seed)
		p.Widen(seed)
		p.Simplify(seed, seed%2 == 0)
		memory += btoi(p.largest() > 0)
		large += btoi(p.largest() >= 1<<20)
	}
	if memory < programs/10 || large < programs/400 {
		t.Errorf("of %d programs %d have memory, %d of them 1 MiB and more", programs, memory, large)
	}
}

// TestDraw: the first crashes of a program's cases go through all its packets.
func TestDraw(t *testing.T) {
	p := Generate(1)
	hows, networks, at := map[How]int{}, map[string]int{}, map[int]bool{}
	const packets, total = 80, 400
	for n := range total {
		c := Draw(p, Setting{}, 1, packets, n, total, false)
		networks[c.Network]++
		at[c.Crashes[0].At] = true
		for _, one := range c.Crashes {
			hows[one.How]++
		}
	}
	if len(at) != packets || len(hows) != 5 || len(networks) != len(Networks)-1 || networks[faint] > 0 { // which scenes have
		t.Errorf("%d packets, ways %v, networks %v", len(at), hows, networks)
	}
	if n := len(Every(p, packets)); n != packets*2*len(p.Victims()) {
		t.Errorf("%d cases", n)
	}
}

func TestProgram_String(t *testing.T) {
	got := chain().String()
	for _, want := range []string{"services apart", "service C, stateful with deltas", "main0", "102 call C(r0) → r1", "103 post C(r0)", "return r1", "12 alloc r0 = 300 bytes"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
}
