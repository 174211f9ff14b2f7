package switches

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/bifrost-rack/bifrost/p4/datapath"
)

// running is a contender that joins the hosts of its own lab.
type running struct {
	*contender
	*lab
	exec datapath.Datapath
	stop func() error
	samples
}

// Run measures all contenders. It needs root.
func Run(ctx context.Context, o Options) (r Result, err error) {
	// Namespaces belong to threads. This one is never unlocked, so it ends with
	// its goroutine whatever namespace it is in.
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		r, err = run(ctx, o)
	}()
	<-done
	return r, err
}

func run(ctx context.Context, o Options) (r Result, err error) {
	var all []*running
	defer func() {
		for _, c := range all {
			err = errors.Join(err, c.end())
		}
	}()
	for i := range contenders {
		o.tell("setting up %s", contenders[i].name)
		c, err := start(&contenders[i], o.Rules)
		if err != nil {
			return r, fmt.Errorf("%s: %w", contenders[i].name, err)
		}
		all = append(all, c)
	}
	for n := range o.Rounds {
		for _, c := range all {
			o.tell("round %d of %d: %s", n+1, o.Rounds, c.name)
			if err := ctx.Err(); err != nil {
				return r, err
			}
			if err := c.round(o); err != nil {
				return r, fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	results := map[string]*samples{}
	for _, c := range all {
		if err := c.measureUpdates(o); err != nil {
			return r, fmt.Errorf("%s: %w", c.name, err)
		}
		results[c.name] = &c.samples
	}
	return summary(o.Rules, results), nil
}

func (o *Options) tell(format string, a ...any) {
	if o.Progress != nil {
		_, _ = fmt.Fprintf(o.Progress, format+"\n", a...)
	}
}

func start(c *contender, rules int) (*running, error) {
	l, err := newLab()
	if err != nil {
		return nil, err
	}
	r := &running{contender: c, lab: l, stop: func() error { return nil }}
	if err = l.cables(c.direct); err == nil {
		err = l.in(l.mid, func() error {
			exec, stop, err := c.start(rules)
			if err == nil {
				r.exec, r.stop = exec, stop
			}
			return err
		})
	}
	if err != nil {
		return nil, errors.Join(err, r.end())
	}
	return r, nil
}

func (r *running) end() error { return errors.Join(r.stop(), r.close()) }

// round is one turn of a contender.
func (r *running) round(o Options) error {
	trips, err := r.roundTrips(o.RoundTrip)
	if err != nil {
		return err
	}
	rate, err := r.stream(o.Stream)
	if err != nil {
		return err
	}
	// The first round trips find cold caches.
	r.trips = append(r.trips, trips[len(trips)/10:]...)
	r.rates = append(r.rates, rate)
	return nil
}

// measureUpdates measures how fast rules come and go.
func (r *running) measureUpdates(o Options) error {
	if r.exec == nil {
		return nil
	}
	n, begin := 0, time.Now()
	for ; time.Since(begin) < o.RoundTrip; n += 2 {
		e := rule(o.Rules)
		if err := errors.Join(r.exec.Apply(datapath.Insert, e), r.exec.Apply(datapath.Delete, e)); err != nil {
			return err
		}
	}
	r.updates = float64(n) / time.Since(begin).Seconds()
	return nil
}
