package proof_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4switch/ebpf"
	"github.com/bifrost-rack/bifrost/p4switch/interp"
	"github.com/bifrost-rack/bifrost/p4switch/interp/stf"
	"github.com/bifrost-rack/bifrost/p4switch/shared/privilege"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// python is Debian's, which has python3-z3.
const python = "/usr/bin/python3"

// needZ3 skips a test where there is no Z3.
func needZ3(t *testing.T) {
	t.Helper()
	if err := exec.Command(python, "-c", "import z3").Run(); err != nil {
		t.Skip("NOT CHECKED: no Z3 for Python: apt-get install python3-z3")
	}
}

// prove runs the prover: without what Z3's Python checks for those who try things out.
func prove(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(python, append([]string{"-O", "prove.py"}, args...)...).CombinedOutput()
	if err != nil {
		t.Errorf("prove.py %s: %v", strings.Join(args, " "), err)
	}
	return string(out)
}

// Every theorem holds of the program that both executors load.
func TestTheorems(t *testing.T) {
	needZ3(t)
	file := filepath.Join(t.TempDir(), "bifrost.json")
	if err := os.WriteFile(file, p4.JSON, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Log(prove(t, file))
}

// Every mutant breaks the theorems that it names, and the packet that shows it does on
// both executors what the prover says; of the program itself this is not true.
func TestMutants(t *testing.T) {
	needZ3(t)
	const processes = 2
	dir := t.TempDir()
	var found [processes]int
	var all sync.WaitGroup
	for i := range processes {
		all.Go(func() {
			out := prove(t, "--mutants", fmt.Sprintf("%d/%d", i+1, processes), "--cases", dir)
			t.Log(out)
			if n := regexp.MustCompile(`(?m)^(\d+)/\d+ mutants refuted`).FindStringSubmatch(out); n != nil {
				found[i], _ = strconv.Atoi(n[1])
			}
		})
	}
	all.Wait()
	if n := found[0] + found[1]; n < 10 {
		t.Errorf("%d mutants are refuted, fewer than ten", n)
	}
	cases(t, dir, p4.JSON)
}

// What accesses to memory and questions do to the rights in registers is proved for all contents of the registers, and faults are refuted. "make proof"
// does the same for calls and answers, which takes minutes.
func TestRights(t *testing.T) {
	needZ3(t)
	out := prove(t, "--rights", "quick")
	t.Log(out)
	for _, want := range []string{"7 passed, 0 failed", "7 invariants are kept by 3 actions, 0 are not", "5/5 mutants refuted"} {
		if !strings.Contains(out, want) {
			t.Errorf("not all is proved and refuted: want %q", want)
		}
	}
}

// What becomes of messages of nodes that have a row is proved, and faults are refuted.
func TestRows(t *testing.T) {
	needZ3(t)
	out := prove(t, "--rows")
	t.Log(out)
	if !strings.Contains(out, "7 passed, 0 failed") || !strings.Contains(out, "8/8 mutants refuted") {
		t.Error("not all is proved and refuted")
	}
}

// A program whose register decides what passes: the prover proves it for all contents of
// the register, and refutes its mutants.
func TestRegisters(t *testing.T) {
	needZ3(t)
	dir := t.TempDir()
	out := prove(t, "--registers", "--cases", dir)
	t.Log(out)
	if !strings.Contains(out, "3 passed, 0 failed") || !strings.Contains(out, "4/4 mutants refuted") {
		t.Error("not all is proved and refuted")
	}
	cases(t, dir, read(t, filepath.Join("..", "..", "p4switch", "interp", "testdata", "numbers.json")))
}

// cases runs the cases of mutants, and of the program itself.
func cases(t *testing.T, dir string, deviceConfig []byte) {
	t.Helper()
	program := load(t, deviceConfig)
	scripts, err := filepath.Glob(filepath.Join(dir, "*.stf"))
	if err != nil || len(scripts) == 0 {
		t.Fatal("no cases", err)
	}
	for _, file := range scripts {
		name := strings.TrimSuffix(filepath.Base(file), ".stf")
		t.Run(name, func(t *testing.T) {
			script := read(t, file)
			mutant := load(t, read(t, strings.TrimSuffix(file, "stf")+"json"))
			if err := golang(mutant, script); err != nil {
				t.Errorf("the Go executor: %v\n%s", err, script)
			}
			if err := golang(program, script); err == nil {
				t.Errorf("the program does what the mutant does:\n%s", script)
			}
			if privilege.Missing() == nil {
				if err := kernel(mutant, script); err != nil {
					t.Errorf("the kernel executor: %v\n%s", err, script)
				}
			}
		})
	}
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func load(t *testing.T, deviceConfig []byte) *v1model.Program {
	t.Helper()
	prog, err := v1model.Load(deviceConfig)
	if err != nil {
		t.Fatal(err)
	}
	return prog
}

// golang runs a script on the Go executor.
func golang(prog *v1model.Program, script []byte) error {
	r := stf.New(prog)
	x, err := interp.New(prog, interp.Config{Sink: r, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		return err
	}
	defer x.Close()
	r.Attach(x)
	return r.Run(bytes.NewReader(script))
}

// kernel runs a script on the kernel executor.
func kernel(prog *v1model.Program, script []byte) error {
	r := stf.New(prog)
	x, err := ebpf.New(prog, ebpf.Config{Sink: r})
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	defer x.Close()
	r.Attach(x)
	return r.Run(bytes.NewReader(script))
}
