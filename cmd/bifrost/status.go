package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
)

func newStatusCmd() *cobra.Command {
	var o clientOptions
	return o.command(&cobra.Command{
		Use:   "status",
		Short: "Show a rack at a glance",
		Long: `Show the Gatekeeper, the blades of its rack, what they are at, and how many copies
there are of their memory. Like blades, machines, nodes, services, regions, calls, rules, denied and events, it asks the
Gatekeeper's admin API.`,
		Example: `  sudo bifrost status                    # the rack of this machine
  bifrost status --admin-addr tor1.example:8045 --admin-ca ca.pem --admin-token-file token
  bifrost status --json | jq .counters`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(func(c *client.Client) error {
				s, err := c.Status(cmd.Context())
				if err != nil {
					return err
				}
				if o.json {
					return jsonLines(cmd.OutOrStdout(), []api.Status{s})
				}
				blades, err := c.Blades(cmd.Context())
				if err != nil {
					return err
				}
				machines, err := c.Machines(cmd.Context())
				if err != nil {
					return err
				}
				n, err := nodeNames(cmd.Context(), c)
				if err != nil {
					return err
				}
				return printStatus(cmd.OutOrStdout(), &s, blades, machines, n)
			})
		},
	})
}

func printStatus(w io.Writer, s *api.Status, blades []api.Blade, machines []api.Machine, n names) error {
	sw := "connected"
	if !s.Switch.Connected {
		sw = "NOT CONNECTED"
	}
	now, sum := &s.Counts, &s.Counters
	fmt.Fprintf(w, "gatekeeper %s, switch %s\n", s.Version, sw)
	fmt.Fprintf(w, "%d nodes, %d services, %d regions, %d calls under way, %d waiting for rules\n", now.Nodes, now.Services, now.Regions, now.Calls, now.Waiting)
	fmt.Fprintf(w, "held %d packets, released %d; wrote %d rules; denied %d accesses, refused %d requests\n",
		sum.Held, sum.Released, sum.RulesWritten, sum.Denied, sum.Refused)
	for _, r := range s.Recoveries {
		fmt.Fprintf(w, "%s has failed: %s, waits for %s: %s\n", n.of(r.Node), r.Phase, or(strings.Join(r.Waits, ", "), "nothing"), r.Cause)
	}
	if err := table(w, bladeRows(blades, n)...); err != nil || len(machines) == 0 {
		return err
	}
	fmt.Fprintln(w)
	return table(w, machineRows(machines)...)
}

func bladeRows(blades []api.Blade, n names) []string {
	rows := []string{"BLADE\tKIND\tSTATUS\tPORT\tADDRESS\tUSED\tCAPACITY\tLEDGERS\tNODES"}
	for i := range blades {
		b := &blades[i]
		used, capacity := fmt.Sprint(len(b.Nodes)), fmt.Sprintf("%d nodes", b.Capacity)
		if b.Kind == "memory" {
			used, capacity = bytesText(b.Used), bytesText(b.Capacity)
		}
		ledgers := "-"
		if l := b.Ledgers; l != nil {
			ledgers = fmt.Sprintf("%s of %s", bytesText(l.Used), bytesText(l.Total))
		}
		port := "-"
		if b.Port != 0 {
			port = fmt.Sprint(b.Port)
		}
		rows = append(rows, strings.Join([]string{
			b.Name, b.Kind, b.Status, port, b.Address.String(), used, capacity, ledgers, n.all(b.Nodes),
		}, "\t"))
	}
	return rows
}

// bytesText prints a size with the largest unit that leaves a number of 1 or more.
func bytesText(n uint64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	units, v := "KMGTPE", float64(n)
	i := -1
	for v >= 1<<10 {
		v /= 1 << 10
		i++
	}
	return fmt.Sprintf("%.4g %ciB", v, units[i])
}
