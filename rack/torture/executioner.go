package torture

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/rack"
)

// executioner kills and pauses, one thing after the other. It belongs to one
// goroutine.
type executioner struct {
	t      *torture
	random *rand.Rand
	hurt   map[string]time.Time // blades, and when they are to be restored
}

func newExecutioner(t *torture) *executioner {
	return &executioner{t: t, random: rand.New(rand.NewPCG(t.cfg.Seed, 0xbad)), hurt: map[string]time.Time{}}
}

// mostHurt is how many blades are dead or paused at a time: of the four that services
// run on, two must live.
const mostHurt = 2

// act is something to do, as often as its weight says; do tells whether it did.
type act struct {
	name   string
	weight int
	do     func(x *executioner, ctx context.Context) (bool, error)
}

var acts = []act{
	{"kill counter", 4, func(x *executioner, _ context.Context) (bool, error) { return x.signal("rack/counter/1", unix.SIGKILL) }},
	{"kill front", 4, func(x *executioner, _ context.Context) (bool, error) { return x.signal("rack/front/1", unix.SIGKILL) }},
	{"kill teller", 4, func(x *executioner, _ context.Context) (bool, error) {
		return x.signal(teller(x.random.IntN(tellers)), unix.SIGKILL)
	}},
	{"hold up counter", 1, func(x *executioner, ctx context.Context) (bool, error) { return x.holdUp(ctx, "rack/counter/1") }},
	{"kill blade", 3, func(x *executioner, ctx context.Context) (bool, error) { return x.fail(ctx, rack.Kill) }},
	{"pause blade", 2, func(x *executioner, ctx context.Context) (bool, error) { return x.fail(ctx, rack.Pause) }},
	{"kill gatekeeper", 2, (*executioner).killGatekeeper},
}

// work does one act after the other, with pauses, until ctx ends.
func (x *executioner) work(ctx context.Context) error {
	total := 0
	for _, a := range acts {
		total += a.weight
	}
	for {
		if !x.pause(ctx, 50*time.Millisecond, 500*time.Millisecond) {
			return nil
		}
		if err := x.restore(ctx, time.Now()); err != nil {
			return err
		}
		n := x.random.IntN(total)
		for _, a := range acts {
			if n -= a.weight; n >= 0 {
				continue
			}
			done, err := a.do(x, context.WithoutCancel(ctx))
			if err != nil {
				return err
			}
			if done {
				x.t.done[a.name]++
			}
			break
		}
	}
}

// pause waits for a random time; false if ctx has ended.
func (x *executioner) pause(ctx context.Context, least, most time.Duration) bool {
	timer := time.NewTimer(least + time.Duration(x.random.Int64N(int64(most-least))))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// signal hits a program; one that is just being started is missed.
func (x *executioner) signal(instance string, sig unix.Signal) (bool, error) {
	n, err := x.t.cfg.Host.SignalProgram(x.t.cfg.Name, instance, sig)
	if n > 0 {
		x.t.say("%s to %s", unix.SignalName(sig), instance)
	}
	return n > 0, err
}

// holdUp stops a program for less than the time after which anybody would notice.
func (x *executioner) holdUp(ctx context.Context, instance string) (bool, error) {
	done, err := x.signal(instance, unix.SIGSTOP)
	if !done || err != nil {
		return false, err
	}
	x.pause(ctx, 10*time.Millisecond, 300*time.Millisecond)
	_, err = x.signal(instance, unix.SIGCONT)
	return true, err
}

// fail makes a blade fail, for some time. A paused one is fenced meanwhile, goes on
// later, and must not change anything.
func (x *executioner) fail(ctx context.Context, how rack.How) (bool, error) {
	blades := []string{"s1", "s2", "x1", "x2", "c1"}
	b := blades[x.random.IntN(len(blades))]
	if _, is := x.hurt[b]; is || len(x.hurt) >= mostHurt {
		return false, nil
	}
	x.t.say("%s blade %s", how, b)
	x.hurt[b] = time.Now().Add(4*x.t.cfg.Heartbeat + time.Duration(x.random.Int64N(int64(8*x.t.cfg.Heartbeat))))
	return true, x.t.cfg.Host.Fail(ctx, x.t.cfg.Name, b, how)
}

// restore brings blades back that are due.
func (x *executioner) restore(ctx context.Context, now time.Time) error {
	ctx = context.WithoutCancel(ctx)
	for _, b := range slices.Sorted(maps.Keys(x.hurt)) {
		if now.Before(x.hurt[b]) {
			continue
		}
		delete(x.hurt, b)
		x.t.say("restore blade %s", b)
		if err := x.t.cfg.Host.Restore(ctx, x.t.cfg.Name, b); err != nil {
			return err
		}
	}
	return nil
}

// killGatekeeper kills the Gatekeeper, half of the times together with the counter,
// so that a recovery is under way when it comes back, and perhaps again soon after.
func (x *executioner) killGatekeeper(ctx context.Context) (bool, error) {
	if x.random.IntN(2) == 0 {
		if _, err := x.signal("rack/counter/1", unix.SIGKILL); err != nil {
			return false, err
		}
		x.pause(ctx, 1, 20*time.Millisecond)
	}
	for range 1 + x.random.IntN(2) {
		x.t.say("kill the Gatekeeper")
		if err := x.t.cfg.Host.Fail(ctx, x.t.cfg.Name, "gatekeeper", rack.Kill); err != nil {
			return false, err
		}
		x.pause(ctx, 1, x.t.cfg.Heartbeat)
		if err := x.t.cfg.Host.Restore(ctx, x.t.cfg.Name, "gatekeeper"); err != nil {
			return false, err
		}
		x.pause(ctx, 1, 50*time.Millisecond)
	}
	return true, nil
}

// heal restores all blades.
func (x *executioner) heal(ctx context.Context) error {
	return x.restore(ctx, time.Now().Add(time.Hour))
}
