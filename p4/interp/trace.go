package interp

import (
	"math/big"
	"sync/atomic"

	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/v1model"
)

// EventKind is what a trace event is about.
type EventKind uint8

// The kinds of events, with the fields of Event that they fill.
const (
	// TraceIn: a packet came in. Port, Frame.
	TraceIn EventKind = iota + 1
	// TraceParser: the parser entered a state. Name.
	TraceParser
	// TraceParserError: the parser stopped. Name of the error.
	TraceParserError
	// TracePipeline: a pipeline began. Name.
	TracePipeline
	// TraceCondition: a condition was evaluated. Name (its source), Hit (its
	// value).
	TraceCondition
	// TraceTable: a table was applied. Name, Hit, Entry (of a hit), Action.
	TraceTable
	// TraceAction: an action was called by the control itself. Action.
	TraceAction
	// TraceDrop: the packet or copy was dropped. Name says why.
	TraceDrop
	// TraceCopy: a copy was made. Name says how, Port where it goes.
	TraceCopy
	// TraceOut: a packet was emitted. Port, Frame.
	TraceOut
)

// Event is something that happened to a packet.
type Event struct {
	// Packet numbers the packets handed in; copies have their original's number.
	Packet uint64
	Kind   EventKind
	Name   string
	Hit    bool
	// Entry is the entry that was hit, as the control plane or program gave it;
	// only to be read, and only during the call.
	Entry  *datapath.Entry
	Action string
	Port   datapath.Port
	// Frame may only be used during the call.
	Frame []byte
}

// Tracer is told what happens to packets. Its method runs on the packet path,
// from several goroutines at a time.
type Tracer interface{ Trace(Event) }

// trace is the tracing of one packet.
type trace struct {
	Tracer
	packet uint64
}

// tracing gives packets their numbers.
type tracing struct {
	tracer Tracer
	last   atomic.Uint64
}

// begin starts a packet's trace; nil if nobody traces.
func (t *tracing) begin(in datapath.Port, frame []byte) *trace {
	if t.tracer == nil {
		return nil
	}
	tr := &trace{t.tracer, t.last.Add(1)}
	tr.event(Event{Kind: TraceIn, Port: in, Frame: frame})
	return tr
}

func (t *trace) event(e Event) {
	e.Packet = t.packet
	t.Trace(e)
}

func (t *trace) parser(state string) { t.event(Event{Kind: TraceParser, Name: state}) }
func (t *trace) call(action string)  { t.event(Event{Kind: TraceAction, Action: action}) }

func (t *trace) condition(source string, holds bool) {
	t.event(Event{Kind: TraceCondition, Name: source, Hit: holds})
}

func (t *trace) table(name string, hit bool, e *entry, do *bound) {
	v := Event{Kind: TraceTable, Name: name, Hit: hit}
	if hit {
		v.Entry = &e.source
	}
	if do != nil {
		v.Action = do.def.Name
	}
	t.event(v)
}

// assert compiles an assertion. bmv2 aborts if one fails; here the packet is
// lost, and the log says why.
func (c *compiler) assert(st v1model.Assert) step {
	cond := c.cond(st.Cond)
	return func(s *state) {
		if !cond(s) {
			s.lost, s.exit = assertionFailed, true
			c.log.Error("assertion failed, packet dropped", "assertion", st.Text)
		}
	}
}

func (c *compiler) logMessage(st v1model.Log) step {
	var args []bigNum
	for _, a := range st.Args {
		args = append(args, c.big(a))
	}
	return func(s *state) {
		values := make([]*big.Int, len(args))
		for i, a := range args {
			values[i] = new(big.Int)
			a(s, values[i])
		}
		c.log.Info(st.Text(values))
	}
}
