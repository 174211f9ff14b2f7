package form

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
)

// deep is a type with every kind of part.
var deep = Map[map[string][][]map[int32]*bifrost.Reference](String[string](), List[[][]map[int32]*bifrost.Reference](
	Set[[]map[int32]*bifrost.Reference](Map[map[int32]*bifrost.Reference](I32[int32](), Struct(bifrost.NewReference)))))

func randomDeep(r *rand.Rand) map[string][][]map[int32]*bifrost.Reference {
	m := map[string][][]map[int32]*bifrost.Reference{}
	for range r.IntN(5) {
		list := [][]map[int32]*bifrost.Reference{}
		for range r.IntN(4) {
			set := []map[int32]*bifrost.Reference{}
			for range r.IntN(3) {
				inner := map[int32]*bifrost.Reference{}
				for range r.IntN(3) {
					v := &bifrost.Reference{Length: r.Int64(), Pointer: &bifrost.GlobalPointer{Address: randomBytes(r)}}
					if r.IntN(2) == 0 {
						v.Value = randomBytes(r)
					}
					inner[int32(r.Uint32())] = v
				}
				set = append(set, inner)
			}
			list = append(list, set)
		}
		m[string(randomBytes(r))] = list
	}
	return m
}

func randomBytes(r *rand.Rand) []byte {
	b := make([]byte, r.IntN(20))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// counted reads from content, and counts.
type counted struct {
	b     []byte
	bytes int
}

func (c *counted) read(_ context.Context, at int64, b []byte) error {
	c.bytes += copy(b, c.b[at:])
	return nil
}

func roundTrip[T any](t *testing.T, kind Type[T], v T) []byte {
	t.Helper()
	b, err := kind.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	back, err := kind.Unmarshal(b)
	if err != nil || !reflect.DeepEqual(back, v) {
		t.Errorf("%v\ncame back as %v, %v", v, back, err)
	}
	p, err := Open(t.Context(), kind, int64(len(b)), (&counted{b: b}).read)
	if err != nil {
		t.Fatal(err)
	}
	if back, err := Load(t.Context(), p, kind); err != nil || !reflect.DeepEqual(back, v) {
		t.Errorf("%v\ncame back in place as %v, %v", v, back, err)
	}
	return b
}

func TestRoundTrips(t *testing.T) {
	for seed := range uint64(300) {
		roundTrip(t, deep, randomDeep(rand.New(rand.NewPCG(seed, 1))))
	}
	roundTrip(t, List[[]bool](Bool[bool]()), []bool{true, false})
	roundTrip(t, List[[]int8](I8[int8]()), []int8{-1, 2})
	roundTrip(t, List[[]int16](I16[int16]()), []int16{-300})
	roundTrip(t, Set[[]int64](I64[int64]()), []int64{-1 << 63, 5})
	roundTrip(t, List[[]float64](Double[float64]()), []float64{-0.5})
	roundTrip(t, List[[]thrift.Tuuid](UUID[thrift.Tuuid]()), []thrift.Tuuid{{1, 2}})
	roundTrip(t, List[[][]byte](Binary[[]byte]()), [][]byte{{}, {1}, {}})
	roundTrip(t, List[[]string](String[string]()), []string{})
	roundTrip(t, List[[]int64](I32[int64]()), []int64{-7})
}

// TestForm holds the form against bytes.
func TestForm(t *testing.T) {
	b := roundTrip(t, List[[]string](String[string]()), []string{"ab", "", "c"})
	want := "\xB1\xF0\x01\x0f\x00\x00\x00\x00" + "abc" + "\x02\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00" + "\x03\x00\x00\x00\x00\x0b\x00\x00"
	if string(b) != want {
		t.Errorf("%x\nwant %x", b, want)
	}
	b = roundTrip(t, Map[map[int16]bool](I16[int16](), Bool[bool]()), map[int16]bool{258: true})
	want = "\xB1\xF0\x01\x0d\x00\x00\x00\x00" + "\x02\x01\x01" + "\xeb\x40\xe8\x04\x00\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00" + "\x01\x00\x00\x00\x06\x02\x00\x00"
	if string(b) != want {
		t.Errorf("%x\nwant %x", b, want)
	}
	b = roundTrip(t, Struct(bifrost.NewGlobalPointer), &bifrost.GlobalPointer{Address: []byte("xyz")})
	want = "\xB1\xF0\x01\x0c\x00\x00\x00\x00" + "xyz" + "\x03\x00\x00\x00\x01\x00\x0b\x00" + "\x01\x00\x00\x00\x00\x00\x00\x00"
	if string(b) != want {
		t.Errorf("%x\nwant %x", b, want)
	}
}

// TestInPlace: parts are what the whole has there, and cost little.
func TestInPlace(t *testing.T) {
	ctx := t.Context()
	elem := Binary[[]byte]()
	kind := List[[][]byte](elem)
	var posts [][]byte
	for i := range 100 {
		posts = append(posts, fmt.Appendf(nil, "%d%s", i, make([]byte, 10<<10)))
	}
	c := &counted{b: roundTrip(t, kind, posts)}
	p, err := Open(ctx, kind, int64(len(c.b)), c.read)
	if err != nil {
		t.Fatal(err)
	}
	l, err := Elements(ctx, p, elem)
	if err != nil || l.Len() != 100 {
		t.Fatal(l.Len(), err)
	}
	if got, err := l.At(ctx, 70); err != nil || string(got) != string(posts[70]) {
		t.Error("element 70:", err)
	}
	if c.bytes > 20<<10 {
		t.Errorf("one element of 10 KiB took %d bytes", c.bytes)
	}
	some, err := l.Slice(98, 100)
	if err != nil || some.Len() != 2 {
		t.Fatal(err)
	}
	if got, err := some.Load(ctx); err != nil || !reflect.DeepEqual(got, posts[98:]) {
		t.Error("the last two:", err)
	}
	if got, err := l.Load(ctx); err != nil || !reflect.DeepEqual(got, posts) {
		t.Error("all:", err)
	}
	for _, bad := range []int{-1, 100} {
		if _, err := l.At(ctx, bad); !errors.Is(err, ErrRange) {
			t.Errorf("element %d: %v", bad, err)
		}
	}
	if _, err := l.Slice(3, 2); !errors.Is(err, ErrRange) {
		t.Error(err)
	}
}

func TestLookUp(t *testing.T) {
	ctx := t.Context()
	kind := Map[map[string]int64](String[string](), I64[int64]())
	for _, n := range []int{0, 1, 3, 300, 20000} {
		m := map[string]int64{}
		for i := range n {
			m[fmt.Sprint("user", i)] = int64(i)
		}
		c := &counted{b: roundTrip(t, kind, m)}
		p, err := Open(ctx, kind, int64(len(c.b)), c.read)
		if err != nil {
			t.Fatal(err)
		}
		d, err := Entries(ctx, p, String[string](), I64[int64]())
		if err != nil || d.Len() != n {
			t.Fatal(d.Len(), err)
		}
		if n == 20000 {
			if _, ok, _ := d.Get(ctx, "user777"); !ok || c.bytes > 40<<10 {
				t.Errorf("one of %d entries took %d of %d bytes", n, c.bytes, len(c.b))
			}
		}
		for i := range n + 3 {
			if v, ok, err := d.Get(ctx, fmt.Sprint("user", i)); err != nil || ok != (i < n) || ok && v != int64(i) {
				t.Fatalf("user%d of %d is %d, %t, %v", i, n, v, ok, err)
			}
		}
		seen := map[string]int64{}
		for e, err := range d.All(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			seen[e.Key] = e.Value
		}
		if !reflect.DeepEqual(seen, m) {
			t.Errorf("%d of %d entries are ranged over", len(seen), n)
		}
	}
}

func TestFields(t *testing.T) {
	ctx := t.Context()
	kind := Struct(bifrost.NewReference)
	c := &counted{b: roundTrip(t, kind, &bifrost.Reference{Length: 9, Value: []byte("x"), Pointer: &bifrost.GlobalPointer{Address: []byte("addr")}})}
	p, err := Open(ctx, kind, int64(len(c.b)), c.read)
	if err != nil {
		t.Fatal(err)
	}
	f, err := FieldsOf(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	if n, ok, err := Field(ctx, f, 2, I64[int64]()); n != 9 || !ok || err != nil {
		t.Error(n, ok, err)
	}
	if _, ok, err := Field(ctx, f, 2, String[string]()); ok || err != nil {
		t.Error("a field of another type is there:", ok, err)
	}
	if _, ok, err := Field(ctx, f, 7, I64[int64]()); ok || err != nil {
		t.Error(ok, err)
	}
	inner, _ := f.Place(1)
	g, err := FieldsOf(ctx, inner)
	if err != nil {
		t.Fatal(err)
	}
	if a, ok, err := Field(ctx, g, 1, Binary[[]byte]()); string(a) != "addr" || !ok || err != nil {
		t.Error(string(a), ok, err)
	}
}

// TestWriter: what is written as it comes is what Marshal makes.
func TestWriter(t *testing.T) {
	elem := String[string]()
	kind := List[[]string](elem)
	var list []string
	for i := range 1000 {
		list = append(list, fmt.Sprint(i, string(make([]byte, 1000))))
	}
	var got []byte
	pieces := 0
	w, err := NewWriter(kind, func(b []byte, _ bool) error { got = append(got, b...); pieces++; return nil })
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		if err := Append(w, elem, s); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), w.Close()); err != nil {
		t.Fatal(err)
	}
	want, _ := kind.Marshal(list)
	if string(got) != string(want) || pieces < 3 {
		t.Errorf("%d bytes in %d pieces instead of %d", len(got), pieces, len(want))
	}
	if err := Append(w, elem, "late"); err == nil {
		t.Error("a closed writer takes an element")
	}
	broken := errors.New("no room")
	w, _ = NewWriter(Map[map[string]string](elem, elem), func([]byte, bool) error { return broken })
	if err := Put(w, elem, elem, "a", "b"); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); !errors.Is(err, broken) {
		t.Error(err)
	}
	if _, err := NewWriter(elem, nil); err == nil {
		t.Error("a string is written piece by piece")
	}
}

