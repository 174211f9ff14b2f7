package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/internal/pace"
)

// maxEvent bounds one event, in bytes: with 4096 rules it has half a MiB.
const maxEvent = 4 << 20

// reconnects is how long Follow waits until it connects again, until it has connected.
var reconnects = pace.Pauses{First: time.Second, Most: 16 * time.Second}

// Message is one message of a stream of events: an event, or the note that some
// were missed.
type Message struct {
	Event *api.Event
	Gap   *api.Gap
}

// FollowOptions say what to follow.
type FollowOptions struct {
	Replay int // begin with so many of the latest events
	Filter EventFilter
	// Lost is told why the stream broke, before it is opened again; once for each
	// outage. Nil ignores it.
	Lost func(error)
}

// Follow calls f with every message until ctx ends, f returns an error, or the
// Gatekeeper refuses or cannot be reached at first. When a stream breaks, another
// one is opened behind the last event.
func (c *Client) Follow(ctx context.Context, o FollowOptions, f func(Message) error) error {
	s := follower{c: c, o: o, f: f}
	for wait := time.Duration(0); ; {
		connected, err := s.read(ctx)
		var p *api.Problem
		var stop stopped
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &stop):
			return stop.error
		case !s.opened, errors.As(err, &p) && p.Status < http.StatusInternalServerError:
			return err
		}
		if connected {
			wait = 0
			if o.Lost != nil {
				o.Lost(err)
			}
		}
		wait = reconnects.Next(wait)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

// stopped is an error of the one who follows.
type stopped struct{ error }

// follower is a Follow under way.
type follower struct {
	c      *Client
	o      FollowOptions
	f      func(Message) error
	opened bool   // a stream, at least once
	last   string // id of the last event
}

// read reads one stream to its end, if there is one.
func (s *follower) read(ctx context.Context) (connected bool, err error) {
	header := http.Header{"Accept": {"text/event-stream"}}
	if s.last != "" {
		header.Set("Last-Event-ID", s.last)
	}
	query := values(append(s.o.Filter.pairs(), "replay", strconv.Itoa(s.o.Replay))...)
	resp, err := s.c.do(ctx, http.MethodGet, "/v1/events", query, header, nil)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	s.opened = true
	return true, readStream(resp.Body, &s.last, s.f)
}

// readStream reads server-sent events, as the HTML standard defines them; what it
// does not know it ignores.
func readStream(r io.Reader, last *string, f func(Message) error) error {
	in := bufio.NewScanner(r)
	in.Buffer(nil, maxEvent)
	var kind, id string
	var data []string
	for in.Scan() {
		field, value, _ := strings.Cut(in.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case in.Text() == "":
			if err := dispatch(kind, strings.Join(data, "\n"), f); err != nil {
				return err
			}
			if id != "" {
				*last = id
			}
			kind, data = "", nil
		case field == "event":
			kind = value
		case field == "data":
			data = append(data, value)
		case field == "id":
			id = value
		}
	}
	if err := in.Err(); err != nil {
		return fmt.Errorf("stream of events: %w", err)
	}
	return io.ErrUnexpectedEOF
}

// dispatch hands on one message.
func dispatch(kind, data string, f func(Message) error) (err error) {
	var m Message
	switch {
	case data == "":
		return nil
	case kind == "" || kind == "message":
		m.Event = &api.Event{}
		err = json.Unmarshal([]byte(data), m.Event)
	case kind == "gap":
		m.Gap = &api.Gap{}
		err = json.Unmarshal([]byte(data), m.Gap)
	default:
		return nil
	}
	if err != nil {
		return fmt.Errorf("stream of events: %w", err)
	}
	if err := f(m); err != nil {
		return stopped{err}
	}
	return nil
}
