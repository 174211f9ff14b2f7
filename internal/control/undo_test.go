package control

import (
	"encoding/json"
	"testing"
)

// An execution's id is hexadecimal in JSON; none is left out.
func TestExecutionsOnTheWire(t *testing.T) {
	want := RegionID{ID: 7, Class: 6, Execution: ExecutionID{0: 1, 15: 0xfe}}
	b, err := json.Marshal(want)
	if err != nil || string(b) != `{"id":7,"class":6,"execution":"010000000000000000000000000000fe"}` {
		t.Fatalf("%s, %v", b, err)
	}
	var got RegionID
	if err := json.Unmarshal(b, &got); err != nil || got != want {
		t.Errorf("%v, %v", got, err)
	}
	if b, err := json.Marshal(RegionID{}); err != nil || string(b) != `{"id":0,"class":0}` {
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
