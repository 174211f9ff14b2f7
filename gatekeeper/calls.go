package gatekeeper

import (
	"context"
	"encoding/hex"
	"fmt"
	"iter"
	"net/netip"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/callgraph"
	"github.com/bifrost-rack/bifrost/gatekeeper/execution"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// CallState is one call: a held one that is on record, or one under way.
type CallState struct {
	Call    string     `json:"call"`
	Parent  string     `json:"parent,omitempty"` // the execution that made it
	Caller  netip.Addr `json:"caller"`
	Callee  netip.Addr `json:"callee"`
	Service string     `json:"service,omitempty"`
	Method  string     `json:"method"`
	// Stage is waiting, running, replying or finished; one that is not held is
	// running as far as anybody knows.
	Stage string     `json:"stage"`
	Code  fault.Code `json:"code,omitempty"`
	// The rest is known of calls under way.
	Policy   string   `json:"policy,omitempty"`
	Pointers []string `json:"pointers,omitempty"`
	// Checkpoint is the last one reached of a1, b1, b2 (thesis figure 5.3); A1, B1
	// and B2 are when they were.
	Checkpoint string    `json:"checkpoint,omitempty"`
	A1         time.Time `json:"a1,omitzero"`
	B1         time.Time `json:"b1,omitzero"`
	B2         time.Time `json:"b2,omitzero"`
	Oneway     bool      `json:"oneway,omitempty"`
	// Loose: its end is known from a digest only, which may be lost, or not at all.
	Loose bool `json:"loose,omitempty"`
	// Behind is the call that a stateful service runs while this one waits there.
	Behind string `json:"behind,omitempty"`
	// Orphan: its caller is gone.
	Orphan bool `json:"orphan,omitempty"`
	// Attempts is how often it was delivered to another node after the first.
	Attempts int `json:"attempts,omitempty"`
	// Told: it goes past the Gatekeeper, and was under way when its callee told so last.
	Told time.Time `json:"told,omitzero"`
}

// CallQuery selects calls under way; the zero value selects all.
type CallQuery struct {
	// Node is the caller or the callee.
	Node netip.Addr
	// From is the cursor that the page before has returned.
	From CallCursor
	// Limit is how many calls a page has at most, at least 1.
	Limit int
}

// CallCursor is where a listing of calls goes on; the zero CallCursor is its beginning.
type CallCursor struct {
	graph  callgraph.Cursor
	direct rpcpacket.ID // the last one of the direct calls; zero before them
}

// directPrefix is how the text of a CallCursor among direct calls begins.
const directPrefix = "d"

// String is the cursor as ParseCallCursor reads it, "" for the beginning.
func (c CallCursor) String() string {
	if c.direct.IsZero() {
		return c.graph.String()
	}
	return directPrefix + c.direct.String()
}

// ParseCallCursor reads what String wrote.
func ParseCallCursor(s string) (c CallCursor, err error) {
	id, direct := strings.CutPrefix(s, directPrefix)
	if !direct {
		c.graph, err = callgraph.ParseCursor(s)
		return c, err
	}
	b, err := hex.DecodeString(id)
	if err != nil || len(b) != len(c.direct) {
		return CallCursor{}, fmt.Errorf("%q is no cursor", s)
	}
	c.direct = rpcpacket.ID(b)
	return c, nil
}

// Calls returns a page of calls under way, and the cursor of the next page, which is zero on
// the last one. Those that the Gatekeeper sees come first, oldest first; then the direct ones.
// Other inputs come in between.
func (g *Gatekeeper) Calls(ctx context.Context, q CallQuery) (page []CallState, next CallCursor, err error) {
	for more := true; more && len(page) <= q.Limit; {
		err = g.do(ctx, func() { more = g.ctl.scanCalls(&q, &page, &next) })
		if err != nil {
			return nil, CallCursor{}, err
		}
	}
	if len(page) <= q.Limit {
		return page, CallCursor{}, nil
	}
	return page[:q.Limit], next, nil
}

// scanCalls looks at some calls, adds those that are meant to the page until that
// has one too many, and reports whether there is more to look at. next is the
// cursor behind the page.
func (c *controller) scanCalls(q *CallQuery, page *[]CallState, next *CallCursor) bool {
	if !q.From.direct.IsZero() {
		c.scanDirect(q, page, next)
		return false
	}
	views, from, more := c.graph.List(q.From.graph, c.cfg.Limits.Scan)
	q.From.graph = from
	for i := range views {
		v := &views[i]
		if q.Node.IsValid() && v.Caller.Address != q.Node && v.Callee.Address != q.Node {
			continue
		}
		*page = append(*page, c.callState(c.known(v)))
		switch len(*page) - q.Limit {
		case 0:
			*next = CallCursor{graph: v.Cursor()}
		case 1:
			return false
		}
	}
	if !more {
		c.scanDirect(q, page, next)
	}
	return more
}

// scanDirect adds direct calls to the page until that has one too many.
func (c *controller) scanDirect(q *CallQuery, page *[]CallState, next *CallCursor) {
	for _, k := range c.toldAfter(q) {
		if *page = append(*page, k.state()); len(*page) == q.Limit {
			*next = CallCursor{direct: k.id}
		} else if len(*page) > q.Limit {
			return
		}
	}
}

// Call returns one call: one that is under way, or a held one on record that its
// caller has not settled yet. It reports false if there is none.
func (g *Gatekeeper) Call(ctx context.Context, id rpcpacket.ID) (s CallState, ok bool, err error) {
	err = g.do(ctx, func() {
		var k knownCall
		if k, ok = g.ctl.knownCall(id); ok {
			s = g.ctl.callState(k)
		}
	})
	return s, ok, err
}

// knownCall is a call on record, in the call graph, or in both.
type knownCall struct {
	id     rpcpacket.ID
	record *call           // of a held one of policy none
	exact  *execution.View // of an exactly-once one
	direct *directCall     // of one that goes past us
	view   callgraph.View  // of one without a record
}

// known finds what is on record of a call in the graph.
func (c *controller) known(v *callgraph.View) knownCall {
	k := knownCall{id: v.ID, record: c.calls[v.ID], view: *v}
	if e, ok := c.table.View(v.ID); ok {
		k.exact = &e
	}
	return k
}

// knownCalls yields every call, in no order.
func (c *controller) knownCalls() iter.Seq[knownCall] {
	return func(yield func(knownCall) bool) {
		for id, k := range c.calls {
			if !yield(knownCall{id: id, record: k}) {
				return
			}
		}
		for v := range c.table.All {
			if !yield(knownCall{id: v.Header.Call, exact: &v}) {
				return
			}
		}
		for v := range c.graph.All() {
			if _, exact := c.table.View(v.ID); !exact && c.calls[v.ID] == nil && !yield(knownCall{id: v.ID, view: v}) {
				return
			}
		}
	}
}

func (c *controller) knownCall(id rpcpacket.ID) (k knownCall, ok bool) {
	if r := c.calls[id]; r != nil {
		return knownCall{id: id, record: r}, true
	}
	if v, ok := c.table.View(id); ok {
		return knownCall{id: id, exact: &v}, true
	}
	v, ok := c.graph.Call(id)
	k = knownCall{id: id, view: v, direct: c.told.calls[id]}
	return k, ok || k.direct != nil
}

// callState puts together what the record and the graph know.
func (c *controller) callState(k knownCall) CallState {
	v := k.view
	if k.record != nil || k.exact != nil {
		v, _ = c.graph.Call(k.id)
	}
	s := viewState(&v)
	r := k.record
	switch {
	case k.exact != nil:
		c.exactState(&s, k.exact)
		return s
	case k.direct != nil:
		return k.direct.state()
	case r == nil:
		return s
	}
	s.Call, s.Caller, s.Callee, s.Service, s.Method = k.id.String(), r.caller, r.callee, r.service, r.method
	if s.Oneway = r.oneway(); !s.Oneway || v.ID.IsZero() { // a one-way's record is finished when it has gone on
		s.Stage = stageNames[r.stage]
	}
	if !r.header.Parent.IsZero() {
		s.Parent = r.header.Parent.String()
	}
	if r.refusal != nil {
		s.Code = r.refusal.Code
	}
	return s
}

// exactStages are the names of an exactly-once call's stages as people see them.
var exactStages = map[string]stage{
	"admitting": stageWaiting, "running": stageRunning, "aborting": stageReplying, "committing": stageReplying,
	"returning": stageReplying, "done": stageFinished,
}

// exactState adds what the Table knows of an exactly-once call.
func (c *controller) exactState(s *CallState, v *execution.View) {
	s.Call, s.Caller, s.Callee, s.Policy = v.Header.Call.String(), v.Caller, v.Callee.Address, v.Header.Flags.Policy().String()
	s.Stage, s.Attempts, s.Oneway = stageNames[exactStages[v.Stage]], int(v.Attempts), v.Header.Type == rpcpacket.Oneway
	if v.Held {
		s.Stage = stageNames[stageWaiting]
	}
	if s.Method == "" { // it is not under way any more
		s.Service, s.Method = c.namesOf(v)
	}
	if !v.Header.Parent.IsZero() {
		s.Parent = v.Header.Parent.String()
	}
}

// namesOf are the names of an exactly-once call's service and method.
func (c *controller) namesOf(v *execution.View) (service, method string) {
	method = v.Header.Method.String()
	s := c.services[rackaddr.ServiceOf(v.Header.Service)]
	if s == nil {
		return "", method
	}
	if n := c.nodeOrFallen(v.Callee.Address); n != nil {
		method = s.methodName(n, v.Header.Method)
	}
	return s.name, method
}

// viewState is a call as the graph alone knows it; the zero View gives nothing.
func viewState(v *callgraph.View) CallState {
	if v.ID.IsZero() {
		return CallState{}
	}
	s := CallState{
		Call: v.ID.String(), Caller: v.Caller.Address, Callee: v.Callee.Address, Service: v.Service, Method: v.Method,
		Stage: stageNames[stageRunning], Policy: v.Policy.String(), Checkpoint: v.Stage.String(),
		A1: v.Times[callgraph.A1], B1: v.Times[callgraph.B1], B2: v.Times[callgraph.B2],
		Oneway: v.Oneway, Loose: v.Loose, Orphan: v.Orphan, Attempts: v.Attempts,
	}
	if !v.Parent.IsZero() {
		s.Parent = v.Parent.String()
	}
	if !v.Behind.IsZero() {
		s.Behind = v.Behind.String()
	}
	for _, p := range v.Pointers {
		s.Pointers = append(s.Pointers, p.String())
	}
	return s
}
