package callgraph

import (
	"net/netip"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Node is one incarnation of a node.
type Node struct {
	Address     netip.Addr
	Incarnation uint32
}

// Call is one call as it is when it is sent.
type Call struct {
	ID rpcpacket.ID
	// Parent is the execution that makes the call: the id of the call that it
	// serves, or of a main; zero for a plain client.
	Parent         rpcpacket.ID
	Caller, Callee Node
	Service        string
	Method         string
	Policy         rpcpacket.Policy
	Pointers       []dsmpacket.Pointer
	// Serial: the service runs one call at a time.
	Serial bool
	// Oneway: the caller does not wait, and nothing returns.
	Oneway bool
	// Loose: known from a digest only; Expire may remove it.
	Loose bool
}

// Stage is how far a call has got: the last of the checkpoints of the thesis's
// figure 5.3 that it has reached.
type Stage uint8

// The stages.
const (
	A1 Stage = iota // the caller has sent it
	B1              // the callee has received it
	B2              // the callee has finished it
	A2              // the caller has received the reply: the call is over
)

// String returns the stage's name as the thesis writes it.
func (s Stage) String() string { return [...]string{"a1", "b1", "b2", "a2"}[s&3] }

// View is one call as it is now.
type View struct {
	Call
	Stage Stage
	// Times are when the stages were reached, zero for those that were not.
	Times [4]time.Time
	// Attempts is how often it was delivered to another node or incarnation
	// after the first.
	Attempts int
	// Behind is the call that a serial service runs while this one is queued,
	// zero if this one is not queued.
	Behind rpcpacket.ID
	// Orphan: the caller is gone; the call ends when it is finished.
	Orphan bool
	// Sequence orders calls by when they became known.
	Sequence uint64
}

type flags uint8

const (
	oneway flags = 1 << iota
	loose
	orphan
)

// call is a Call in the graph. It holds no Go pointer.
type call struct {
	id, parent rpcpacket.ID
	sequence   uint64
	times      [3]int64 // of a1, b1, b2, nanoseconds of Unix time; 0 is none
	heard      int64    // when a loose call was last sent, likewise
	links      [lists]link
	caller     int32 // node
	server     int32
	method     int32
	pointers   int32 // first of the call's carried
	mark       uint32
	attempts   uint16
	policy     rpcpacket.Policy
	flags      flags
}

func (c *call) is(f flags) bool { return c.flags&f != 0 }

// finished reports whether the callee is done with it.
func (c *call) finished() bool { return c.times[B2] != 0 }

// view returns call i as callers see it.
func (g *Graph) view(i int32) View {
	c := g.calls.at(i)
	s, m := g.servers.key(c.server), g.methods.key(c.method)
	v := View{
		Call: Call{
			ID: c.id, Parent: c.parent, Caller: g.nodes.key(c.caller).node(), Callee: g.nodes.key(s.node).node(),
			Service: m.service, Method: m.method, Policy: c.policy, Pointers: g.pointersOf(c),
			Serial: g.servers.value(c.server).serial, Oneway: c.is(oneway), Loose: c.is(loose),
		},
		Attempts: int(c.attempts), Orphan: c.is(orphan), Sequence: c.sequence,
	}
	for stage, at := range c.times {
		if at != 0 {
			v.Stage, v.Times[stage] = Stage(stage), time.Unix(0, at).UTC()
		}
	}
	if head := g.blocker(c, i); head != 0 {
		v.Behind = g.calls.at(head).id
	}
	return v
}

// blocker is the call that a serial service runs while call i is queued, 0 if
// call i is not queued.
func (g *Graph) blocker(c *call, i int32) int32 {
	s := g.servers.value(c.server)
	if !s.serial || s.calls.first == i || c.finished() {
		return 0
	}
	return s.calls.first
}
