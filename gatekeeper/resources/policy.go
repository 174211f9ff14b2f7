package resources

import (
	"cmp"
	"hash/fnv"
	"io"
	"slices"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// MaxPolicies bounds the policies that operators have set, and MaxExplicit those
// that ExplicitPolicies returns: with the longest names half a MiB, which every
// compute blade keeps.
const (
	MaxPolicies = 512
	MaxExplicit = 1024
)

// policyKey names a method, or with method "" all methods of a service.
type policyKey struct{ service, method string }

// Origin is who has said what a method's policy is.
type Origin string

// The origins, in the order in which they count. What a caller asks for goes before
// Exported, which is what its IDL says.
const (
	Operator Origin = "operator"
	Deployed Origin = "deployment"
	Exported Origin = "service"
	Default  Origin = "default"
)

// MethodPolicy is the policy of a method, or with Method "" of all methods of a
// service for which nothing else is said.
type MethodPolicy struct {
	Service, Method string
	Policy          rpcpacket.Policy
	Origin          Origin
}

// explicit is what ExplicitPolicies found while the registry had a version.
type explicit struct {
	version uint64
	list    []MethodPolicy
	hash    uint64 // of list
	found   bool
}

// ExportedPolicy is what a node said of a method when it exported the method: Policy is as
// rpcpacket.Policy writes it, "" for nothing.
type ExportedPolicy struct{ Service, Method, Policy string }

// SetPolicy lets the operator overrule the policy of a method, or with method "" of
// all methods of a service for which nothing else is set, as rpcpacket.Policy writes it; ""
// undoes that. It holds for calls sent from now on.
func (r *Registry) SetPolicy(service, method, policy string) error {
	const op = "set policy"
	_, known, err := ParsePolicy(policy)
	if err != nil {
		return err
	}
	if service == "" || len(service) > MaxServiceName {
		return fault.New(fault.BadRequest, op, "a service name of %d bytes", len(service))
	}
	if method != "" {
		if _, err := rpcpacket.MethodOf(method); err != nil {
			return fault.New(fault.BadRequest, op, "%v", err)
		}
	}
	method = rpcpacket.PlainMethod(method)
	key := policyKey{service, method}
	if _, again := r.policies[key]; known && !again && len(r.policies) >= MaxPolicies {
		return fault.New(fault.Overloaded, op, "%d policies are set already: set one of them to default", len(r.policies))
	}
	r.version++
	if known {
		r.policies[key] = policy
	} else {
		delete(r.policies, key)
	}
	return nil
}

// PolicyOf is what holds for a method, and who has said so: what the operator set for it, or
// for its service; else what its deployment says; else what its node said when it exported it;
// else Config's. A method's form by reference goes by the method's name.
func (r *Registry) PolicyOf(m ExportedPolicy) MethodPolicy {
	m.Method = rpcpacket.PlainMethod(m.Method)
	for _, word := range []struct {
		text   string
		origin Origin
	}{
		{r.policies[policyKey{m.Service, m.Method}], Operator}, {r.policies[policyKey{m.Service, ""}], Operator},
		{r.deployedPolicy(m.Service, m.Method), Deployed}, {m.Policy, Exported},
	} {
		if p, known, err := ParsePolicy(word.text); known && err == nil {
			return MethodPolicy{m.Service, m.Method, p, word.origin}
		}
	}
	return MethodPolicy{m.Service, m.Method, r.cfg.Policy, Default}
}

func (r *Registry) deployedPolicy(service, method string) string {
	for _, a := range r.sortedApps() {
		for _, p := range a.Programs {
			exports := slices.ContainsFunc(p.spec.Services, func(s ServiceSpec) bool { return s.Name == service })
			if exports && !a.Removed {
				return p.spec.policy(service, method)
			}
		}
	}
	return ""
}

// ExplicitPolicies returns what goes before a caller's own wish: what operators and
// deployments have said, sorted, no method of a service twice. The first MaxExplicit
// of them count. version differs when they do; 0 stands for none. The caller must
// not change the list.
func (r *Registry) ExplicitPolicies() (list []MethodPolicy, version uint64) {
	if e := &r.explicit; !e.found || e.version != r.version {
		*e = explicit{version: r.version, list: r.listExplicit(), found: true}
		e.hash = hashOf(e.list)
	}
	return r.explicit.list, r.explicit.hash
}

func (r *Registry) listExplicit() (list []MethodPolicy) {
	said := map[policyKey]bool{}
	add := func(service, method, policy string, origin Origin) {
		key := policyKey{service, method}
		if p, known, err := ParsePolicy(policy); known && err == nil && !said[key] && len(list) < MaxExplicit {
			said[key] = true
			list = append(list, MethodPolicy{service, method, p, origin})
		}
	}
	for k, p := range r.policies {
		add(k.service, k.method, p, Operator)
	}
	settled := map[string]bool{} // services: the first deployment counts, and an operator's word on all of one
	for k := range r.policies {
		settled[k.service] = settled[k.service] || k.method == ""
	}
	for _, a := range r.sortedApps() {
		for _, p := range a.Programs {
			for _, s := range p.spec.Services {
				if a.Removed || settled[s.Name] {
					continue
				}
				settled[s.Name] = true
				for _, m := range s.Methods {
					add(s.Name, rpcpacket.PlainMethod(m.Name), m.Policy, Deployed)
				}
				add(s.Name, "", p.spec.Policy, Deployed)
			}
		}
	}
	slices.SortFunc(list, func(a, b MethodPolicy) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Method, b.Method))
	})
	return list
}

// AllPolicies returns the policy of every method that is exported, and all explicit
// ones, sorted, no method twice.
func (r *Registry) AllPolicies(exported []ExportedPolicy) []MethodPolicy {
	explicit, _ := r.ExplicitPolicies()
	all := slices.Clone(explicit)
	for _, m := range exported {
		all = append(all, r.PolicyOf(m))
	}
	slices.SortFunc(all, func(a, b MethodPolicy) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Method, b.Method))
	})
	return slices.CompactFunc(all, func(a, b MethodPolicy) bool { return a.Service == b.Service && a.Method == b.Method })
}

// hashOf tells lists apart, in this run of the Gatekeeper and the next.
func hashOf(list []MethodPolicy) uint64 {
	if len(list) == 0 {
		return 0
	}
	h := fnv.New64a()
	for _, p := range list {
		_, _ = io.WriteString(h, p.Service+"\x00"+p.Method+"\x00"+p.Policy.String()+"\x00")
	}
	return h.Sum64() | 1
}
