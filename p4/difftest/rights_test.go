package difftest

import (
	"bytes"
	"flag"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/interp"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// To run a difference again: go test ./p4/difftest -run TestRights/interp -rights-seed N -rights-seeds 1
var (
	rightsSeed  = flag.Uint64("rights-seed", 1, "first seed of the sequences of packets that are compared with the model of rights")
	rightsSeeds = flag.Int("rights-seeds", 6, "how many seeds")
	rightsSteps = flag.Int("rights-steps", 4000, "packets and operations of each seed")
)

// golang is the Go executor as a Target.
type golang struct {
	*interp.Executor
	out  []Leaves
	told bool // that a batch is half used
}

func (g *golang) emit(port datapath.Port, b []byte) {
	g.out = append(g.out, Leaves{port, bytes.Clone(b)})
}
func (g *golang) PacketIn(b []byte)        { g.emit(p4.CPUPort, b) }
func (g *golang) Digest(d datapath.Digest) { g.told = g.told || d.Name == "half_used_digest_t" }
func (g *golang) Idle(datapath.Entry)      {}
func (g *golang) Told() bool               { return g.told }
func (g *golang) Cell(register string, index int) ([]byte, error) {
	return g.Register(register, index)
}

func (g *golang) Run(in datapath.Port, b []byte) ([]Leaves, error) {
	g.out, g.told = nil, false
	g.Process(in, b, g.emit)
	return g.out, nil
}

// TestRights: the Go executor does what the model of rights does, packet by packet, and each row of the model's tables has its turn.
func TestRights(t *testing.T) {
	prog := bifrost(t)
	t.Run("interp", func(t *testing.T) {
		compareRights(t, func() Target {
			var err error
			g := &golang{}
			if g.Executor, err = interp.New(prog, interp.Config{CPUPort: p4.CPUPort, Sink: g, Output: g.emit}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = g.Close() })
			return g
		})
	})
}

// TestPorts: the Go executor judges what comes to the ports of calls, and nothing else.
func TestPorts(t *testing.T) {
	var err error
	g := &golang{}
	if g.Executor, err = interp.New(bifrost(t), interp.Config{CPUPort: p4.CPUPort, Sink: g, Output: g.emit}); err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if err := Ports(g); err != nil {
		t.Error(err)
	}
}

// compareRights runs some seeds, each on an executor of its own.
func compareRights(t *testing.T, fresh func() Target) {
	t.Helper()
	rows := map[string]uint64{}
	for seed := *rightsSeed; seed < *rightsSeed+uint64(*rightsSeeds); seed++ {
		r, err := NewRights(fresh(), seed)
		for n := 0; n < *rightsSteps && err == nil; n++ {
			err = r.Step()
		}
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for name, n := range r.Rows() {
			rows[name] += n
		}
	}
	if *rightsSeeds < 6 {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		if rows[name] == 0 {
			t.Errorf("nothing came to row %q", name)
		}
	}
	t.Log(rows)
}

// TestRights_Finds: the comparison finds what is wrong with a program whose actions have been changed a little.
func TestRights_Finds(t *testing.T) {
	for what, c := range map[string]struct{ action, old, wrong string }{
		"a number opens a slot twice":      {"judge_call", `"op":">="`, `"op":">"`},
		"a slot's last region is another":  {"judge_call", "slot_region3", "slot_region2"},
		"a call takes its loan back":       {"judge_call", `"op":"+"`, `"op":"-"`},
		"an answer with children passes":   {"judge_return", `"op":"!="`, `"op":"=="`},
		"an answer ends another loan":      {"judge_return", "slot_region1", "slot_region0"},
		"an old generation is taken":       {"judge_access", `"op":">"`, `"op":">="`},
		"a question is about another call": {"judge_question", `"op":"!="`, `"op":"=="`},
		"a call that is over fails":        {"hand_fail", `"op":"=="`, `"op":"!="`},
		"a lease of an earlier number":     {"hand_lend", `"op":">"`, `"op":"<"`},
		"a lent region is seized":          {"hand_seize", `"op":"=="`, `"op":"!="`},
		"a slot is read from elsewhere":    {"hand_read_slots", "slot_parent", "slot_number"},
		"a slot is set elsewhere":          {"hand_set", "slot_state", "slot_parent"},
		"registers are never rebuilt":      {"hand_rebuilt", `"0x0000000000000001"`, `"0x0000000000000000"`},
	} {
		program := string(p4.JSON)
		at := strings.Index(program, `"BifrostIngress.rights.`+c.action+`"`)
		end := at + strings.Index(program[at:], `"id":`)
		next := strings.Index(program[end+5:], `"id":`) + end + 5
		changed := program[:at] + strings.ReplaceAll(program[at:next], c.old, c.wrong) + program[next:]
		if at < 0 || changed == program {
			t.Errorf("%s: the program has no such action, or nothing to change in it", what)
			continue
		}
		prog, err := v1model.Load([]byte(changed))
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		g := &golang{}
		if g.Executor, err = interp.New(prog, interp.Config{CPUPort: p4.CPUPort, Sink: g, Output: g.emit}); err != nil {
			t.Fatal(err)
		}
		r, err := NewRights(g, *rightsSeed)
		for n := 0; n < *rightsSteps && err == nil; n++ {
			err = r.Step()
		}
		if _ = g.Close(); err == nil {
			t.Errorf("%s: nothing differs", what)
		}
	}
}
