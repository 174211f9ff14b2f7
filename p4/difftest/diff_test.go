package difftest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/inputs"
	"github.com/bifrost-rack/bifrost/p4switch/interp"
	"github.com/bifrost-rack/bifrost/p4switch/p4rt/p4info"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// To run a difference again: go test ./p4/difftest -run TestBMv2/NAME -seed N -rounds 1
var (
	seed   = flag.Uint64("seed", 1, "first seed of the generated packets and entries")
	rounds = flag.Int("rounds", 2, "seeds to try with each program, each with entries of its own")
	// To find differences with other programs, such as p4c's samples: compile them
	// as testdata/compile.sh does, and name the directory.
	programs = flag.String("programs", "", "compare these programs instead, NAME.json and NAME.p4info.txt each")
	packets  = flag.Int("packets", 150, "packets to try with each seed")
)

// patience is how long an answer that must come may take on a busy machine;
// quiet is how long nothing comes when nothing will.
const (
	patience = time.Minute
	quiet    = 100 * time.Millisecond
)

// subject is a program under test, and what makes its packets and entries.
type subject struct {
	name       string
	json, info []byte
	cpu        datapath.Port
	updates    int
	whole      bool
	skip       func(frame []byte) bool // of packets that differ by right; may be nil
	make       func(prog *v1model.Program, seed uint64) (packet func() (datapath.Port, []byte), entry func() (datapath.Entry, bool))
}

func subjects(t *testing.T) []subject {
	t.Helper()
	read := func(path string) []byte {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if *programs != "" {
		return strangers(t, *programs, read)
	}
	out := []subject{
		{name: "bifrost", json: p4.JSON, info: p4.Info, cpu: p4.CPUPort, updates: 200, make: forBifrost},
		{name: "bifrost-any", json: p4.JSON, info: p4.Info, cpu: p4.CPUPort, updates: 100, make: forAny},
	}
	for _, name := range []string{"router", "tables", "stacks", "copies", "state", "sets"} {
		dir := "../../p4switch/interp/testdata/"
		if name == "router" {
			dir = "../../p4switch/ebpf/testdata/"
		}
		s := subject{
			name: name, json: read(dir + name + ".json"), info: read("testdata/" + name + ".p4info.txt"), updates: 60, whole: true, make: forWhole,
		}
		if name == "state" {
			s.skip = func(frame []byte) bool { return frame[0] == 11 } // asks for a random number
		}
		out = append(out, s)
	}
	return out
}

// strangers are programs of which nothing is known.
func strangers(t *testing.T, dir string, read func(string) []byte) (out []subject) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no programs in %s: %v", dir, err)
	}
	for _, f := range files {
		base := strings.TrimSuffix(f, ".json")
		out = append(out, subject{
			name: filepath.Base(base), json: read(f), info: read(base + ".p4info.txt"), updates: 40, whole: true, make: forWhole,
		})
	}
	return out
}

func forBifrost(_ *v1model.Program, seed uint64) (func() (datapath.Port, []byte), func() (datapath.Entry, bool)) {
	m := Bifrost{rand.New(rand.NewPCG(seed, 0))}
	packet := func() (datapath.Port, []byte) {
		in := datapath.Port(m.Pick(1, 2, 3, 4, 1, 2, 3, 4, p4.CPUPort))
		return in, m.Packet(in)
	}
	return packet, func() (datapath.Entry, bool) { return m.Entry(), true }
}

func forAny(prog *v1model.Program, seed uint64) (func() (datapath.Port, []byte), func() (datapath.Entry, bool)) {
	return from(inputs.New(prog, seed))
}

func forWhole(prog *v1model.Program, seed uint64) (func() (datapath.Port, []byte), func() (datapath.Entry, bool)) {
	a := inputs.New(prog, seed)
	a.Whole = true
	return from(a)
}

func from(a *inputs.Maker) (func() (datapath.Port, []byte), func() (datapath.Entry, bool)) {
	packet := func() (datapath.Port, []byte) {
		in, frame := a.Packet()
		return datapath.Port(in), frame
	}
	return packet, a.Entry
}

// pair is a program on the Go executor and on bmv2.
type pair struct {
	t      *testing.T
	golang *interp.Executor
	bmv2   *BMv2
	lines  []string // what has left the Go executor
	replay string
	whole  bool // packets are not to be cut
}

