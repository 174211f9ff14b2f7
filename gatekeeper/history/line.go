package history

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/trace"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// line is a line of a file: one of the three.
type line struct {
	Call   *call             `json:"call,omitempty"`
	Event  *gatekeeper.Event `json:"event,omitempty"`
	Minute *Minute           `json:"minute,omitempty"`
}

// call is a trace.Call as it is written.
type call struct {
	ID       string           `json:"id"`
	Parent   string           `json:"parent,omitempty"`
	Caller   trace.Node       `json:"caller"`
	Callee   trace.Node       `json:"callee"`
	Service  string           `json:"service,omitempty"`
	Method   string           `json:"method"`
	Policy   rpcpacket.Policy `json:"policy"`
	Oneway   bool             `json:"oneway,omitempty"`
	A1       time.Time        `json:"a1"`
	B1       time.Time        `json:"b1,omitzero"`
	B2       time.Time        `json:"b2,omitzero"`
	A2       time.Time        `json:"a2,omitzero"`
	Attempts int              `json:"attempts,omitempty"`
	Code     fault.Code       `json:"code,omitempty"`
	Steps    []step           `json:"steps"`
	Skipped  int              `json:"skipped,omitempty"`
	Details  trace.Details    `json:"details,omitzero"`
}

// step is a trace.Step as it is written.
type step struct {
	Time    time.Time  `json:"time"`
	Kind    string     `json:"kind"`
	Node    trace.Node `json:"node,omitzero"`
	Attempt uint16     `json:"attempt,omitempty"`
	Blade   string     `json:"blade,omitempty"`
	Why     string     `json:"why,omitempty"`
}

// notKept stands for the value of a header that may be a secret: files have none.
const notKept = "(not kept)"

// written is a call as it is written.
func written(c *trace.Call) *call {
	w := &call{
		ID: c.ID.String(), Caller: c.Caller, Callee: c.Callee, Service: c.Service, Method: c.Method, Policy: c.Policy, Oneway: c.Oneway,
		A1: c.A1, B1: c.B1, B2: c.B2, A2: c.A2, Attempts: c.Attempts, Code: c.Code, Skipped: c.Skipped, Steps: make([]step, len(c.Steps)), Details: c.Details,
	}
	w.Details.Headers = slices.Clone(c.Details.Headers)
	for i := range w.Details.Headers {
		if h := &w.Details.Headers[i]; h.Secret() {
			h.Value = notKept
		}
	}
	if !c.Parent.IsZero() {
		w.Parent = c.Parent.String()
	}
	for i, s := range c.Steps {
		w.Steps[i] = step{Time: s.Time, Kind: s.Kind.String(), Node: s.Node, Attempt: s.Attempt, Blade: s.Blade, Why: s.Why}
	}
	return w
}

// read is what was written.
func (w *call) read() (c trace.Call, err error) {
	c = trace.Call{
		About: trace.About{Caller: w.Caller, Callee: w.Callee, Service: w.Service, Method: w.Method, Policy: w.Policy, Oneway: w.Oneway},
		A1:    w.A1, B1: w.B1, B2: w.B2, A2: w.A2, Attempts: w.Attempts, Code: w.Code, Over: true, Skipped: w.Skipped, Steps: make([]trace.Step, len(w.Steps)), Details: w.Details.Bounded(),
	}
	if c.ID, err = readID(w.ID); err == nil && w.Parent != "" {
		c.Parent, err = readID(w.Parent)
	}
	if err == nil && (len(w.Steps) == 0 || len(w.Steps) > trace.MaxSteps || w.Attempts < 0 || w.Skipped < 0 || !w.Code.Known() || w.Policy > rpcpacket.PolicyTainted) {
		err = fmt.Errorf("call %s makes no sense", w.ID)
	}
	for i, s := range w.Steps {
		kind, known := trace.ParseKind(s.Kind)
		if !known && err == nil {
			err = fmt.Errorf("call %s: step %q is not known", w.ID, s.Kind)
		}
		c.Steps[i] = trace.Step{Time: s.Time, Kind: kind, Node: s.Node, Attempt: s.Attempt, Blade: s.Blade, Why: s.Why}
	}
	return c, err
}

func readID(text string) (id rpcpacket.ID, err error) {
	b, err := hex.DecodeString(text)
	if err == nil && (len(b) != len(id) || rpcpacket.ID(b).IsZero()) {
		err = fmt.Errorf("%q is no call id", text)
	}
	if err != nil {
		return id, err
	}
	return rpcpacket.ID(b), nil
}

// entry is what a line says: a call, an event or a minute, and when it was.
type entry struct {
	at     time.Time
	call   *trace.Call
	event  *gatekeeper.Event
	minute *Minute
}

// readLine reads a line.
func readLine(b []byte) (e entry, err error) {
	var l line
	if err := json.Unmarshal(b, &l); err != nil {
		return e, err
	}
	switch {
	case l.Call != nil:
		c, err := l.Call.read()
		return entry{at: c.A1, call: &c}, err
	case l.Event != nil && l.Event.Code.Known():
		return entry{at: l.Event.Time, event: l.Event}, nil
	case l.Minute != nil && l.Minute.Failed <= l.Minute.Calls && l.Minute.Declared <= l.Minute.Calls-l.Minute.Failed && l.Minute.P50 >= 0 && l.Minute.P99 >= 0:
		return entry{at: l.Minute.Time, minute: l.Minute}, nil
	}
	return e, errors.New("it is neither a call, nor an event, nor a minute")
}
