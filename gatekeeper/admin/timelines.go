package admin

import (
	"context"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/history"
	"github.com/bifrost-rack/bifrost/gatekeeper/trace"
	"github.com/bifrost-rack/bifrost/internal/duration"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/suggest"
)

type timelinesInput struct {
	PageInput
	Node    netip.Addr `query:"node" format:"ipv6" doc:"Only calls that this node has made or served"`
	Caller  netip.Addr `query:"caller" format:"ipv6" doc:"Only calls that this node has made"`
	Service string     `query:"service" maxLength:"255" doc:"Only calls of this service"`
	Method  string     `query:"method" maxLength:"255" doc:"Only calls of methods of this name"`
	Code    string     `query:"code" maxLength:"64" doc:"Only calls that have ended so: ok, or the code of an exception" example:"unavailable"`
	Failed  bool       `query:"failed" doc:"Only calls that were refused, ended with an exception that the IDL does not declare, or had to be run again"`
	Rerun   bool       `query:"rerun" doc:"Only calls that had to be run again"`
	Roots   bool       `query:"roots" doc:"Only calls that no other remembered call has made"`
	Longer  float64    `query:"longer" minimum:"0" maximum:"1e10" doc:"Only calls that took so many seconds at least, or have been under way for that long"`
	Since   time.Time  `query:"since" doc:"Only calls that were sent then or later"`
	Until   time.Time  `query:"until" doc:"Only calls that were sent before that"`
}

type methodsInput struct {
	ListInput
	Service string `query:"service" maxLength:"255" doc:"Only methods of this service"`
}

// registerTimelines serves what became of the latest calls.
func (s *Server) registerTimelines(h huma.API) {
	get(h, "/v1/timelines", "list-timelines", "Work", "The latest calls with all that has happened to them, also when they are over; the last one first", s.timelines, http.StatusBadRequest)
	get(h, "/v1/history", "get-history", "Work", "How many calls there were in each minute of the last two days, also before a restart of the Gatekeeper", s.past)
	get(h, "/v1/methods", "list-methods", "Work", "What has become of the calls of each method since the Gatekeeper began: how many, how many have failed and why, how long they took", s.methods)
	get(h, "/v1/calls/{id}/timeline", "get-timeline", "Questions", "What became of a call, and of those that belong together with it", s.timeline, http.StatusNotFound)
}

// formerRuns is what a cursor begins with that leads to the calls of former runs.
const formerRuns = "f"

func (s *Server) timelines(ctx context.Context, in *timelinesInput) (out api.List[api.Timeline], err error) {
	q := trace.Query{
		Node: in.Node, Caller: in.Caller, Service: in.Service, Method: in.Method, Failed: in.Failed, Rerun: in.Rerun, Roots: in.Roots,
		HasCode: in.Code != "", Longer: duration.Seconds(in.Longer), Now: time.Now(), Since: in.Since, Until: in.Until, Limit: in.Limit,
	}
	if q.HasCode {
		var known bool
		if q.Code, known = codeNamed(in.Code); !known {
			return out, newProblem(http.StatusBadRequest, "code: there is no code "+strconv.Quote(in.Code)+suggest.Text(in.Code, fault.Names()))
		}
	}
	cursor, former := strings.CutPrefix(in.Cursor, formerRuns)
	if cursor != "" {
		if q.Before, err = strconv.ParseUint(cursor, 10, 64); err != nil || q.Before == 0 {
			return out, newProblem(http.StatusBadRequest, "cursor: "+strconv.Quote(in.Cursor)+" is none")
		}
	}
	var page []trace.Call
	var next uint64
	more := 0 // of the page: those of former runs, at its end
	if !former {
		if page, next, err = s.backend.Timelines(ctx, q); next != 0 {
			out.Next = strconv.FormatUint(next, 10)
		}
		q.Before = 0
		q.Limit -= len(page)
		page = slices.DeleteFunc(page, func(c trace.Call) bool { return s.history.Knows(c.ID) })
	}
	switch {
	case err != nil || next != 0:
	case q.Limit == 0: // nobody has asked for those of former runs yet
		out.Next = formerRuns
	default:
		var rest []trace.Call
		rest, next = s.history.Timelines(q)
		more = len(rest)
		if page = append(page, rest...); next != 0 {
			out.Next = formerRuns + strconv.FormatUint(next, 10)
		}
	}
	out.Items = each(page, func(c *trace.Call) api.Timeline { return timelineFor(ctx, c, 0) })
	for i := len(page) - more; i < len(page); i++ {
		out.Items[i].Former = true
	}
	return out, err
}

