package rpcpacket

import (
	"bytes"
	"errors"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/wirefmt"
)

// TestFirst: a first packet is as large as it may be, and says what it is the first of.
func TestFirst(t *testing.T) {
	m := sample()
	m.Payload = bytes.Repeat([]byte("payload "), 1000)
	whole := m.Append(nil)
	for _, budget := range []int{1232, 1452, 7000} {
		b, ok := First(whole, budget, 1<<40|77)
		if !ok || len(b) != budget {
			t.Fatalf("budget %d: %d bytes, %v", budget, len(b), ok)
		}
		got, err := Parse(b)
		if err != nil || got.Flags != m.Flags|FlagMore || !bytes.Equal(got.Trailer, m.Trailer) || len(got.Pointers) != len(m.Pointers) {
			t.Fatalf("%+v, %v", got, err)
		}
		o, err := got.Opening()
		if err != nil || o.Total != 8000 || o.Pushed != 1<<40|77 || !bytes.Equal(o.First, m.Payload[:len(o.First)]) {
			t.Errorf("%d bytes, pushed to %d, %d here, %v", o.Total, o.Pushed, len(o.First), err)
		}
		for _, n := range []int{0, 8, MorePreface} {
			got.Payload = b[:n]
			if _, err := got.Opening(); !errors.Is(err, wirefmt.ErrFormat) {
				t.Errorf("a payload of %d bytes: %v", n, err)
			}
		}
		got.Payload = append(make([]byte, MorePreface), 1) // a length of 0
		if _, err := got.Opening(); !errors.Is(err, wirefmt.ErrFormat) {
			t.Errorf("more than the whole: %v", err)
		}
	}
	if _, ok := First(whole, HeaderSize+72, 0); ok {
		t.Error("pointers and trailer leave no room, and it does not say so")
	}
}
