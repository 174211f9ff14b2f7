package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/bench/peer"
	"github.com/bifrost-rack/bifrost/bench/stats"
)

// Limits of a measurement.
const (
	maxCallers = 1024
	maxTime    = time.Minute
)

// callTimeout bounds the preparation and all calls of a measurement beyond the
// time it is to take: a peer that hangs fails.
const callTimeout = 20 * time.Second

// timeForMiB is how much longer for each MiB that an operation moves.
const timeForMiB = 100 * time.Millisecond

// takes is the time that a measurement is to take at most, unless a peer hangs.
func (m Measure) takes() time.Duration {
	return m.Warmup + m.For + time.Duration((m.Work.Size+m.Work.Reply)>>20)*timeForMiB
}

func (m Measure) check() error {
	if m.Callers < 1 || m.Callers > maxCallers {
		return fmt.Errorf("%d callers: 1 to %d", m.Callers, maxCallers)
	}
	if m.Warmup < 0 || m.Warmup > maxTime || m.For <= 0 || m.For > maxTime || m.Max < 0 {
		return fmt.Errorf("warm-up %v, %v, %d operations: out of range", m.Warmup, m.For, m.Max)
	}
	return nil
}

// caller is one of the goroutines that measure.
type caller struct {
	Measure
	client peer.Client
	phases *peer.Phases
	took   []time.Duration
	// longest is the longest one, and over is when that was.
	longest time.Duration
	over    time.Time
	err     error
}

// measure has callers begin together and adds up what they have measured.
func (a *agent) measure(ctx context.Context, m Measure) (*stats.Summary, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, m.takes()+callTimeout)
	defer cancel()
	callers := make([]caller, m.Callers)
	var ready, done sync.WaitGroup
	begin := make(chan time.Time)
	ready.Add(m.Callers)
	for i := range callers {
		c := &callers[i]
		c.Measure, c.client = m, a.client
		if m.Phases {
			c.phases = &a.phases
		}
		done.Go(func() { c.run(ctx, &ready, begin) })
	}
	ready.Wait()
	if m.Phases {
		a.phases.Take()
	}
	resent := a.resent()
	start := time.Now()
	for range callers {
		begin <- start
	}
	done.Wait()
	elapsed := time.Since(start)
	var took []time.Duration
	var err error
	slowest := &callers[0]
	for i := range callers {
		c := &callers[i]
		took = append(took, c.took...)
		err = errors.Join(err, c.err)
		if c.longest > slowest.longest {
			slowest = c
		}
	}
	if err != nil {
		return nil, err
	}
	s := stats.Summarize(took, elapsed)
	s.Resent, s.LongestEnd = a.resent()-resent, slowest.over
	return &s, nil
}

// resent is how many messages the client has sent again so far, if it counts them.
func (a *agent) resent() uint64 {
	if c, ok := a.client.(interface{ Resent() uint64 }); ok {
		return c.Resent()
	}
	return 0
}

// run warms up, waits for the others, and measures.
func (c *caller) run(ctx context.Context, ready *sync.WaitGroup, begin <-chan time.Time) {
	op, release, err := c.client.Prepare(ctx, c.Work)
	clock := &peer.Clock{}
	if err == nil {
		defer release()
		_, err = c.repeat(ctx, op, clock, time.Now(), c.Warmup)
	}
	ready.Done()
	start := <-begin
	if err == nil {
		clock.Phases = c.phases
		c.longest = 0
		c.took, err = c.repeat(ctx, op, clock, start, c.For)
	}
	if err != nil {
		c.err = fmt.Errorf("%s of %d bytes: %w", c.Work.Op, c.Work.Size, err)
	}
}

// repeat repeats the operation for some time, at least once.
func (c *caller) repeat(ctx context.Context, op peer.Operation, clock *peer.Clock, start time.Time, howLong time.Duration) ([]time.Duration, error) {
	var took []time.Duration
	clock.Idle()
	for {
		before := time.Now()
		if err := op(ctx, clock); err != nil {
			return nil, err
		}
		now := time.Now()
		d := now.Sub(before) - clock.Idle()
		took = append(took, d)
		if d > c.longest {
			c.longest, c.over = d, now
		}
		if now.Sub(start) >= howLong || c.Max > 0 && len(took) >= c.Max {
			return took, nil
		}
	}
}
