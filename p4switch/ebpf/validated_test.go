//go:build linux

package ebpf

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	mapsutil "maps"
	"math/big"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/compare"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/internal/sample"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

var (
	validateAll    = flag.Bool("validate-all", false, "TestValidated: look at every program")
	validateMore   = flag.String("validate", "", "TestValidated: look at this compiled program, too")
	validateBudget = flag.Duration("validate-budget", time.Hour, "TestValidated: how long the validator may look at all programs together, in CPU time")
)

// python is Debian's, which has python3-z3.
const python = "/usr/bin/python3"

// validated are the programs that TestValidated looks at, and how many ways through their code are proved at least. The others take minutes,
// or the validator follows little of them: "make validate" looks at all.
var validated = map[string]int{
	"../testdata/basic.json":          13,
	"../interp/testdata/copies.json":  218,
	"../interp/testdata/numbers.json": 17,
	"../interp/testdata/state.json":   250, // of 273; another Z3 may give up some questions
	"testdata/acl.json":               50,
	"testdata/cpu.json":               112,
	"testdata/deep.json":              33,
	"testdata/idle.json":              650,
	"testdata/match.json":             119,
	"testdata/offload.json":           537,
	"testdata/ranges.json":            50,
	"testdata/says.json":              16,
}

// finding is what validate.py reports of a program.
type finding struct {
	Proved   int            `json:"proved"`
	GivenUp  map[string]int `json:"given_up"` // ways, by the reason
	Whole    bool           `json:"whole"`    // all ways were looked at
	Wrong    string         `json:"wrong"`    // why a way is refuted, with a packet that shows it; none is looked at any more
	Unknown  string         `json:"unknown"`  // what of the program the model does not know: no way was looked at
	Few      [2]int         `json:"few"`      // the ways that were looked at first, and the sides of branches on those of them that are proved
	Sides    int            `json:"sides"`    // of branches of the code, on ways that are proved
	AllSides int            `json:"all_sides"`
	Packets  []wayPacket    `json:"packets"` // of ways that are given up

	name    string
	took    time.Duration    // of CPU
	tried   int              // packets of these ways, on both executors
	reached [3]compare.Share // by other packets
}

// ways are all that were looked at.
func (v *finding) ways() int {
	n := v.Proved
	for _, given := range v.GivenUp {
		n += given
	}
	return n
}

// open tells whether some way is not proved.
func (v *finding) open() bool { return !v.Whole || v.ways() > v.Proved }

// row is the program's row of the table.
func (v *finding) row() string {
	ways, why := fmt.Sprint(v.ways()), []string{}
	switch {
	case v.Unknown != "":
		ways, why = "?", append(why, "the model does not know: "+v.Unknown)
	case v.Wrong != "":
		difference, _, _ := strings.Cut(v.Wrong, "\n")
		ways, why = ways+" and more", append(why, "REFUTED: "+difference)
	case !v.Whole:
		ways, why = ways+" and more", append(why, "the time was over before the last way")
	}
	for _, reason := range slices.SortedFunc(mapsutil.Keys(v.GivenUp), func(a, b string) int { return cmp.Or(v.GivenUp[b]-v.GivenUp[a], strings.Compare(a, b)) }) {
		why = append(why, fmt.Sprintf("%d: %s", v.GivenUp[reason], reason))
	}
	if v.tried > 0 {
		why = append(why, fmt.Sprintf("both executors do the same with %d packets of ways that are given up", v.tried))
	}
	if v.reached[0].Of > 0 {
		why = append(why, fmt.Sprintf("both executors do the same with packets derived from the program, which meet %s steps and %s ways between them", v.reached[0], v.reached[1]))
	}
	return fmt.Sprintf("%s\t%s\t%d\t%d of %d\t%.0f s\t%s", v.name, ways, v.Proved, v.Sides, v.AllSides, v.took.Seconds(), strings.Join(why, "; "))
}

