package rpcpacket

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/wirefmt"
)

// TestFirst: a first packet is as large as it may be, and says what it is the first of.
func TestFirst(t *testing.T) {
	m := sample()
	m.Payload = bytes.Repeat([]byte("payload "), 1000)
	whole := m.Append(nil)
	for _, budget := range []int{1232, 1452, 7000} {
		pushed := Push{Parts: 9, Node: 77}
		b, ok := First(whole, budget, pushed)
		if !ok || len(b) != budget {
			t.Fatalf("budget %d: %d bytes, %v", budget, len(b), ok)
		}
		got, err := Parse(b)
		if err != nil || got.Flags != m.Flags|FlagMore || !bytes.Equal(got.Trailer, m.Trailer) || !slices.Equal(got.Lists, m.Lists) {
			t.Fatalf("%+v, %v", got, err)
		}
		o, err := got.Opening()
		if err != nil || o.Total != 8000 || o.Pushed != pushed || !bytes.Equal(o.First, m.Payload[:len(o.First)]) {
			t.Errorf("%d bytes, pushed %v, %d here, %v", o.Total, o.Pushed, len(o.First), err)
		}
		copied := slices.Clone(b)
		SetUnpushed(copied)
		if got, err = Parse(copied); err != nil {
			t.Fatal(err)
		}
		if o, err := got.Opening(); err != nil || o.Total != 8000 || o.Pushed != (Push{}) || !bytes.Equal(o.First, m.Payload[:len(o.First)]) {
			t.Errorf("a copy says %d bytes, pushed %v, %d here, %v", o.Total, o.Pushed, len(o.First), err)
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
	if _, ok := First(whole, HeaderSize+2*ListSize+72, Push{}); ok {
		t.Error("lists and trailer leave no room, and it does not say so")
	}
}
