package resources

import (
	"cmp"
	"fmt"
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

// Word is what somebody says of the calls of a method. The zero Word says nothing.
type Word struct {
	// Policy is as rpcpacket.Policy writes it; "" says nothing of it.
	Policy string `json:"policy,omitempty"`
	// MaxFailures is after how many failures of its program a call is given up, 0 for never; nil says nothing of it.
	MaxFailures *int `json:"max_failures,omitempty"`
}

// Validate checks a word.
func (w Word) Validate() error {
	if n := w.MaxFailures; n != nil && (*n < 0 || *n > rpcpacket.MaxFailures) {
		return fault.New(fault.BadRequest, "policy", "%d failures: must be 0, for never, to %d", *n, rpcpacket.MaxFailures)
	}
	_, _, err := ParsePolicy(w.Policy)
	return err
}

// or is the word, completed by another one.
func (w Word) or(other Word) Word {
	if w.Policy == "" {
		w.Policy = other.Policy
	}
	if w.MaxFailures == nil {
		w.MaxFailures = other.MaxFailures
	}
	return w
}

// unless is what a word says of which another one says nothing.
func (w Word) unless(other Word) Word {
	if other.Policy != "" {
		w.Policy = ""
	}
	if other.MaxFailures != nil {
		w.MaxFailures = nil
	}
	return w
}

// Text writes a word for people.
func (w Word) Text() string {
	switch {
	case w.MaxFailures == nil && w.Policy == "":
		return "default"
	case w.MaxFailures == nil:
		return w.Policy
	case w.Policy == "":
		return fmt.Sprintf("at most %d failures", *w.MaxFailures)
	}
	return fmt.Sprintf("%s, at most %d failures", w.Policy, *w.MaxFailures)
}

// MethodPolicy is the policy of a method, or with Method "" of all methods of a
// service for which nothing else is said, and after how many failures a call is given up. Somebody
// has said each of the two; an Origin "" in the list of ExplicitPolicies is nobody.
type MethodPolicy struct {
	Service, Method string
	Policy          rpcpacket.Policy
	Origin          Origin
	MaxFailures     int
	FailuresOrigin  Origin
}

// hear takes what somebody says that nobody has said before.
func (p *MethodPolicy) hear(w Word, from Origin) {
	if policy, known, err := ParsePolicy(w.Policy); known && err == nil && p.Origin == "" {
		p.Policy, p.Origin = policy, from
	}
	if w.MaxFailures != nil && p.FailuresOrigin == "" {
		p.MaxFailures, p.FailuresOrigin = *w.MaxFailures, from
	}
}

// Said is what a policy says explicitly.
func (p *MethodPolicy) Said() (w Word) {
	if p.Origin != "" {
		w.Policy = p.Policy.String()
	}
	if p.FailuresOrigin != "" {
		w.MaxFailures = &p.MaxFailures
	}
	return w
}

// explicit is what ExplicitPolicies found while the registry had a version.
type explicit struct {
	version uint64
	list    []MethodPolicy
	hash    uint64 // of list
	found   bool
}

// ExportedPolicy is what a node said of a method when it exported the method.
type ExportedPolicy struct {
	Service, Method string
	Word
}

// SetPolicy lets the operator overrule what is said of a method, or with method "" of
// all methods of a service for which nothing else is set. What the word says nothing of stays as it is; the zero Word
// undoes all. It holds for calls sent from now on, and for executions that fail from now on.
func (r *Registry) SetPolicy(service, method string, w Word) error {
	const op = "set policy"
	if err := w.Validate(); err != nil {
		return err
	}
	known := w != Word{}
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
		r.policies[key] = w.or(r.policies[key])
	} else {
		delete(r.policies, key)
	}
	return nil
}

// PolicyOf is what holds for a method, and who has said so: what the operator set for it, or
// for its service; else what its deployment says; else what its node said when it exported it;
// else Config's. A method's form by reference goes by the method's name.
func (r *Registry) PolicyOf(m ExportedPolicy) MethodPolicy {
	p := MethodPolicy{Service: m.Service, Method: rpcpacket.PlainMethod(m.Method)}
	p.hear(r.policies[policyKey{p.Service, p.Method}], Operator)
	p.hear(r.policies[policyKey{p.Service, ""}], Operator)
	p.hear(r.deployedPolicy(p.Service, p.Method), Deployed)
	p.hear(m.Word, Exported)
	p.hear(Word{r.cfg.Policy.String(), &r.cfg.MaxFailures}, Default)
	return p
}

// Services lists the services that deployments declare, and those of which an operator has set a policy.
func (r *Registry) Services() (all []string) {
	for k := range r.policies {
		all = append(all, k.service)
	}
	for _, a := range r.sortedApps() {
		for _, p := range a.Programs {
			for i := range p.spec.Services {
				if !a.Removed {
					all = append(all, p.spec.Services[i].Name)
				}
			}
		}
	}
	return all
}

func (r *Registry) deployedPolicy(service, method string) Word {
	for _, a := range r.sortedApps() {
		for _, p := range a.Programs {
			exports := slices.ContainsFunc(p.spec.Services, func(s ServiceSpec) bool { return s.Name == service })
			if exports && !a.Removed {
				return p.spec.word(service, method)
			}
		}
	}
	return Word{}
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
	at := map[policyKey]int{}
	add := func(service, method string, w Word, origin Origin) {
		key := policyKey{service, method}
		i, known := at[key]
		if w == (Word{}) || !known && len(list) >= MaxExplicit {
			return
		}
		if !known {
			i = len(list)
			at[key] = i
			list = append(list, MethodPolicy{Service: service, Method: method})
		}
		list[i].hear(w, origin)
	}
	for k, w := range r.policies {
		add(k.service, k.method, w, Operator)
	}
	settled := map[string]bool{} // services: the first deployment counts
	for _, a := range r.sortedApps() {
		for _, p := range a.Programs {
			for _, s := range p.spec.Services {
				if a.Removed || settled[s.Name] {
					continue
				}
				settled[s.Name] = true
				// An operator's word on all of a service goes before a deployment's on a method.
				over := r.policies[policyKey{s.Name, ""}]
				for _, m := range s.Methods {
					add(s.Name, rpcpacket.PlainMethod(m.Name), m.unless(over), Deployed)
				}
				add(s.Name, "", p.spec.unless(over), Deployed)
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
	var all []MethodPolicy
	listed := map[policyKey]bool{}
	for _, m := range exported {
		p := r.PolicyOf(m)
		listed[policyKey{p.Service, p.Method}] = true
		all = append(all, p)
	}
	explicit, _ := r.ExplicitPolicies()
	for _, p := range explicit {
		if !listed[policyKey{p.Service, p.Method}] {
			all = append(all, r.PolicyOf(ExportedPolicy{Service: p.Service, Method: p.Method}))
		}
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
		_, _ = io.WriteString(h, p.Service+"\x00"+p.Method+"\x00"+p.Said().Text()+"\x00")
	}
	return h.Sum64() | 1
}
