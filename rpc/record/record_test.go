package record

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
)

// drawn returns a record of a kind with random fields.
func drawn(rng *rand.Rand, k Kind) Record {
	r := kinds[k].make()
	c := coder{mode: drawing, draw: func(most uint64) uint64 {
		if most == 1<<64-1 {
			return rng.Uint64() >> rng.IntN(64)
		}
		return rng.Uint64N(most+1) >> rng.IntN(3)
	}}
	r.visit(&c)
	return r
}

// TestRecords: whatever is written is read as it was, and nothing that is cut short, or
// longer, is read at all.
func TestRecords(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for k := KindBegun; int(k) < len(kinds); k++ {
		for range 50 {
			r := drawn(rng, k)
			b := Append(nil, r)
			got, err := Parse(b)
			if err != nil || !reflect.DeepEqual(got, r) {
				t.Fatalf("%s %+v became %+v, %v", k, r, got, err)
			}
			for n := range b {
				if _, err := Parse(b[:n]); !errors.Is(err, wirefmt.ErrFormat) {
					t.Fatalf("%d of %d bytes of a %s: %v", n, len(b), k, err)
				}
			}
			if _, err := Parse(append(b, 0)); !errors.Is(err, wirefmt.ErrFormat) {
				t.Fatalf("a %s with a byte too many: %v", k, err)
			}
		}
	}
	for _, b := range [][]byte{{0}, {10}, {255}} {
		if _, err := Parse(b); !errors.Is(err, wirefmt.ErrFormat) {
			t.Errorf("kind %d: %v", b[0], err)
		}
	}
}

// FuzzParse: what is read is what is written, byte for byte, and is applied or refused.
func FuzzParse(f *testing.F) {
	rng := rand.New(rand.NewPCG(2, 2))
	for k := KindBegun; int(k) < len(kinds); k++ {
		for range 3 {
			f.Add(Append(nil, drawn(rng, k)))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Parse(b)
		if err != nil {
			if !errors.Is(err, wirefmt.ErrFormat) {
				t.Fatalf("%x: %v", b, err)
			}
			return
		}
		if again := Append(nil, r); !bytes.Equal(again, b) {
			t.Fatalf("%x is written as %x", b, again)
		}
		s := new(State)
		if s.Apply(r) != nil {
			return
		}
		base, again := s.Base(), new(State)
		if err := again.Apply(base); err != nil {
			t.Fatalf("the base of %+v: %v", r, err)
		}
		next := again.Base()
		next.Records = base.Records // of a ledger, which counts the base, too
		if !bytes.Equal(Append(nil, next), Append(nil, base)) {
			t.Fatalf("the base of %+v is %+v, and then %+v", r, base, next)
		}
	})
}
