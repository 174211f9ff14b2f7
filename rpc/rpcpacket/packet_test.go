package rpcpacket

import (
	"bytes"
	"errors"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/wirefmt"
)

func sample() Message {
	m, _ := MethodOf("add")
	return Message{
		Header: Header{
			Type: Call, Flags: FlagHeld.WithPolicy(PolicyTainted), NameLength: 3, Code: fault.Deadlock, Method: m,
			Call: ID{1, 15: 2}, Parent: ID{3, 15: 4}, Number: 5, CallerIncarnation: 6, CalleeIncarnation: 7, Slot: 8,
			Timeout: 9, Branch: 10, Index: 11, Attempt: 12, Service: 13,
		},
		Pointers: []dsmpacket.Pointer{dsmpacket.Make(16, 1, dsmpacket.IDOf(1, 1)), dsmpacket.Make(16, 2, dsmpacket.IDOf(2, 1)), dsmpacket.Make(16, 3, dsmpacket.IDOf(3, 1))},
		Payload:  []byte("thrift"), Trailer: []byte("trailer"),
	}
}

func TestLayoutMatchesCodec(t *testing.T) {
	if err := Layout.Check(); err != nil {
		t.Fatal(err)
	}
	if Layout.Size() != HeaderSize {
		t.Fatalf("layout has %d bytes, HeaderSize is %d", Layout.Size(), HeaderSize)
	}
	m := sample()
	b := m.Append(nil)
	p := m.Pointers[0]
	want := map[string][]byte{
		"magic": {0xB1, 0xFC}, "version": {2}, "type": {1}, "flags": {0, 7}, "name_length": {3}, "code": {byte(fault.Deadlock)},
		"method": m.Method[:], "call": m.Call[:], "parent": m.Parent[:], "number": {0, 0, 0, 0, 0, 0, 0, 5},
		"caller_incarnation": {0, 0, 0, 6}, "callee_incarnation": {0, 0, 0, 7}, "slot": {0, 0, 0, 8}, "reserved": {0, 0, 0, 0},
		"timeout": {0, 0, 0, 9}, "branch": {0, 0, 0, 10}, "index": {0, 0, 0, 11}, "attempt": {0, 12},
		"pointer_count": {0, 3}, "payload_length": {0, 0, 0, 6}, "trailer_length": {0, 0, 0, 7},
		"service": {0, 0, 0, 0, 0, 0, 0, 13}, "pointer": p[:],
	}
	for _, f := range Layout.Fields {
		if got := b[f.Offset : f.Offset+f.Size]; !bytes.Equal(got, want[f.Name]) {
			t.Errorf("%s = %x, want %x", f.Name, got, want[f.Name])
		}
	}
}

func TestRoundTrip(t *testing.T) {
	for n := range 4 {
		m := sample()
		m.Pointers = m.Pointers[:n]
		if n == 0 {
			m.Pointers = nil
		}
		b := m.Append(nil)
		if len(b) != m.Size() {
			t.Errorf("Size() = %d, datagram has %d bytes", m.Size(), len(b))
		}
		got, err := Parse(b)
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%d pointers: got %+v, %v", n, got, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	m := sample()
	good := m.Append(nil)
	edit := func(i int, v byte) []byte {
		b := bytes.Clone(good)
		b[i] = v
		return b
	}
	bad := map[string][]byte{
		"magic": edit(0, 0), "version 1": edit(2, 1), "type 0": edit(3, 0), "type 6": edit(3, 6),
		"too many pointers": edit(94, 0xff), "fewer pointers": edit(95, 2), "no pointers": edit(95, 0),
		"oversized payload": edit(96, 0xff), "oversized trailer": edit(100, 0xff),
		"not a pointer": edit(112, 1), "not a further pointer": edit(130, 1), "longer": append(bytes.Clone(good), 0),
	}
	for name, b := range bad {
		if _, err := Parse(b); !errors.Is(err, wirefmt.ErrFormat) {
			t.Errorf("%s: error %v, want one that wraps ErrFormat", name, err)
		}
	}
	for n := range good {
		if _, err := Parse(good[:n]); !errors.Is(err, wirefmt.ErrFormat) {
			t.Errorf("cut to %d bytes: error %v", n, err)
		}
	}
}

func TestMethodOf(t *testing.T) {
	long1, _ := MethodOf("incrementArrayByReference")
	long2, _ := MethodOf("incrementArrayByValue")
	if long1 == long2 || long1[7] != '~' {
		t.Errorf("long names: %q, %q", long1, long2)
	}
	if m, err := MethodOf("exactly16letters"); err != nil || m.String() != "exactly16letters" {
		t.Errorf("16 bytes: %q, %v", m, err)
	}
	for _, name := range []string{"", strings.Repeat("x", 256), "a\x00b", "a\nb", "a b", "\x1b[2J", "a\u009bb", "a\u202eb", "a\xff"} {
		if _, err := MethodOf(name); err == nil {
			t.Errorf("MethodOf(%q) succeeded", name)
		}
		var wire Method // which somebody sends all the same
		copy(wire[:], name)
		if shown := wire.String(); strings.ContainsFunc(shown, func(r rune) bool { return r == '\n' || !strconv.IsPrint(r) }) {
			t.Errorf("%q is shown as %q", name, shown)
		}
	}
	if m, err := MethodOf("größereÜberweisung"); err != nil || m.String() == "" || strings.Contains(m.String(), `"`) {
		t.Errorf("a long name of other letters: %q, %v", m, err)
	}
}

func FuzzParse(f *testing.F) {
	m := sample()
	f.Add(m.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Parse(b)
		if err != nil {
			return
		}
		if again := m.Append(nil); !bytes.Equal(again, b) {
			t.Fatalf("%x\nbecame %x", b, again)
		}
	})
}
