package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
)

// What commands wait for: apps, blades, machines.

// patientFor is how often in a row a program may fail before a command that waits for it ends.
const patientFor = 3

// settled looks until all instances of an app are what the app says. With a revision it fails when the app gets another one; if
// that is what ran before, once it runs again.
func settled(c *client.Client, name string, revision int) look {
	return func(ctx context.Context) ([]thing, error) {
		app, err := c.App(ctx, name)
		if err != nil {
			return nil, err
		}
		if err := hopeless(&app, revision); err != nil {
			return nil, err
		}
		left := instancesOf(&app)
		if o := app.Rollout; o != nil && !o.Done {
			state := fmt.Sprintf("at revision %d", o.Revision)
			if o.Back != "" {
				state = fmt.Sprintf("rolled back (%s), as revision %d", o.Back, o.Revision)
			}
			left = slices.Insert(left, 0, thing{name: name, state: state, since: o.Since, why: fmt.Sprintf("%d of %d nodes run it", o.Ready, o.Nodes) + firstText(o)})
		}
		return left, nil
	}
}

// firstText says which instance is watched before others follow.
func firstText(o *api.Rollout) string {
	switch {
	case o.First == "":
		return ""
	case o.Until.IsZero():
		return fmt.Sprintf("; %s is the first", o.First)
	}
	return fmt.Sprintf("; %s is the first, and is watched until %s", o.First, o.Until.Local().Format("15:04:05"))
}

// wrongWith says what has become of an app that is stuck, or was rolled back; nil of another one.
func wrongWith(app *api.App) error {
	switch {
	case app.Rollout == nil:
		return nil
	case app.Rollout.Stuck != "":
		return fmt.Errorf("%s does not become ready: %s; bifrost logs %s says more", app.Name, app.Rollout.Stuck, app.Name)
	case app.State == "rolled back":
		return wentBack(app)
	}
	return nil
}

func wentBack(app *api.App) error {
	return fmt.Errorf("%s was rolled back: %s; bifrost logs %s says more", app.Name, app.Rollout.Back, app.Name)
}

// hopeless says why an app does not become what somebody waits for, nil if it may.
func hopeless(app *api.App, revision int) error {
	o := app.Rollout
	switch {
	case app.Removed:
		return fmt.Errorf("%s is being undeployed", app.Name)
	case o == nil:
		return nil
	case revision > 0 && o.Revision != revision && o.Back == "":
		return fmt.Errorf("%s was changed again meanwhile: it is at revision %d now, not %d", app.Name, o.Revision, revision)
	case o.Stuck != "":
		return wrongWith(app)
	case revision > 0 && o.Revision != revision && o.Done:
		return wentBack(app)
	}
	for k := range app.Instances {
		if i := &app.Instances[k]; !i.Settled && i.Failures >= patientFor && i.Revision == o.Revision {
			return failing(i, app.Name)
		}
	}
	return nil
}

// failing is the error of an instance that fails again and again.
func failing(i *api.Instance, app string) error {
	return fmt.Errorf("%s has failed %d times: %s; bifrost logs %s says more", i.Name, i.Failures, i.Failure, app)
}

// instancesOf are the instances of an app that are not what they are to be.
func instancesOf(app *api.App) (left []thing) {
	for k := range app.Instances {
		if i := &app.Instances[k]; !i.Settled {
			left = append(left, instanceThing(i))
		}
	}
	return left
}

// instanceThing is an instance that is waited for, with what has failed last.
func instanceThing(i *api.Instance) thing {
	t := thing{name: i.Name, state: i.Status, since: i.Since, why: i.Why, blocked: !i.Blocked.IsZero()}
	if i.Failures > 0 && i.Status != "running" {
		t.why = fmt.Sprintf("%s, after %d failures, last: %s", t.why, i.Failures, i.Failure)
	}
	return t
}

// undeployed looks until an app is gone.
func undeployed(c *client.Client, name string) look {
	return func(ctx context.Context) ([]thing, error) {
		app, err := c.App(ctx, name)
		switch {
		case client.IsNotFound(err):
			return nil, nil
		case err != nil:
			return nil, err
		case !app.Removed:
			return nil, fmt.Errorf("%s was deployed again meanwhile", name)
		}
		return instancesOf(&app), nil
	}
}

// mirrored looks until the machine of a blade has two copies.
func mirrored(c *client.Client, blade string) look {
	return func(ctx context.Context) ([]thing, error) {
		m, err := machineOf(ctx, c, blade)
		if err != nil || m.InService > 1 && m.Why == "" && m.Filling == nil {
			return nil, err
		}
		return []thing{{name: fmt.Sprintf("machine %d", m.Machine), state: "not mirrored", why: machineText(&m)}}, nil
	}
}

// returned looks until a blade is in service, and holds a copy if it is one of a pair.
func returned(c *client.Client, name string) look {
	return func(ctx context.Context) ([]thing, error) {
		b, err := c.Blade(ctx, name)
		switch {
		case err != nil:
			return nil, err
		case b.Status == "failed":
			return []thing{{name: name, state: "out of service", why: cmp.Or(b.Cause, "it has not said hello yet") + "; if its daemon does not run, start it"}}, nil
		case b.Kind != "memory":
			return nil, nil
		}
		m, err := machineOf(ctx, c, name)
		if err != nil || len(m.Blades) < 2 {
			return nil, err
		}
		return mirrored(c, name)(ctx)
	}
}

// drained looks until a blade is empty: it runs no node and holds no region that nobody
// else has.
func drained(c *client.Client, name string) look {
	return func(ctx context.Context) ([]thing, error) {
		b, err := c.Blade(ctx, name)
		switch {
		case err != nil:
			return nil, err
		case b.Status != "draining":
			return nil, fmt.Errorf("%s is %s, not draining any more", name, b.Status)
		case b.Kind != "memory":
			return nodesOn(ctx, c, &b)
		}
		m, err := machineOf(ctx, c, name)
		if err != nil || !slices.Contains(m.Copies, name) || b.Used == 0 && b.Keeps == 0 {
			return nil, err
		}
		return []thing{{name: name, state: "draining", why: memoryLeft(&b, &m)}}, nil
	}
}

// memoryLeft says what a draining memory blade still has.
func memoryLeft(b *api.Blade, m *api.Machine) string {
	if m.Filling != nil {
		return "its copy moves to another blade: " + machineText(m)
	}
	text := fmt.Sprintf("%s are left, which go when their users free them (bifrost regions)", bytesText(b.Used))
	if b.Keeps > 0 {
		text += fmt.Sprintf(", and the states or checkpoints of %d nodes, which go when their apps are undeployed", b.Keeps)
	}
	return text + "; bifrost mirror gives them a second copy"
}

// nodesOn are the nodes that a compute blade still runs.
func nodesOn(ctx context.Context, c *client.Client, b *api.Blade) (left []thing, err error) {
	nodes, err := c.Nodes(ctx)
	apps, failed := c.Apps(ctx)
	if err := errors.Join(err, failed); err != nil {
		return nil, err
	}
	for _, a := range b.Nodes {
		t := thing{name: a.String(), state: "there", why: "somebody has started it by hand: it stays until it ends"}
		if k := slices.IndexFunc(nodes, func(n api.Node) bool { return n.Address == a }); k >= 0 {
			t.name = nodes[k].Name
		}
		for _, app := range apps {
			if k := slices.IndexFunc(app.Instances, func(i api.Instance) bool { return i.Node == a }); k >= 0 {
				t = instanceThing(&app.Instances[k])
			}
		}
		left = append(left, t)
	}
	return left, nil
}
