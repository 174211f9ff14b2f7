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
	if _, said := NewPolicies(nil).Of("S", "add"); said {
		t.Error("nothing says something")
	}
}
