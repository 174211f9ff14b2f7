package join

import (
	"testing"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/rpc/packet"
)

func TestPolicies_Of(t *testing.T) {
	p := NewPolicies([]control.MethodPolicy{
		{Service: "S", Policy: "tainted"}, {Service: "S", Method: "add", Policy: "none"},
		{Service: "T", Method: "add", Policy: "recover"}, {Service: "U", Policy: "perhaps"},
	})
	for _, tc := range []struct {
		service, method string
		want            packet.Policy
		said            bool
	}{
		{"S", "add", packet.PolicyNone, true}, {"S", "other", packet.PolicyTainted, true},
		{"T", "add", packet.PolicyRecover, true}, {"T", "other", packet.PolicyNone, false},
		{"U", "add", packet.PolicyNone, false}, {"V", "add", packet.PolicyNone, false},
	} {
		if got, said := p.Of(tc.service, tc.method); got != tc.want || said != tc.said {
			t.Errorf("%s.%s: %s, %t", tc.service, tc.method, got, said)
		}
	}
	if _, said := NewPolicies(nil).Of("S", "add"); said {
		t.Error("nothing says something")
	}
}
