package control

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
)

func TestRoundTripAndLayout(t *testing.T) {
	m := Message{Kind: KindJoin, Reply: true, Status: fault.Stale, ID: 3, Floor: 2, Sender: 7, Election: Election{1, 9}, Body: []byte(`{}`)}
	b := m.Append(nil)
	got, err := Parse(b)
	if err != nil || !reflect.DeepEqual(got, m) {
		t.Fatalf("got %+v, %v", got, err)
	}
	if err := Layout.Check(); err != nil || Layout.Size() != HeaderSize {
		t.Fatalf("layout of %d bytes: %v", Layout.Size(), err)
	}
	for n := range HeaderSize {
		if _, err := Parse(b[:n]); !errors.Is(err, wirefmt.ErrFormat) {
			t.Errorf("cut to %d bytes: error %v", n, err)
		}
	}
	for _, i := range []int{0, 1, 2, 4} {
		bad := bytes.Clone(b)
		bad[i] ^= 0x40
		if _, err := Parse(bad); !errors.Is(err, wirefmt.ErrFormat) {
			t.Errorf("byte %d wrong: error %v", i, err)
		}
	}
}

func TestElectionOrder(t *testing.T) {
	low, high := Election{0, 9}, Election{1, 0}
	if !low.Less(high) || high.Less(low) || low.Less(low) {
		t.Error("elections are not ordered by high, then low")
	}
}

func FuzzParse(f *testing.F) {
	f.Add((&Message{Kind: KindHello, ID: 1}).Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := Parse(b); err == nil {
			again, err := Parse(m.Append(nil))
			if err != nil || !reflect.DeepEqual(again, m) {
				t.Fatalf("%+v became %+v, %v", m, again, err)
			}
		}
	})
}
