//go:build linux

package ebpf

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"flag"
	mapsutil "maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

var (
	validateAll  = flag.Bool("validate-all", false, "TestValidated: look at every program, for ten minutes of CPU each at most")
	validateMore = flag.String("validate", "", "TestValidated: look at this compiled program, too")
)

// python is Debian's, which has python3-z3.
const python = "/usr/bin/python3"

// validated are the programs that TestValidated looks at, and how many ways through their code are proved at least. The others take minutes,
// or the validator follows little of them: "make validate" looks at all.
var validated = map[string]int{
	"../testdata/basic.json":          13,
	"../interp/testdata/copies.json":  218,
	"../interp/testdata/numbers.json": 17,
	"../interp/testdata/state.json":   205, // of 208; some questions are too hard for Z3 now and then
	"testdata/acl.json":               50,
	"testdata/cpu.json":               112,
	"testdata/idle.json":              650,
	"testdata/match.json":             119,
	"testdata/offload.json":           537,
	"testdata/ranges.json":            50,
}

var provedWays = regexp.MustCompile(`: (\d+) of \d+ ways are proved`)

// TestValidated has Z3 compare the instructions that the kernel gets with the model, for all packets and all contents of tables and registers. It
// tells what is proved, and what is given up.
func TestValidated(t *testing.T) {
	needRoot(t)
	if err := exec.Command(python, "-c", "import z3").Run(); err != nil {
		t.Skip("NOT CHECKED: no Z3 for Python: apt-get install python3-z3")
	}
	files := slices.Sorted(mapsutil.Keys(validated))
	if *validateAll {
		files = kernelPrograms(t)
	}
	if *validateMore != "" {
		files = append(files, *validateMore)
	}
	for _, f := range files {
		prog := load(t, f)
		if len(Lacks(prog, 0)) > 0 {
			t.Logf("%s is not for the kernel", f)
			continue
		}
		t.Run(strings.TrimSuffix(strings.TrimLeft(f, "./"), ".json"), func(t *testing.T) {
			out, err := exec.Command(python, "-O", "../validate/validate.py", list(t, prog, f)).CombinedOutput()
			t.Logf("%s", out)
			proved := -1
			if n := provedWays.FindSubmatch(out); n != nil {
				proved, _ = strconv.Atoi(string(n[1]))
			}
			if want := validated[f]; err != nil || proved < want {
				t.Errorf("%d ways are proved, at least %d must be: %v", proved, want, err)
			}
		})
	}
}

// listing is what p4switch/validate/validate.py is told of a program: the instructions that the kernel was given, and the maps that they name.
type listing struct {
	Program   string       `json:"program"` // the compiled program's file
	Code      []byte       `json:"code"`    // as the kernel gets it
	Maps      []listedMap  `json:"maps"`
	Registers []listedCell `json:"registers"`
	Key       int          `json:"key"`   // where in the state a tuple space's key is made
	Entry     int          `json:"entry"` // where the entry that it finds is copied to
}

// listedMap is a map: by what name the validator knows it, and its sizes in bytes.
type listedMap struct {
	FD      int    `json:"fd"`
	Name    string `json:"name"`
	Key     uint32 `json:"key"`
	Value   uint32 `json:"value"`
	Entries uint32 `json:"entries"`
	First   uint32 `json:"first"` // of a table's counters: its first cell
}

// listedCell is where a register lies.
type listedCell struct {
	Name   string `json:"name"`
	At     int    `json:"at"`
	Stride int    `json:"stride"`
	Cells  int    `json:"cells"`
}

// list loads a program into the kernel and writes its listing to a file.
func list(t *testing.T, prog *v1model.Program, program string) (file string) {
	t.Helper()
	var code asm.Instructions
	x, err := New(prog, Config{edit: func(is asm.Instructions) asm.Instructions {
		code = is
		return is
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	var raw bytes.Buffer
	if err := longJumps(code).Marshal(&raw, binary.LittleEndian); err != nil {
		t.Fatal(err)
	}
	st := newGen(prog, 0, 0).st
	l := listing{Program: program, Code: raw.Bytes(), Key: st.key, Entry: st.entry}
	add := func(name string, m fder, first uint32) {
		if m, ok := m.(*ebpf.Map); ok && m != nil {
			l.Maps = append(l.Maps, listedMap{m.FD(), name, m.KeySize(), m.ValueSize(), m.MaxEntries(), first})
		}
	}
	o := x.objects()
	for name, m := range map[string]fder{
		"state": o.state, "ports": o.ports, "port_stats": o.stats, "digests": o.digests, "epochs": o.epochs,
		"lock": o.lock, "registers": o.registers, "crcs": o.crcs, "jobs": o.jobs, "clones": o.groups,
	} {
		add(name, m, 0)
	}
	for i, p := range x.prog.Profiles {
		add("members "+p.Name, o.profiles[i].members, 0)
		add("groups "+p.Name, o.profiles[i].groups, 0)
	}
	for i, m := range x.prog.Meters {
		add("meter "+m.Name, o.meters[i].cells, 0)
	}
	for i, set := range x.prog.ValueSets {
		add("set "+set.Name, o.sets[i], 0)
	}
	for i, c := range x.prog.Counters {
		add("counter "+c.Name, o.counters[i], 0)
	}
	for _, def := range x.prog.Tables {
		m := o.tables[def]
		if !scans(def) {
			add("table "+def.Name, m.entries, 0)
		}
		add("tuples "+def.Name, m.tuples, 0)
		add("hits "+def.Name, m.hits, 0)
		add("meter "+def.Name, m.meters.cells, 0)
		add("direct "+def.Name, m.counters, m.counted)
	}
	for i, of := range x.placed {
		l.Registers = append(l.Registers, listedCell{x.prog.Registers[i].Name, of.at, of.stride, of.cells})
	}
	text, err := json.Marshal(&l)
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "listing.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
