package gatekeeper

import (
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/gatekeeper/lease"
	"github.com/bifrost-rack/bifrost/gatekeeper/log"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
)

// savedCall is a call on the log without its payload, which may be large and is
// read again when it is needed.
type savedCall struct {
	call           *call
	caller, callee log.Node
	pointers       []packet.Pointer // that it lends
	exact          bool             // the Table of executions knows it
}

// readCall reads the record of a call, or of its outcome.
func readCall(r *log.Record) (s savedCall, err error) {
	m, err := rpc.Parse(r.Packet)
	if err != nil {
		return s, corrupt(r, "%v", err)
	}
	if m.Call != rpc.ID(r.ID) {
		return s, corrupt(r, "call %s from %v to %v", m.Call, r.Caller, r.Callee)
	}
	s = savedCall{caller: r.Caller, callee: r.Callee, exact: m.Flags.Policy() != rpc.PolicyNone}
	if s.exact {
		s.call, s.pointers = &call{header: m.Header}, m.Pointers
		return s, nil
	}
	if !r.Caller.Address.IsValid() || !r.Callee.Address.IsValid() {
		return s, corrupt(r, "call %s from %v to %v", m.Call, r.Caller, r.Callee)
	}
	k := &call{
		header: m.Header, caller: r.Caller.Address, callee: r.Callee.Address, incarnation: r.Callee.Incarnation,
		method: m.Method.String(), stage: stageFinished,
	}
	s.call = k
	if to, ok := netip.AddrFromSlice(r.Data); ok {
		k.to = to
	}
	k.header.Parent, k.header.CallerIncarnation = r.Parent, r.Caller.Incarnation
	switch {
	case r.Kind == log.KindReply:
		k.header.Type, k.refusal = rpc.Call, refusalOf(&m)
	case m.Type == rpc.Oneway: // it was over when it was released
	case m.Type == rpc.Call:
		k.stage, s.pointers = stageRunning, m.Pointers
	default:
		return s, corrupt(r, "a call of type %s", m.Type)
	}
	return s, nil
}

// restoreCalls puts calls back on record. A caller is logged before those that it
// makes, but an outcome after; so all are known before any is tied to another.
func (c *controller) restoreCalls(all []savedCall) {
	for _, s := range all {
		if s.exact {
			c.resumeExact(s)
			continue
		}
		k := s.call
		c.calls[k.id()] = k
		if v := c.services[k.to]; v != nil {
			k.service = v.name
			if n := c.nodes[k.callee]; n != nil {
				k.method = v.methodName(n, k.header.Method)
			}
		}
		if k.stage == stageRunning {
			c.leases.AddNode(k.caller)
			c.leases.AddNode(k.callee)
			c.leases.Resume(lease.Call{ID: k.id(), Parent: k.header.Parent, Caller: k.caller, Callee: k.callee, Pointers: s.pointers})
			_ = c.atA1(k, s.pointers) // it was let in before
			c.atB1(k)
		}
		if k.stage == stageRunning || k.oneway() {
			c.resuming.calls = append(c.resuming.calls, k.id())
		}
	}
	all = slices.DeleteFunc(all, func(s savedCall) bool { return s.exact })
	for _, s := range all {
		c.restoreCall(s.call)
	}
	for _, s := range all {
		c.forgetSettled(s.call)
	}
}

// restoreCall ties a call to its caller, and finds out whether it is settled.
func (c *controller) restoreCall(k *call) {
	n := c.nodes[k.caller]
	if n == nil {
		k.settled = true
		if k.stage == stageRunning {
			c.orphans[k] = c.now.Add(probeInterval)
		}
		return
	}
	c.record(n, k)
	s, sequence := n.sessionOf(k.id()), k.id().Sequence()
	k.settled = sequence < s.floor
	if floor := min(k.header.Floor, sequence); !k.to.IsValid() && floor > s.replied[k.callee] {
		if s.replied == nil {
			s.replied = map[netip.Addr]uint64{}
		}
		s.replied[k.callee] = floor
	}
}