func (s *Server) past(ctx context.Context, _ *none) (api.History, error) {
	state := s.history.State()
	out := api.History{
		Began: state.Began, Since: state.Since, Kept: state.Kept, Missed: state.Missed, Calls: state.Calls,
		Minutes: each(s.history.Minutes(), func(m *history.Minute) api.Minute {
			return api.Minute{Time: m.Time, Calls: m.Calls, Declared: m.Declared, Failed: m.Failed, P50: m.P50, P99: m.P99}
		}),
	}
	if state.Trouble != nil {
		out.Trouble = state.Trouble.Error()
	}
	_, err := s.backend.Connected(ctx) // of a Gatekeeper that has stopped the last figures are missing
	return out, err
}

func (s *Server) methods(ctx context.Context, in *methodsInput) (api.List[api.MethodFigures], error) {
	all, err := s.backend.Methods(ctx)
	if in.Service != "" {
		all = slices.DeleteFunc(all, func(m trace.Method) bool { return m.Service != in.Service })
	}
	return paged(&in.ListInput, each(all, figuresOf), func(m *api.MethodFigures) string { return methodName(m.Service, m.Method) }), err
}

func figuresOf(m *trace.Method) api.MethodFigures {
	out := api.MethodFigures{Service: m.Service, Method: m.Method, Open: m.Open, Rerun: m.Rerun, Failed: map[string]uint64{}}
	for code, n := range m.Ended {
		out.Calls += n
		switch {
		case code == fault.Declared:
			out.Declared = n
		case code.Failure():
			out.Failed[code.String()] += n
		}
	}
	timed := uint64(0)
	for i, n := range m.Buckets {
		if timed += n; n > 0 {
			out.Slow = m.Examples[i].Call.String()
		}
	}
	if timed > 0 {
		out.Mean = m.Seconds / float64(timed)
	}
	for q, at := range map[float64]*float64{0.5: &out.P50, 0.95: &out.P95, 0.99: &out.P99} {
		*at, _ = m.Quantile(q)
	}
	return out
}

func (s *Server) timeline(ctx context.Context, in *callInput) (out api.Trace, err error) {
	id, err := parseID(in.ID)
	if err != nil {
		return out, newProblem(http.StatusUnprocessableEntity, err.Error())
	}
	var tree []trace.Leaf
	var more bool
	former := s.history.Knows(id)
	if former {
		tree, more = s.history.Timeline(id, maxTrace)
	} else {
		tree, more, err = s.backend.Timeline(ctx, id, maxTrace)
	}
	if err == nil && len(tree) == 0 {
		err = newProblem(http.StatusNotFound, "call "+in.ID+" is not among those that are remembered")
	}
	out = api.Trace{Call: in.ID, More: more, Calls: each(tree, func(l *trace.Leaf) api.Timeline { return timelineFor(ctx, &l.Call, l.Depth) })}
	for i := range out.Calls {
		out.Calls[i].Former = former
	}
	return out, err
}

// timelineFor is a call as whoever asks may see it.
func timelineFor(ctx context.Context, c *trace.Call, depth int) api.Timeline {
	d := &c.Details
	t := api.Timeline{
		ID: c.ID.String(), Depth: depth, Caller: c.Caller.Address, Callee: c.Callee.Address, Service: c.Service, Method: c.Method,
		Policy: c.Policy.String(), Oneway: c.Oneway, A1: c.A1, B1: c.B1, B2: c.B2, A2: c.A2,
		Over: c.Over, Code: codeOf(c.Code), Attempts: c.Attempts, Skipped: c.Skipped,
		Exception: d.Exception, Text: d.Text, Arguments: d.Arguments, Answer: d.Answer, Headers: headersOf(d.Headers, whoAsks(ctx).Role < RoleDeploy),
		Steps: each(c.Steps, func(s *trace.Step) api.Step {
			return api.Step{Time: s.Time, Kind: s.Kind.String(), Node: s.Node.Address, Attempt: int(s.Attempt), Blade: s.Blade, Why: s.Why}
		}),
	}
	if !c.Parent.IsZero() {
		t.Parent = c.Parent.String()
	}
	return t
}
