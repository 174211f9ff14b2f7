package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
)

func newJobCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "job",
		Short:   "Run finished jobs of deployments again",
		Long:    "A job is a program of an app file with job: true. It runs to its end, once. bifrost apps lists it\nas finished then, and bifrost job run runs it again.",
		Example: "  bifrost job run shop/report -- --month 5",
	}
	cmd.AddCommand(newJobRunCmd())
	return cmd
}

func newJobRunCmd() *cobra.Command {
	var o clientOptions
	var w waitOptions
	cmd := o.command(&cobra.Command{
		Use:   "run APP/PROGRAM [-- ARGUMENT...]",
		Short: "Run a finished job again",
		Long: `Run a job of a deployment again that is finished. The arguments come behind those of the app
file, for this run. The job has another node then, and its durable mains begin anew. With
--wait, the command ends when the job is finished, and fails when it has failed three times;
bifrost logs shows what it prints.`,
		Example: "  bifrost job run shop/report --wait\n  bifrost job run shop/report -- --month 5",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, program, ok := strings.Cut(args[0], "/")
			if !ok || strings.Contains(program, "/") {
				return fmt.Errorf("%q is no job: write APP/PROGRAM, such as shop/report; bifrost apps lists them", args[0])
			}
			return o.run(func(c *client.Client) error {
				app, err := c.RunJob(cmd.Context(), name, program, args[1:])
				return o.changed(cmd, c, &w, "job "+args[0], finished(c, name, program), &app, err)
			})
		},
	})
	w.register(cmd, "the job is finished")
	return cmd
}

// finished looks until a job is.
func finished(c *client.Client, name, program string) look {
	return func(ctx context.Context) (left []thing, err error) {
		app, err := c.App(ctx, name)
		if err != nil {
			return nil, err
		}
		for k := range app.Instances {
			i := &app.Instances[k]
			switch {
			case i.Program != program || i.Status == "finished":
				continue
			case i.Failures >= patientFor:
				return nil, failing(i, name)
			}
			left = append(left, instanceThing(i))
		}
		return left, nil
	}
}
