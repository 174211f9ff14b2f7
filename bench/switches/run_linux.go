package switches

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
)

// running is a contender that joins the hosts of its own lab.
type running struct {
	*contender
	*lab
	*joint
	dir     string
	control *controller // nil without P4Runtime
	samples
}

// Run measures all contenders that are installed. It needs root.
func Run(ctx context.Context, o Options) (r Result, err error) {
	err = inThread(func() (err error) { r, err = run(ctx, o); return err })
	return r, err
}

// busyThreads is how many threads send and receive without a pause, at most.
const busyThreads = 3

// inThread runs f on a thread of its own. Namespaces belong to threads: this one
// is never unlocked, so it ends with its goroutine whatever namespace it is in.
//
// The threads that send and receive are no part of what is measured, but of the
// same process. They would take Go's processors from a switch's control plane,
// which then waits for up to 10 ms at every step, however idle the CPU; so there
// are more, and the kernel shares out the CPUs.
func inThread(f func() error) (err error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 2*busyThreads))
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		err = f()
	}()
	<-done
	return err
}

func run(ctx context.Context, o Options) (r Result, err error) {
	var started []*running
	defer func() {
		for _, c := range started {
			err = errors.Join(err, c.end())
		}
	}()
	contenders := all()
	if o.Stateful {
		contenders, o.Rules = stateful(), 0
	}
	for _, c := range contenders {
		if name := c.missing(); name != "" {
			o.tell("%s is left out: %s is not installed", c.name, name)
			continue
		}
		o.tell("setting up %s", c.name)
		r, err := start(ctx, &c, o.Rules)
		if err != nil {
			return Result{}, fmt.Errorf("%s: %w", c.name, err)
		}
		started = append(started, r)
	}
	for n := range o.Rounds {
		o.tell("round %d of %d", n+1, o.Rounds)
		if err := round(ctx, o, started); err != nil {
			return r, err
		}
	}
	results := map[string]*samples{}
	for _, c := range started {
		results[c.name] = &c.samples
	}
	return summary(o.Rules, results), nil
}

func (o *Options) tell(format string, a ...any) {
	if o.Progress != nil {
		_, _ = fmt.Fprintf(o.Progress, format+"\n", a...)
	}
}

// start sets a contender up in a lab of its own.
func start(ctx context.Context, c *contender, rules int) (*running, error) {
	l, err := newLab()
	if err != nil {
		return nil, err
	}
	r := &running{contender: c, lab: l, joint: &joint{stop: nothing}}
	if err := r.setUp(ctx, rules); err != nil {
		return nil, errors.Join(err, r.end())
	}
	return r, nil
}

func (r *running) setUp(ctx context.Context, rules int) (err error) {
	if r.dir, err = os.MkdirTemp("", "bifrost-bench"); err != nil {
		return err
	}
	if err := r.cables(r.direct); err != nil {
		return err
	}
	if r.plain {
		if err := r.withoutOffload(); err != nil {
			return err
		}
	}
	err = r.in(r.mid, func() error {
		j, err := r.start(r.dir)
		if err == nil {
			r.joint = j
		}
		return err
	})
	if err != nil || r.addr == "" {
		return err
	}
	r.control, err = connect(ctx, r.joint, rules)
	return err
}

func (r *running) end() error {
	return errors.Join(r.control.close(), r.stop(), r.close(), os.RemoveAll(r.dir))
}

// round measures everything once, each thing of all contenders one after another.
func round(ctx context.Context, o Options, started []*running) error {
	for _, measure := range []func(*running) error{
		func(r *running) error { return r.roundTrip(o.RoundTrip) },
		func(r *running) error { return r.rate(&r.tcp, func() (float64, error) { return r.stream(o.Stream) }) },
		func(r *running) error {
			return r.rate(&r.udp, func() (float64, error) { return r.flood(fullDatagram, o.Flood) })
		},
		func(r *running) error {
			return r.rate(&r.packets, func() (float64, error) { return r.flood(smallDatagram, o.Flood) })
		},
		func(r *running) error { return r.updates(ctx, o) },
	} {
		for _, r := range started {
			if err := errors.Join(ctx.Err(), measure(r)); err != nil {
				return fmt.Errorf("%s: %w", r.name, err)
			}
		}
	}
	return nil
}

func (r *running) roundTrip(d time.Duration) error {
	trips, err := r.roundTrips(d)
	if err != nil {
		return err
	}
	r.trips = append(r.trips, trips[len(trips)/10:]) // the first ones find cold caches
	return nil
}

func (r *running) rate(to *[]float64, measure func() (float64, error)) error {
	v, err := measure()
	*to = append(*to, v)
	return err
}

// updates measures what P4Runtime's Write takes and does.
func (r *running) updates(ctx context.Context, o Options) error {
	if r.control == nil {
		return nil
	}
	w := writes{}
	if err := r.control.measureWrites(ctx, o.Rules, o.Write, &w); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	var err error
	if w.effect, err = r.effect(ctx, o.Write); err != nil {
		return fmt.Errorf("effect of a write: %w", err)
	}
	r.writes = append(r.writes, w)
	return nil
}
