package daemon

import (
	"context"
	"fmt"
	"time"

	"github.com/bifrost-rack/bifrost/internal/duration"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// Thresholds implements join.Hosted.
func (n *node) Thresholds() join.Thresholds {
	if n.started == nil {
		return join.Thresholds{}
	}
	s := &n.started.start
	return join.Thresholds{Answer: duration.Times(s.AnswerMS, time.Millisecond), Progress: duration.Times(s.ProgressMS, time.Millisecond)}
}

// Hung implements join.Hosted.
func (n *node) Hung(reason string) {
	if n.started != nil {
		n.daemon.killHung(n.started, reason)
	}
}

// killHung kills a program that does not work any more. Its end is its node's, as any.
func (c *Compute) killHung(p *program, reason string) {
	c.reg.log.Warn("program hangs: it is killed", "program", p.start.Name, "pid", p.process.PID(), "reason", reason)
	c.mu.Lock()
	p.hung = reason
	c.mu.Unlock()
	p.process.Kill()
}

// hung is why a program was killed, "" if it was not.
func (c *Compute) hung(p *program) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return p.hung
}

// awaitReady kills a program that does not export all its services in time after its start.
func (c *Compute) awaitReady(ctx context.Context, p *program) {
	limit := duration.Times(p.start.ReadyMS, time.Millisecond)
	if limit == 0 {
		return
	}
	select {
	case <-ctx.Done():
		return
	case <-p.process.Done():
		return
	case <-time.After(limit):
	}
	if missing, ok := c.unready(p); !ok {
		c.killHung(p, fmt.Sprintf("it was not ready after %v: %s", limit, missing))
	}
}

// unready says what a program has not done that makes it ready.
func (c *Compute) unready(p *program) (missing string, ready bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.nodes {
		if n.started != p {
			continue
		}
		for _, s := range p.start.Services {
			if n.exports[rackaddr.Service(s)] == nil {
				return "it does not export " + s, false
			}
		}
		return "", true
	}
	return "it has not joined", false
}
