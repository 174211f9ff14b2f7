package devrack

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/examples/pipeline/gen-go/pipeline"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/join/unixjoin"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
)

// python is the one that clients/python is tested with.
const python = "/usr/bin/python3"

// needsPython skips a test where there is no Thrift for Python.
func needsPython(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("thrift"); err != nil || exec.Command(python, "-c", "import thrift").Run() != nil {
		t.Skip("needs Thrift's compiler, and its library for " + python + ": make setup")
	}
}

// script is a program in Python, a node of the rack, with which its test talks by lines of JSON.
type script struct {
	*running
	in  io.WriteCloser
	out *bufio.Reader
	cmd *exec.Cmd
}

// script starts one of testdata, with code that Thrift has generated of IDL files.
func (r *running) script(name string, idl ...string) *script {
	r.Helper()
	gen := r.TempDir()
	for _, file := range idl {
		if out, err := exec.Command("thrift", "-nowarn", "--gen", "py", "-out", gen, file).CombinedOutput(); err != nil {
			r.Fatalf("thrift: %v: %s", err, out)
		}
	}
	client, err := filepath.Abs("../../clients/python")
	if err != nil {
		r.Fatal(err)
	}
	s := &script{running: r, cmd: exec.CommandContext(r.Context(), python, filepath.Join("testdata", name))}
	s.cmd.Env = append(os.Environ(), "PYTHONPATH="+client+":"+gen, "PYTHONDONTWRITEBYTECODE=1", "BIFROST_JOIN_SOCKET="+r.Join)
	s.cmd.Stderr = r.Output()
	s.in, err = s.cmd.StdinPipe()
	if err != nil {
		r.Fatal(err)
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		r.Fatal(err)
	}
	if s.out = bufio.NewReader(out); s.cmd.Start() != nil {
		r.Fatal("the script does not start")
	}
	return s
}

// says is what the script says next.
func (s *script) says() (said struct {
	Address, Text, Passed                       string
	Length, Number                              int64
	Slot                                        int32
	Writes, Late, Refused, Short, Frees, Nobody rpc.Code
	Regions                                     []int
}) {
	s.Helper()
	line, err := s.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &said)
	}
	if err != nil {
		s.Fatalf("%q: %v", line, err)
	}
	return said
}

// tell tells it something.
func (s *script) tell(what map[string]any) {
	s.Helper()
	if err := json.NewEncoder(s.in).Encode(what); err != nil {
		s.Fatal(err)
	}
}

// ends waits for the script's end.
func (s *script) ends() {
	s.Helper()
	if err := s.cmd.Wait(); err != nil {
		s.Error("the script fails:", err)
	}
}

// TestPython_Shares: a node in Python reads by a standing lease of one in Go, passes on what it reads, and cannot when the lease has ended. One in Go reads by a lease of
// one in Python, which can free its value when all leases are taken back.
func TestPython_Shares(t *testing.T) {
	needsPython(t)
	t.Setenv("TMPDIR", t.TempDir())
	r := run(t, Config{})
	ctx := t.Context()
	owner, other := r.node("owner"), r.node("other")
	if err := owner.Export(ctx, "Arrays", arrays.NewArraysProcessor(&service.Arrays{})); err != nil {
		t.Fatal(err)
	}
	s := r.script("shares.py", "../../examples/arrays/arrays.thrift")
	reader, err := netip.ParseAddr(s.says().Address)
	if err != nil {
		t.Fatal(err)
	}

	text := rpc.RefOf([]byte("of a node in Go"))
	lease, err := text.Share(ctx, owner, reader)
	if err != nil {
		t.Fatal(err)
	}
	s.tell(map[string]any{"length": lease.Length, "address": hex.EncodeToString(lease.Address), "slot": lease.Slot, "number": lease.Number})
	got := s.says()
	if got.Text != hex.EncodeToString([]byte("of a node in Go")) || got.Passed != hex.EncodeToString([]byte("pg!b!opef!jo!Hp")) || got.Writes != rpc.PermissionDenied {
		t.Errorf("by a lease: %+v", got)
	}
	if err := text.Unshare(ctx); err != nil {
		t.Fatal(err)
	}
	s.tell(map[string]any{"owner": owner.Address(), "other": other.Address()})
	if got := s.says(); got.Late != rpc.PermissionDenied || got.Refused != rpc.PermissionDenied {
		t.Errorf("by a lease that has ended: %+v", got)
	}

	got = s.says()
	address, err := hex.DecodeString(got.Address)
	if err != nil {
		t.Fatal(err)
	}
	read := func(n *rpc.Node) ([]byte, error) {
		ref := rpc.RefOf[[]byte](nil)
		if err := ref.Borrow(n, &bifrost.Lease{Length: got.Length, Address: address, Slot: got.Slot, Number: got.Number}); err != nil {
			return nil, err
		}
		return ref.Take(ctx)
	}
	if b, err := read(owner); err != nil || !bytes.Equal(b, []byte("of a node in Python")) {
		t.Errorf("the reader reads %q, %v", b, err)
	}
	if _, err := read(other); rpc.CodeOf(err) != rpc.PermissionDenied {
		t.Errorf("another one reads by it: %v", err)
	}
	s.tell(nil)
	if got := s.says(); got.Short != rpc.Deadline || got.Frees != rpc.PermissionDenied {
		t.Errorf("it is shared still: %+v", got)
	}
	if got := s.says(); got.Frees != 0 || got.Nobody != rpc.NotFound {
		t.Errorf("it is not shared any more: %+v", got)
	}
	if _, err := read(owner); rpc.CodeOf(err) != rpc.PermissionDenied {
		t.Errorf("after the end: %v", err)
	}
	s.ends()
	r.end()
}

