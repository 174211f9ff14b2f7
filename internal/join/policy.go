package join

import (
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Policies are what operators and deployments have said about methods: it goes
// before what a caller or its IDL asks for. Nil says nothing. A set does not change; a
// Session has a new one when the rack's has changed.
type Policies struct {
	services map[string]servicePolicies
}

type servicePolicies struct {
	methods map[string]word
	general word
}

// word is what is said of a method.
type word struct {
	policy   rpcpacket.Policy
	said     bool // policy is
	failures *int
}

// NewPolicies makes a set, nil for none. What does not make sense says nothing.
func NewPolicies(list []control.MethodPolicy) *Policies {
	if len(list) == 0 {
		return nil
	}
	p := &Policies{services: make(map[string]servicePolicies)}
	for _, m := range list {
		w := word{failures: m.MaxFailures}
		w.policy, w.said = rpcpacket.ParsePolicy(m.Policy)
		s := p.services[m.Service]
		if m.Method == "" {
			s.general = w
		} else {
			if s.methods == nil {
				s.methods = make(map[string]word)
			}
			s.methods[m.Method] = w
		}
		p.services[m.Service] = s
	}
	return p
}

// Of is the policy of a method, false if nothing is said.
func (p *Policies) Of(service, method string) (rpcpacket.Policy, bool) {
	if p == nil {
		return rpcpacket.PolicyNone, false
	}
	s := p.services[service]
	if w := s.methods[method]; w.said {
		return w.policy, true
	}
	return s.general.policy, s.general.said
}

// MaxFailures is after how many failures a call of a method is given up, 0 for never; false if nothing is said.
func (p *Policies) MaxFailures(service, method string) (int, bool) {
	if p == nil {
		return 0, false
	}
	s := p.services[service]
	for _, w := range []word{s.methods[method], s.general} {
		if w.failures != nil {
			return *w.failures, true
		}
	}
	return 0, false
}