func TestHostile(t *testing.T) {
	kind := List[[]string](String[string]())
	b, _ := kind.Marshal([]string{"ab", "c"})
	newer := append([]byte{}, b...)
	newer[2] = Version + 1
	if _, err := kind.Unmarshal(newer); !errors.Is(err, ErrNewer) {
		t.Error(err)
	}
	for n := range len(b) {
		if _, err := kind.Unmarshal(b[:n]); !errors.Is(err, ErrMalformed) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	// A map of which every entry is the whole body.
	m, _ := Map[map[string]string](String[string](), String[string]()).Marshal(map[string]string{"a": "b", "c": "d"})
	for i := range m {
		bad := append([]byte{}, m...)
		bad[i] ^= 4
		_, _ = Map[map[string]string](String[string](), String[string]()).Unmarshal(bad)
	}
	order.PutUint32(m[headerSize+4+4:], 0)
	order.PutUint32(m[headerSize+4+12:], 4)
	if _, err := Map[map[string]string](String[string](), String[string]()).Unmarshal(m); !errors.Is(err, ErrMalformed) {
		t.Error("entries over each other:", err)
	}
	if _, err := Map[map[string]string](String[string](), String[string]()).Unmarshal(b); !errors.Is(err, ErrMalformed) {
		t.Error(err)
	}
	if _, err := nested(MaxDepth + 1); !errors.Is(err, ErrNested) {
		t.Error(err)
	}
}

// nested encodes lists within each other.
func nested(n int) ([]byte, error) {
	e := &encoder{b: header(thrift.LIST), flushed: -headerSize}
	for range n {
		if err := e.WriteListBegin(background, thrift.LIST, 1); err != nil {
			return nil, err
		}
	}
	return e.b, nil
}

func FuzzForm(f *testing.F) {
	for seed := range uint64(10) {
		b, err := deep.Marshal(randomDeep(rand.New(rand.NewPCG(seed, 2))))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := deep.Unmarshal(b)
		inPlace(t, b, v, err)
		if err != nil {
			return
		}
		again, err := deep.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := deep.Unmarshal(again); err != nil || !reflect.DeepEqual(back, whole(v)) {
			t.Fatalf("%v came back as %v, %v", v, back, err)
		}
	})
}

