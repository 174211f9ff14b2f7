//go:build linux

package ebpf

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/internal/sample"
	"github.com/bifrost-rack/bifrost/p4switch/interp/stf"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/cilium/ebpf/asm"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		*rounds = min(*rounds, 3) // "unit" tries all
	}
	goleak.VerifyTestMain(m)
}

// To look at other programs, and run those that eBPF can run by their scripts:
//
//	go test ./p4switch/ebpf -run TestPrograms -programs 'compiled/*.json' -scripts p4_16_samples
var (
	programs = flag.String("programs", "../interp/testdata/*.json", "programs to look at, a pattern")
	scripts  = flag.String("scripts", "../interp/testdata", "where the programs' scripts are, NAME.stf each")
)

// padded makes the scripts' packets as long as Ethernet's, and takes off what it
// has added from the end of what comes out.
type padded struct{ *Executor }

func (p padded) Process(in datapath.Port, frame []byte, emit func(datapath.Port, []byte)) {
	added := max(60-len(frame), 0)
	p.Executor.Process(in, append(bytes.Clone(frame), make([]byte, added)...), func(to datapath.Port, out []byte) {
		if n := len(out) - added; n >= 0 && len(bytes.TrimRight(out[n:], "\x00")) == 0 {
			out = out[:n]
		}
		emit(to, out)
	})
}

// Every program is either run, and then does what its script says, or refused
// with the places that use what eBPF lacks.
func TestPrograms(t *testing.T) {
	needRoot(t)
	files, err := filepath.Glob(*programs)
	if err != nil || len(files) == 0 {
		t.Fatalf("no programs %s: %v", *programs, err)
	}
	run := 0
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".json")
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			prog, err := v1model.Load(data)
			if err != nil {
				t.Skip(err) // package v1model's tests tell whether that is right
			}
			r := stf.New(prog)
			x, err := New(prog, Config{Sink: r, Copies: 64, Stale: true})
			var lacks *UnsupportedError
			switch {
			case errors.As(err, &lacks):
				t.Log(err)
				return
			case err != nil:
				t.Fatal(err)
			}
			defer x.Close()
			run++
			if name == "copies" || name == "state" || name == "stacks" {
				return // packets shorter than Ethernet's, whose length counts; TestDifferential_Copies, TestDifferential_State and TestVarbit have others
			}
			script, err := os.Open(filepath.Join(*scripts, name+".stf"))
			if err != nil {
				return
			}
			defer script.Close()
			r.Attach(padded{x})
			if err := r.Run(script); err != nil {
				t.Error(err)
			}
		})
	}
	t.Logf("%d of %d programs run", run, len(files))
}

// A program is refused with every place, not only the first.
func TestLacks_NamesEveryPlace(t *testing.T) {
	prog := load(t, "testdata/deep.json")
	names := []string{"I.nested", "I.mix"}
	for _, name := range names {
		body := actionNamed(prog, name).Body
		i := slices.IndexFunc(body, func(s v1model.Stmt) bool { _, ok := s.(v1model.Assign); return ok })
		a := body[i].(v1model.Assign)
		for range 100 {
			a.Src = v1model.Binary{Op: v1model.OpSub, X: a.Dst, Y: a.Src}
		}
		body[i] = a
	}
	var places []string
	for _, l := range Lacks(prog, 0) {
		places = append(places, l.Where)
	}
	for _, name := range names {
		if !slices.Contains(places, fmt.Sprintf("action %q", name)) {
			t.Errorf("%s is missing from %v", name, places)
		}
	}
	_, err := New(prog, Config{})
	if !errors.Is(err, datapath.ErrUnsupported) {
		t.Errorf("got %v", err)
	}
}

func TestLacks_Nothing(t *testing.T) {
	if l := Lacks(sampled(t), sample.CPUPort); len(l) > 0 {
		t.Errorf("sample.p4: %v", l)
	}
	if l := Lacks(load(t, "testdata/router.json"), 0); len(l) > 0 {
		t.Errorf("router.p4: %v", l)
	}
}

// TestProgramsAreCurrent fails when a test program was not recompiled.
func TestProgramsAreCurrent(t *testing.T) {
	sums, err := os.ReadFile("testdata/SHA256SUMS")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"router.p4", "router.json", "stacks.p4", "stacks.json", "match.p4", "match.json", "ways.p4", "ways.json", "offload.p4", "offload.json", "cpu.p4", "cpu.json", "says.p4", "says.json", "idle.p4", "idle.json", "acl.p4", "acl.json", "deep.p4", "deep.json", "ranges.p4", "ranges.json", "varbit.p4", "varbit.json", "turns.p4", "turns.json", "options.p4", "options.json"} {
		data, err := os.ReadFile("testdata/" + f)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(sums), fmt.Sprintf("%x  %s\n", sha256.Sum256(data), f)) {
			t.Errorf("%s is not what testdata/SHA256SUMS was made for: run testdata/compile.sh with p4c on PATH", f)
		}
	}
}

// A program that the kernel finds too large is not supported; so another executor
// can take it.
func TestTooLargeForTheVerifier(t *testing.T) {
	needRoot(t)
	if testing.Short() {
		t.Skip("the verifier reads a million instructions")
	}
	const most = 1_000_000 // instructions: BPF_COMPLEXITY_LIMIT_INSNS
	_, err := New(sampled(t), Config{CPUPort: sample.CPUPort, edit: func(code asm.Instructions) asm.Instructions {
		for len(code) <= most {
			code = append(code, asm.Mov.Reg(asm.R5, asm.R5))
		}
		return code
	}})
	if !errors.Is(err, datapath.ErrUnsupported) {
		t.Errorf("%v", err)
	}
}