// stage reads all of its text, or a byte of it.
type stage struct{ whole bool }

func (s stage) Run(ctx context.Context, text *rpc.Ref[[]byte]) (*rpc.Ref[[]byte], error) {
	if s.whole {
		if _, err := text.Load(ctx); err != nil {
			return nil, err
		}
	} else if p, err := text.Place(ctx); err != nil || p.Read(ctx, 7, make([]byte, 1)) != nil {
		return nil, errors.New("a byte cannot be read")
	}
	return rpc.RefOf(make([]byte, 200_000)), nil
}

// TestPython_Ways: nodes in Go and in Python learn from each other what becomes of a value, and send it accordingly. Who takes less than the other sends gets it, and answers, through
// memory.
func TestPython_Ways(t *testing.T) {
	needsPython(t)
	t.Setenv("TMPDIR", t.TempDir())
	r := run(t, Config{})
	ctx, none := t.Context(), rpc.WithPolicy(rpc.PolicyNone)
	n := r.node("go")
	narrow, err := rpc.Join(join.NewContext(ctx, unixjoin.Joiner{Socket: r.Join}), rpc.WithName("go-narrow"), rpc.WithMaxMessage(100_000))
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]struct {
		node *rpc.Node
		stage
	}{"GoWhole": {n, stage{true}}, "GoPart": {n, stage{}}, "GoNarrow": {narrow, stage{true}}} {
		if err := pipeline.ExportStage(ctx, s.node, name, s.stage); err != nil {
			t.Fatal(err)
		}
	}
	s := r.script("ways.py", "../../examples/pipeline/pipeline.thrift")
	s.says()
	for _, c := range []struct {
		service string
		back    int
		regions [4]uint64
	}{
		{"WideWhole", 200_000, [4]uint64{0, 0, 0, 0}}, {"WidePart", 1, [4]uint64{0, 0, 1, 1}},
		{"NarrowWhole", 200_000, [4]uint64{1, 1, 1, 1}}, {"NarrowPart", 1, [4]uint64{1, 1, 1, 1}},
	} {
		calls := pipeline.OpenStage(n, c.service, none)
		for i, size := range []int{200_000, 4 << 20, 4 << 20, 4 << 20} {
			before, text := n.Stats().RefsInRegions, rpc.RefOf(make([]byte, size))
			back, err := calls.Run(ctx, text)
			if err != nil {
				t.Fatal(c.service, err)
			}
			b, err := back.Take(ctx)
			if err := errors.Join(err, text.Free(ctx)); err != nil || len(b) != c.back {
				t.Errorf("%s answers with %d bytes, %v", c.service, len(b), err)
			}
			if got := n.Stats().RefsInRegions - before; got != c.regions[i] {
				t.Errorf("%d bytes for %s take %d regions, want %v", size, c.service, got, c.regions)
			}
		}
	}
	s.tell(nil)
	if got := s.says().Regions; fmt.Sprint(got) != "[0 4]" { // the answers of NarrowWhole
		t.Errorf("answers take %v regions", got)
	}
	for _, want := range []string{"[0 0 0 0]", "[0 0 1 1]", "[1 1 1 1]", "[1 1 1 1]", "[1 1 1 1]", "[1 1 1 1]"} {
		if got := s.says().Regions; fmt.Sprint(got) != want {
			t.Errorf("values take %v regions, want %s", got, want)
		}
	}
	s.ends()
	r.end()
}
