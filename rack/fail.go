package rack

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/rack/config"
	"github.com/bifrost-rack/bifrost/rack/internal/kernel"
	"github.com/bifrost-rack/bifrost/rack/plan"
)

// How a blade fails.
type How string

// The failures. Switch, Gatekeeper and programs have no cable of their own, so they
// know only the first two.
const (
	Kill   How = "kill"   // SIGKILL to everything on the blade, or to the program
	Pause  How = "pause"  // SIGSTOP to everything: it hangs, and may come back
	Link   How = "link"   // the cable is pulled, the blade runs on
	Daemon How = "daemon" // SIGKILL to the blade's daemon alone
)

// killTimeout bounds how long the kernel may take to end killed processes.
const killTimeout = 10 * time.Second

// Fail makes a blade fail, the switch, the Gatekeeper, or one of the programs that
// the Gatekeeper has started with the rack. When it returns, the failure has
// happened: killed processes of a blade have ended.
func (h *Host) Fail(ctx context.Context, rack, blade string, how How) error {
	return h.change(rack, blade, func(_ *lockedRack, s *state) error {
		wire, isBlade := s.Plan.Wire(blade)
		d, isProgram := s.deployed(blade)
		switch {
		case isProgram && how != Link:
			return s.failProgram(d.Instance(), how)
		case how == Link && isBlade && s.Plan.Switch == config.BMv2:
			// Its one receiving thread waits in libpcap for that port to come back.
			return &Error{
				Rack: rack, Msg: "bmv2 stops receiving on all ports when one goes down",
				Remedy: "use --how kill or pause, or a rack with --switch bifrost",
			}
		case how == Link && isBlade:
			return kernel.SetPort(wire, false)
		case how == Link:
			return &Error{Rack: rack, Msg: blade + " has no cable of its own", Remedy: "fail a blade's link, or use --how kill or pause", Err: ErrNoBlade}
		case how == Pause:
			return s.signal(blade, unix.SIGSTOP)
		case how == Kill && isBlade:
			return killAll(ctx, wire.BladeNamespace)
		case how == Daemon && isBlade:
			return s.kill(ctx, blade) // which has its blade's name
		case how == Kill:
			return s.kill(ctx, blade)
		}
		return &Error{Rack: rack, Msg: fmt.Sprintf("unknown failure %q", how), Remedy: "use kill, pause, link or daemon"}
	})
}

// failProgram kills or pauses a program, wherever it runs.
func (s *state) failProgram(instance string, how How) error {
	sig := unix.SIGKILL
	if how == Pause {
		sig = unix.SIGSTOP
	}
	count, err := s.signalProgram(instance, sig)
	if err == nil && count == 0 {
		err = &Error{Rack: s.Plan.Rack, Msg: instance + " does not run now", Remedy: "`bifrost apps` tells what becomes of it", Err: ErrNotReady}
	}
	return err
}

// Restore undoes every failure of a blade: plugs the cable in, lets paused
// processes go on, and starts again what is gone, with h's bifrost. So the
// rack is upgraded blade by blade. It returns when that is ready.
// What the Gatekeeper has started is left to it, but for a pause.
func (h *Host) Restore(ctx context.Context, rack, blade string) error {
	return h.change(rack, blade, func(l *lockedRack, s *state) error {
		if d, isProgram := s.deployed(blade); isProgram {
			_, err := s.signalProgram(d.Instance(), unix.SIGCONT)
			return err
		}
		wire, isBlade := s.Plan.Wire(blade)
		if isBlade {
			if err := errors.Join(kernel.SetPort(wire, true), awaitLink(ctx, wire)); err != nil {
				return err
			}
		}
		if err := s.signal(blade, unix.SIGCONT); err != nil {
			return err
		}
		gone := s.gone(blade)
		if isBlade && len(gone) > 0 && gone[0].Stage == plan.StageBlades {
			// The daemon is dead, so the blade starts from nothing, as after a reset.
			if err := errors.Join(killAll(ctx, wire.BladeNamespace), kernel.Reboot(wire), awaitLink(ctx, wire)); err != nil {
				return err
			}
			gone = s.Plan.Of(blade)
		}
		h.renew(gone)
		for stage, group := range stages(gone) {
			if err := h.startAll(ctx, l, s, group); err != nil {
				return err
			}
			h.progress("%s of %s: ready", stage, blade)
		}
		return nil
	})
}

// renew has processes of bifrost run h's, which may be another one than that of the rack's beginning.
func (h *Host) renew(processes []plan.Process) {
	for i := range processes {
		if p := &processes[i]; h.Bifrost != "" && filepath.Base(p.Args[0]) != plan.BMv2Program {
			p.Args = slices.Concat([]string{h.Bifrost}, p.Args[1:])
		}
	}
}

// change runs f on a rack that is up, with the rack locked.
func (h *Host) change(rack, blade string, f func(*lockedRack, *state) error) error {
	if err := needRoot(); err != nil {
		return err
	}
	s, err := h.open(rack)
	if err != nil {
		return err
	}
	if _, isProgram := s.deployed(blade); !isProgram && len(s.Plan.Of(blade)) == 0 {
		return noBlade(rack, blade, s.Plan)
	}
	l, err := h.lock(rack)
	if err != nil {
		return err
	}
	defer l.unlock()
	if s, err = h.open(rack); err != nil { // it may have changed before the lock
		return err
	}
	return f(l, s)
}

func noBlade(rack, blade string, p plan.Plan) error {
	names := []string{plan.Switch, plan.Gatekeeper}
	for _, w := range p.Wires {
		names = append(names, w.Blade)
	}
	for _, d := range p.Deployed {
		names = append(names, d.Name)
	}
	return &Error{
		Rack: rack, Msg: fmt.Sprintf("there is no blade %q", blade), Remedy: "there are " + strings.Join(names, ", "), Err: ErrNoBlade,
	}
}

// signal signals everything on a blade, or the one process of switch or
// Gatekeeper, which share a namespace.
func (s *state) signal(blade string, sig unix.Signal) error {
	wire, isBlade := s.Plan.Wire(blade)
	if !isBlade {
		return s.Running[blade].Signal(sig)
	}
	g, err := kernel.OpenGroup([]string{wire.BladeNamespace})
	if err != nil {
		return err
	}
	defer g.Close()
	return g.Signal(sig)
}

// kill kills one planned process: switch, Gatekeeper, or a blade's daemon.
func (s *state) kill(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	return errors.Join(s.Running[name].Signal(unix.SIGKILL), s.Running[name].Wait(ctx))
}

// killAll kills everything in a namespace.
func killAll(ctx context.Context, namespace string) error {
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	g, err := kernel.OpenGroup([]string{namespace})
	if err != nil {
		return err
	}
	defer g.Close()
	return g.Kill(ctx)
}

// gone returns a blade's planned processes that do not run, in starting order.
func (s *state) gone(blade string) []plan.Process {
	var gone []plan.Process
	for _, p := range s.Plan.Of(blade) {
		if id, started := s.Running[p.Name]; !started || id.State() == kernel.Gone {
			gone = append(gone, p)
		}
	}
	return gone
}
