//go:build linux

package ebpf

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/compare"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/inputs"
	"github.com/bifrost-rack/bifrost/p4switch/internal/sample"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// uncompared are the steps and the actions of tables that TestCompared compares on no packet, and why.
var uncompared = map[string]string{
	"testdata/options: call options59":      "after a loop of the parser without end, of which a trace has no room for what follows; TestOptions compares it",
	"testdata/stacks: call stacks90":        "clones each clone without end, and the executors' bounds differ; TestEndless looks at the kernel's",
	"interp/testdata/copies: call copies44": "cuts packets to 9 bytes, fewer than BPF_PROG_TEST_RUN can show",
	"interp/testdata/stacks: call stacks74": "no packet has an error of the parser that the program does not name",
	"interp/testdata/state: call state59":   "draws a random number",
}

// kernelPrograms are the files of the programs that tests load into the kernel, and of some that it does not take.
func kernelPrograms(t *testing.T) (files []string) {
	t.Helper()
	for _, pattern := range []string{"testdata/*.json", "../interp/testdata/*.json", "../testdata/basic.json", "../internal/sample/*.json"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatal(pattern, err)
		}
		files = append(files, found...)
	}
	return files
}

// TestCompared runs each program that the tests load into the kernel on both executors, which must do the same with each packet, and tells how much of the
// programs' graphs the packets met: that is what is compared of the generated code. With -v it tells so of each program.
func TestCompared(t *testing.T) {
	if testing.Short() {
		t.Skip("loads every program twice")
	}
	needRoot(t)
	var all [3]compare.Share
	programs, refused, missed := 0, []string{}, []string{}
	for _, f := range kernelPrograms(t) {
		name := strings.TrimSuffix(strings.TrimPrefix(f, "../"), ".json")
		prog := load(t, f)
		if len(Lacks(prog, 0)) > 0 {
			refused = append(refused, name)
			continue
		}
		w := compare.NewReached(prog)
		for n := range max(*rounds/5, 1) {
			compareWays(t, name, prog, w, *seed+uint64(n))
		}
		programs++
		shares := w.Shares(prog)
		for i := range all {
			all[i].Add(shares[i])
		}
		missed = append(missed, w.Missed(name, prog)...)
		t.Logf("%-25s %s steps, %s ways between them, %s actions of tables", name, shares[0], shares[1], shares[2])
	}
	t.Logf("%d programs (not in the kernel: %s): %s steps, %s ways between them, %s actions of tables", programs, strings.Join(refused, ", "), all[0], all[1], all[2])
	if *seed != 1 || *rounds < 10 {
		return // other packets may meet less
	}
	for _, m := range missed {
		if uncompared[m] == "" {
			t.Errorf("no packet has met %s", m)
		}
	}
	for m, why := range uncompared {
		if !slices.Contains(missed, m) {
			t.Errorf("a packet has met %s, which is said not to be compared: %s", m, why)
		}
	}
	if least := 95; all[1].Met*100 < least*all[1].Of {
		t.Errorf("%s ways were met, less than %d %%", all[1], least)
	}
}

// feeds are what makes packets that meet what those derived from the program seldom do: each prepares both executors and returns the packets.
var feeds = map[string]func(t *testing.T, p *pair, m maker) compare.Packet{
	"internal/sample/sample": feedSample,
	"testdata/cpu": func(t *testing.T, p *pair, m maker) compare.Packet {
		copied(t, p)
		return func() (datapath.Port, []byte) { return fromCPU(m.Rand) }
	},
	"testdata/options": func(_ *testing.T, _ *pair, m maker) compare.Packet {
		return func() (datapath.Port, []byte) { return 1, optioned(m.Rand) }
	},
	"testdata/router": func(t *testing.T, p *pair, m maker) compare.Packet {
		for range 60 {
			p.Update(t, datapath.Insert, routerEntry(m))
		}
		return func() (datapath.Port, []byte) { return datapath.Port(m.Pick(1, 2, 3)), routed(m) }
	},
	"testdata/stacks": func(_ *testing.T, _ *pair, m maker) compare.Packet {
		return func() (datapath.Port, []byte) {
			frame := stacked(m.Rand, byte(m.Pick(0, 1, 2, 3, 5, 6)))
			frame[19] = byte(m.Pick(2, m.Uint64())) // of the second label
			return 1, frame
		}
	},
	"testdata/varbit": func(_ *testing.T, _ *pair, m maker) compare.Packet {
		return func() (datapath.Port, []byte) { return 1, varied(m.Rand) }
	},
	"interp/testdata/copies": func(t *testing.T, p *pair, m maker) compare.Packet {
		p.Unordered = true // copies leave in any order
		c := copier(m)
		return func() (datapath.Port, []byte) { return 1, c.packet(360, c.configure(t, p)) }
	},
	"interp/testdata/sets": func(t *testing.T, p *pair, m maker) compare.Packet {
		return func() (datapath.Port, []byte) {
			setMembers(t, p, m.Rand)
			return 1, inSets(m.Rand)
		}
	},
	"interp/testdata/stacks": func(_ *testing.T, _ *pair, m maker) compare.Packet {
		return func() (datapath.Port, []byte) {
			frame := randomFrame(m.Rand, 60)
			frame[0], frame[1] = byte(m.IntN(8)), byte(m.IntN(10))
			return 1, frame
		}
	},
	"interp/testdata/tables": func(t *testing.T, p *pair, m maker) compare.Packet {
		r := &profiled{Rand: m.Rand, pair: p}
		return func() (datapath.Port, []byte) {
			for range 3 {
				r.update(t, t.Name())
			}
			return 1, r.packet()
		}
	},
}

func compareWays(t *testing.T, name string, prog *v1model.Program, w *compare.Reached, seed uint64) {
	t.Helper()
	replay := fmt.Sprintf("go test ./p4switch/ebpf -run TestCompared -seed %d -rounds 1 (%s)", seed, name)
	p, a := newPair(t, prog, sample.CPUPort), inputs.New(prog, seed)
	for range 60 {
		if e, ok := a.Entry(); ok {
			p.Update(t, datapath.Insert, e)
		}
	}
	var other compare.Packet
	if feed := feeds[name]; feed != nil {
		other = feed(t, p, maker{rand.New(rand.NewPCG(seed, 0))})
	}
	p.Ways(t, w, a, 1000, other, unfit[name], replay)
}

// unfit changes packets that cannot be compared.
var unfit = map[string]func(frame []byte){
	"interp/testdata/copies": func(frame []byte) {
		if frame[0] == 7 { // is cut to too few bytes for the kernel
			frame[0] = 4
		}
	},
	"interp/testdata/state": func(frame []byte) {
		if frame[0] == 11 { // draws a random number
			frame[0] = 4
		}
	},
}
