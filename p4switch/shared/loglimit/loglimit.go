// Package loglimit bounds how much a program logs of one kind. What goes wrong with each call or each packet may go wrong a thousand
// times a second, and whoever reads the log then finds nothing else in it.
//
//	the first Lines of a kind within Interval ─▶ logged
//	all others ─▶ counted ── at the interval's end ──▶ the last of them is logged, with their number (alike)
//
// A kind is a level and a message. Only warnings and errors are counted.
package loglimit

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Of each kind so many lines are logged within an interval, and one more at the interval's end if there were others.
const (
	Lines    = 32
	Interval = 10 * time.Second
)

// Handler is a slog.Handler that passes on what is within the bounds. Those that WithAttrs and WithGroup return count together with it.
type Handler struct {
	slog.Handler
	kinds *kinds
}

// kinds are the kinds of lines that have been logged within the last interval.
type kinds struct {
	mu  sync.Mutex
	all map[kind]*count
}

type kind struct {
	level   slog.Level
	message string
}

// count is what has been logged of a kind since its interval has begun.
type count struct {
	lines int
	alike int          // further ones
	last  slog.Record  // of these
	by    slog.Handler // which it came to
	timer *time.Timer  // ends the interval
}

// New returns a handler in front of another one.
func New(h slog.Handler) *Handler { return &Handler{h, &kinds{all: map[kind]*count{}}} }

// Handle implements slog.Handler.
func (h *Handler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn && !h.kinds.pass(h.Handler, r) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &Handler{h.Handler.WithAttrs(attrs), h.kinds}
}

// WithGroup implements slog.Handler.
func (h *Handler) WithGroup(name string) slog.Handler {
	return &Handler{h.Handler.WithGroup(name), h.kinds}
}

// Flush ends all intervals: what was counted is logged.
func (h *Handler) Flush() {
	h.kinds.mu.Lock()
	var ended []*count
	for k, c := range h.kinds.all {
		c.timer.Stop()
		delete(h.kinds.all, k)
		ended = append(ended, c)
	}
	h.kinds.mu.Unlock()
	for _, c := range ended {
		c.log()
	}
}

// pass counts a line, and reports whether it is logged.
func (all *kinds) pass(by slog.Handler, r slog.Record) bool {
	k := kind{r.Level, r.Message}
	all.mu.Lock()
	defer all.mu.Unlock()
	c := all.all[k]
	if c == nil {
		c = new(count)
		c.timer = time.AfterFunc(Interval, func() { all.end(k, c) })
		all.all[k] = c
	}
	if c.lines < Lines {
		c.lines++
		return true
	}
	c.alike++
	c.last, c.by = r.Clone(), by
	return false
}

// end ends the interval of a kind.
func (all *kinds) end(k kind, c *count) {
	all.mu.Lock()
	present := all.all[k] == c
	if present {
		delete(all.all, k)
	}
	all.mu.Unlock()
	if present {
		c.log()
	}
}

// log logs what was counted, if anything.
func (c *count) log() {
	if c.alike == 0 {
		return
	}
	c.last.AddAttrs(slog.Int("alike", c.alike))
	_ = c.by.Handle(context.Background(), c.last) // there is nobody to tell
}
