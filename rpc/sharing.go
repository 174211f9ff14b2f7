package rpc

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/share"
	"github.com/bifrost-rack/bifrost/rpc/direct"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Whoever shares its fate with a node can have the node's program started anew, by failing. So a service takes calls that do so
// from its own deployment alone, unless the method has a policy that shares fates: the service declares it
// (WithMethodPolicy, the IDL), an operator or the deployment says so. Who the caller is, the Gatekeeper knows: a packet comes from
// the address of its sender's node. It is asked once for each caller of the deployment, and at each
// call of a stranger that nothing here permits. The copy of the call is dropped meanwhile; its caller sends it again.
//
// The answer says whose the caller is, too. What a node keeps for callers is charged to their owners (package share), since one owner may have many
// nodes. A call does not wait for that: until its caller's owner is known, the caller is charged as a stranger. It is asked only when so much
// is kept that it matters.

// The bounds of sharers.
const (
	maxPeers    = 4096 // more than a rack has nodes
	maxVerdicts = 1024
	maxSharing  = 128 // questions under way, one of a caller at most
)

// ownerLifetime is for how long an owner is not asked for again: a node may go on at another blade. ownerAgain is for how long if there was no answer.
const ownerLifetime, ownerAgain = time.Minute, time.Second

// leave is whether a call may share its caller's fate.
type leave uint8

const (
	unheard leave = iota // the Gatekeeper is being asked
	permitted
	forbidden
)

// sharers is what a node knows of whose its callers are, and who may share fates with it. Its zero value knows nothing.
type sharers struct {
	life  *lifetime
	pulse *pulse
	asks  func(context.Context, control.Sharing) (control.SharingReply, error) // asks the Gatekeeper
	news  func(caller netip.Addr)                                              // there is news of whose a caller is

	mu       sync.Mutex
	peers    map[netip.Addr]peer
	asking   map[netip.Addr]bool
	verdicts map[rpcpacket.ID]leave // of calls whose next copy has not come yet
}

// peer is what is known of a caller.
type peer struct {
	kin   bool
	owner share.Owner
	until time.Duration // the owner is not asked for again before
}

// ownerOf is whose a node is, as far as is known.
func (s *sharers) ownerOf(node netip.Addr) share.Owner {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.peers[node]; p.owner.Known() {
		return p.owner
	}
	return share.Stranger(node)
}

// seekOwner asks whose a caller is, unless that is known.
func (s *sharers) seekOwner(caller netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.peers[caller].until <= s.pulse.now() {
		s.ask(control.Sharing{Caller: caller}, rpcpacket.ID{})
	}
}

// ask has the Gatekeeper asked about a caller, and about a call if there is one. The caller holds s.mu.
func (s *sharers) ask(q control.Sharing, call rpcpacket.ID) {
	if s.asking[q.Caller] || len(s.asking) >= maxSharing {
		return
	}
	if s.asking == nil {
		s.peers, s.asking, s.verdicts = map[netip.Addr]peer{}, map[netip.Addr]bool{}, map[rpcpacket.ID]leave{}
	}
	s.asking[q.Caller] = true
	go func() { // without an answer the next copy of a call asks again
		r, err := s.asks(s.life.base, q)
		if s.heard(q, call, r, err) {
			s.news(q.Caller)
		}
	}()
}

// mayShare says whether a new call may share its caller's fate, if it does.
func (x *export) mayShare(from netip.Addr, m *rpcpacket.Message) leave {
	n := x.node
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
	return n.sharers.judge(control.Sharing{Caller: from, Service: x.name, Method: method.name}, m.Call)
}

// judge says whether a call may share its caller's fate, for all that the service has declared.
func (s *sharers) judge(q control.Sharing, call rpcpacket.ID) leave {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.peers[q.Caller].kin {
		return permitted
	}
	if v, said := s.verdicts[call]; said {
		delete(s.verdicts, call)
		return v
	}
	s.ask(q, call)
	return unheard
}

// heard takes the answer to a question, and reports whether it changes whose the caller is.
func (s *sharers) heard(q control.Sharing, call rpcpacket.ID, r control.SharingReply, err error) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.asking, q.Caller)
	now := s.pulse.now()
	p, known := s.peers[q.Caller]
	if !known && len(s.peers) >= maxPeers {
		clear(s.peers)
	}
	p.until = now + ownerAgain
	if err == nil && r.Owner.Known() {
		changed = p.owner != r.Owner
		p.owner, p.until = r.Owner, now+ownerLifetime
	}
	p.kin = p.kin || err == nil && r.Kin
	s.peers[q.Caller] = p
	if err == nil && !r.Kin && q.Service != "" {
		if len(s.verdicts) >= maxVerdicts {
			clear(s.verdicts)
		}
		s.verdicts[call] = forbidden
		if r.Declared {
			s.verdicts[call] = permitted
		}
	}
	return changed
}

// learnOwner charges what is kept for a caller to its owner, of whom there is news.
func (n *Node) learnOwner(caller netip.Addr) {
	l := n.ledger
	l.mu.Lock()
	l.table.Learn(caller)
	l.room.first.Learn(caller)
	l.mu.Unlock()
	n.in.mu.Lock()
	n.in.core.Learn(caller)
	n.in.mu.Unlock()
	n.large.learn(caller)
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
