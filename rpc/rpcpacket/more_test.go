package rpcpacket

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
)

// TestFirstIn: in the memory of its message a first packet is the same, and the payload is left as it was. A trailer takes memory of its own.
func TestFirstIn(t *testing.T) {
	for _, trailer := range []string{"", "who waits"} {
		m := sample()
		m.Payload, m.Trailer = bytes.Repeat([]byte("payload "), 1000), []byte(trailer)
		whole := append(make([]byte, MorePreface), m.Append(nil)...)
		want, ok := First(whole[MorePreface:], 1452, Push{Parts: 9, Node: 77})
		got, also := FirstIn(whole, 1452, Push{Parts: 9, Node: 77})
		if !ok || !also || !bytes.Equal(got, want) || cap(got) != len(got) {
			t.Fatalf("trailer %q: %d bytes, %d, the same: %t", trailer, len(got), cap(got), bytes.Equal(got, want))
		}
		if inside := &got[0] == &whole[0]; inside != (trailer == "") {
			t.Errorf("trailer %q: it lies in the message's memory: %t", trailer, inside)
		}
		if rest := whole[len(whole)-len(m.Payload)-len(trailer):]; string(rest) != string(m.Payload)+trailer {
			t.Errorf("trailer %q: the payload has changed", trailer)
		}
	}
}

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
