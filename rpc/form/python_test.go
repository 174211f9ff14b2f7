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
	"slices"
	"testing"

	c "github.com/bifrost-rack/bifrost/rpc/internal/crosstest/gen-go/crosstest"
)

// python is Debian's, which has python3-thrift.
const python = "/usr/bin/python3"

// echo takes values of crosstest.thrift, each a line with the field of Values that says its type and the
// content. It reads each in place, part by part, holds that against the whole value,
// and writes it again.
const echo = `
import sys
from thrift.Thrift import TType
from bifrost import form
from crosstest import ttypes
wide = form.kind_of(ttypes.Wide)
kinds = {"Wide": (TType.MAP, (TType.STRING, "UTF8", TType.LIST, (*wide, False), False)),
         "Jungle": (TType.LIST, (*form.kind_of(ttypes.Jungle), False)),
         "Either": (TType.MAP, (TType.I64, None, *form.kind_of(ttypes.Either), False)),
         "Defaults": (TType.LIST, (TType.LIST, (*form.kind_of(ttypes.Defaults), False), False)),
         "Empty": form.kind_of(ttypes.Empty),
         "Truths": (TType.MAP, (TType.BYTE, None, TType.LIST, (TType.BOOL, None, False), False)),
         "Reals": (TType.MAP, (TType.I16, None, TType.DOUBLE, None, False))}

def apart(view, kind):
    if isinstance(view, form.Map):
        assert len(view) == len(list(view)) and all(k in view for k in view)
        return {k: apart(view[k], kind[1][2:4]) for k in view}
    if isinstance(view, form.List):
        parts = [apart(view[i], kind[1][:2]) for i in range(len(view))]
        assert parts == [apart(e, kind[1][:2]) for e in view]
        assert parts == [apart(e, kind[1][:2]) for half in (view[:len(view) // 2], view[len(view) // 2:]) for e in half]
        return set(parts) if kind[0] == TType.SET else parts
    if isinstance(view, form.Struct):
        cls, spec = kind[1]
        return cls(**{f[2]: apart(getattr(view, f[2]), (f[1], f[3])) for f in spec if f})
    return view

for line in sys.stdin:
    name, content = line.split()
    kind, content = kinds[name], bytes.fromhex(content)
    whole, view = form.decode(kind, content), form.open(kind, len(content), lambda at, size: content[at:at + size])
    assert view.load() == whole and apart(view, kind) == whole, whole
    print(form.encode(kind, whole).hex(), flush=True)
`

// other is Python on the other end of a pipe.
type other struct {
	in  io.WriteCloser
	out *bufio.Reader
}

