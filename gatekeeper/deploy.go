package gatekeeper

import (
	"context"
	"fmt"
	"slices"

	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
)

// What people do to the rack. All of these fail with ErrStopped if the Gatekeeper
// does not run, and with a *fault.Error if they make no sense: NotFound for a name
// that nobody has, BadRequest, Overloaded without enough room, Unavailable for a
// blade that is out of service.

// Deploy makes a deployment what the specification says: programs are started on
// free blades, watched, started again when they end, and moved when their blades
// fail. It returns when that is decided, not when the programs run; Deployments and
// events tell how they do. A new deployment is taken as a whole or not at all.
func (g *Gatekeeper) Deploy(ctx context.Context, s resources.Spec) error {
	return g.operate(ctx, Event{Kind: AppDeployed, Name: s.Name}, func(c *controller) ([]resources.Action, error) {
		return c.fleet.Deploy(s, c.now)
	})
}

// Undeploy stops a deployment; it is gone when its last node is.
func (g *Gatekeeper) Undeploy(ctx context.Context, name string) error {
	return g.operate(ctx, Event{Kind: AppUndeployed, Name: name}, func(c *controller) ([]resources.Action, error) {
		return c.fleet.Undeploy(name, c.now)
	})
}

// Restart has all nodes of a deployment stopped and started again, one of each program after
// the other: each finishes its calls first. It returns when that is decided; Deployments tells
// how far it is.
func (g *Gatekeeper) Restart(ctx context.Context, name string) error {
	return g.operate(ctx, Event{Kind: AppRestarted, Name: name}, func(c *controller) ([]resources.Action, error) {
		return c.fleet.Restart(name, c.now)
	})
}

// Deployments returns all deployments, by name.
func (g *Gatekeeper) Deployments(ctx context.Context) (all []resources.Deployment, err error) {
	err = g.do(ctx, func() { all = g.ctl.fleet.Deployments() })
	return all, err
}

// Drain lets a blade run empty: it takes no new nodes or regions, and deployed
// programs move elsewhere. A memory blade's copy moves first: the machine's other copy
// takes over, or a blade that serves nothing is filled and does; without either, the
// blade is empty when its regions have been freed. The cause is for people.
func (g *Gatekeeper) Drain(ctx context.Context, blade, cause string) error {
	return g.operate(ctx, Event{Kind: BladeDraining, Blade: blade, Message: cause}, func(c *controller) ([]resources.Action, error) {
		actions, err := c.fleet.Drain(blade, cause, c.now)
		if err == nil {
			c.moveCopy(blade)
		}
		return actions, err
	})
}

// MarkFailed takes a blade out of service at once, whatever it reports, until
// ReturnToService. Its nodes are fenced, its memory is unavailable.
func (g *Gatekeeper) MarkFailed(ctx context.Context, blade, cause string) error {
	return g.operate(ctx, Event{}, func(c *controller) ([]resources.Action, error) { // BladeFailed follows
		return c.fleet.MarkFailed(blade, cause, c.now)
	})
}

// ReturnToService ends what Drain or MarkFailed began. A blade that was marked
// failed is in service again when its daemon has said hello, which it does within
// seconds if it runs. A memory blade without a copy becomes the second copy of its
// machine again.
func (g *Gatekeeper) ReturnToService(ctx context.Context, blade string) error {
	return g.operate(ctx, Event{Kind: BladeReturned, Blade: blade}, func(c *controller) ([]resources.Action, error) {
		actions, err := c.fleet.Return(blade, c.now)
		if err == nil {
			c.returned(blade)
		}
		return actions, err
	})
}

// operate has the registry asked in a turn, and what it wants carried out. It
// returns when what was decided is logged.
func (g *Gatekeeper) operate(ctx context.Context, e Event, f func(*controller) ([]resources.Action, error)) error {
	err := g.query(ctx, func(c *controller) error {
		actions, err := f(c)
		if err != nil {
			return err
		}
		if e.Kind != "" {
			c.event(e)
			c.log.Info("operator", "action", e.Kind, "blade", e.Blade, "app", e.Name, "cause", e.Message)
		}
		c.act(actions)
		c.giveUpFallen()
		return nil
	})
	if err != nil {
		return err
	}
	return g.logged(ctx)
}

// missing says what a deployment lacks.
func missing(nodes, spares int) string {
	return fmt.Sprintf("no blade for %d nodes and %d spares", nodes, spares)
}

// bladeStatus is what a blade is good for now, and why if it is not in service.
func (c *controller) bladeStatus(b *blade) (status, cause string) {
	if r, ok := c.fleet.Blade(b.hello.Blade); ok {
		cause = r.Cause
		if b.alive() && r.Status == resources.Draining {
			return StatusDraining, cause
		}
	}
	switch {
	case !b.alive():
		return StatusFailed, cause
	case len(b.nodes) > 0 || b.used > 0:
		return StatusInUse, ""
	}
	return StatusFree, ""
}

// open reports whether the machine of a memory blade takes new regions: one of its blades
// is neither draining nor failed. If it is the one that the copy moves to, new regions move
// with it.
func (c *controller) open(b *blade) bool {
	if b.mirror == nil {
		return !c.mark(b)
	}
	return slices.ContainsFunc(b.mirror.blades, func(name string) bool {
		o := c.blades[name]
		return o != nil && !c.mark(o)
	})
}
