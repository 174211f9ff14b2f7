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

// vacantFor is for how long nobody must be primary, at each attempt, before a controller whose election id is too low takes a higher one.
var vacantFor = 4 * waits.Most

// Keep opens a session, calls serve with it and, when the session has ended,
// begins again. It returns when ctx ends, when serve returns an error that a new
// session does not cure, or when another controller is primary (ErrNotPrimary).
// The session is closed when serve returns.
//
// A controller's election id may be lower than one that the switch remembers though nobody is primary: its predecessor is gone,
// the log has lost that one's id with the power, and the clock is behind. Then the controller takes the id that follows the one which
// the switch names (see Election). That deposes no living primary:
//
//   - The switch says that nobody is primary, again and again for two seconds. A controller that has lost its connection tries
//     twice a second. As soon as it has it back, we are told that somebody is primary, and end.
//   - If somebody becomes primary with a higher id just then, ours is too low again.
//   - Whoever has been primary never takes a higher id: one that finds a higher id at the switch has been deposed, and ends.
func (c *Client) Keep(ctx context.Context, serve func(context.Context, *Session) error) error {
	wait, vacant := waits.First, time.Duration(0)
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
		var v *vacancy
		switch {
		case errors.As(err, &v) && !c.rules.Load():
			if vacant >= vacantFor {
				next := v.highest.after()
				c.log.WarnContext(ctx, "nobody is primary, and the election id is too low: it takes the one that follows the last primary's",
					"was", c.Election(), "is", next)
				c.asElect.Store(&next)
				vacant = 0
				continue
			}
			vacant += wait
		case errors.Is(err, ErrNotPrimary):
			return err
		default:
			vacant = 0
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
