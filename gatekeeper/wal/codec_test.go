package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// full is a record with every field.
func full() Record {
	return Record{
		Kind: KindNode, ID: ID{1, 15: 2}, Sequence: 7, Time: time.Unix(1700000000, 5).UTC(),
		Caller: Node{rackaddr.Node(1), 1}, Callee: Node{rackaddr.Node(2), 9}, Order: 11, Attempt: 3,
		Data: []byte("what its owner writes"),
	}
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRecord(t)
		r.Sequence = rapid.Uint64().Draw(t, "sequence")
		b := r.append([]byte("before"))[len("before"):]
		if len(b) != r.size() {
			t.Fatalf("size %d, encoded %d bytes", r.size(), len(b))
		}
		got, err := parse(b)
		if err != nil || !reflect.DeepEqual(got, r) {
			t.Fatalf("%+v\nbecame\n%+v, %v", r, got, err)
		}
	})
}

// validKinds are the kinds of records.
func validKinds() (all []Kind) {
	for k := range kindEnd {
		if k.valid() {
			all = append(all, k)
		}
	}
	return all
}

func drawRecord(t *rapid.T) Record {
	maybe := func(label string) bool { return rapid.Bool().Draw(t, label) }
	r := Record{Kind: rapid.SampledFrom(validKinds()).Draw(t, "kind"), ID: ID{15: rapid.Byte().Draw(t, "id")}}
	if maybe("time") {
		r.Time = time.Unix(0, rapid.Int64Range(0, 1<<62).Draw(t, "ns")).UTC()
	}
	if maybe("caller") {
		r.Caller = Node{rackaddr.Node(rapid.Uint64().Draw(t, "caller")), rapid.Uint32().Draw(t, "incarnation")}
	}
	if maybe("callee") {
		r.Callee = Node{netip.MustParseAddr("::"), rapid.Uint32().Draw(t, "incarnation")}
	}
	r.Order, r.Attempt = rapid.Uint64().Draw(t, "order"), rapid.Uint32().Draw(t, "attempt")
	r.Data = nonEmpty(rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "data"))
	return r
}

func nonEmpty(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return b
}

// Every byte counts: no cut or changed record is taken for a record.
func TestParseRefuses(t *testing.T) {
	r := full()
	good := r.append(nil)
	for n := range good {
		if _, err := parse(good[:n]); !errors.Is(err, ErrCorrupt) {
			t.Errorf("cut to %d bytes: %v", n, err)
		}
	}
	for i := range good {
		for bit := range 8 {
			bad := bytes.Clone(good)
			bad[i] ^= 1 << bit
			want := ErrCorrupt
			if i == 2 {
				want = ErrVersion
			}
			if _, err := parse(bad); !errors.Is(err, want) {
				t.Errorf("byte %d, bit %d changed: %v", i, bit, err)
			}
		}
	}
	if _, err := parse(append(bytes.Clone(good), 0)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a byte too many: %v", err)
	}
}

// A record of a later version is told from a broken one.
func TestParseNewer(t *testing.T) {
	for name, change := range map[string]func(b []byte){
		"version":  func(b []byte) { b[2] = 2 },
		"kind":     func(b []byte) { b[3] = byte(kindEnd) },
		"no kind":  func(b []byte) { b[3] = 12 }, // of an earlier version
		"fields":   func(b []byte) { b[32] = 0x80 },
		"no field": func(b []byte) { b[33] |= 1 << 6 }, // of an earlier version
	} {
		r := full()
		b := r.append(nil)
		change(b)
		binary.BigEndian.PutUint32(b[4:], checksum(b))
		if _, err := parse(b); !errors.Is(err, ErrVersion) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
