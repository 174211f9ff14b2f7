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
	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
)

func sample() Message {
	m, _ := MethodOf("add")
	return Message{
		Header: Header{
			Type: Call, Flags: FlagTainted.WithPolicy(PolicyTainted), NameLength: 3, Code: fault.Deadlock, Method: m,
			Call: ID{1, 15: 2}, Parent: ID{3, 15: 4}, Number: 5, CallerIncarnation: 6, CalleeIncarnation: 7, Slot: 8,
			Timeout: 9, Branch: 10, Index: 11, Attempt: 12, Service: 13, Turned: Lent, Had: 0x102,
		},
		Lists: []List{
			{Parent: Ref{Slot: 14, Number: 15}, Count: 2, Regions: [ListRegions]Region{region(1), region(2)}},
			{Count: 4, Regions: [ListRegions]Region{region(3), region(4), region(5), region(6)}},
		},
		Payload: []byte("thrift"), Trailer: []byte("trailer"),
	}
}

func region(slot uint32) Region { return RegionOf(dsmpacket.Make(16, 1, dsmpacket.IDOf(slot, 9))) }

func TestLayoutMatchesCodec(t *testing.T) {
	if err := Layout.Check(); err != nil {
		t.Fatal(err)
	}
	if Layout.Size() != HeaderSize {
		t.Fatalf("layout has %d bytes, HeaderSize is %d", Layout.Size(), HeaderSize)
	}
	m := sample()
	b := m.Append(nil)
	want := map[string][]byte{
		"magic": {0xB1, 0xFC}, "version": {3}, "type": {1}, "flags": {0x40, 3}, "name_length": {3}, "code": {byte(fault.Deadlock)},
		"method": m.Method[:], "call": m.Call[:], "parent": m.Parent[:], "number": {0, 0, 0, 0, 0, 0, 0, 5},
		"caller_incarnation": {0, 0, 0, 6}, "callee_incarnation": {0, 0, 0, 7}, "slot": {0, 0, 0, 8}, "turned": {0, 2}, "turned_twin": {0xFF, 0xFD},
		"timeout": {0, 0, 0, 9}, "branch": {0, 0, 0, 10}, "index": {0, 0, 0, 11}, "attempt": {0, 12},
		"lists": {2}, "reserved": {0}, "payload_length": {0, 0, 0, 6}, "trailer_length": {0, 0, 0, 7},
		"service": {0, 0, 0, 0, 0, 0, 0, 13}, "had": {1, 2}, "had_twin": {0xFE, 0xFD}, "reserved2": {0, 0, 0, 0},
	}
	for _, f := range Layout.Fields {
		if got := b[f.Offset : f.Offset+f.Size]; !bytes.Equal(got, want[f.Name]) {
			t.Errorf("%s = %x, want %x", f.Name, got, want[f.Name])
		}
	}
	if err := ListLayout.Check(); err != nil || ListLayout.Size() != ListSize {
		t.Fatalf("a list has %d bytes, %v; want %d", ListLayout.Size(), err, ListSize)
	}
	list := map[string][]byte{
		"parent_number": {0, 0, 0, 0, 0, 0, 0, 15}, "parent_slot": {0, 0, 0, 14}, "count": {2}, "reserved": {0, 0, 0},
		"region0": {0, 0, 4, 0, 0, 0x40, 0, 9}, "region1": {0, 0, 4, 0, 0, 0x80, 0, 9}, "region2": make([]byte, 8), "region3": make([]byte, 8),
	}
	for _, f := range ListLayout.Fields {
		if got := b[HeaderSize+f.Offset : HeaderSize+f.Offset+f.Size]; !bytes.Equal(got, list[f.Name]) {
			t.Errorf("%s = %x, want %x", f.Name, got, list[f.Name])
		}
	}
}

func TestRoundTrip(t *testing.T) {
	for n := range 3 {
		m := sample()
		if m.Lists = m.Lists[:n]; n == 0 {
			m.Lists = nil
		}
		b := m.Append(nil)
		if len(b) != m.Size() {
			t.Errorf("Size() = %d, datagram has %d bytes", m.Size(), len(b))
		}
		got, err := Parse(b)
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%d lists: got %+v, %v", n, got, err)
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
		"magic": edit(0, 0), "version 2": edit(2, 2), "type 0": edit(3, 0), "type 8": edit(3, 8),
		"too many lists": edit(94, 5), "fewer lists": edit(94, 1), "no lists": edit(94, 0), "reserved": edit(95, 1), "reserved2": edit(119, 1),
		"turned's twin": edit(78, 0), "had's twin": edit(115, 0), "too many regions": edit(HeaderSize+12, 5), "reserved in a list": edit(HeaderSize+13, 1),
		"a region behind the last": edit(HeaderSize+12, 1), "no region": edit(HeaderSize+12, 3), "a region of no machine": edit(HeaderSize+16, 1),
		"listed twice":      edit(HeaderSize+ListSize+21, 0x40),
		"oversized payload": edit(96, 0xff), "oversized trailer": edit(100, 0xff),
		"longer": append(bytes.Clone(good), 0),
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
