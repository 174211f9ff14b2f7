package form

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"reflect"
	"testing"

	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
)

// python is Debian's, which has python3-thrift.
const python = "/usr/bin/python3"

// echo decodes each line's content, finds each entry in place, and encodes it again.
const echo = `
import sys
from thrift.Thrift import TType
from bifrost import form
from bifrost.ttypes import Reference
value = (TType.LIST, (TType.MAP, (TType.I32, None, TType.STRUCT, [Reference, Reference.thrift_spec], False), False))
kind = (TType.MAP, (TType.STRING, "BINARY", *value, False))
for line in sys.stdin:
    content = bytes.fromhex(line)
    whole = form.decode(kind, content)
    place = form.open(kind, len(content), lambda at, size: content[at:at + size])
    assert {k: place.get(k).load() for k in whole} == whole
    print(form.encode(kind, whole).hex(), flush=True)
`

// TestPython: random values come back from the other implementation, and what it has
// written is found in place.
func TestPython(t *testing.T) {
	if err := exec.Command(python, "-c", "import thrift").Run(); err != nil {
		t.Skip("NOT CHECKED: no Thrift for Python: apt-get install python3-thrift")
	}
	key := String[string]()
	elem := List[[]map[int32]*bifrost.Reference](Map[map[int32]*bifrost.Reference](I32[int32](), Struct(bifrost.NewReference)))
	kind := Map[map[string][]map[int32]*bifrost.Reference](key, elem)
	cmd := exec.Command(python, "-c", echo)
	cmd.Env = append(os.Environ(), "PYTHONPATH=../../clients/python")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	for seed := range uint64(100) {
		v := map[string][]map[int32]*bifrost.Reference{}
		for k, list := range randomDeep(rand.New(rand.NewPCG(seed, 3))) {
			v[k] = []map[int32]*bifrost.Reference{}
			for _, l := range list {
				v[k] = append(v[k], l...)
			}
		}
		b := roundTrip(t, kind, v)
		if _, err := fmt.Fprintf(in, "%x\n", b); err != nil {
			t.Fatal(err)
		}
		line, err := lines.ReadString('\n')
		if err != nil && err != io.EOF { //nolint:errorlint // bufio returns it as it is
			t.Fatal(err)
		}
		back, err := hex.DecodeString(line[:max(0, len(line)-1)])
		if err != nil {
			t.Fatal(err)
		}
		got, err := kind.Unmarshal(back)
		if err != nil || !reflect.DeepEqual(got, v) {
			t.Fatalf("%v\ncame back from Python as %v, %v", v, got, err)
		}
		p, err := Open(t.Context(), kind, int64(len(back)), (&counted{b: back}).read)
		if err != nil {
			t.Fatal(err)
		}
		d, err := Entries(t.Context(), p, key, elem)
		if err != nil {
			t.Fatal(err)
		}
		for k := range v {
			if e, ok, err := d.Get(t.Context(), k); !ok || err != nil || !reflect.DeepEqual(e, v[k]) {
				t.Fatalf("%q is %v, %t, %v", k, e, ok, err)
			}
		}
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
}
