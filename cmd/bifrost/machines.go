package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
)

func newMachinesCmd() *cobra.Command {
	return show(&clientOptions{}, helpText{"machines", "List the memory machines and their copies",
		`List the memory machines: the blades that serve each, how many complete copies of its
memory are in service, and why there are not two. A machine with two copies loses
nothing when one of its blades dies.`,
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
		return "UNAVAILABLE: " + or(m.Why, "its blades have failed")
	case m.InService == 1:
		return "one copy: " + or(m.Why, "the other blade has failed")
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