// whole fills in what the content may leave out and is always written: a pointer, as one without fields, and a pointer's
// address, as an empty one. All of these are the nil pointer.
func whole(v map[string][][]map[int32]*bifrost.Reference) map[string][][]map[int32]*bifrost.Reference {
	for _, list := range v {
		for _, set := range list {
			for _, inner := range set {
				for _, r := range inner {
					switch {
					case r.Pointer == nil:
						r.Pointer = &bifrost.GlobalPointer{}
					case r.Pointer.Address == nil:
						r.Pointer.Address = []byte{}
					}
				}
			}
		}
	}
	return v
}

// inPlace reads content in place: what the whole has must be there, and what is no
// content must not do harm.
func inPlace(t *testing.T, b []byte, v map[string][][]map[int32]*bifrost.Reference, bad error) {
	ctx := t.Context()
	p, err := Open(ctx, deep, int64(len(b)), (&counted{b: b}).read)
	if err != nil {
		if bad == nil {
			t.Fatal(err)
		}
		return
	}
	inner := Set[[]map[int32]*bifrost.Reference](Map[map[int32]*bifrost.Reference](I32[int32](), Struct(bifrost.NewReference)))
	list := List[[][]map[int32]*bifrost.Reference](inner)
	d, err := Entries(ctx, p, String[string](), list)
	if err != nil && bad == nil {
		t.Fatal(err)
	}
	for k := range v {
		q, ok, err := d.Place(ctx, k)
		if bad == nil && (err != nil || !ok) && len(v) == d.Len() {
			continue // checksums out of order: the whole does not look at them
		}
		if l, err := Elements(ctx, q, inner); ok && err == nil {
			_, _ = l.Load(ctx)
		}
	}
	for e, err := range d.All(ctx) {
		if err == nil && bad == nil && len(v) == d.Len() && !reflect.DeepEqual(e.Value, v[e.Key]) {
			t.Fatalf("%q is %v, and %v in place", e.Key, v[e.Key], e.Value)
		}
	}
	_, _, _ = d.Place(ctx, "nobody")
}
