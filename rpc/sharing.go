package rpc

import (
	"net/netip"
	"sync"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/rpc/direct"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Whoever shares its fate with a node can have the node's program started anew, by failing. So a service takes calls that do so
// from its own deployment alone, unless the method has a policy that shares fates: the service declares it
// (WithMethodPolicy, the IDL), an operator or the deployment says so. Who the caller is, the Gatekeeper knows: a packet comes from
// the address of its sender's node. It is asked once for each caller of the deployment, and at each
// call of a stranger that nothing here permits. The copy of the call is dropped meanwhile; its caller sends it again.

// The bounds of sharers.
const (
	maxKin      = 4096
	maxVerdicts = 1024
	maxSharing  = 128 // questions under way, one of a caller at most
)

// leave is whether a call may share its caller's fate.
type leave uint8

const (
	unheard leave = iota // the Gatekeeper is being asked
	permitted
	forbidden
)

// sharers is what a node knows of who may share fates with it. Its zero value knows nothing.
type sharers struct {
	mu       sync.Mutex
	kin      map[netip.Addr]bool
	asking   map[netip.Addr]bool
	verdicts map[rpcpacket.ID]leave // of calls whose next copy has not come yet
}

// mayShare says whether a new call may share its caller's fate, if it does.
func (n *Node) mayShare(x *export, from netip.Addr, m *rpcpacket.Message) leave {
	if !direct.SharesDown(&m.Header) || from == n.self.Address || n.heir != nil {
		return permitted
	}
	method := x.offer.Load().methods[m.Method]
	if method == nil || x.shares(method.name) {
		return permitted // what does not exist does not run
	}
	if p, said := explicit(n.session.Policies(), x.name, method.name); said && p.SharesFates() {
		return permitted
	}
	s := &n.sharers
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kin[from] {
		return permitted
	}
	if v, said := s.verdicts[m.Call]; said {
		delete(s.verdicts, m.Call)
		return v
	}
	if !s.asking[from] && len(s.asking) < maxSharing {
		if s.asking == nil {
			s.kin, s.asking, s.verdicts = map[netip.Addr]bool{}, map[netip.Addr]bool{}, map[rpcpacket.ID]leave{}
		}
		s.asking[from] = true
		go n.askSharing(control.Sharing{Caller: from, Service: x.name, Method: method.name}, m.Call)
	}
	return unheard
}

// askSharing asks the Gatekeeper about a call. Without an answer the next copy asks again.
func (n *Node) askSharing(q control.Sharing, call rpcpacket.ID) {
	r, err := n.session.Sharing(n.base, q)
	s := &n.sharers
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.asking, q.Caller)
	switch {
	case err != nil:
	case r.Kin:
		if len(s.kin) >= maxKin {
			clear(s.kin)
		}
		s.kin[q.Caller] = true
	default:
		if len(s.verdicts) >= maxVerdicts {
			clear(s.verdicts)
		}
		s.verdicts[call] = forbidden
		if r.Declared {
			s.verdicts[call] = permitted
		}
	}
}

// shares reports whether the service declares a policy for a method by which anybody may share fates with it.
func (x *export) shares(method string) bool {
	p, declared := x.config.policies.of(method)
	if !declared {
		p, declared = x.config.policies.of(rpcpacket.PlainMethod(method))
	}
	return declared && p.SharesFates()
}

// notShared is why a call is refused that would share its caller's fate.
func notShared(x *export, h *rpcpacket.Header) *Error {
	how := "a call of policy " + h.Flags.Policy().String()
	if !h.Flags.Policy().SharesFates() {
		how = "a call on behalf of one of policy tainted"
	}
	return &Error{Code: PermissionDenied, Msg: how + " to " + x.name + " comes from another deployment: whoever fails would have the other's program started anew. " +
		"Call with policy recover, or give the method that policy: in the service's IDL (bifrost.policy), with rpc.WithMethodPolicy, in its deployment, or with `bifrost policy`"}
}
