package join

import (
	"testing"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

func TestPolicies_Of(t *testing.T) {
	p := NewPolicies([]control.MethodPolicy{
		{Service: "S", Policy: "tainted"}, {Service: "S", Method: "add", Policy: "none"},
		{Service: "T", Method: "add", Policy: "recover"}, {Service: "U", Policy: "perhaps"},
		{Service: "W", MaxFailures: new(9)}, {Service: "W", Method: "add", MaxFailures: new(0)}, {Service: "W", Method: "other", Policy: "none"},
	})
	for _, tc := range []struct {
		service, method string
		want            rpcpacket.Policy
		said            bool
	}{
		{"S", "add", rpcpacket.PolicyNone, true}, {"S", "other", rpcpacket.PolicyTainted, true},
		{"T", "add", rpcpacket.PolicyRecover, true}, {"T", "other", rpcpacket.PolicyNone, false},
		{"U", "add", rpcpacket.PolicyNone, false}, {"V", "add", rpcpacket.PolicyNone, false},
	} {
		if got, said := p.Of(tc.service, tc.method); got != tc.want || said != tc.said {
			t.Errorf("%s.%s: %s, %t", tc.service, tc.method, got, said)
		}
	}
	for method, want := range map[string]int{"add": 0, "other": 9, "third": 9} {
		if got, said := p.MaxFailures("W", method); got != want || !said {
			t.Errorf("W.%s: %d failures, %t", method, got, said)
		}
	}
	if _, said := p.MaxFailures("S", "add"); said {
		t.Error("S says how many failures")
	}
	if policy, said := p.Of("W", "add"); said {
		t.Errorf("W.add says %s", policy)
	}
	if _, said := (*Policies)(nil).MaxFailures("S", "add"); said {
		t.Error("nothing says how many failures")
	}
	if _, said := NewPolicies(nil).Of("S", "add"); said {
		t.Error("nothing says something")
	}
}