func (p *pair) emit(port datapath.Port, b []byte) { p.lines = append(p.lines, Out(port, b)) }
func (p *pair) PacketIn(b []byte)                 { p.lines = append(p.lines, PacketIn(b)) }
func (p *pair) Digest(d datapath.Digest)          { p.lines = append(p.lines, Digest(d)) }
func (p *pair) Idle(datapath.Entry)               {}

func newPair(t *testing.T, s *subject, prog *v1model.Program) *pair {
	t.Helper()
	p := &pair{t: t, whole: s.whole}
	var err error
	logger := slog.New(slog.NewTextHandler(io.Discard, nil))
	if p.golang, err = interp.New(prog, interp.Config{CPUPort: s.cpu, Sink: p, Output: p.emit, Logger: logger}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.golang.Close() })
	if p.bmv2, err = StartBMv2(s.json, s.info, s.cpu); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.bmv2.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// apply makes an update on both; both must take it or refuse it.
func (p *pair) apply(op datapath.Op, e datapath.Entry) {
	p.t.Helper()
	ours, theirs := p.golang.Apply(op, e), p.bmv2.Apply(op, e)
	if (ours == nil) != (theirs == nil) {
		p.t.Fatalf("op %d of %+v: Go says %v, bmv2 %v\nreplay: %s", op, e, ours, theirs, p.replay)
	}
}

// run runs a packet on both and returns what came out, in any order.
func (p *pair) run(in datapath.Port, frame []byte, wait time.Duration) (ours, theirs []string) {
	p.t.Helper()
	p.lines = nil
	if in == p.bmv2.cpu && in != 0 {
		if err := p.golang.PacketOut(bytes.Clone(frame)); err != nil {
			p.t.Fatal(err)
		}
	} else {
		p.golang.Process(in, bytes.Clone(frame), p.emit)
	}
	if err := p.bmv2.Send(in, frame); err != nil {
		p.t.Fatalf("bmv2: %v; it said: %s\nreplay: %s", err, p.bmv2.out.String(), p.replay)
	}
	slices.Sort(p.lines)
	return p.lines, p.bmv2.Events(len(p.lines), wait)
}

// check runs a packet on both and reports a difference with the shortest packet
// that shows it.
func (p *pair) check(in datapath.Port, frame []byte) {
	p.t.Helper()
	ours, theirs := p.run(in, frame, patience)
	if slices.Equal(ours, theirs) {
		return
	}
	p.bmv2.Events(1<<20, quiet) // what comes late
	small := p.minimize(in, frame)
	o, b := p.again(in, small)
	if slices.Equal(o, b) { // only the first time
		small, o, b = frame, ours, theirs
	}
	p.t.Fatalf("port %d, packet %s\nGo:   %s\nbmv2: %s\nreplay: %s", in, hex.EncodeToString(small), show(o), show(b), p.replay)
}

func show(lines []string) string { return "[" + strings.Join(lines, ", ") + "]" }

// again runs a packet and waits for all that may come.
func (p *pair) again(in datapath.Port, frame []byte) (ours, theirs []string) {
	ours, theirs = p.run(in, frame, quiet)
	theirs = append(theirs, p.bmv2.Events(1<<20, quiet)...)
	slices.Sort(theirs)
	return ours, theirs
}

// minimize cuts a packet's end and zeroes its bytes while both still differ.
func (p *pair) minimize(in datapath.Port, frame []byte) []byte {
	differs := func(b []byte) bool {
		ours, theirs := p.again(in, b)
		return !slices.Equal(ours, theirs)
	}
	for n := len(frame) / 2; n > 0 && !p.whole; n /= 2 {
		for len(frame)-n >= inputs.ShortestFrame+4 && differs(frame[:len(frame)-n]) {
			frame = frame[:len(frame)-n]
		}
	}
	for i := 0; i < len(frame); i += 8 {
		b := bytes.Clone(frame)
		clear(b[i:min(i+8, len(b))])
		if !bytes.Equal(b, frame) && differs(b) {
			frame = b
		}
	}
	return frame
}

// maxCells is how many cells of a counter are compared: each is a call.
const maxCells = 1024

