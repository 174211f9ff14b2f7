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
	methods map[string]rpcpacket.Policy
	general rpcpacket.Policy
	said    bool // general is
}

// NewPolicies makes a set, nil for none. What does not make sense says nothing.
func NewPolicies(list []control.MethodPolicy) *Policies {
	if len(list) == 0 {
		return nil
	}
	p := &Policies{services: make(map[string]servicePolicies)}
	for _, m := range list {
		policy, ok := rpcpacket.ParsePolicy(m.Policy)
		if !ok {
			continue
		}
		s := p.services[m.Service]
		if m.Method == "" {
			s.general, s.said = policy, true
		} else {
			if s.methods == nil {
				s.methods = make(map[string]rpcpacket.Policy)
			}
			s.methods[m.Method] = policy
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
	if policy, ok := s.methods[method]; ok {
		return policy, true
	}
	return s.general, s.said
}
