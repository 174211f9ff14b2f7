package resources

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// TestExplicitPolicies_SayWhatHolds: whoever has the list finds what the registry
// says, whatever operators and deployments have said, in any order.
func TestExplicitPolicies_SayWhatHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, err := New(DefaultConfig(), exports{})
		if err != nil {
			t.Fatal(err)
		}
		policy := rapid.SampledFrom([]string{"", "none", "recover", "fate-share", "tainted"})
		service := rapid.SampledFrom([]string{"S", "T"})
		method := rapid.SampledFrom([]string{"a", "b"})
		for range rapid.IntRange(0, 8).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				err = r.SetPolicy(service.Draw(t, "service"), method.Draw(t, "method"), policy.Draw(t, "policy"))
			case 1:
				err = r.SetPolicy(service.Draw(t, "service"), "", policy.Draw(t, "policy"))
			case 2:
				name := rapid.SampledFrom([]string{"one", "two"}).Draw(t, "app")
				s := Spec{Name: name, Programs: []Program{{
					Name: "p", Args: []string{name}, Policy: policy.Draw(t, "policy"),
					Services: []ServiceSpec{{Name: "S", Methods: []MethodSpec{{Name: "a", Policy: policy.Draw(t, "policy")}}}},
				}}}
				_, err = r.Deploy(s, time.Unix(1, 0))
			case 3:
				_, err = r.Undeploy("one", time.Unix(1, 0))
			}
			if code := fault.CodeOf(err); code != fault.OK && code != fault.NotFound && code != fault.Unavailable {
				t.Fatal(err)
			}
		}
		list, version := r.ExplicitPolicies()
		if (version == 0) != (len(list) == 0) {
			t.Fatalf("version %d of %d policies", version, len(list))
		}
		said := map[policyKey]MethodPolicy{}
		for _, p := range list {
			if _, twice := said[policyKey{p.Service, p.Method}]; twice {
				t.Fatalf("%+v is there twice", p)
			}
			said[policyKey{p.Service, p.Method}] = p
		}
		for _, s := range []string{"S", "T", "U"} {
			for _, m := range []string{"a", "b", "c"} {
				got, ok := said[policyKey{s, m}]
				if !ok {
					got, ok = said[policyKey{s, ""}]
				}
				want := r.PolicyOf(ExportedPolicy{Service: s, Method: m, Policy: policy.Draw(t, "exported")})
				if explicit := want.Origin == Operator || want.Origin == Deployed; ok != explicit || ok && (got.Policy != want.Policy || got.Origin != want.Origin) {
					t.Fatalf("%s.%s: the list says %+v, %t; the registry %+v", s, m, got, ok, want)
				}
			}
		}
	})
}

// What is set outlives a restart, the version too, and has a bound.
func TestSetPolicy_LastsAndIsBounded(t *testing.T) {
	r, err := New(DefaultConfig(), exports{})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.SetPolicy("S", "", "tainted"); err != nil {
		t.Fatal(err)
	}
	for i := 1; i < MaxPolicies; i++ {
		if err := r.SetPolicy("S", fmt.Sprint("m", i), "recover"); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.SetPolicy("S", "more", "recover"); fault.CodeOf(err) != fault.Overloaded {
		t.Errorf("one policy too many: %v", err)
	}
	if err := r.SetPolicy("S", "m1", "none"); err != nil {
		t.Errorf("a policy that is there already: %v", err)
	}
	data, err := r.Save()
	if err != nil {
		t.Fatal(err)
	}
	again, err := Load(DefaultConfig(), exports{}, data, time.Unix(2, 0))
	if err != nil {
		t.Fatal(err)
	}
	_, before := r.ExplicitPolicies()
	policy := func(method string) rpcpacket.Policy {
		return again.PolicyOf(ExportedPolicy{Service: "S", Method: method}).Policy
	}
	if _, after := again.ExplicitPolicies(); after != before || policy("m1") != rpcpacket.PolicyNone || policy("other") != rpcpacket.PolicyTainted {
		t.Errorf("after a restart: version %d, was %d; m1 %s, other %s", after, before, policy("m1"), policy("other"))
	}
	for what, err := range map[string]error{
		"no service": r.SetPolicy("", "m", "none"), "no such policy": r.SetPolicy("S", "m", "often"), "a method's name": r.SetPolicy("S", string(make([]byte, 300)), ""),
	} {
		if fault.CodeOf(err) != fault.BadRequest {
			t.Errorf("%s: %v", what, err)
		}
	}
}
