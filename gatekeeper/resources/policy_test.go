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
		word := func(t *rapid.T) Word {
			w := Word{Policy: policy.Draw(t, "policy")}
			if most := rapid.IntRange(-1, 3).Draw(t, "failures"); most >= 0 {
				w.MaxFailures = &most
			}
			return w
		}
		service := rapid.SampledFrom([]string{"S", "T"})
		method := rapid.SampledFrom([]string{"a", "b"})
		for range rapid.IntRange(0, 8).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				err = r.SetPolicy(service.Draw(t, "service"), method.Draw(t, "method"), word(t))
			case 1:
				err = r.SetPolicy(service.Draw(t, "service"), "", word(t))
			case 2:
				name := rapid.SampledFrom([]string{"one", "two"}).Draw(t, "app")
				s := Spec{Name: name, Programs: []Program{{
					Name: "p", Args: []string{name}, Word: word(t),
					Services: []ServiceSpec{{Name: "S", Methods: []MethodSpec{{Name: "a", Word: word(t)}}}},
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
				general := said[policyKey{s, ""}]
				got := said[policyKey{s, m}]
				if got.Origin == "" {
					got.Policy, got.Origin = general.Policy, general.Origin
				}
				if got.FailuresOrigin == "" {
					got.MaxFailures, got.FailuresOrigin = general.MaxFailures, general.FailuresOrigin
				}
				want := r.PolicyOf(ExportedPolicy{Service: s, Method: m, Word: word(t)})
				for _, of := range []struct {
					got, want Origin
					same      bool
				}{{got.Origin, want.Origin, got.Policy == want.Policy}, {got.FailuresOrigin, want.FailuresOrigin, got.MaxFailures == want.MaxFailures}} {
					explicit := of.want == Operator || of.want == Deployed
					if explicit != (of.got != "") || explicit && (of.got != of.want || !of.same) {
						t.Fatalf("%s.%s: the list says %+v; the registry %+v", s, m, got, want)
					}
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
	if err := r.SetPolicy("S", "", Word{Policy: "tainted"}); err != nil {
		t.Fatal(err)
	}
	for i := 1; i < MaxPolicies; i++ {
		if err := r.SetPolicy("S", fmt.Sprint("m", i), Word{Policy: "recover"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.SetPolicy("S", "more", Word{Policy: "recover"}); fault.CodeOf(err) != fault.Overloaded {
		t.Errorf("one policy too many: %v", err)
	}
	if err := r.SetPolicy("S", "m1", Word{Policy: "none"}); err != nil {
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
		"no service": r.SetPolicy("", "m", Word{Policy: "none"}), "no such policy": r.SetPolicy("S", "m", Word{Policy: "often"}), "a method's name": r.SetPolicy("S", string(make([]byte, 300)), Word{}),
	} {
		if fault.CodeOf(err) != fault.BadRequest {
			t.Errorf("%s: %v", what, err)
		}
	}
}