// TestValidated has Z3 compare the instructions that the kernel gets with the model, for all packets and all contents of tables and registers. It
// tells what is proved, and what is given up, for which it runs packets on both executors. All programs together have a budget of CPU time: each gets
// its part of what those before it have left, and those with the least code come first.
func TestValidated(t *testing.T) {
	if testing.Short() {
		t.Skip("looks for the better part of a minute of CPU")
	}
	needRoot(t)
	needZ3(t)
	files := slices.Sorted(mapsutil.Keys(validated))
	if *validateAll {
		files = kernelPrograms(t)
	}
	if *validateMore != "" {
		files = append(files, *validateMore)
	}
	type program struct {
		file, listing string
		code          int // bytes
		*v1model.Program
	}
	var programs []program
	for _, f := range files {
		prog := load(t, f)
		if len(Lacks(prog, 0)) > 0 {
			t.Logf("%s is not for the kernel", f)
			continue
		}
		listing, code := list(t, prog, f)
		programs = append(programs, program{f, listing, code, prog})
	}
	slices.SortStableFunc(programs, func(a, b program) int { return a.code - b.code })
	left := *validateBudget
	var rows strings.Builder
	table := tabwriter.NewWriter(&rows, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "program\tways\tproved\tbranches\tCPU\tnot proved, and what is tested in its place")
	for i, p := range programs {
		name := strings.TrimSuffix(strings.TrimLeft(p.file, "./"), ".json")
		t.Run(name, func(t *testing.T) {
			v := validate(t, p.listing, left/time.Duration(len(programs)-i))
			v.name = name
			left -= v.took
			defer func() { fmt.Fprintln(table, v.row()) }()
			if v.Wrong != "" {
				t.Fatal(v.Wrong)
			}
			if want := validated[p.file]; v.Proved < want && (v.Whole || !*validateAll) {
				t.Errorf("%d ways are proved, at least %d must be", v.Proved, want)
			}
			if v.Whole && (v.Few[0] > 200 || 2*v.Few[1] < v.Sides) {
				t.Errorf("the first %d ways have %d of %d sides of branches", v.Few[0], v.Few[1], v.Sides)
			}
			if v.open() {
				testOpen(t, strings.TrimSuffix(strings.TrimPrefix(p.file, "../"), ".json"), p.Program, v)
			}
		})
	}
	_ = table.Flush()
	t.Logf("what is proved\n%s", &rows)
}

// When the time is over, the validator ends and says so.
func TestValidated_TimeIsOver(t *testing.T) {
	needRoot(t)
	needZ3(t)
	const file = "testdata/router.json"
	listing, _ := list(t, load(t, file), file)
	v := validate(t, listing, 0)
	v.name = "router"
	if row := v.row(); v.Whole || !v.open() || !strings.Contains(row, "0 and more") || !strings.Contains(row, "the time was over") {
		t.Error(row)
	}
}

// A way that is refuted ends the search: it is in the program's row, with what differs. Here the program says another thing than the code, which is that of basic.json.
func TestValidated_Refuted(t *testing.T) {
	needRoot(t)
	needZ3(t)
	const file = "../testdata/basic.json"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "other.json")
	less := bytes.ReplaceAll(text, []byte(`"value" : "0xff"`), []byte(`"value" : "0xfe"`)) // the time to live becomes less by two
	if bytes.Equal(less, text) {
		t.Fatal("nothing is changed")
	}
	if err := os.WriteFile(other, less, 0o600); err != nil {
		t.Fatal(err)
	}
	listing, _ := list(t, load(t, file), other)
	v := validate(t, listing, time.Minute)
	v.name = "other"
	if row := v.row(); v.Whole || !strings.Contains(row, "REFUTED: bytes ") || strings.Contains(row, "time was over") {
		t.Error(row)
	}
}

// needZ3 skips a test where there is no Z3.
func needZ3(t *testing.T) {
	t.Helper()
	if err := exec.Command(python, "-c", "import z3").Run(); err != nil {
		t.Skip("NOT CHECKED: no Z3 for Python: apt-get install python3-z3")
	}
	sources, err := filepath.Glob("../validate/*.py")
	if err != nil || len(sources) == 0 {
		t.Fatal(sources, err)
	}
	for _, f := range sources { // go test runs the test anew when a file has changed that the test itself has read
		if _, err := os.ReadFile(f); err != nil {
			t.Fatal(err)
		}
	}
}

// validate runs the validator.
func validate(t *testing.T, listing string, budget time.Duration) *finding {
	t.Helper()
	report := filepath.Join(t.TempDir(), "report.json")
	cmd := exec.Command(python, "-O", "../validate/validate.py", "--seconds", fmt.Sprintf("%.1f", budget.Seconds()), "--report", report, listing)
	cmd.Stderr = os.Stderr // how far it has come
	out, err := cmd.Output()
	t.Logf("%s", out)
	var vs []*finding
	text, err2 := os.ReadFile(report)
	if err2 == nil {
		err2 = json.Unmarshal(text, &vs)
	}
	if err2 != nil || len(vs) != 1 || (err != nil) != (vs[0].Wrong != "") {
		t.Fatalf("%d reports, %v, %v", len(vs), err, err2)
	}
	vs[0].took = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return vs[0]
}

// wayPacket is a packet of a way that the validator gives up, and the entries that tables have then.
type wayPacket struct {
	Port    datapath.Port `json:"port"`
	Frame   string        `json:"frame"` // in hexadecimal digits
	Entries []struct {
		Table  string   `json:"table"`
		Match  []string `json:"match"` // a number for each field of the key
		Action string   `json:"action"`
		Params []string `json:"params"`
	} `json:"entries"`
}

