package control

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
)

// Parts put together are the list, whatever they may be long.
func TestPolicyPart(t *testing.T) {
	var list []MethodPolicy
	for i := range 100 {
		list = append(list, MethodPolicy{Service: "Service", Method: fmt.Sprint("m", i), Policy: "fate-share"})
	}
	for _, limit := range []int{-1, 0, 1, 80, 1000, 1 << 20} {
		var got []MethodPolicy
		for from := 0; ; {
			part := PolicyPart(list, 3, from, limit)
			if b, err := json.Marshal(part.Policies); err != nil || len(b) > max(limit, 100) {
				t.Fatalf("a part of %d bytes, limit %d: %v", len(b), limit, err)
			}
			got = append(got, part.Policies...)
			if part.Version != 3 || part.Next != 0 && part.Next != len(got) {
				t.Fatalf("part %+v behind %d", part, len(got))
			}
			if from = part.Next; from == 0 {
				break
			}
		}
		if !slices.Equal(got, list) {
			t.Errorf("limit %d: %d policies of %d", limit, len(got), len(list))
		}
	}
	for _, from := range []int{-5, 100, 1 << 40} {
		if part := PolicyPart(list, 3, from, 1000); from > 0 && (len(part.Policies) != 0 || part.Next != 0) {
			t.Errorf("from %d: %+v", from, part)
		}
	}
}

// FuzzPolicyPart: whatever a daemon asks for, it gets a part of the list.
func FuzzPolicyPart(f *testing.F) {
	f.Add([]byte(`{"from":3}`), 100)
	f.Fuzz(func(t *testing.T, body []byte, limit int) {
		var ask Policies
		if json.Unmarshal(body, &ask) != nil {
			return
		}
		list := []MethodPolicy{{"S", "a", "none"}, {"S", "", "recover"}, {"T", "b", "tainted"}}
		part := PolicyPart(list, 1, ask.From, limit)
		if part.Next != 0 && (part.Next <= ask.From || part.Next >= len(list)) || part.Next == 0 && ask.From >= 0 && ask.From < len(list) && len(part.Policies) == 0 {
			t.Fatalf("from %d: %+v", ask.From, part)
		}
	})
}
