package crash

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
)

// strike does what a crash says. It is called in the wire's goroutine and must not wait
// for the rack.
func (c *crasher) strike(one Crash) {
	var hit bool
	switch kindOf(one.Victim) {
	case Gatekeeper:
		c.strikeGatekeeper(one)
		hit = true
	case Switch:
		hit = c.strikeSwitch(one)
	case Log:
		hit = c.strikeLog(one)
	case "memory":
		at := place{blade: one.Victim}
		if hit = one.How == Drain; hit {
			c.people(one, at)
		} else {
			hit = c.strikeBlade(one, at)
		}
	default:
		at, ok := c.run.where(one.Victim)
		if !ok {
			at, ok = place{blade: one.Victim}, slices.Contains(c.run.serving(), one.Victim)
		}
		hit = ok && (c.strikeProgram(one, at) || c.strikeBlade(one, at))
	}
	if hit {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.did[kindOf(one.Victim)+" "+string(one.How)]++
	}
}

// strikeGatekeeper hits the Gatekeeper.
func (c *crasher) strikeGatekeeper(one Crash) {
	rack := c.run.rack
	c.count(Gatekeeper)
	switch one.How {
	case Restart:
		rack.CrashGatekeeper()
	case Oust:
		rack.OustGatekeeper()
	default: // Stop
		resume := rack.StallLine()
		c.run.stopDisk(one.Back)
		c.later(one.Back, func() error { resume(); c.back(Gatekeeper); return nil })
		return
	}
	c.later(one.Back, c.restart)
}

// restart starts a Gatekeeper, if one can start.
func (c *crasher) restart() error {
	if c.cannotStart(0) {
		return nil // whoever makes it possible again starts one
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience) // flooded ends nothing that comes back
	defer cancel()
	err := c.run.rack.RestartGatekeeper(ctx)
	if c.cannotStart(0) {
		return nil // it ended for that
	}
	c.back(Gatekeeper)
	return err
}

// cannotStart counts a reason why no Gatekeeper can start, or one that is over, and
// reports whether there is one.
func (c *crasher) cannotStart(more int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken += more
	return c.broken > 0
}

// strikeSwitch hits the switch, or its connections.
func (c *crasher) strikeSwitch(one Crash) bool {
	rack := c.run.rack
	c.count(Switch)
	good := func(f func()) {
		c.later(one.Back, func() error { f(); c.back(Switch); return nil })
	}
	switch one.How {
	case Restart:
		if err := rack.CrashSwitch(); err != nil {
			c.run.ledger.complain("the switch: %v", err)
		}
		c.later(one.Back, func() error { defer c.back(Switch); return rack.BootSwitch() })
	case HangUp:
		rack.CutLine()
		c.back(Switch)
	case Stall:
		good(rack.StallLine())
	case Refuse:
		rack.RefuseWrites(true)
		good(func() { rack.RefuseWrites(false) })
	}
	return true
}

// strikeLog hits the log.
func (c *crasher) strikeLog(one Crash) bool {
	rack, disk := c.run.rack, c.run.disk
	c.count(Gatekeeper)
	if (one.How == Damage || one.How == Shorten) && c.cannotStart(0) {
		return false // the same bit might be flipped back
	}
	c.cannotStart(1)
	repair := func() {}
	switch one.How {
	case Fill:
		disk.Fill(true)
		repair = func() { rack.CrashGatekeeper(); disk.Fill(false) }
	case Power:
		rack.CrashGatekeeper()
		dice := rand.New(rand.NewPCG(c.run.opt.Seed, uint64(one.At))) //nolint:gosec // any number will do
		if n := disk.LosePower(dice.IntN(64)); n > 0 {
			c.run.lose(everything)
		}
	case Damage, Shorten:
		rack.CrashGatekeeper()
		if damage, ok := disk.Damage(one.How == Shorten); ok {
			repair = func() {
				if !damage.There() {
					return // power has failed meanwhile, and the record is gone
				}
				if err := rack.RestartGatekeeper(context.Background()); !errors.Is(err, wal.ErrCorrupt) {
					c.run.ledger.complain("of a damaged log, the Gatekeeper says %v", err)
				}
				damage.Mend()
			}
		}
	}
	c.later(one.Back, func() error {
		repair()
		c.cannotStart(-1)
		return c.restart()
	})
	return true
}

// strikeProgram hits one program; false if the way is one of its blade's.
func (c *crasher) strikeProgram(one Crash, at place) bool {
	switch one.How {
	case Kill:
		c.count(one.Victim)
		_ = c.run.rack.KillSoon(at.blade, at.instance) // which may have ended
	case Drain, Redeploy, Undeploy, Policy, Twin:
		c.people(one, at)
	default:
		return false
	}
	return true
}