// compareCounters compares the cells of the counters.
func (p *pair) compareCounters(prog *v1model.Program) {
	p.t.Helper()
	for _, c := range prog.Counters {
		if c.Direct {
			continue
		}
		for i := range min(c.Size, maxCells) {
			ours, err1 := p.golang.Counter(c.Name, i)
			theirs, err2 := p.bmv2.Counters(c.Name, i)
			if err := errors.Join(err1, err2); err != nil || ours != theirs[0] {
				p.t.Errorf("counter %s[%d]: Go %+v, bmv2 %+v, %v\nreplay: %s", c.Name, i, ours, theirs, err, p.replay)
			}
		}
	}
}

// Generated entries and packets do the same on the Go executor and on bmv2.
func TestBMv2(t *testing.T) {
	if !HasBMv2() {
		t.Skip("bmv2 is not installed")
	}
	for _, s := range subjects(t) {
		t.Run(s.name, func(t *testing.T) {
			for n := range *rounds {
				withBMv2(t, &s, *seed+uint64(n))
			}
		})
	}
}

func withBMv2(t *testing.T, s *subject, seed uint64) {
	t.Helper()
	prog, err := v1model.Load(s.json)
	if *programs != "" && errors.Is(err, v1model.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	p := newPair(t, s, prog)
	p.replay = fmt.Sprintf("go test ./p4/difftest -run 'TestBMv2/^%s$' -seed %d -rounds 1", s.name, seed)
	packet, entry := s.make(prog, seed)
	ops := rand.New(rand.NewPCG(seed, 1))
	for range s.updates {
		if e, ok := entry(); ok && p.allowed(&e) && canonical(prog.Table(e.Table), p.bmv2.info.TableByName(e.Table), &e) {
			p.apply([]datapath.Op{datapath.Delete, datapath.Modify, datapath.Insert, datapath.Insert, datapath.Insert}[ops.IntN(5)], e)
		}
	}
	for range *packets {
		if in, frame := packet(); s.skip == nil || !s.skip(frame) {
			p.check(in, frame)
		}
	}
	if late := p.bmv2.Events(1<<20, quiet); len(late) > 0 {
		t.Errorf("bmv2 sends more: %s\nreplay: %s", show(late), p.replay)
	}
	p.compareCounters(prog)
}

// allowed tells whether entries may have the action; some are for defaults alone,
// which only the P4Info says.
func (p *pair) allowed(e *datapath.Entry) bool {
	t, a := p.bmv2.info.TableByName(e.Table), p.bmv2.info.ActionMessage(*e.Action)
	return t != nil && a != nil && t.Actions[a.GetActionId()] != configv1.ActionRef_DEFAULT_ONLY
}

// ones is a value of width bits, all of them ones, big-endian.
func ones(width int) []byte {
	one := big.NewInt(1)
	return new(big.Int).Sub(new(big.Int).Lsh(one, uint(width)), one).FillBytes(make([]byte, (width+7)/8))
}

// canonical clears what a prefix leaves out, which P4Runtime insists on, and
// makes optional fields, which the program has as ternary ones, match all of the
// value or nothing. It is false for prefixes of fields that are no whole number of bytes, of which bmv2
// counts the bits that must be zero from the wrong end.
func canonical(t *v1model.Table, info *p4info.Table, e *datapath.Entry) bool {
	for i := range e.Match {
		m := &e.Match[i]
		if info.Fields[i].Kind == p4info.Optional && !m.Wildcard {
			m.Mask = ones(info.Fields[i].Width)
		}
		if t.Key[i].Kind != v1model.MatchLPM {
			continue
		}
		if t.Key[i].Field.Width()%8 != 0 {
			return false
		}
		m.Value = bytes.Clone(m.Value)
		for bit := m.PrefixLen; bit < t.Key[i].Field.Width(); bit++ {
			n := 8*len(m.Value) - t.Key[i].Field.Width() + bit
			m.Value[n/8] &^= 0x80 >> (n % 8)
		}
		m.Wildcard = m.PrefixLen == 0
	}
	return true
}

// The P4Info here is of the programs that the executors' packages have.
func TestStale(t *testing.T) {
	sums, err := os.ReadFile("testdata/SHA256SUMS")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(sums)) {
		want, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		if got := sum(t, filepath.Join("testdata", name)); got != want {
			t.Errorf("%s has changed: run testdata/compile.sh", name)
		}
	}
}

func sum(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}
