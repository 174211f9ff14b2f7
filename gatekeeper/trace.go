package gatekeeper

import (
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/callgraph"
	"github.com/bifrost-rack/bifrost/gatekeeper/log"
	"github.com/bifrost-rack/bifrost/internal/fault"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
)

// TraceStage says what has just become of an exactly-once call, or of the
// execution that serves it.
type TraceStage string

// The stages, in the order in which a call that nothing happens to goes through
// them. A one-way and a durable main have no TraceAnswered.
const (
	TraceSent        TraceStage = "sent"         // a1: held by the switch, and let in
	TraceDelivered   TraceStage = "delivered"    // b1: logged, and released to its callee
	TraceReplied     TraceStage = "replied"      // b2: its answer is being logged
	TraceCommitting  TraceStage = "committing"   // what it did to memory is made final
	TraceAnswered    TraceStage = "answered"     // a2: the answer is released to the caller
	TraceReplayed    TraceStage = "replayed"     // delivered again; Attempt tells after how many failures
	TraceRollingBack TraceStage = "rolling back" // its node has failed and is fenced
	TraceRolledBack  TraceStage = "rolled back"  // what it did to memory is taken back
	TraceRefused     TraceStage = "refused"      // the caller gets an exception of ours; Code says which
	TraceEnded       TraceStage = "ended"        // given up, with Code
)

// TraceRecord is one step of a call. Service and the fields after it are set with
// TraceSent only.
type TraceRecord struct {
	Time    time.Time
	Stage   TraceStage
	Call    rpc.ID
	Node    log.Node // where it happens: callee, or who gets the answer
	Attempt uint16
	Code    fault.Code // of a refusal, or of an exception that is the answer
	Parent  rpc.ID
	Caller  log.Node
	Service string
	Method  string
	Policy  rpc.Policy
	Oneway  bool
	Sampled bool // it is not held: known from a digest
}

// trace tells whoever follows calls what has become of one. It costs nothing when
// nobody does.
func (c *controller) trace(stage TraceStage, id rpc.ID, at log.Node, attempt uint16) {
	c.traceCode(stage, id, at, attempt, fault.OK)
}

// traceCode is trace of an answer that is an exception.
func (c *controller) traceCode(stage TraceStage, id rpc.ID, at log.Node, attempt uint16, code fault.Code) {
	if c.tracer != nil {
		c.tracer(TraceRecord{Time: c.now, Stage: stage, Call: id, Node: at, Attempt: attempt, Code: code})
	}
	if c.narrate {
		if kind, ok := traceEvents[stage]; ok {
			c.exactEvent(kind, id, attempt, nil)
		}
	}
}

// exactEvent tells subscribers about an exactly-once call.
func (c *controller) exactEvent(kind EventKind, id rpc.ID, attempt uint16, why *fault.Error) {
	c.traceFailure(kind, id, why)
	if !c.narrate {
		return
	}
	e := Event{Kind: kind, Call: id.String(), Attempt: attempt}
	if v, ok := c.table.View(id); ok {
		e.Node, e.Peer = v.Caller, v.Callee.Address
		e.Service, e.Method = c.namesOf(&v)
	}
	if why != nil {
		e.Code, e.Message = why.Code, why.Msg
	}
	c.event(e)
}

var traceEvents = map[TraceStage]EventKind{
	TraceDelivered: CallReleased, TraceReplied: ReplyHeld, TraceAnswered: ReplyReleased, TraceReplayed: CallReplayed,
}

func (c *controller) traceSent(k *callgraph.Call) {
	if c.tracer != nil {
		c.tracer(TraceRecord{
			Time: c.now, Stage: TraceSent, Call: k.ID, Node: log.Node(k.Callee), Parent: k.Parent, Caller: log.Node(k.Caller),
			Service: k.Service, Method: k.Method, Policy: k.Policy, Oneway: k.Oneway,
		})
	}
	if c.narrate {
		c.event(Event{Kind: CallHeld, Node: k.Caller.Address, Peer: k.Callee.Address, Service: k.Service, Method: k.Method, Call: k.ID.String()})
	}
}

// whereabouts is the node that runs an execution.
func (c *controller) whereabouts(id rpc.ID) log.Node {
	if c.tracer == nil {
		return log.Node{}
	}
	a, _ := c.table.Where(id)
	n := c.nodeOrFallen(a)
	if n == nil {
		return log.Node{Address: a}
	}
	return n.logged()
}
