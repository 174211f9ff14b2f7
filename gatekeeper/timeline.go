package gatekeeper

import (
	"context"

	"github.com/bifrost-rack/bifrost/gatekeeper/callgraph"
	"github.com/bifrost-rack/bifrost/gatekeeper/log"
	"github.com/bifrost-rack/bifrost/gatekeeper/trace"
	"github.com/bifrost-rack/bifrost/internal/fault"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
)

// What became of the latest calls, also of those that are over: the trace.Recorder is
// told every step of every call by the controller's tracer, and asked here.

// Timeline returns the calls that belong together with one, from the outermost on:
// see trace.Recorder.Tree. It is empty if the call is not among those remembered.
func (g *Gatekeeper) Timeline(ctx context.Context, id rpc.ID, limit int) (tree []trace.Leaf, more bool, err error) {
	err = g.do(ctx, func() { tree, more = g.ctl.timeline.Tree(id, limit) })
	return tree, more, err
}

// Timelines returns the latest calls, the last one first, and the Before of the page
// that follows, 0 if there is none. Other inputs come in between.
func (g *Gatekeeper) Timelines(ctx context.Context, q trace.Query) (page []trace.Call, next uint64, err error) {
	for want := q.Limit; ; {
		var part []trace.Call
		if err = g.do(ctx, func() { part, next = g.ctl.timeline.Recent(q, g.cfg.Limits.Scan) }); err != nil {
			return nil, 0, err
		}
		page = append(page, part...)
		if q.Before, q.Limit = next, want-len(page); next == 0 || q.Limit <= 0 {
			return page, next, nil
		}
	}
}

// Methods returns what has become of the calls of each method since the Gatekeeper began.
func (g *Gatekeeper) Methods(ctx context.Context) (all []trace.Method, err error) {
	err = g.do(ctx, func() { all = g.ctl.timeline.Methods() })
	return all, err
}

var traceKinds = map[TraceStage]trace.Kind{
	TraceSent: trace.Sent, TraceDelivered: trace.Delivered, TraceReplied: trace.Replied, TraceCommitting: trace.Committing,
	TraceAnswered: trace.Answered, TraceReplayed: trace.Replayed, TraceRollingBack: trace.RollingBack, TraceRolledBack: trace.RolledBack,
	TraceRefused: trace.Refused, TraceEnded: trace.Ended,
}

// remember is the tracer. A call that was there before this run of the Gatekeeper
// becomes known with its first step in it.
func (c *controller) remember(t TraceRecord) {
	e := trace.Event{
		Call: t.Call, Code: t.Code, Step: trace.Step{Time: t.Time, Kind: traceKinds[t.Stage], Node: trace.Node(t.Node), Attempt: t.Attempt},
		About: trace.About{
			Parent: t.Parent, Caller: trace.Node(t.Caller), Callee: trace.Node(t.Node), Service: t.Service, Method: t.Method,
			Policy: t.Policy, Oneway: t.Oneway, Sampled: t.Sampled,
		},
	}
	if n := c.nodes[t.Node.Address]; n != nil {
		e.Blade = n.blade.hello.Blade
	}
	if t.Stage != TraceSent && !c.timeline.Knows(t.Call) {
		if first, ok := c.traceLate(t.Call); ok {
			c.timeline.Note(&first)
		}
	}
	if over := c.timeline.Note(&e); over && c.cfg.Over != nil {
		call, _ := c.timeline.Call(t.Call)
		c.cfg.Over(call, c.timeline.Root(t.Call))
	}
}

// traceLate is how a call began that is known, but was not followed so far.
func (c *controller) traceLate(id rpc.ID) (e trace.Event, ok bool) {
	e = trace.Event{Call: id, Step: trace.Step{Time: c.now, Kind: trace.Sent}}
	if v, known := c.graph.Call(id); known {
		if at := v.Times[callgraph.A1]; !at.IsZero() {
			e.Time = at
		}
		e.About = trace.About{
			Parent: v.Parent, Caller: trace.Node(v.Caller), Callee: trace.Node(v.Callee), Service: v.Service, Method: v.Method,
			Policy: v.Policy, Oneway: v.Oneway, Sampled: v.Loose,
		}
		return e, true
	}
	v, known := c.table.View(id)
	if !known {
		return e, false
	}
	service, method := c.namesOf(&v)
	e.About = trace.About{
		Parent: v.Header.Parent, Caller: trace.Node{Address: v.Caller, Incarnation: v.Header.CallerIncarnation}, Callee: trace.Node(v.Callee),
		Service: service, Method: method, Policy: v.Header.Flags.Policy(), Oneway: v.Header.Type == rpc.Oneway,
	}
	return e, true
}

// traceFailure follows an exactly-once call that is refused or given up.
func (c *controller) traceFailure(kind EventKind, id rpc.ID, why *fault.Error) {
	stage := map[EventKind]TraceStage{CallRefused: TraceRefused, CallEnded: TraceEnded}[kind]
	if stage != "" && why != nil && c.tracer != nil {
		c.tracer(TraceRecord{Time: c.now, Stage: stage, Call: id, Code: why.Code})
	}
}

// traceRefused follows a call that never came on record.
func (c *controller) traceRefused(h *held, m *rpc.Header, why *fault.Error) {
	if c.tracer == nil || m.Type != rpc.Call && m.Type != rpc.Oneway {
		return
	}
	sent := TraceRecord{
		Time: c.now, Stage: TraceSent, Call: m.Call, Parent: m.Parent, Caller: log.Node{Address: h.src, Incarnation: m.CallerIncarnation},
		Method: m.Method.String(), Policy: m.Flags.Policy(), Oneway: m.Type == rpc.Oneway,
	}
	if s := c.services[h.dst]; s != nil {
		sent.Service = s.name
	}
	c.tracer(sent)
	c.tracer(TraceRecord{Time: c.now, Stage: TraceRefused, Call: m.Call, Code: why.Code})
}

// traceCall follows a call of policy none that is held.
func (c *controller) traceCall(stage TraceStage, k *call, code fault.Code) {
	if c.tracer == nil {
		return
	}
	t := TraceRecord{Time: c.now, Stage: stage, Call: k.id(), Code: code, Node: log.Node{Address: k.callee, Incarnation: k.incarnation}}
	switch stage {
	case TraceSent:
		t.Parent, t.Caller = k.header.Parent, log.Node{Address: k.caller, Incarnation: k.header.CallerIncarnation}
		t.Service, t.Method, t.Policy, t.Oneway = k.service, k.method, k.header.Flags.Policy(), k.oneway()
	case TraceAnswered:
		t.Node = log.Node{Address: k.caller, Incarnation: k.header.CallerIncarnation}
		if k.refusal != nil {
			t.Stage, t.Code = TraceRefused, k.refusal.Code
		}
	}
	c.tracer(t)
}

// codeOf is the code of an answer, OK of one that is no exception.
func codeOf(m *rpc.Message) fault.Code {
	if m.Type == rpc.Exception {
		return m.Code
	}
	return fault.OK
}

// traceLoose follows a call that is not held, from a digest.
func (c *controller) traceLoose(k *callgraph.Call) {
	if c.tracer != nil {
		c.tracer(TraceRecord{
			Time: c.now, Stage: TraceSent, Call: k.ID, Node: log.Node(k.Callee), Parent: k.Parent, Caller: log.Node(k.Caller),
			Service: k.Service, Method: k.Method, Policy: k.Policy, Oneway: k.Oneway, Sampled: true,
		})
	}
}
