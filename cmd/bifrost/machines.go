package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
	"github.com/spf13/cobra"
)

func newMachinesCmd() *cobra.Command {
	return show(&clientOptions{}, helpText{"machines", "List the memory machines and their copies",
		`List the memory machines: the blades that serve each, and how many complete copies of its
memory are in service. STATE says why, if there are not two. A machine with two copies
loses nothing when one of its blades dies.`,
		"  bifrost machines\n  bifrost machines --json | jq 'select(.in_service < 2).why'"},
		func(ctx context.Context, c *client.Client) ([]api.Machine, error) { return c.Machines(ctx) },
		func(ms []api.Machine, _ names) []string { return machineRows(ms) })
}

func machineRows(machines []api.Machine) []string {
	rows := []string{"MACHINE\tBLADES\tCOPIES\tUSED\tCAPACITY\tSTATE"}
	for i := range machines {
		m := &machines[i]
		rows = append(rows, fmt.Sprintf("%d\t%s\t%d\t%s\t%s\t%s", m.Machine, strings.Join(m.Blades, " + "), m.InService, bytesText(m.Used), bytesText(m.Capacity), machineText(m)))
	}
	return rows
}

// machineText says in words whether a blade of the machine may die.
func machineText(m *api.Machine) string {
	switch {
	case m.Filling != nil:
		return "filling: " + fillText(m)
	case m.InService == 0:
		return "UNAVAILABLE: " + cmp.Or(m.Why, "its blades have failed")
	case m.InService == 1:
		return "one copy: " + cmp.Or(m.Why, "the other blade has failed")
	}
	return "mirrored"
}

// fillText says how far the second copy is filled: m1 + m2: 43 % of 1.2 GiB, 12 s left.
func fillText(m *api.Machine) string {
	f := m.Filling
	text := fmt.Sprintf("%s: %d %% of %s", strings.Join(append(slices.Clone(m.Copies), f.Blade), " + "), percent(f.Done, f.Total), bytesText(f.Total))
	if f.Left > 0 {
		text += fmt.Sprintf(", %.0f s left", math.Ceil(f.Left))
	}
	return text
}

// percent is how much of a total is done, rounded down: 100 means all of it.
func percent(done, total uint64) uint64 {
	if total == 0 {
		return 0
	}
	return uint64(100 * float64(min(done, total)) / float64(total))
}

func newMirrorCmd() *cobra.Command {
	var o clientOptions
	var w waitOptions
	cmd := o.command(&cobra.Command{
		Use:   "mirror BLADE ONTO",
		Short: "Give the memory of a blade a second copy on another blade",
		Long: `Give the memory machine of BLADE a second copy on the memory blade ONTO, which must not
serve any memory yet. The copy is filled while the rack works. When it is complete, either
blade may die, and nothing is lost. --wait waits until the copy is complete, and shows the
progress. bifrost machines shows the progress, too.`,
		Example: "  bifrost mirror m1 m2 --wait",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(func(c *client.Client) error {
				m, err := c.Mirror(cmd.Context(), args[0], args[1])
				if err == nil && w.wanted() {
					if err = w.until(cmd, "the copy on "+args[1], mirrored(c, args[0])); err == nil {
						m, err = machineOf(cmd.Context(), c, args[0])
					}
				}
				return o.printMachine(cmd.OutOrStdout(), &m, err)
			})
		},
	})
	w.register(cmd, "the copy is complete")
	return cmd
}

func newUnmirrorCmd() *cobra.Command {
	var o clientOptions
	var why string
	cmd := o.command(&cobra.Command{
		Use:   "unmirror BLADE",
		Short: "Take a blade's copy from its memory machine",
		Long: `Take a memory blade's copy from its machine. The machine goes on with the other copy
alone: if the other blade dies, too, the memory is lost. The removed blade is empty then,
and serves nothing until bifrost return or bifrost mirror. To move a copy to a third blade,
unmirror one blade first: bifrost mirror refuses a machine that has two.`,
		Example: "  bifrost unmirror m2 --cause 'new memory'\n  bifrost return m2 --wait",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(func(c *client.Client) error {
				m, err := c.Unmirror(cmd.Context(), args[0], why)
				return o.printMachine(cmd.OutOrStdout(), &m, err)
			})
		},
	})
	cmd.Flags().StringVar(&why, "cause", "", "the reason, a `TEXT` for people; it is shown with the machine")
	return cmd
}

// printMachine prints a machine unless something went wrong.
func (o *clientOptions) printMachine(w io.Writer, m *api.Machine, err error) error {
	if err != nil {
		return err
	}
	if o.json {
		return jsonLines(w, []api.Machine{*m})
	}
	_, err = fmt.Fprintf(w, "machine %d (%s): %s\n", m.Machine, strings.Join(m.Blades, " + "), machineText(m))
	return err
}

// machineOf returns the memory machine that a blade is to serve.
func machineOf(ctx context.Context, c *client.Client, blade string) (api.Machine, error) {
	all, err := c.Machines(ctx)
	if err != nil {
		return api.Machine{}, err
	}
	i := slices.IndexFunc(all, func(m api.Machine) bool { return slices.Contains(m.Blades, blade) })
	if i < 0 {
		return api.Machine{}, fmt.Errorf("blade %s serves no memory machine any more", blade)
	}
	return all[i], nil
}
