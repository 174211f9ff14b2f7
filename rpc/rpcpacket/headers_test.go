package rpcpacket

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
)

func TestHeaders(t *testing.T) {
	want := []KeyValue{{"traceparent", "00-1-2-01"}, {"empty", ""}, {"traceparent", "again"}}
	b, err := AppendHeaders([]byte("x"), want)
	if err != nil {
		t.Fatal(err)
	}
	got, message, err := TakeHeaders(append(b[1:], "message"...))
	if err != nil || !reflect.DeepEqual(got, want) || string(message) != "message" {
		t.Errorf("%v, %q, %v", got, message, err)
	}
	for n := range b[1:] {
		if _, _, err := TakeHeaders(b[1 : 1+n]); !errors.Is(err, wirefmt.ErrFormat) {
			t.Errorf("cut off after %d bytes: %v", n, err)
		}
	}
	for name, headers := range map[string][]KeyValue{
		"no key": {{"", "v"}}, "too many": make([]KeyValue, MaxHeaders+1), "too long": {{"k", strings.Repeat("v", MaxHeaderBytes)}},
	} {
		for i := range headers {
			if name == "too many" {
				headers[i].Key = "k"
			}
		}
		if b, err := AppendHeaders(nil, headers); err == nil || len(b) > 0 {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
	}
}

func FuzzHeaders(f *testing.F) {
	b, _ := AppendHeaders(nil, []KeyValue{{"a", "b"}, {"c", ""}})
	f.Add(append(b, 0x80, 1))
	f.Add([]byte{0, 4, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, payload []byte) {
		headers, message, err := TakeHeaders(payload)
		if err != nil {
			return
		}
		again, err := AppendHeaders(nil, headers)
		if err != nil || string(again)+string(message) != string(payload) {
			t.Fatalf("%q: headers %v, message %q, %v", payload, headers, message, err)
		}
	})
}
