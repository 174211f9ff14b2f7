package p4rtclient

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/bifrost-rack/bifrost/internal/pace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// waits are those between attempts to reach the switch: a restarted switch is found within
// half a second, a dead one costs two attempts a second.
var waits = pace.Pauses{First: 20 * time.Millisecond, Most: 500 * time.Millisecond}

// Keep opens a session, calls serve with it and, when the session has ended,
// begins again. It returns when ctx ends, when serve returns an error that a new
// session does not cure, or when another controller is primary (ErrNotPrimary).
// The session is closed when serve returns.
func (c *Client) Keep(ctx context.Context, serve func(context.Context, *Session) error) error {
	wait := waits.First
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		s, err := c.Open(ctx)
		if err == nil {
			wait = waits.First
			err = serve(ctx, s)
			lost := s.Err()
			s.Close()
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case errors.Is(lost, ErrNotPrimary):
				return lost
			case err != nil && lost == nil && !passing(err):
				return err
			case lost != nil:
				err = lost
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, ErrNotPrimary) {
			return err
		}
		level := slog.LevelDebug
		if wait == waits.First { // once for each outage is enough
			level = slog.LevelWarn
		}
		c.log.Log(ctx, level, "no connection to the switch", "error", err)
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
		wait = waits.Next(wait)
	}
}

// passing reports whether an error says that the switch could not be reached, or
// that somebody else may have become primary, which the next arbitration tells.
func passing(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, ErrClosed) {
		return true
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Aborted, codes.PermissionDenied:
		return true
	}
	return false
}
