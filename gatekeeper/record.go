package gatekeeper

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/gatekeeper/lease"
	"github.com/bifrost-rack/bifrost/internal/fault"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
)

// stage is how far a call has come.
type stage uint8

const (
	stageWaiting  stage = iota + 1 // held, until its rules are in place
	stageRunning                   // with the callee
	stageReplying                  // its reply is held, until its rules are in place
	stageFinished                  // the reply has gone on, or an exception of ours
)

var stageNames = [...]string{"", "waiting", "running", "replying", "finished"}

// call is a held call of policy none on record: what makes a second copy of any of its packets
// harmless. It stays until its caller has settled it or is gone.
type call struct {
	header         rpc.Header // of its first copy
	to             netip.Addr // the service's address; none for a call that was not held
	caller, callee lease.Node
	incarnation    uint32 // the callee's, to which the call is bound
	service        string
	method         string
	stage          stage
	settled        bool // the caller will not ask again
	// refusal is the exception that the caller got from us instead of a reply.
	refusal *fault.Error
	// unlogged is the packet that is being judged, until that is logged.
	unlogged []byte
}

func (k *call) id() rpc.ID { return k.header.Call }

// oneway reports whether nobody will answer the call.
func (k *call) oneway() bool { return k.header.Type == rpc.Oneway }

// record puts a new call on record with its caller.
func (c *controller) record(n *node, k *call) {
	c.calls[k.id()] = k
	n.calls[k] = struct{}{}
	s := n.sessionOf(k.id())
	s.calls = append(s.calls, k)
}

// finish ends a call's life on the wire.
func (c *controller) finish(k *call) {
	k.stage = stageFinished
	c.atA2(k)
	c.forgetSettled(k)
}

// forgetSettled drops a call's record if it is finished and nobody can ask for it.
func (c *controller) forgetSettled(k *call) {
	if k.stage != stageFinished || !k.settled || c.calls[k.id()] != k {
		return
	}
	delete(c.calls, k.id())
	delete(c.orphans, k)
	c.dropCall(k)
	n := c.nodes[k.caller]
	if n == nil {
		return
	}
	delete(n.calls, k)
	if s := n.sessions[k.id().Session()]; s != nil {
		s.calls = slices.DeleteFunc(s.calls, func(o *call) bool { return o == k })
	}
}

// forgetCaller settles all calls of a node that is gone; those that run go on.
func (c *controller) forgetCaller(n *node) {
	for _, k := range n.records() {
		k.settled = true
		c.forgetSettled(k)
		if k.stage == stageRunning && !k.oneway() {
			c.orphans[k] = c.now.Add(probeInterval)
			c.timers = true
		}
	}
	c.dropWindows(n)
	c.unbind(n)
	c.reclaimStrays(n)
	n.sessions, n.calls = nil, nil
}

// sortedCalls returns the calls on record in the order of their ids.
func (c *controller) sortedCalls() []*call {
	return slices.SortedFunc(maps.Values(c.calls), func(a, b *call) int { return compareIDs(a.id(), b.id()) })
}

// records returns the calls of a node in the order of their ids.
func (n *node) records() []*call {
	return slices.SortedFunc(maps.Keys(n.calls), func(a, b *call) int { return compareIDs(a.id(), b.id()) })
}
