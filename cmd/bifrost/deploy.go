package main

import (
	"bufio"
	"cmp"
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

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
	"github.com/bifrost-rack/bifrost/gatekeeper/appfile"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/rack/plan"
	"github.com/spf13/cobra"
)

func newDeployCmd() *cobra.Command {
	var o clientOptions
	var w waitOptions
	var dry, anyBinary bool
	cmd := o.command(&cobra.Command{
		Use:   "deploy FILE",
		Short: "Run the programs of an app file on the rack",
		Long: `Make a deployment what the app file says. The rack starts the file's programs on free
compute blades, and watches them. It starts a program again when the program ends, and
elsewhere when its blade fails. To change numbers of nodes, blades or policies, or to add
programs, edit the file and deploy it again.

A program is rolled out if its command, its environment, its services, its liveness, or
the content of its file has changed. Its nodes finish their calls and are started again,
with their addresses and states. One node is the first, and is watched for three seconds;
then follow the others, one after the other. If the new program fails three times, is not
ready 30 s after its start, or cannot read the state that is kept, the former program comes
back. bifrost rollback brings it back by hand. Exactly-once calls that are under way are executed once.

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
				return o.rolledOut(cmd, c, &w, "the rollout of "+name, &app, err)
			})
		},
	})
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only say what would change")
	w.register(cmd, "all nodes run what the file says and are ready")
	cmd.Flags().BoolVar(&anyBinary, "any-binary", false, "do not compare the content of the programs' files: each blade runs the file that it has")
	return cmd
}

func newUndeployCmd() *cobra.Command {
	var o clientOptions
	var w waitOptions
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
		Example: "  bifrost undeploy arrays --wait\n  bifrost undeploy kv --delete-state",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(func(c *client.Client) error {
				if !deleteState {
					if err := confirmUndeploy(cmd, c, args[0]); err != nil {
						return err
					}
				}
				app, err := c.Undeploy(cmd.Context(), args[0])
				if err == nil && w.wanted() {
					err = w.until(cmd, "undeploying "+args[0], undeployed(c, args[0]))
					app.Instances = []api.Instance{}
				}
				if err != nil {
					return err
				}
				return o.printApps(cmd, c, []api.App{app})
			})
		},
	})
	w.register(cmd, "the deployment is gone")
	cmd.Flags().BoolVar(&deleteState, "delete-state", false, "delete the state of its services without asking")
	return cmd
}

func newAppsCmd() *cobra.Command {
	var o clientOptions
	return o.command(&cobra.Command{
		Use:   "apps",
		Short: "List the deployments and the state of their programs",
		Long: `List the deployments: how many instances of each program are wanted, on which blade each
runs, its status, what it waits for, how often it has failed in a row, and why and when it has
failed last.`,
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
	if err := table(cmd.OutOrStdout(), appRows(apps, n)...); err != nil {
		return err
	}
	for i := range apps {
		if wrong := wrongWith(&apps[i]); wrong != nil {
			fmt.Fprintln(cmd.OutOrStdout(), oneLine(wrong.Error()))
		}
	}
	return nil
}

func appRows(apps []api.App, n names) []string {
	rows := []string{"APP\tPROGRAM\tWANTED\tINSTANCE\tSTATUS\tBLADE\tNODE\tWAITS\tFAILURES\tLAST FAILURE"}
	for i := range apps {
		a := &apps[i]
		for _, p := range a.Programs {
			there := 0
			for _, in := range a.Instances {
				if in.Program == p.Name {
					there++
					rows = append(rows, fmt.Sprintf("%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%d\t%s",
						a.Name, p.Name, p.Nodes, in.Name, in.Status, cmp.Or(in.Blade, "-"), n.of(in.Node), cmp.Or(in.Why, "-"), in.Failures, failureText(&in)))
				}
			}
			if there == 0 {
				rows = append(rows, fmt.Sprintf("%s\t%s\t%d\t-\t-\t-\t-\t-\t-\t-", a.Name, p.Name, p.Nodes))
			}
		}
	}
	return rows
}

// failureText says why an instance has failed last, and when.
func failureText(i *api.Instance) string {
	if i.Failure == "" {
		return "-"
	}
	return clock(i.Failed) + " " + i.Failure
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
	var w waitOptions
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
				app, err := c.Restart(cmd.Context(), args[0])
				return o.rolledOut(cmd, c, &w, "the restart of "+args[0], &app, err)
			})
		},
	})
	w.register(cmd, "all nodes have been started again and are ready")
	return cmd
}

func newRollbackCmd() *cobra.Command {
	var o clientOptions
	var w waitOptions
	cmd := o.command(&cobra.Command{
		Use:   "rollback APP",
		Short: "Bring back the programs that a deployment had before",
		Long: `Bring back the programs that a deployment had before their last change, with their numbers
of nodes, blades and policies. The former programs are rolled out like a change: nodes
finish their calls, and are started again: one first, which is watched, then the others. The
state of a service is not rolled back: the former program gets the state that the new
program has left. If the former program has told that it cannot read that, the rollback is
refused, and nothing stops. If it fails three times, what ran before the rollback comes
back, and --wait fails with the reason.`,
		Example: "  bifrost rollback shop --wait",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(func(c *client.Client) error {
				app, err := c.Rollback(cmd.Context(), args[0])
				return o.rolledOut(cmd, c, &w, "the rollback of "+args[0], &app, err)
			})
		},
	})
	w.register(cmd, "all nodes run the former programs and are ready")
	return cmd
}

// rolledOut prints an app that was changed, unless that went wrong; with --wait when its nodes run and are ready.
func (o *clientOptions) rolledOut(cmd *cobra.Command, c *client.Client, w *waitOptions, what string, app *api.App, err error) error {
	revision := 0
	if app.Rollout != nil {
		revision = app.Rollout.Revision
	}
	return o.changed(cmd, c, w, what, settled(c, app.Name, revision), app, err)
}

// changed prints an app that was changed, unless that went wrong; with --wait when nothing is left that is looked for.
func (o *clientOptions) changed(cmd *cobra.Command, c *client.Client, w *waitOptions, what string, is look, app *api.App, err error) error {
	if err == nil && w.wanted() {
		if err = w.until(cmd, what, is); err == nil {
			*app, err = c.App(cmd.Context(), app.Name)
		}
	}
	if err != nil {
		return err
	}
	return o.printApps(cmd, c, []api.App{*app})
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
