package torture

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/rack"
	"github.com/bifrost-rack/bifrost/rack/config"
	"github.com/bifrost-rack/bifrost/rack/plan"
)

// executioner kills and pauses, one thing after the other. It belongs to one
// goroutine.
type executioner struct {
	t      *torture
	random *rand.Rand
	acts   []act
	hurt   map[string]time.Time // blades, and when they are to be restored
	memory memoryHit
}

func newExecutioner(t *torture) *executioner {
	x := &executioner{t: t, random: rand.New(rand.NewPCG(t.cfg.Seed, 0xbad)), acts: acts, hurt: map[string]time.Time{}}
	if t.cfg.Switch != config.BMv2 {
		x.acts = append(slices.Clone(acts), killSwitch)
	}
	return x
}

// mostHurt is how many compute blades are dead or paused at a time: of the four that
// services run on, two must live. A memory blade may be dead beside them.
const mostHurt = 2

// act is something to do, as often as its weight says; do tells whether it did.
type act struct {
	name   string
	weight int
	do     func(x *executioner, ctx context.Context) (bool, error)
}

var acts = []act{
	{"kill counter", 4, func(x *executioner, _ context.Context) (bool, error) { return x.signal("rack/counter/1", unix.SIGKILL) }},
	{"kill front", 3, func(x *executioner, _ context.Context) (bool, error) { return x.signal("rack/front/1", unix.SIGKILL) }},
	{"kill store", 3, func(x *executioner, _ context.Context) (bool, error) { return x.signal("rack/store/1", unix.SIGKILL) }},
	{"kill teller", 4, func(x *executioner, _ context.Context) (bool, error) {
		return x.signal(teller(x.random.IntN(tellers)), unix.SIGKILL)
	}},
	{"hold up counter", 1, func(x *executioner, ctx context.Context) (bool, error) { return x.holdUp(ctx, "rack/counter/1") }},
	{"kill blade", 3, func(x *executioner, ctx context.Context) (bool, error) { return x.fail(ctx, rack.Kill) }},
	{"pause blade", 2, func(x *executioner, ctx context.Context) (bool, error) { return x.fail(ctx, rack.Pause) }},
	{"kill memory blade", 3, func(x *executioner, ctx context.Context) (bool, error) { return x.failMemory(ctx, rack.Kill) }},
	{"kill memory daemon", 1, func(x *executioner, ctx context.Context) (bool, error) { return x.failMemory(ctx, rack.Daemon) }},
	{"pause memory blade", 2, func(x *executioner, ctx context.Context) (bool, error) { return x.failMemory(ctx, rack.Pause) }},
	{"kill gatekeeper", 2, (*executioner).killGatekeeper},
}

// killSwitch is no act on bmv2, whose registers die with its process: with a blade that is away at that moment, a call may end as
// permission denied then (docs/rights.md, section 8).
var killSwitch = act{"kill switch", 2, (*executioner).killSwitch}

// work does one act after the other, with pauses, until the time is over, and each at least
// once.
func (x *executioner) work(ctx, until context.Context) error {
	for {
		if !x.pause(ctx, 50*time.Millisecond, 500*time.Millisecond) {
			return nil
		}
		of := x.acts
		if end, _ := until.Deadline(); until.Err() != nil {
			if of = x.missing(); len(of) == 0 {
				return nil
			}
			if time.Since(end) > settleTimeout {
				return fmt.Errorf("in %v there was no moment to %s", x.t.cfg.For+settleTimeout, of[0].name)
			}
		}
		if err := x.restore(ctx, time.Now()); err != nil {
			return err
		}
		if err := x.next(context.WithoutCancel(ctx), of); err != nil {
			return err
		}
	}
}

// missing returns the acts that were never done.
func (x *executioner) missing() (missing []act) {
	for _, a := range x.acts {
		if x.t.done[a.name] == 0 {
			missing = append(missing, a)
		}
	}
	return missing
}

// next does an act of those that are to be done, or misses: a program that is just being
// started cannot be killed, and not every blade may be hit at any moment.
func (x *executioner) next(ctx context.Context, of []act) error {
	total := 0
	for i := range of {
		total += of[i].weight
	}
	n := x.random.IntN(total)
	for i := range of {
		if n -= of[i].weight; n >= 0 {
			continue
		}
		done, err := of[i].do(x, ctx)
		if done {
			x.t.done[of[i].name]++
		}
		return err
	}
	return nil
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
	hurt := 0
	for _, other := range blades {
		if _, is := x.hurt[other]; is {
			hurt++
		}
	}
	if _, is := x.hurt[b]; is || hurt >= mostHurt {
		return false, nil
	}
	x.t.say("%s blade %s", how, b)
	x.hurt[b] = x.due(4)
	return true, x.t.cfg.Host.Fail(ctx, x.t.cfg.Name, b, how)
}

// due is when a blade that fails now is to be restored, least heartbeats or more from now. After
// three its silence is noticed.
func (x *executioner) due(least time.Duration) time.Time {
	return time.Now().Add(least*x.t.cfg.Heartbeat + time.Duration(x.random.Int64N(int64(8*x.t.cfg.Heartbeat))))
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
		if b == x.memory.blade {
			x.memory.back = time.Now()
		}
	}
	return nil
}

// killGatekeeper kills the Gatekeeper, and perhaps again soon after. Two times out of three
// it dies together with the counter or a memory blade, so that it is the next one that brings
// that back.
func (x *executioner) killGatekeeper(ctx context.Context) (bool, error) {
	with := x.random.IntN(3)
	var also bool
	var err error
	switch with {
	case 0:
		also, err = x.signal("rack/counter/1", unix.SIGKILL)
	case 1:
		also, err = x.failMemory(ctx, rack.Kill)
	}
	if err != nil {
		return false, err
	}
	if also {
		x.t.done[[]string{"kill gatekeeper with counter", "kill gatekeeper with memory blade"}[with]]++
		x.pause(ctx, 1, 20*time.Millisecond)
	}
	for range 1 + x.random.IntN(2) {
		if err := x.killForAMoment(ctx, plan.Gatekeeper); err != nil {
			return false, err
		}
		x.pause(ctx, 1, 50*time.Millisecond)
	}
	return true, nil
}

// killSwitch kills the switch's process. One time out of three the Gatekeeper dies meanwhile, so that the next one meets a switch that
// has just begun.
func (x *executioner) killSwitch(ctx context.Context) (bool, error) {
	if x.random.IntN(3) > 0 {
		return true, x.killForAMoment(ctx, plan.Switch)
	}
	x.t.done["kill switch with gatekeeper"]++
	return true, x.killForAMoment(ctx, plan.Switch, plan.Gatekeeper)
}

// killForAMoment kills the switch, the Gatekeeper or both, and brings them back in the same order, a heartbeat later at most.
func (x *executioner) killForAMoment(ctx context.Context, names ...string) error {
	for _, name := range names {
		x.t.say("kill the %s", name)
		if err := x.t.cfg.Host.Fail(ctx, x.t.cfg.Name, name, rack.Kill); err != nil {
			return err
		}
	}
	for _, name := range names {
		x.pause(ctx, 1, x.t.cfg.Heartbeat)
		if err := x.t.cfg.Host.Restore(ctx, x.t.cfg.Name, name); err != nil {
			return err
		}
	}
	return nil
}

// heal restores all blades.
func (x *executioner) heal(ctx context.Context) error {
	return x.restore(ctx, time.Now().Add(time.Hour))
}
