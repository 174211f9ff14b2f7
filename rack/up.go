package rack

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/rack/config"
	"github.com/bifrost-rack/bifrost/rack/internal/kernel"
	"github.com/bifrost-rack/bifrost/rack/plan"
)

// Up makes a rack and returns when every blade is registered, every pair of memory blades
// holds two copies, and every program has started, or serves what it is to. It is all or nothing: on an error, also on the end of ctx,
// whatever had been made is gone when Up returns.
func (h *Host) Up(ctx context.Context, c config.Config) error {
	if err := needRoot(); err != nil {
		return err
	}
	if err := c.Validate(); err != nil {
		return err
	}
	p := plan.Make(c, h.dir(c.Name))
	if err := h.locateAll(&p); err != nil {
		return err
	}
	l, err := h.create(c.Name)
	if err != nil {
		return err
	}
	if err := h.refuseStale(p); err != nil {
		return errors.Join(err, l.remove())
	}
	if err := h.begin(&p, h.dir(c.Name)); err != nil {
		return errors.Join(err, l.remove())
	}
	s := &state{Plan: p, Created: time.Now().UTC(), Running: map[string]kernel.Process{}}
	if err := h.make(ctx, l, s); err != nil {
		if ctx.Err() != nil {
			err = &Error{Rack: c.Name, Msg: "interrupted while starting", Remedy: "what was started is removed again", Err: ctx.Err()}
		}
		return errors.Join(err, h.rollBack(l))
	}
	l.unlock()
	return nil
}

// begin puts the files of a backup where the rack's daemons look for them.
func (h *Host) begin(p *plan.Plan, dir string) error {
	if h.Begin == nil {
		return nil
	}
	log, ledgers := plan.LogPath(dir), plan.LedgersDir(dir)
	if err := h.Begin(log, ledgers); err != nil {
		return err
	}
	p.KeepLedgers(dir)
	h.progress("backup: restored")
	return nil
}

// refuseStale refuses to build on namespaces that nobody has a record of.
func (h *Host) refuseStale(p plan.Plan) error {
	stale, err := kernel.Namespaces(plan.Prefix(p.Rack))
	if err != nil || len(stale) == 0 {
		return err
	}
	return &Error{
		Rack: p.Rack, Msg: fmt.Sprintf("network namespace %s is there already, perhaps from a killed run", stale[0]),
		Remedy: h.downCommand(p.Rack) + " clears it away", Err: ErrExists,
	}
}

// make carries the plan out, and records before it acts.
func (h *Host) make(ctx context.Context, l *lockedRack, s *state) error {
	if err := l.save(s); err != nil {
		return err
	}
	if err := h.build(ctx, s.Plan); err != nil {
		return err
	}
	for stage, group := range stages(s.Plan.Processes) {
		if err := h.startAll(ctx, l, s, group); err != nil {
			return err
		}
		h.progress("%s: ready", stage)
		if stage == plan.StageBlades {
			if err := h.awaitCopies(ctx, &s.Plan); err != nil {
				return err
			}
		}
	}
	if err := h.deploy(ctx, &s.Plan); err != nil {
		return err
	}
	s.Complete = true
	return l.save(s)
}

// build makes the namespaces and wires.
func (h *Host) build(ctx context.Context, p plan.Plan) error {
	for _, name := range p.Namespaces {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := kernel.CreateNamespace(name); err != nil {
			return err
		}
	}
	for _, w := range p.Wires {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := kernel.Connect(w); err != nil {
			return err
		}
	}
	for _, w := range p.Wires { // they come up side by side
		if err := awaitLink(ctx, w); err != nil {
			return err
		}
	}
	h.progress("network: %d namespaces, %d wires", len(p.Namespaces), len(p.Wires))
	return nil
}

// linkTimeout bounds how long a wire may take to come up.
const linkTimeout = 10 * time.Second

func awaitLink(ctx context.Context, w plan.Wire) error {
	ctx, cancel := context.WithTimeout(ctx, linkTimeout)
	defer cancel()
	return kernel.AwaitLink(ctx, w)
}

// stages iterates over the stages in order, with the processes of each.
func stages(ps []plan.Process) func(yield func(plan.Stage, []plan.Process) bool) {
	return func(yield func(plan.Stage, []plan.Process) bool) {
		for rest := ps; len(rest) > 0; {
			n := slices.IndexFunc(rest, func(p plan.Process) bool { return p.Stage != rest[0].Stage })
			if n < 0 {
				n = len(rest)
			}
			if !yield(rest[0].Stage, rest[:n]) {
				return
			}
			rest = rest[n:]
		}
	}
}

// rollBack removes what a failed start has made. The start's own context may be
// over, so it gets time of its own.
func (h *Host) rollBack(l *lockedRack) error {
	ctx, cancel := context.WithTimeout(context.Background(), teardownTimeout)
	defer cancel()
	if err := h.teardown(ctx, l.name); err != nil {
		l.unlock()
		return &Error{Rack: l.name, Msg: err.Error(), Remedy: h.downCommand(l.name) + " clears the rest away", Err: err}
	}
	return l.remove()
}
