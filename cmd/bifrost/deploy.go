package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
	"github.com/bifrost-rack/bifrost/gatekeeper/appfile"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/rack/plan"
	"github.com/spf13/cobra"
)

func newDeployCmd() *cobra.Command {
	var o clientOptions
	var dry, wait, anyBinary bool
	cmd := o.command(&cobra.Command{
		Use:   "deploy FILE",
		Short: "Run the programs of an app file on the rack",
		Long: `Make a deployment what the app file says. The rack starts the file's programs on free
compute blades, and watches them. It starts a program again when the program ends, and
elsewhere when its blade fails. To change numbers of nodes, blades or policies, or to add
programs, edit the file and deploy it again.

A program is rolled out if its command, its environment, its services, its liveness, or
the content of its file has changed. One after the other, its nodes finish their calls and
are started again, with their addresses and states. If the new program fails three times,
or is not ready 30 s after its start, the former program comes back. bifrost rollback
brings it back by hand. Exactly-once calls that are under way are executed once.

A program's command is a path, or the name of a program beside bifrost or on the PATH of
the blades' daemons. A relative path begins at the app file, and must exist there.
examples/arrays/app.yaml shows every key of an app file.`,
		Example: `  bifrost deploy examples/arrays/app.yaml
  bifrost deploy --dry-run app.yaml     # what would change?
  bifrost deploy --wait app.yaml        # return when all nodes run it
  bifrost apps`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, spec, absent, err := readApp(args[0], !anyBinary)
			if err != nil {
				return err
			}
			for _, program := range absent {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s is not on this machine; the blades must have it\n", program)
			}
			return o.run(func(c *client.Client) error {
				if dry {
					return printDifference(cmd.Context(), cmd.OutOrStdout(), c, name, &spec)
				}
				app, err := c.Deploy(cmd.Context(), name, spec)
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
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only say what would change")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until all nodes run what the file says and are ready, and show the progress")
	cmd.Flags().BoolVar(&anyBinary, "any-binary", false, "do not compare the content of the programs' files: each blade runs the file that it has")
	return cmd
}

func newUndeployCmd() *cobra.Command {
	var o clientOptions
	var deleteState bool
	cmd := o.command(&cobra.Command{
		Use:   "undeploy NAME",
		Short: "Stop a deployment",
		Long: `Stop a deployment. Its programs get no new calls, are told to end, and have some seconds to
finish the calls that they have; then they are killed. The deployment is gone when
bifrost apps does not list it any more. The state of its services is deleted with it. If
there is such state, the command asks first; without a terminal to ask at, it needs
--delete-state.

A program that fails before it has finished its calls, or is killed, leaves an heir: a
process of the rack's own that takes the node's place, on any blade. The heir answers calls
that have run. Calls that had begun fail as unavailable, after memory has taken back what
they did. The heir delivers one-ways, and leaves when no caller needs an answer any more.
So it stays while no blade has room for it, or a job that has called the node makes no
checkpoint. To end this at once, and have calls fail though they may have run, use
bifrost forget NODE.`,
		Example: "  bifrost undeploy arrays\n  bifrost undeploy kv --delete-state",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(func(c *client.Client) error {
				if !deleteState {
					if err := confirmUndeploy(cmd, c, args[0]); err != nil {
						return err
					}
				}
				app, err := c.Undeploy(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				return o.printApps(cmd, c, []api.App{app})
			})
		},
	})
	cmd.Flags().BoolVar(&deleteState, "delete-state", false, "delete the state of its services without asking")
	return cmd
}

func newAppsCmd() *cobra.Command {
	var o clientOptions
	return o.command(&cobra.Command{
		Use:   "apps",
		Short: "List the deployments and the state of their programs",
		Long: `List the deployments: how many instances of each program are wanted, on which blade each
runs, its status, how often it has failed in a row, and why it has failed last.`,
		Example: "  bifrost apps\n  bifrost apps --json | jq '.instances[] | select(.status != \"running\")'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(func(c *client.Client) error {
				apps, err := c.Apps(cmd.Context())
				if err != nil {
					return err
				}
				return o.printApps(cmd, c, apps)
			})
		},
	})
}

func (o *clientOptions) printApps(cmd *cobra.Command, c *client.Client, apps []api.App) error {
	if o.json {
		return jsonLines(cmd.OutOrStdout(), apps)
	}
	n, err := nodeNames(cmd.Context(), c)
	if err != nil {
		return err
	}
	return table(cmd.OutOrStdout(), appRows(apps, n)...)
}

func appRows(apps []api.App, n names) []string {
	rows := []string{"APP\tPROGRAM\tWANTED\tINSTANCE\tSTATUS\tBLADE\tNODE\tFAILURES\tLAST FAILURE"}
	for i := range apps {
		a := &apps[i]
		for _, p := range a.Programs {
			there := 0
			for _, in := range a.Instances {
				if in.Program == p.Name {
					there++
					rows = append(rows, fmt.Sprintf("%s\t%s\t%d\t%s\t%s\t%s\t%s\t%d\t%s",
						a.Name, p.Name, p.Nodes, in.Name, in.Status, or(in.Blade, "-"), n.of(in.Node), in.Failures, or(in.Failure, "-")))
				}
			}
			if there == 0 {
				rows = append(rows, fmt.Sprintf("%s\t%s\t%d\t-\t-\t-\t-\t-\t-", a.Name, p.Name, p.Nodes))
			}
		}
	}
	return rows
}

