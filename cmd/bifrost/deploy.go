package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
	"github.com/bifrost-rack/bifrost/gatekeeper/appfile"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
)

func newDeployCmd() *cobra.Command {
	var o clientOptions
	var dry, wait, anyBinary bool
	cmd := o.command(&cobra.Command{
		Use:   "deploy FILE",
		Short: "Have programs run on the rack",
		Long: `Make a deployment what a file says: its programs are started on free compute blades,
watched, started again when they end, and moved when their blades fail. Deploying
it again changes numbers, blades and policies, and adds programs.

A program that has changed (its command, its environment, its services, or the content of
its file) is rolled out: its nodes finish their calls and are started again, one after
the other, with their addresses and states. If the new program fails three times, or is not
ready 30 s after its start, the former one comes back; bifrost rollback has that
done by hand. Exactly-once calls that are under way are executed once.

A program is a path, or a name that lies beside bifrost or on the PATH of the
blades' daemons. examples/arrays/app.yaml shows every key.`,
		Example: `  bifrost deploy examples/arrays/app.yaml
  bifrost deploy --dry-run app.yaml     # what would change?
  bifrost deploy --wait app.yaml        # until all nodes run it
  bifrost apps`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, spec, err := readApp(args[0], !anyBinary)
			if err != nil {
				return err
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
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until all nodes run what the file says and are ready, and show how far it is")
	cmd.Flags().BoolVar(&anyBinary, "any-binary", false, "blades run the programs' files that they have, whatever is in them")
	return cmd
}

func newUndeployCmd() *cobra.Command {
	var o clientOptions
	var deleteState bool
	cmd := o.command(&cobra.Command{
		Use:   "undeploy NAME",
		Short: "Stop a deployment",
		Long: `Stop a deployment: its programs are told to end, and killed if they do not. It is gone
when bifrost apps does not list it any more. The state of its services goes with it: for an
app that has some, the command asks, or wants --delete-state.`,
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
	cmd.Flags().BoolVar(&deleteState, "delete-state", false, "the state of its services may go, too")
	return cmd
}

func newAppsCmd() *cobra.Command {
	var o clientOptions
	return o.command(&cobra.Command{
		Use:   "apps",
		Short: "List the deployments and how they do",
		Long: `List the deployments: how many instances of each program are wanted, where they
run, and how often each has failed.`,
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
	rows := []string{"APP\tPROGRAM\tWANTED\tINSTANCE\tSTATUS\tBLADE\tNODE\tFAILURES"}
	for i := range apps {
		a := &apps[i]
		for _, p := range a.Programs {
			there := 0
			for _, in := range a.Instances {
				if in.Program == p.Name {
					there++
					rows = append(rows, fmt.Sprintf("%s\t%s\t%d\t%s\t%s\t%s\t%s\t%d",
						a.Name, p.Name, p.Nodes, in.Name, in.Status, or(in.Blade, "-"), n.of(in.Node), in.Failures))
				}
			}
			if there == 0 {
				rows = append(rows, fmt.Sprintf("%s\t%s\t%d\t-\t-\t-\t-\t-", a.Name, p.Name, p.Nodes))
			}
		}
	}
	return rows
}

// readApp reads the file of a deployment, and finds the programs that are on this
// machine. With hash, their content is what blades are to run.
func readApp(path string, hash bool) (name string, spec api.AppSpec, err error) {
	app, err := appfile.Read(path)
	if err != nil {
		return "", spec, err
	}
	host, err := (&rackOptions{}).host()
	if err != nil {
		return "", spec, err
	}
	for i := range app.Programs {
		args := app.Programs[i].Args
		if strings.Contains(args[0], "/") && !filepath.IsAbs(args[0]) {
			if args[0], err = filepath.Abs(filepath.Join(filepath.Dir(path), args[0])); err != nil {
				return "", spec, err
			}
		}
		if found, err := host.Locate(args[0]); err == nil {
			args[0] = found // else it may be there on the blades
			if hash {
				if app.Programs[i].Binary, err = hashOf(found); err != nil {
					return "", spec, err
				}
			}
		}
	}
	return app.Name, appSpec(&app), nil
}

// hashOf returns the SHA-256 of a file in hexadecimal.
func hashOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("%w: its content is what blades are to run, unless --any-binary is given", err)
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
			Name: p.Name, Args: p.Args, Env: p.Env, Binary: p.Binary, Policy: p.Policy, Nodes: p.Nodes, Spares: p.Spares, Blades: p.Blades, Job: p.Job,
		}
		if l := p.Liveness; l != (resources.Liveness{}) {
			program.Liveness = &api.Liveness{Answer: l.Answer.Seconds(), Progress: l.Progress.Seconds(), Ready: l.Ready.Seconds()}
		}
		for _, v := range p.Services {
			service := api.ProgramService{Name: v.Name, Stateful: v.Stateful}
			for _, m := range v.Methods {
				service.Methods = append(service.Methods, api.MethodPolicy{Name: m.Name, Policy: m.Policy})
			}
			program.Services = append(program.Services, service)
		}
		out.Programs = append(out.Programs, program)
	}
	return out
}
