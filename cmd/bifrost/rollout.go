package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
)

func newRestartCmd() *cobra.Command {
	var o clientOptions
	var wait bool
	cmd := o.command(&cobra.Command{
		Use:   "restart APP",
		Short: "Start the programs of a deployment again, one after the other",
		Long: `Stop the nodes of a deployment and start them again, one of each program after the
other: each finishes its calls first, and the next one waits until it is ready again,
with its address and its state. So a new binary at the same path comes into use, and no
exactly-once call fails. Jobs are left to their end.`,
		Example: "  bifrost restart shop --wait",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(func(c *client.Client) error {
				before, err := c.Nodes(cmd.Context())
				if err != nil {
					return err
				}
				app, err := c.Restart(cmd.Context(), args[0])
				if err == nil && wait {
					app, err = awaitRestart(cmd.Context(), cmd.ErrOrStderr(), c, &app, before)
				}
				if err != nil {
					return err
				}
				return o.printApps(cmd, c, []api.App{app})
			})
		},
	})
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until all have been started again, and show how far it is")
	return cmd
}

func newRollbackCmd() *cobra.Command {
	var o clientOptions
	var wait bool
	cmd := o.command(&cobra.Command{
		Use:   "rollback APP",
		Short: "Bring back the programs that a deployment had before",
		Long: `Bring back the programs that a deployment had before they changed last, with their numbers,
blades and policies. They are rolled out like a change: nodes finish their calls, and
are started again one after the other. The state of a service stays what it is: the former
program gets what the new one has made of it.`,
		Example: "  bifrost rollback shop --wait",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(func(c *client.Client) error {
				app, err := c.Rollback(cmd.Context(), args[0])
				if err == nil && wait {
					app, err = awaitRollout(cmd.Context(), cmd.ErrOrStderr(), c, &app)
				}
				if err != nil {
					return err
				}
				return o.printApps(cmd, c, []api.App{app})
			})
		},
	})
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until all nodes run the former programs, and show how far it is")
	return cmd
}

// rolloutPace is how often a command asks how far a rollout is.
const rolloutPace = 100 * time.Millisecond

// awaitRollout waits until all nodes of an app run what it was when it was deployed. It fails if
// something else came meanwhile, such as what was before, which it waits for.
func awaitRollout(ctx context.Context, w io.Writer, c *client.Client, deployed *api.App) (now api.App, err error) {
	if deployed.Rollout == nil {
		return *deployed, nil
	}
	wanted, said := deployed.Rollout.Revision, ""
	for {
		if now, err = c.App(ctx, deployed.Name); err != nil {
			return now, err
		}
		o := now.Rollout
		if text := rolloutText(&now); text != said {
			said = text
			fmt.Fprintln(w, text)
		}
		switch {
		case now.Removed:
			return now, fmt.Errorf("%s is being undeployed", now.Name)
		case o.Revision != wanted && o.Back == "":
			return now, fmt.Errorf("%s was changed again meanwhile: it is at revision %d now, not %d", now.Name, o.Revision, wanted)
		case o.Done && o.Revision != wanted:
			return now, fmt.Errorf("%s was rolled back: %s; bifrost logs %s says more", now.Name, o.Back, now.Name)
		case o.Done:
			return now, nil
		}
		select {
		case <-ctx.Done():
			return now, ctx.Err()
		case <-time.After(rolloutPace):
		}
	}
}

// rolloutText says how far the rollout of an app is, and what its nodes do that are not there yet.
func rolloutText(app *api.App) string {
	o := app.Rollout
	text := fmt.Sprintf("revision %d: %d of %d nodes run it", o.Revision, o.Ready, o.Nodes)
	if o.Back != "" {
		text = fmt.Sprintf("rolled back (%s), as %s", o.Back, text)
	}
	for _, i := range app.Instances {
		switch {
		case i.Status == "draining" && i.Revision != o.Revision:
			text += fmt.Sprintf("; %s finishes its calls", i.Name)
		case i.Status == "running" && i.Revision == o.Revision || i.Status == "finished":
		case i.Status != "running":
			text += fmt.Sprintf("; %s is %s", i.Name, i.Status)
		}
	}
	return text
}

