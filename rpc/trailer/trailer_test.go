package trailer

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
)

var sample = []Section{
	{Time, 0, 1, []byte{0, 0, 0, 0, 0, 0, 0, 9}}, {Outcome, 2, 7, []byte("\x03too late")},
	{Snapshot, 0, 0, []byte("state")}, {Delta, 0, 0, []byte{}},
}

func TestRoundTrip(t *testing.T) {
	b := Append(nil, sample)
	got, err := Parse(b)
	if err != nil || !reflect.DeepEqual(got, sample) {
		t.Fatalf("got %+v, %v", got, err)
	}
	if got, err := Parse(nil); err != nil || got != nil {
		t.Errorf("an empty trailer is %+v, %v", got, err)
	}
}

func TestParseRefuses(t *testing.T) {
	first := sample[0].Size()
	b := Append(nil, sample)
	for n := 1; n < len(b); n++ {
		_, err := Parse(b[:n])
		if whole := n == first || n == first+sample[1].Size() || n == first+sample[1].Size()+sample[2].Size(); whole != (err == nil) {
			t.Errorf("cut to %d bytes: error %v", n, err)
		}
		if err != nil && !errors.Is(err, wirefmt.ErrFormat) {
			t.Errorf("cut to %d bytes: %v does not wrap ErrFormat", n, err)
		}
	}
	for _, typ := range []byte{0, byte(Region) + 1, 0xff} {
		bad := bytes.Clone(b)
		bad[0] = typ
		if _, err := Parse(bad); !errors.Is(err, wirefmt.ErrFormat) {
			t.Errorf("type %d: error %v", typ, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(Append(nil, sample))
	f.Fuzz(func(t *testing.T, b []byte) {
		if ss, err := Parse(b); err == nil && !bytes.Equal(Append(nil, ss), b) {
			t.Fatalf("%x became %x", b, Append(nil, ss))
		}
	})
}