// strikeBlade hits a blade and all that runs there.
func (c *crasher) strikeBlade(one Crash, at place) bool {
	rack, names := c.run.rack, append(c.run.on(at.blade), at.blade)
	c.count(names...)
	back := func() error { c.back(names...); return nil }
	host := rack.Host(at.blade)
	if kindOf(at.blade) == "memory" {
		c.run.awayMemory(at.blade, one.Back, one.loses())
		c.run.stayAway(at.blade, 1)
		again := back
		back = func() error { c.run.stayAway(at.blade, -1); return again() }
		if one.How == Stop { // what it has sent meanwhile, and what was sent to it, is on its way as long once more
			c.run.stayAway(at.blade, 1)
			c.later(2*one.Back, func() error { c.run.stayAway(at.blade, -1); return nil })
		}
	}
	switch one.How {
	case Kill, Cut, End:
		back = func() error { // programs are back when they have joined
			c.run.stayAway(at.blade, -1)
			c.back(at.blade)
			return rack.BootBlade(at.blade)
		}
		end := rack.CrashBlade
		if one.How == End {
			end = rack.KillDaemon
		}
		if err := end(at.blade); err != nil {
			return false
		}
	case Pause:
		host.SetLink(false)
		again := back
		back = func() error { host.SetLink(true); return again() }
	case Stop:
		late := wire.Impairment{Delay: one.Back}
		host.Impair(late, late)
		again := back
		back = func() error {
			now := c.run.link(at.blade)
			host.Impair(now, now)
			return again()
		}
	case Drain:
		c.people(one, at)
		return true
	}
	c.later(one.Back, back)
	return true
}

// people has somebody operate the rack, and take that back.
func (c *crasher) people(one Crash, at place) {
	c.count(one.Victim)
	defer c.back(one.Victim)
	type order = func(context.Context, *gatekeeper.Gatekeeper) error
	var do, undo order
	switch one.How {
	case Drain:
		do = func(ctx context.Context, gk *gatekeeper.Gatekeeper) error { return gk.Drain(ctx, at.blade, "explorer") }
		undo = func(ctx context.Context, gk *gatekeeper.Gatekeeper) error { return gk.ReturnToService(ctx, at.blade) }
	case Redeploy:
		do = func(ctx context.Context, gk *gatekeeper.Gatekeeper) error {
			return gk.Deploy(ctx, c.run.spec(one.Victim))
		}
		undo = func(ctx context.Context, gk *gatekeeper.Gatekeeper) error { return gk.Deploy(ctx, c.run.spec("")) }
	case Undeploy:
		do = func(ctx context.Context, gk *gatekeeper.Gatekeeper) error {
			return gk.Undeploy(ctx, appOf(one.Victim))
		}
	case Policy:
		other := []rpc.Policy{rpc.PolicyRecover, rpc.PolicyFateShare, rpc.PolicyTainted}[one.At%3]
		do = func(ctx context.Context, gk *gatekeeper.Gatekeeper) error {
			return gk.SetPolicy(ctx, one.Victim, "act", resources.Word{Policy: other.String()})
		}
		undo = func(ctx context.Context, gk *gatekeeper.Gatekeeper) error {
			return gk.SetPolicy(ctx, one.Victim, "act", resources.Word{})
		}
	case Twin:
		if c.run.opt.Setting.ByHand { // the name of a main that no deployment has belongs to whoever begins it first
			return
		}
		c.later(0, func() error { return c.run.twin(one.Victim) })
		return
	}
	c.later(0, func() error {
		if err := c.order(one, do); err != nil {
			return err
		}
		if undo == nil {
			return nil
		}
		<-time.After(one.Back)
		return c.order(one, undo)
	})
}

// order has the Gatekeeper do something, as soon as there is one.
func (c *crasher) order(one Crash, f func(context.Context, *gatekeeper.Gatekeeper) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for ctx.Err() == nil {
		if gk := c.run.rack.Gatekeeper(); gk != nil {
			err := f(ctx, gk)
			switch rpc.CodeOf(err) {
			case rpc.OK, rpc.Unavailable, rpc.Overloaded, rpc.NotFound: // the blade is out of service, there is no room, or it is not known again yet
				return nil
			}
			unheard := strings.Contains(err.Error(), "no blade is called") // since the Gatekeeper began, or yet
			if !errors.Is(err, gatekeeper.ErrStopped) && !errors.Is(err, wal.ErrFailed) && !unheard {
				return fmt.Errorf("%s: %w", one, err)
			}
		}
		<-time.After(50 * time.Millisecond)
	}
	return fmt.Errorf("%s: %w", one, ctx.Err())
}

// later does something after a time.
func (c *crasher) later(after time.Duration, f func() error) {
	c.begin.Go(func() {
		if after > 0 {
			<-time.After(after)
		}
		if err := f(); err != nil {
			c.run.ledger.complain("coming back: %v", err)
		}
	})
}
