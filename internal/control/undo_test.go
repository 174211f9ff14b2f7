package control

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"testing"
)

// An execution's id is hexadecimal in JSON; none is left out.
func TestExecutionsOnTheWire(t *testing.T) {
	want := Commit{Boot: 7, Runs: []Run{{Execution: ExecutionID{0: 1, 15: 0xfe}, Node: netip.MustParseAddr("fd00:b1f0::1"), Incarnation: 2}}}
	b, err := json.Marshal(want)
	if err != nil || string(b) != `{"boot":7,"runs":[{"execution":"010000000000000000000000000000fe","node":"fd00:b1f0::1","incarnation":2}]}` {
		t.Fatalf("%s, %v", b, err)
	}
	var got Commit
	if err := json.Unmarshal(b, &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if b, err := json.Marshal(Executions{}); err != nil || string(b) != "{}" {
		t.Errorf("%s, %v", b, err)
	}
}

func FuzzExecutionID(f *testing.F) {
	f.Add("000102030405060708090a0b0c0d0e0f")
	f.Add("0001")
	f.Add("zz0102030405060708090a0b0c0d0e0f")
	f.Fuzz(func(t *testing.T, s string) {
		var id, again ExecutionID
		if id.UnmarshalText([]byte(s)) != nil {
			return
		}
		if err := again.UnmarshalText([]byte(id.String())); err != nil || again != id {
			t.Fatalf("%q became %s, %s: %v", s, id, again, err)
		}
	})
}