// readApp reads the file of a deployment, as the API takes it; see readSpec.
func readApp(path string, hash bool) (name string, spec api.AppSpec, absent []string, err error) {
	app, absent, err := readSpec(path, hash)
	if err != nil {
		return "", spec, nil, err
	}
	return app.Name, appSpec(&app), absent, nil
}

// readSpec reads the file of a deployment, and finds the programs that are on this
// machine. With hash, their content is what blades are to run. Those that are absent must be
// on the blades; a relative path is meant for this machine, and must be there.
func readSpec(path string, hash bool) (app resources.Spec, absent []string, err error) {
	if app, err = appfile.Read(path); err != nil {
		return app, nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return app, nil, err
	}
	for i := range app.Programs {
		args := app.Programs[i].Args
		relative := strings.Contains(args[0], "/") && !filepath.IsAbs(args[0])
		if relative {
			if args[0], err = filepath.Abs(filepath.Join(filepath.Dir(path), args[0])); err != nil {
				return app, nil, err
			}
		}
		found, err := plan.Locate(self, args[0])
		if err != nil && relative {
			return app, nil, fmt.Errorf("program %s: %w: build it", app.Programs[i].Name, err)
		}
		if err != nil {
			absent = append(absent, args[0])
			continue
		}
		args[0] = found
		if hash {
			if app.Programs[i].Binary, err = hashOf(found); err != nil {
				return app, nil, err
			}
		}
	}
	return app, absent, nil
}

// hashOf returns the SHA-256 of a file in hexadecimal.
func hashOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("%w: the blades are told its SHA-256; --any-binary deploys without", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// appSpec is a specification as the API takes it.
func appSpec(s *resources.Spec) (out api.AppSpec) {
	for i := range s.Programs {
		p := &s.Programs[i]
		program := api.Program{
			Name: p.Name, Args: p.Args, Env: p.Env, Binary: p.Binary, Policy: p.Policy, MaxFailures: p.MaxFailures, Nodes: p.Nodes, Spares: p.Spares, Blades: p.Blades, Job: p.Job,
		}
		if l := p.Liveness; l != (resources.Liveness{}) {
			program.Liveness = &api.Liveness{Answer: l.Answer.Seconds(), Progress: l.Progress.Seconds(), Ready: l.Ready.Seconds()}
		}
		for _, v := range p.Services {
			service := api.ProgramService{Name: v.Name, Stateful: v.Stateful}
			for _, m := range v.Methods {
				service.Methods = append(service.Methods, api.MethodPolicy{Name: m.Name, Policy: m.Policy, MaxFailures: m.MaxFailures})
			}
			program.Services = append(program.Services, service)
		}
		out.Programs = append(out.Programs, program)
	}
	return out
}

func newRestartCmd() *cobra.Command {
	var o clientOptions
	var wait bool
	cmd := o.command(&cobra.Command{
		Use:   "restart APP",
		Short: "Start the programs of a deployment again, one after the other",
		Long: `Stop the nodes of a deployment and start them again, one node of each program after the
other. Each node finishes its calls first, and comes back with its address and its state.
The next node waits until it is ready. So a new binary at the same path comes into use,
and no exactly-once call fails. Jobs are not restarted: they run to their end.`,
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
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until all nodes have been started again, and show the progress")
	return cmd
}

func newRollbackCmd() *cobra.Command {
	var o clientOptions
	var wait bool
	cmd := o.command(&cobra.Command{
		Use:   "rollback APP",
		Short: "Bring back the programs that a deployment had before",
		Long: `Bring back the programs that a deployment had before their last change, with their numbers
of nodes, blades and policies. The former programs are rolled out like a change: nodes
finish their calls, and are started again one after the other. The state of a service is
not rolled back: the former program gets the state that the new program has left. If it
fails three times, what ran before the rollback comes back, and --wait fails with the reason.`,
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
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until all nodes run the former programs, and show the progress")
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
		case o.Stuck != "":
			return now, fmt.Errorf("%s does not become ready: %s; bifrost logs %s says more", now.Name, o.Stuck, now.Name)
		case o.Done && o.Revision != wanted:
			return now, fmt.Errorf("%s was rolled back: %s; bifrost logs %s says more", now.Name, o.Back, now.Name)
		}
		starting, err := jobsStart(&now)
		if err != nil || o.Done && !starting {
			return now, err
		}
		select {
		case <-ctx.Done():
			return now, ctx.Err()
		case <-time.After(rolloutPace):
		}
	}
}

// patientFor is how often in a row a program may fail before a command that waits for it ends.
const patientFor = 3

// jobsStart reports whether an app has jobs that have not started, of which a rollout does not
// tell. It fails if one fails again and again.
func jobsStart(app *api.App) (starting bool, err error) {
	for _, p := range app.Programs {
		for _, i := range app.Instances {
			if !p.Job || i.Program != p.Name || i.Status != "waiting" && i.Status != "starting" {
				continue
			}
			if starting = true; i.Failures >= patientFor {
				return true, failing(app, &i)
			}
		}
	}
	return starting, nil
}

// failing is the error of an instance that fails again and again.
func failing(app *api.App, i *api.Instance) error {
	return fmt.Errorf("%s has failed %d times: %s; bifrost logs %s says more", i.Name, i.Failures, i.Failure, app.Name)
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
		case i.Status != "running" && i.Failures > 0:
			text += fmt.Sprintf("; %s is %s, after %d failures: %s", i.Name, i.Status, i.Failures, i.Failure)
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
		for i := range now.Instances {
			if in := &now.Instances[i]; in.Status != "running" && in.Failures >= patientFor {
				return now, failing(&now, in)
			}
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
