package interp

import (
	"encoding/hex"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/trace"
)

// watch is a trace that somebody watches while packets run.
type watch struct {
	x        *Executor
	filter   pred // nil: all packets
	sample   uint64
	interval int64 // ns between two packets
	session  *trace.Session

	matched, skipped atomic.Uint64
	next             atomic.Int64 // when the next packet may be traced, in ns
}

// maxTraced is how many steps of a packet are told at most.
const maxTraced = 4096

// Trace traces packets from now on, until the session is stopped. There is one at a time. An error of the filter is a *trace.FilterError.
func (x *Executor) Trace(spec trace.Spec) (*trace.Session, error) {
	e, err := trace.ParseFilter(x.c.prog, spec.Filter)
	if err != nil {
		return nil, err
	}
	w := &watch{x: x, sample: uint64(max(spec.Sample, 1)), interval: int64(time.Second) / int64(spec.PacketRate())}
	if e != nil {
		w.filter = x.c.cond(e)
	}
	w.session = trace.NewSession(func() trace.Counts {
		return trace.Counts{Matched: w.matched.Load(), Skipped: w.skipped.Load()}
	}, func() { x.tracing.session.CompareAndSwap(w, nil) })
	if !x.tracing.session.CompareAndSwap(nil, w) {
		return nil, fmt.Errorf("%w: another trace runs", datapath.ErrExists)
	}
	if x.closed.Load() { // perhaps Close has not seen it
		w.session.Stop()
		return nil, os.ErrClosed
	}
	return w.session, nil
}

// collected is what a watched packet has met so far.
type collected struct {
	of          *watch
	p           trace.Packet
	decided, on bool
}

func (w *watch) begin(in datapath.Port, length int) *collected {
	return &collected{of: w, p: trace.Packet{Port: in, Bytes: length, TimeNs: uint64(w.now())}}
}

func (w *watch) now() int64 { return int64(w.x.c.now().Sub(w.x.start)) }

// decide finds out whether the packet is one of those that are traced.
func (c *collected) decide(s *state) {
	if c.decided {
		return
	}
	c.decided = true
	w := c.of
	if w.filter != nil && !w.filter(s) {
		return
	}
	if n := w.matched.Add(1); n%w.sample != 0 {
		return
	}
	for {
		next, now := w.next.Load(), w.now()
		from := max(next, now-int64(trace.Burst))
		if from > now {
			w.skipped.Add(1)
			return
		}
		if w.next.CompareAndSwap(next, from+w.interval) {
			break
		}
	}
	c.on = true
}

// end gives the packet to who watches.
func (c *collected) end(s *state) {
	c.decide(s)
	if c.on {
		c.of.session.Put(&c.p)
	}
}

var stepKinds = map[EventKind]string{
	TraceParser: trace.Parser, TraceParserError: trace.ParserError, TracePipeline: trace.Pipeline, TraceCondition: trace.Condition,
	TraceTable: trace.Table, TraceAction: trace.Action, TraceDrop: trace.Drop, TraceCopy: trace.Copy, TraceOut: trace.Out,
	TraceRead: trace.Read, TraceWrite: trace.Write,
}

// add notes a step of a packet that may be traced.
func (c *collected) add(e *Event) {
	kind, ok := stepKinds[e.Kind]
	if !ok || c.decided && !c.on {
		return
	}
	if c.p.Cut = len(c.p.Steps) == maxTraced; c.p.Cut {
		return
	}
	st := trace.Step{Kind: kind, Name: e.Name, Action: e.Action}
	port, hit, index := e.Port, e.Hit, e.Index
	switch e.Kind {
	case TraceCondition, TraceTable:
		st.Hit = &hit
	case TraceRead, TraceWrite:
		st.Index, st.Value = &index, hex.EncodeToString(e.Value)
	case TraceOut:
		st.Port, st.Bytes = &port, len(e.Frame)
	case TraceCopy:
		if port != 0 {
			st.Port = &port
		}
	default: // a name
	}
	st.Key, st.Params = hexFields(e.Key), hexFields(e.Params)
	if e.Entry != nil {
		st.Match, st.Priority = trace.Describe(e.Match), e.Entry.Priority
	}
	c.p.Steps = append(c.p.Steps, st)
}

func hexFields(of []KeyValue) (out []trace.Field) {
	for _, f := range of {
		out = append(out, trace.Field{Name: f.Name, Value: hex.EncodeToString(f.Value)})
	}
	return out
}
