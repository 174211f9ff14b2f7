package interp

import (
	"math/big"
	"slices"
	"sync/atomic"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
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
	// TraceAction: an action was called by the control itself, or by a member of an action profile. Action, and Params of a member.
	TraceAction
	// TraceDrop: the packet or copy was dropped. Name says why.
	TraceDrop
	// TraceCopy: a copy was made. Name says how, Port where it goes.
	TraceCopy
	// TraceOut: a packet was emitted. Port, Frame.
	TraceOut
	// TraceRead, TraceWrite: a register was read or written. Name, Index, Value.
	TraceRead
	TraceWrite
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
	Entry *datapath.Entry
	// Match is the entry's, without masks of all bits.
	Match  []datapath.Match
	Action string
	// Key is what the packet has for the table's key, big-endian.
	Key []KeyValue
	// Params are the action's, big-endian.
	Params []KeyValue
	Index  uint64
	Value  []byte
	Port   datapath.Port
	// Frame may only be used during the call.
	Frame []byte
}

// KeyValue is a field or a parameter and its value.
type KeyValue struct {
	Name  string
	Value []byte
}

// Tracer is told what happens to packets. Its method runs on the packet path,
// from several goroutines at a time.
type Tracer interface{ Trace(Event) }

// packetTrace is the tracing of one packet.
type packetTrace struct {
	to     Tracer     // nil if there is only a session
	of     *collected // nil if there is no session
	packet uint64
}

// tracing gives packets their numbers.
type tracing struct {
	tracer  Tracer
	session atomic.Pointer[watch]
	last    atomic.Uint64
}

// begin starts a packet's trace; nil if nobody traces.
func (t *tracing) begin(in datapath.Port, frame []byte) *packetTrace {
	own := t.session.Load()
	if t.tracer == nil && own == nil {
		return nil
	}
	tr := &packetTrace{to: t.tracer, packet: t.last.Add(1)}
	if own != nil {
		tr.of = own.begin(in, len(frame))
	}
	tr.event(Event{Kind: TraceIn, Port: in, Frame: frame})
	return tr
}

func (t *packetTrace) event(e Event) {
	e.Packet = t.packet
	if t.to != nil {
		t.to.Trace(e)
	}
	if t.of != nil {
		t.of.add(&e)
	}
}

func (t *packetTrace) parser(state string) { t.event(Event{Kind: TraceParser, Name: state}) }
func (t *packetTrace) call(action string)  { t.event(Event{Kind: TraceAction, Action: action}) }

func (t *packetTrace) condition(source string, holds bool) {
	t.event(Event{Kind: TraceCondition, Name: source, Hit: holds})
}

func (t *packetTrace) table(of *table, key []uint64, hit bool, e *entry, do *bound) {
	v := Event{Kind: TraceTable, Name: of.def.Name, Hit: hit}
	for i := range of.plan.fields {
		f := &of.plan.fields[i]
		v.Key = append(v.Key, KeyValue{f.Name, f.valueIn(key)})
	}
	if hit {
		v.Entry = &e.source
		for i, m := range e.source.Match {
			f := &of.plan.fields[i]
			n := f.sl.width
			switch {
			case m.Mask != nil && slices.Equal(bytesToWords(m.Mask, n), fullMask(n)):
				m.Mask = nil // all of it
			case m.Mask != nil && slices.Max(m.Mask) == 0, f.Kind == v1model.MatchLPM && m.PrefixLen == 0:
				m = datapath.Match{Wildcard: true} // the program's own entries do not say so
			}
			v.Match = append(v.Match, m)
		}
	}
	if do != nil && of.profile == nil {
		v.Action, v.Params = do.def.Name, do.params()
	}
	t.event(v)
	if do != nil && of.profile != nil {
		t.event(Event{Kind: TraceAction, Action: do.def.Name, Params: do.params()})
	}
}

// params are the action's parameters, with the arguments that it is bound to.
func (b *bound) params() (out []KeyValue) {
	for i, p := range b.def.Params {
		out = append(out, KeyValue{p.Name, wordsToBytes(b.args[b.argAt[i]:][:wordsFor(p.Width)], p.Width)})
	}
	return out
}

// register tells of an access to a register's cell.
func (t *packetTrace) register(kind EventKind, r *register, index uint64, cell []uint64) {
	t.event(Event{Kind: kind, Name: r.def.Name, Index: index, Value: wordsToBytes(cell, r.def.Width)})
}

// valueIn is the field's value in a packed key.
func (f *keyField) valueIn(key []uint64) []byte {
	if f.single {
		return wordsToBytes([]uint64{key[f.first] >> f.shift & mask64(f.sl.width)}, f.sl.width)
	}
	return wordsToBytes(key[f.first:f.first+f.sl.n], f.sl.width)
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
