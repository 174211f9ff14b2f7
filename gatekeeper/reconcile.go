package gatekeeper

import (
	"context"

	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
)

// Reconcile reads the switch's tables back, makes them what they should be, and
// returns how many entries that took. What is on its way to the switch meanwhile
// is no difference. It fails with ErrNoSwitch while the switch is away, and with
// ErrStopped if the Gatekeeper does not run.
func (g *Gatekeeper) Reconcile(ctx context.Context) (repaired int, err error) {
	connected, err := g.Connected(ctx)
	if err != nil {
		return 0, err
	}
	if !connected {
		return 0, ErrNoSwitch
	}
	failed := g.writer.between(ctx, g.stopped, func(session context.Context) error {
		var err error
		repaired, err = g.repair(session, g.writer.pending)
		return err
	})
	if failed != nil {
		return repaired, failed
	}
	return repaired, g.do(ctx, func() {
		g.ctl.count.Reconciled += uint64(repaired) //nolint:gosec // a length
		g.ctl.event(Event{Kind: SwitchReconciled})
	})
}

// repair reads the tables back and writes what is wrong, all revocations before
// the first grant. Nobody else writes meanwhile. The entries that except names, if
// it is not nil, are left as they are.
func (g *Gatekeeper) repair(ctx context.Context, except func() map[string]bool) (repaired int, err error) {
	found, err := g.client.Read(ctx)
	if err != nil {
		return 0, err
	}
	groups, err := g.client.Groups(ctx)
	if err != nil {
		return 0, err
	}
	found = append(found, groups...)
	var wanted base
	var left map[string]bool
	err = g.do(ctx, func() {
		wanted = g.ctl.wanted()
		if except != nil {
			left = except()
		}
	})
	if err != nil {
		return 0, err
	}
	revoke, grant := reconcile(wanted, found)
	revoke, grant = revoke.without(left), grant.without(left)
	return len(revoke) + len(grant), g.write(ctx, revoke, grant)
}

// write writes phases one after the other, in batches.
func (g *Gatekeeper) write(ctx context.Context, phases ...phase) error {
	var b batcher
	for _, p := range phases {
		for len(p) > 0 {
			n := min(len(p), maxBatch)
			b.submit(&plan{phases: []phase{p[:n]}, ordered: true})
			p = p[n:]
		}
	}
	for !b.idle() {
		if err := b.answer(g.client.Write(ctx, b.next())); err != nil {
			return err
		}
		for _, p := range b.done() {
			if p.err != nil {
				g.cfg.Log.Error("the switch refuses a rule", "error", p.err)
			}
		}
	}
	return nil
}

// without leaves out the updates of some entries.
func (p phase) without(keys map[string]bool) (rest phase) {
	for _, u := range p {
		if !keys[u.Entry.Key()] {
			rest = append(rest, u)
		}
	}
	return rest
}

// errand is something to be done while nothing is being written.
type errand struct {
	do   func(session context.Context) error
	done chan error
}

// between has f carried out by the writer, between two batches, and waits for it.
func (w *writer) between(ctx context.Context, stopped <-chan struct{}, f func(session context.Context) error) error {
	e := errand{f, make(chan error, 1)}
	select {
	case w.errands <- e:
	case <-stopped:
		return ErrStopped
	case <-ctx.Done():
		return ctx.Err()
	}
	return <-e.done // the session's end ends it, too
}

// pending returns the keys of all entries that plans are still to write. None may
// be out.
func (w *writer) pending() map[string]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	keys := map[string]bool{}
	for _, plans := range [][]*plan{w.b.revokes, w.b.grants, w.b.ordered} {
		for _, p := range plans {
			p.each(func(u *p4rtclient.Update) { keys[u.Entry.Key()] = true })
		}
	}
	return keys
}

// each visits the updates that the plan has still to write.
func (p *plan) each(visit func(*p4rtclient.Update)) {
	for _, f := range p.phases {
		for i := range f {
			visit(&f[i])
		}
	}
}
