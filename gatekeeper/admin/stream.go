package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
)

// retry is how long a browser waits until it connects again.
const retry = 2 * time.Second

type streamInput struct {
	EventFilter
	Last   string `header:"Last-Event-ID" maxLength:"64" doc:"Go on behind this event"`
	Replay int    `query:"replay" minimum:"0" maximum:"4096" default:"0" doc:"Without Last-Event-ID: begin with so many of the latest events"`
	Rate   int    `query:"rate" minimum:"0" maximum:"10000" default:"0" doc:"At most so many events a second, the latest ones; a gap tells how many others there were. 0 sends all"`
}

const streamDoc = `Server-sent events: each message is an Event in JSON, its SSE id the event's id. Send that as Last-Event-ID to go on behind it; the latest 4096 events are kept. In the place of events that are lost comes a message of SSE type "gap" with a Gap. A comment shows every 15 seconds that the stream is alive.`

// registerStream describes and serves /v1/events.
func (s *Server) registerStream(h huma.API) {
	schemas := h.OpenAPI().Components.Schemas
	schema := &huma.Schema{OneOf: []*huma.Schema{schemas.Schema(typeOf[api.Event](), true, ""), schemas.Schema(typeOf[api.Gap](), true, "")}}
	op := operation(http.MethodGet, "/v1/events", "stream-events", "Events", "Follow what happens")
	op.Description += " " + streamDoc
	op.Responses = map[string]*huma.Response{"200": {
		Description: "A stream that does not end by itself", Content: map[string]*huma.MediaType{"text/event-stream": {Schema: schema}},
	}}
	op.Errors = append(op.Errors, http.StatusBadRequest)
	huma.Register(h, op, func(_ context.Context, in *streamInput) (*huma.StreamResponse, error) {
		p, restarted, err := s.hub.latest(in.Replay), false, error(nil)
		if in.Last != "" {
			p, restarted, err = s.hub.resume(in.Last)
		}
		if err != nil {
			return nil, newProblem(http.StatusBadRequest, "Last-Event-ID: "+err.Error())
		}
		if !s.streams.acquire() {
			return nil, huma.ErrorWithHeaders(
				newProblem(http.StatusServiceUnavailable, fmt.Sprintf("%d streams of events are being read already", maxStreams)),
				http.Header{"Retry-After": {"10"}})
		}
		return &huma.StreamResponse{Body: func(ctx huma.Context) {
			defer s.streams.release()
			r, w := humago.Unwrap(ctx)
			st := &stream{hub: s.hub, filter: in.EventFilter, rate: in.Rate, replay: in.Replay, w: w, control: http.NewResponseController(w)}
			if err := st.run(r.Context(), p, restarted); err != nil {
				s.log.Debug("event stream ended", "remote", r.RemoteAddr, "error", err)
			}
		}}, nil
	})
}

// stream writes events to one reader.
type stream struct {
	hub     *hub
	filter  EventFilter
	rate    int // events a second; 0 is all
	replay  int // events that do not count, at first
	w       http.ResponseWriter
	control *http.ResponseController
}

// run writes events behind a position until ctx ends, the reader is gone, or there
// will be no more.
func (s *stream) run(ctx context.Context, p position, restarted bool) error {
	h := s.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // proxies that know it pass events on at once
	if err := s.control.SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	begin := fmt.Sprintf("retry: %d\n\n", retry.Milliseconds())
	if restarted {
		begin += gap(0)
	}
	if err := s.send(begin); err != nil {
		return err
	}
	alive := time.NewTicker(heartbeat)
	defer alive.Stop()
	for ctx.Err() == nil {
		events, more := s.hub.read(p, s.batch())
		if len(events) == 0 && more == nil {
			return nil
		}
		text, err := s.format(events, &p)
		if err == nil && text != "" {
			err = s.send(text)
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-more: // nil after events: then only a pause
		case <-alive.C:
			if err := s.send(": alive\n\n"); err != nil {
				return err
			}
		case <-s.pause(len(events) > 0):
		}
	}
	return nil
}

// pace is how often a stream with a rate writes.
const pace = 250 * time.Millisecond

// batch is how many events are read at a time: with a rate all there are, to choose
// the latest.
func (s *stream) batch() int {
	if s.rate > 0 {
		return kept
	}
	return streamBatch
}

// pause is ready when the stream may go on after events: at once, or as its rate
// has it. It never is while there is nothing to write.
func (s *stream) pause(events bool) <-chan time.Time {
	switch {
	case !events:
		return nil
	case s.rate > 0:
		return time.After(pace)
	}
	return time.After(0)
}

// told is an event that goes to the reader, and how many it has missed before.
type told struct {
	event  *gatekeeper.Event
	missed uint64
}

// choose picks from events behind a position what goes to the reader, and moves the
// position behind them. missed is how many were lost after the last one.
func (s *stream) choose(events []gatekeeper.Event, p *position) (all []told, missed uint64) {
	for i := range events {
		e := &events[i]
		if p.known {
			missed += e.Seq - p.seq - 1
		}
		*p = position{e.Seq, true}
		if s.filter.takes(e) {
			all = append(all, told{e, missed})
			missed = 0
		}
	}
	if s.rate == 0 {
		return all, missed
	}
	most := max(1, s.replay, int(time.Duration(s.rate)*pace/time.Second))
	s.replay = 0
	for len(all) > most {
		all[1].missed += all[0].missed + 1
		all = all[1:]
	}
	return all, missed
}

// format writes events as SSE, with gaps where some are missing.
func (s *stream) format(events []gatekeeper.Event, p *position) (string, error) {
	all, missed := s.choose(events, p)
	var out []byte
	for _, t := range all {
		if t.missed > 0 {
			out = append(out, gap(t.missed)...)
		}
		id := s.hub.id(t.event.Seq)
		data, err := json.Marshal(eventOf(id, t.event))
		if err != nil {
			return "", err
		}
		out = fmt.Appendf(out, "id: %s\ndata: %s\n\n", id, data)
	}
	if missed > 0 {
		out = append(out, gap(missed)...)
	}
	return string(out), nil
}

// gap is the message in the place of missed events.
func gap(missed uint64) string {
	data, _ := json.Marshal(api.Gap{Missed: missed}) // it has only a number
	return fmt.Sprintf("event: gap\ndata: %s\n\n", data)
}

// send writes text at once, or fails when the reader does not take it.
func (s *stream) send(text string) error {
	if err := s.control.SetWriteDeadline(time.Now().Add(requestTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if _, err := s.w.Write([]byte(text)); err != nil {
		return err
	}
	return s.control.Flush()
}
