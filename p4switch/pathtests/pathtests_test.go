package pathtests

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/interp"
	"github.com/bifrost-rack/bifrost/p4switch/interp/stf"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

func load(t *testing.T, path string) *v1model.Program {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	p, err := v1model.Load(b)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func run(t *testing.T, prog *v1model.Program, script []byte) error {
	t.Helper()
	r := stf.New(prog)
	x, err := interp.New(prog, interp.Config{Sink: r})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	r.Attach(x)
	return r.Run(bytes.NewReader(script))
}

// TestGenerate: what is generated for a program holds for it, entries of all kinds of matches included, and not for one that does something else.
func TestGenerate(t *testing.T) {
	for path, least := range map[string]int{"../ebpf/testdata/match.json": 10, "../ebpf/testdata/router.json": 30, "../internal/sample/sample.json": 15, "../ebpf/testdata/varbit.json": 20, "../interp/testdata/tables.json": 5} {
		prog := load(t, path)
		r, err := Generate(prog, Options{Seed: 1, Entries: 60, Packets: 1500})
		if err != nil {
			t.Fatal(path, err)
		}
		if r.Ways < least {
			t.Errorf("%s: %d ways", path, r.Ways)
		}
		if err := run(t, prog, r.Script); err != nil {
			t.Errorf("%s: %v\n%s", path, err, r.Script)
		}
		again, err := Generate(prog, Options{Seed: 1, Entries: 60, Packets: 1500})
		if err != nil || !bytes.Equal(again.Script, r.Script) {
			t.Errorf("%s: the same search finds something else, %v", path, err)
		}
		if path == "../ebpf/testdata/match.json" {
			wrong := load(t, path)
			for _, a := range wrong.Actions {
				if a.Name == "I.miss" {
					a.Body = nil
				}
			}
			if err := run(t, wrong, r.Script); err == nil {
				t.Error("a program that does something else passes")
			}
		}
	}
}

// TestGenerate_Clock: what depends on the clock or on random numbers is left out, and counted.
func TestGenerate_Clock(t *testing.T) {
	prog := load(t, "../interp/testdata/state.json")
	r, err := Generate(prog, Options{Seed: 1, Packets: 3000})
	if err != nil {
		t.Fatal(err)
	}
	if r.Open == 0 || !strings.HasPrefix(string(r.Script), "packet ") {
		t.Errorf("%d open ways, %s", r.Open, r.Script)
	}
	if err := run(t, prog, r.Script); err != nil {
		t.Error(err)
	}
}
