//go:build linux

package ebpf

import (
	"flag"
	"fmt"
	"iter"
	mapsutil "maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/compare"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/internal/sample"
	"github.com/bifrost-rack/bifrost/p4switch/shared/privilege"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// To run a difference again: go test ./p4switch/ebpf -run TestDifferential_Router -seed N -rounds 1
var (
	seed   = flag.Uint64("seed", 1, "first seed of the generated packets and entries")
	rounds = flag.Int("rounds", 10, "seeds to try, each with entries of its own and 200 packets")

	compared = flag.String("compare", "", "TestDifferential_Any: a directory of compiled programs to run on both executors")
)

// needRoot skips where programs cannot be loaded into the kernel; CI can.
func needRoot(t testing.TB) {
	t.Helper()
	privilege.Need(t)
}

// pair is a program on both executors.
type pair struct {
	compare.Pair
	kernel *Executor
}

func newPair(t testing.TB, prog *v1model.Program, cpu datapath.Port) *pair {
	t.Helper()
	return newPairWith(t, prog, Config{CPUPort: cpu})
}

// newPairWith is newPair with a configuration, but for the sink.
func newPairWith(t testing.TB, prog *v1model.Program, cfg Config) *pair {
	t.Helper()
	needRoot(t)
	p := &pair{}
	cfg.Sink, cfg.Copies, cfg.Stale = &p.K, max(cfg.Copies, 256), true
	var err error
	if p.kernel, err = New(prog, cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.kernel.Close(); err != nil {
			t.Error(err)
		}
	})
	p.Start(t, prog, p.kernel, cfg.CPUPort)
	return p
}

// maker makes packets and entries.
type maker struct{ *rand.Rand }

// Pick is one of some values.
func (m maker) Pick(vs ...uint64) uint64 { return vs[m.IntN(len(vs))] }

// loaded is the sample program, which many tests share.
var loaded = sync.OnceValues(func() (*v1model.Program, error) { return v1model.Load(sample.JSON) })

func sampled(t testing.TB) *v1model.Program {
	t.Helper()
	prog, err := loaded()
	if err != nil {
		t.Fatal(err)
	}
	return prog
}

// seeds are n seeds, each with the command that runs the test with it alone.
func seeds(t *testing.T, n int) iter.Seq2[uint64, string] {
	return func(yield func(uint64, string) bool) {
		for i := range n {
			s := *seed + uint64(i)
			if !yield(s, fmt.Sprintf("go test ./p4switch/ebpf -run %s -seed %d -rounds 1", t.Name(), s)) {
				return
			}
		}
	}
}

// Packets and entries that are derived from the program meet other corners than
// those made by somebody who knows it.
//
// With -compare DIR, all compiled programs there are run instead; those that eBPF
// cannot run are skipped, with the reason.
func TestDifferential_Any(t *testing.T) {
	needRoot(t)
	progs := map[string]string{"sample": "../internal/sample/sample.json", "router": "testdata/router.json"}
	if *compared != "" {
		files, err := filepath.Glob(filepath.Join(*compared, "*.json"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no programs in %s: %v", *compared, err)
		}
		progs = map[string]string{}
		for _, f := range files {
			progs[strings.TrimSuffix(filepath.Base(f), ".json")] = f
		}
	}
	for _, name := range slices.Sorted(mapsutil.Keys(progs)) {
		t.Run(name, func(t *testing.T) {
			prog := load(t, progs[name])
			if lacks := Lacks(prog, 0); len(lacks) > 0 && *compared != "" {
				t.Skip(&UnsupportedError{lacks})
			}
			for n := range max(*rounds/2, 1) {
				compareAny(t, name, prog, *seed+uint64(n))
			}
		})
	}
}

func compareAny(t *testing.T, name string, prog *v1model.Program, seed uint64) {
	t.Helper()
	replay := fmt.Sprintf("go test ./p4switch/ebpf -run 'TestDifferential_Any/^%s$' -seed %d -rounds 1", name, seed)
	p := newPair(t, prog, 0)
	p.Unordered = *compared != "" // copies leave in any order
	p.Derived(t, seed, replay)
}
