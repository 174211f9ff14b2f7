package wire

import (
	"slices"
	"testing"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
)

// requests are those that are decoded here, and those that are not.
var requests = map[string]string{
	"empty": ``,
	"head":  `device_id: 1 role: "r" election_id { high: 1 low: 0xffffffffffffffff } atomicity: DATAPLANE_ATOMIC`,
	"rule": `device_id: 1 election_id { low: 1 } updates { type: INSERT entity { table_entry { table_id: 0x02000001 priority: -1
		match { field_id: 1 exact { value: "\x01\x02" } } match { field_id: 2 exact {} } match { field_id: 3 lpm { value: "\x0a" prefix_len: -7 } }
		action { action { action_id: 3 params { param_id: 1 value: "\x05" } params {} } } } } }
		updates { type: DELETE entity { table_entry { match {} match { field_id: 9 } } } }`,
	"others": `role_id: 3 updates {} updates { entity {} } updates { entity { counter_entry { counter_id: 1 } } }
		updates { type: MODIFY entity { table_entry { controller_metadata: 5 metadata: "m" is_default_action: true counter_data {} } } }
		updates { entity { table_entry { match { field_id: 1 ternary { value: "\x01" mask: "\x01" } } match { range {} } action { action_profile_member_id: 4 } } } }
		updates { entity { table_entry { action {} } } } updates { entity { table_entry { action { action {} } idle_timeout_ns: 5 } } }`,
}

func TestUnmarshal(t *testing.T) {
	for name, text := range requests {
		want := &p4v1.WriteRequest{}
		if err := prototext.Unmarshal([]byte(text), want); err != nil {
			t.Fatal(err)
		}
		b, err := proto.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		got := &p4v1.WriteRequest{Role: "before"}
		err = Unmarshal(b, got)
		for i := range b { // the result has memory of its own
			b[i] = 0xff
		}
		if err != nil || !proto.Equal(got, want) {
			t.Errorf("%s: %v, got %v, want %v", name, err, got, want)
		}
	}
}

// The usual update takes six allocations at most: its bytes, the messages around
// the entry, those of its fields and the list of them, of a prefix and of an action.
func TestUnmarshal_Allocations(t *testing.T) {
	b := rules(t, 100)
	if n := testing.AllocsPerRun(10, func() { _ = Unmarshal(b, &p4v1.WriteRequest{}) }); n > 610 {
		t.Errorf("%v allocations for 100 updates", n)
	}
}

// rules are updates as the Gatekeeper sends them.
func rules(t testing.TB, n int) []byte {
	t.Helper()
	text := `table_entry { table_id: 0x02000001
		match { field_id: 1 exact { value: "\xfd\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01" } }
		match { field_id: 2 exact { value: "\x02" } } match { field_id: 3 exact { value: "\x01" } }
		match { field_id: 4 lpm { value: "\x12\x34\x56\x78\x00\x00" prefix_len: 48 } } action { action { action_id: 3 } } }`
	e := &p4v1.Entity{}
	if err := prototext.Unmarshal([]byte(text), e); err != nil {
		t.Fatal(err)
	}
	u := &p4v1.Update{Type: p4v1.Update_INSERT, Entity: e}
	b, err := proto.Marshal(&p4v1.WriteRequest{DeviceId: 1, ElectionId: &p4v1.Uint128{Low: 5}, Updates: slices.Repeat([]*p4v1.Update{u}, n)})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func BenchmarkUnmarshal(b *testing.B) {
	msg := rules(b, 8)
	b.Run("wire", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := Unmarshal(msg, &p4v1.WriteRequest{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("proto", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := proto.Unmarshal(msg, &p4v1.WriteRequest{}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// FuzzUnmarshal: whatever the bytes, the result is package proto's.
func FuzzUnmarshal(f *testing.F) {
	for _, text := range requests {
		m := &p4v1.WriteRequest{}
		if err := prototext.Unmarshal([]byte(text), m); err != nil {
			f.Fatal(err)
		}
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(append(b, b...)) // everything twice
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		want := &p4v1.WriteRequest{}
		wantErr := proto.Unmarshal(b, want)
		got := &p4v1.WriteRequest{}
		err := Unmarshal(b, got)
		switch {
		case (err == nil) != (wantErr == nil):
			t.Fatalf("%v, package proto says %v", err, wantErr)
		case err == nil && !proto.Equal(got, want):
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}