// entries are the packet's. Each matches its key's value alone.
func (p *wayPacket) entries(t *testing.T, prog *v1model.Program) (out []datapath.Entry) {
	t.Helper()
	number := func(text string, width int) []byte {
		n, ok := new(big.Int).SetString(text, 10)
		if !ok || n.BitLen() > width {
			t.Fatalf("%q is no number of %d bits", text, width)
		}
		return n.FillBytes(make([]byte, (width+7)/8))
	}
	for _, e := range p.Entries {
		def := prog.Table(e.Table)
		entry := datapath.Entry{Table: e.Table, Action: &datapath.Action{Name: e.Action}}
		for i, k := range def.Key {
			w := k.Field.Width()
			m := datapath.Match{Value: number(e.Match[i], w)}
			switch k.Kind {
			case v1model.MatchLPM:
				m.PrefixLen = w
			case v1model.MatchTernary:
				ones := new(big.Int).Lsh(big.NewInt(1), uint(w))
				m.Mask = number(ones.Sub(ones, big.NewInt(1)).String(), w)
			case v1model.MatchRange:
				m.High = m.Value
			}
			entry.Match = append(entry.Match, m)
		}
		if def.Kind == v1model.MatchTernary || def.Kind == v1model.MatchRange {
			entry.Priority = 1
		}
		for _, a := range def.Actions {
			for i, param := range a.Params {
				if a.Name == e.Action {
					entry.Action.Params = append(entry.Action.Params, number(e.Params[i], param.Width))
				}
			}
		}
		out = append(out, entry)
	}
	return out
}

// variants is how often a packet of a way is run: as it is, then with a byte changed.
const variants = 16

// hits is how many lookups have found an entry.
func hits(p *pair) (n uint64) {
	for _, c := range p.Golang.TableStats() {
		n += c.Hits
	}
	return n
}

// testOpen runs packets on both executors where the validator has proved nothing: those of ways that it has given up, and those of TestCompared.
func testOpen(t *testing.T, name string, prog *v1model.Program, v *finding) {
	t.Helper()
	p, m := newPair(t, prog, sample.CPUPort), maker{rand.New(rand.NewPCG(*seed, 0))}
	p.Unordered = true // copies leave in any order
	p.Both(t, func(x datapath.Datapath) error {
		var errs []error
		for i := range uint32(8) {
			errs = append(errs, x.Multicast(i+1, []datapath.Replica{{Port: 2}, {Port: 3}}), x.Clone(i+1, []datapath.Replica{{Port: 4}}, 0))
		}
		return errors.Join(errs...)
	})
	var entered, found uint64
	for _, w := range v.Packets {
		frame, err := hex.DecodeString(w.Frame)
		if err != nil {
			t.Fatal(err)
		}
		frame = compare.Testable(frame)
		var inserted []datapath.Entry
		for _, e := range w.entries(t, prog) {
			if p.Update(t, datapath.Insert, e) {
				inserted = append(inserted, e)
			}
		}
		before := hits(p)
		for i := range variants {
			if change := unfit[name]; change != nil {
				change(frame)
			}
			p.Same(t, w.Port, frame, "a packet of a way that validate.py gives up: go test ./p4switch/ebpf -run TestValidated")
			v.tried++
			if i == 0 && len(inserted) > 0 {
				entered++
				found += min(hits(p)-before, 1)
			}
			frame[m.IntN(len(frame))] = byte(m.Pick(0, 255, m.Uint64()))
		}
		for _, e := range inserted {
			p.Update(t, datapath.Delete, e)
		}
	}
	if 2*found < entered { // some become longer, to fit the kernel, and go another way
		t.Errorf("of %d packets with entries, %d met one", entered, found)
	}
	if !*validateAll {
		return // TestCompared runs the others
	}
	met := compare.NewReached(prog)
	for n := range max(*rounds/5, 1) {
		compareWays(t, name, prog, met, *seed+uint64(n))
	}
	v.reached = met.Shares(prog)
}

// listing is what p4switch/validate/validate.py is told of a program: the instructions that the kernel was given, and the maps that they name.
type listing struct {
	Program   string       `json:"program"` // the compiled program's file
	Code      []byte       `json:"code"`    // as the kernel gets it
	Maps      []listedMap  `json:"maps"`
	Registers []listedCell `json:"registers"`
	Messages  []string     `json:"messages"` // by the number that the code sends: the formats of log messages, and empty for digests
	Key       int          `json:"key"`      // where in the state a tuple space's key is made
	Entry     int          `json:"entry"`    // where the entry that it finds is copied to
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

// list loads a program into the kernel and writes its listing to a file. It returns how long its code is, in bytes.
func list(t *testing.T, prog *v1model.Program, program string) (file string, size int) {
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
		"lock": o.lock, "registers": o.registers, "crcs": o.crcs, "jobs": o.jobs, "clones": o.groups, "queue_depths": o.depths,
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
	l.Messages = make([]string, len(x.prog.Digests))
	for _, m := range x.messages {
		text := m.log.Format
		if m.failed != "" {
			text = "an assertion has failed"
		}
		l.Messages = append(l.Messages, text)
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
	return file, raw.Len()
}