func pythonOf(t *testing.T) other {
	t.Helper()
	if err := exec.Command(python, "-c", "import thrift").Run(); err != nil {
		t.Skip("NOT CHECKED: no Thrift for Python: apt-get install python3-thrift")
	}
	dir := t.TempDir()
	if out, err := exec.Command("thrift", "-nowarn", "--gen", "py", "-out", dir, "../internal/crosstest/crosstest.thrift").CombinedOutput(); err != nil {
		t.Skipf("NOT CHECKED: no Thrift compiler: apt-get install thrift-compiler: %v %s", err, out)
	}
	cmd := exec.Command(python, "-c", echo)
	cmd.Env = append(os.Environ(), "PYTHONPATH=../../clients/python:"+dir)
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
	t.Cleanup(func() {
		if err := in.Close(); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	return other{in, bufio.NewReader(out)}
}

// there sends random values to Python, and takes them back.
func there[T any](t *testing.T, o other, name string, kind Type[T]) {
	t.Helper()
	for seed := range uint64(60) {
		var v T
		random(rand.New(rand.NewPCG(seed, 3)), reflect.ValueOf(&v).Elem(), 0)
		if _, err := fmt.Fprintf(o.in, "%s %x\n", name, roundTrip(t, kind, v)); err != nil {
			t.Fatal(err)
		}
		line, err := o.out.ReadString('\n')
		if err != nil {
			t.Fatalf("%s: Python has ended: %v", name, err)
		}
		back, err := hex.DecodeString(line[:len(line)-1])
		if err != nil {
			t.Fatal(err)
		}
		got, err := kind.Unmarshal(back)
		if wide, ok := any(got).(map[string][]*c.Wide); ok {
			sortSets(wide)
		}
		if err != nil || !reflect.DeepEqual(got, v) {
			t.Fatalf("%s: %v\ncame back from Python as %v, %v", name, v, got, err)
		}
		p, err := Open(t.Context(), kind, int64(len(back)), (&counted{b: back}).read)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Load(t.Context(), p, kind); err != nil || reflect.TypeOf(got) != reflect.TypeOf(v) {
			t.Fatalf("%s: what Python has written is not read in place: %v", name, err)
		}
	}
}

// sortSets brings sets into the order in which random makes them.
func sortSets(m map[string][]*c.Wide) {
	for _, list := range m {
		for _, w := range list {
			for _, sets := range w.B {
				for _, set := range sets {
					slices.Sort(set)
				}
			}
		}
	}
}

// random fills a value in. Of a union one field is set; what is optional may be missing.
func random(r *rand.Rand, v reflect.Value, depth int) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(r.IntN(2) == 0)
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n := int64(r.Uint64()) >> r.IntN(64)
		if v.Type() == reflect.TypeFor[c.Digit]() {
			n = int64(int32(n)) // an enum's Go type is longer than its IDL type
		}
		v.SetInt(n)
	case reflect.Uint8:
		v.SetUint(r.Uint64N(256))
	case reflect.Float64:
		v.SetFloat(r.NormFloat64())
	case reflect.String:
		const runes = "aé水🌈\x00 "
		some := []rune(runes)
		s := ""
		for range r.IntN(20) {
			s += string(some[r.IntN(len(some))])
		}
		v.SetString(s)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		random(r, v.Elem(), depth+1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), r.IntN(5), 5))
		for i := range v.Len() {
			random(r, v.Index(i), depth+1)
		}
		if set, ok := v.Interface().([]int64); ok { // only sets are of i64 in the IDL
			slices.Sort(set)
			v.Set(reflect.ValueOf(slices.Compact(set)))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range r.IntN(5) {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			random(r, key, depth+1)
			random(r, value, depth+1)
			v.SetMapIndex(key, value)
		}
	case reflect.Struct:
		only := -1
		if v.Type() == reflect.TypeFor[c.Either]() {
			only = r.IntN(v.NumField())
		}
		for i := range v.NumField() {
			optional := v.Field(i).Kind() == reflect.Pointer && v.Type() == reflect.TypeFor[c.Nest]() && v.Type().Field(i).Name == "Inner"
			if only >= 0 && i != only || optional && (depth > 6 || r.IntN(2) == 0) {
				continue
			}
			random(r, v.Field(i), depth+1)
		}
	default:
		panic(v.Type())
	}
}

// TestPython: random values come back from the other implementation, which has read them whole and part by
// part, and what it has written is read here.
func TestPython(t *testing.T) {
	o := pythonOf(t)
	there(t, o, "Wide", Map[map[string][]*c.Wide](String[string](), List[[]*c.Wide](Struct(c.NewWide))))
	there(t, o, "Jungle", List[[]*c.Jungle](Struct(c.NewJungle)))
	there(t, o, "Either", Map[map[c.Account]*c.Either](I64[c.Account](), Struct(c.NewEither)))
	there(t, o, "Defaults", List[[][]*c.Defaults](List[[]*c.Defaults](Struct(c.NewDefaults))))
	there(t, o, "Empty", Struct(c.NewEmpty))
	there(t, o, "Truths", Map[map[int8][]bool](I8[int8](), List[[]bool](Bool[bool]())))
	there(t, o, "Reals", Map[map[int16]float64](I16[int16](), Double[float64]()))
}