// awaitRestart waits until each node of an app that was there before has another incarnation, or
// is gone.
func awaitRestart(ctx context.Context, w io.Writer, c *client.Client, app *api.App, before []api.Node) (now api.App, err error) {
	old := slices.DeleteFunc(slices.Clone(before), func(n api.Node) bool {
		return !slices.ContainsFunc(app.Instances, func(i api.Instance) bool { return i.Node == n.Address })
	})
	said := ""
	for {
		nodes, err := c.Nodes(ctx)
		if err != nil {
			return now, err
		}
		if now, err = c.App(ctx, app.Name); err != nil {
			return now, err
		}
		left := slices.DeleteFunc(slices.Clone(old), func(n api.Node) bool {
			return !slices.ContainsFunc(nodes, func(m api.Node) bool { return m.Address == n.Address && m.Incarnation == n.Incarnation })
		})
		runs := !slices.ContainsFunc(now.Instances, func(i api.Instance) bool { return i.Status != "running" && i.Status != "finished" })
		if text := fmt.Sprintf("%d of %d nodes have been started again", len(old)-len(left), len(old)); text != said {
			said = text
			fmt.Fprintln(w, text)
		}
		if len(left) == 0 && runs {
			return now, nil
		}
		select {
		case <-ctx.Done():
			return now, ctx.Err()
		case <-time.After(rolloutPace):
		}
	}
}

// confirmUndeploy asks whether the state of an app may go, unless that was said. Without a
// terminal to ask at, it has to be said.
func confirmUndeploy(cmd *cobra.Command, c *client.Client, name string) error {
	app, err := c.App(cmd.Context(), name)
	if err != nil {
		return err
	}
	services := statefulServices(&app)
	if len(services) == 0 {
		return nil
	}
	what := fmt.Sprintf("%s has state, in %s, which goes with it", name, strings.Join(services, " and "))
	in, ok := cmd.InOrStdin().(*os.File)
	if !ok || !isTerminal(in) {
		return fmt.Errorf("%s: say so with --delete-state", what)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s. Write its name to go on: ", what)
	answer, err := bufio.NewReader(in).ReadString('\n')
	if err != nil || strings.TrimSpace(answer) != name {
		return errors.New("nothing was undeployed")
	}
	return nil
}

// statefulServices are the services of an app that have state.
func statefulServices(app *api.App) (names []string) {
	for _, p := range app.Programs {
		for _, s := range p.Services {
			if s.Stateful {
				names = append(names, s.Name)
			}
		}
	}
	return names
}

// printDifference says what a deployment would change, without a change.
func printDifference(ctx context.Context, w io.Writer, c *client.Client, name string, spec *api.AppSpec) error {
	now, err := c.App(ctx, name)
	if err != nil && !client.IsNotFound(err) {
		return err
	}
	lines := difference(now.Programs, spec.Programs)
	if len(lines) == 0 {
		lines = []string{"nothing changes"}
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

// difference lists what is different, a line for each key of a program: - what is, + what is
// to be.
func difference(before, after []api.Program) (lines []string) {
	find := func(all []api.Program, name string) map[string]any {
		for _, p := range all {
			if p.Name == name {
				return fields(p)
			}
		}
		return nil
	}
	var names []string
	for _, p := range slices.Concat(before, after) {
		if !slices.Contains(names, p.Name) {
			names = append(names, p.Name)
		}
	}
	for _, name := range names {
		was, is := find(before, name), find(after, name)
		switch {
		case was == nil:
			lines = append(lines, "+ program "+name)
		case is == nil:
			lines = append(lines, "- program "+name+": give it 0 nodes to stop it")
			continue
		}
		var keys []string
		for key := range was {
			keys = append(keys, key)
		}
		for key := range is {
			if _, both := was[key]; !both {
				keys = append(keys, key)
			}
		}
		slices.Sort(keys)
		for _, key := range keys {
			old, before := was[key]
			given, after := is[key]
			if text(old) == text(given) {
				continue
			}
			if before {
				lines = append(lines, fmt.Sprintf("- %s.%s: %s", name, key, text(old)))
			}
			if after {
				lines = append(lines, fmt.Sprintf("+ %s.%s: %s", name, key, text(given)))
			}
		}
	}
	return lines
}

// fields are a program's keys and values, without its name.
func fields(p api.Program) map[string]any {
	var out map[string]any
	b, err := json.Marshal(p)
	if err != nil || json.Unmarshal(b, &out) != nil {
		return nil // it was JSON before
	}
	delete(out, "name")
	return out
}

// text writes a value on one line.
func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}
