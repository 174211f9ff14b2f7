package main

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
)

func newRegionsCmd() *cobra.Command {
	var node, pointer string
	cmd := show(&clientOptions{}, helpText{"regions", "List the regions with their controllers and leases",
		`List the regions of the distributed memory: where each is, which node controls it,
and to whom calls have lent it.`,
		"  bifrost regions --node fd00:b1f0:0:2::1\n  bifrost regions --pointer 0:0:1001::1040   # who holds this pointer?"},
		func(ctx context.Context, c *client.Client) ([]api.Region, error) {
			f, err := regionFilter(node, pointer)
			if err != nil {
				return nil, err
			}
			return collect(c.Regions(ctx, f))
		}, regionRows)
	cmd.Flags().StringVar(&node, "node", "", "only those that the node at this `ADDRESS` controls, has allocated or leases")
	cmd.Flags().StringVar(&pointer, "pointer", "", "only the one that this `POINTER` lies in")
	return cmd
}

func regionFilter(node, pointer string) (f client.RegionFilter, err error) {
	if f.Node, err = optional("--node", node); err == nil {
		f.Pointer, err = optional("--pointer", pointer)
	}
	return f, err
}

// optional reads an address that may be missing.
func optional(flag, text string) (a netip.Addr, err error) {
	if text != "" {
		if a, err = netip.ParseAddr(text); err != nil {
			err = fmt.Errorf("%s %s: want an IPv6 address", flag, text)
		}
	}
	return a, err
}

func regionRows(rs []api.Region, n names) []string {
	rows := []string{"REGION\tSIZE\tBLADE\tCONTROLLER\tLEASED TO\tSTATE"}
	for i := range rs {
		r := &rs[i]
		var readers []netip.Addr
		for _, l := range r.Leases {
			readers = append(readers, l.Node)
		}
		state := "-"
		switch {
		case r.Freeing:
			state = "freeing"
		case !r.Controller.IsValid():
			state = "orphaned"
		case len(readers) > 0:
			state = "leased"
		}
		rows = append(rows, strings.Join([]string{
			r.Region, bytesText(r.Size), or(r.Blade, "-"), n.of(r.Controller), n.all(readers), state,
		}, "\t"))
	}
	return rows
}

func newRulesCmd() *cobra.Command {
	var tableName string
	cmd := show(&clientOptions{}, helpText{"rules", "List the switch's table entries, read back from the switch",
		`List the entries of the switch's tables as the switch has them, not as the
Gatekeeper remembers them.`,
		"  bifrost rules --table dsm_access   # who may do what where"},
		func(ctx context.Context, c *client.Client) ([]api.Rule, error) {
			return collect(c.Rules(ctx, tableName))
		},
		func(rs []api.Rule, _ names) []string {
			rows := []string{"TABLE\tMATCH\tACTION"}
			for i := range rs {
				rows = append(rows, fmt.Sprintf("%s\t%s\t%s %s", rs[i].Table, pairs(rs[i].Match), rs[i].Action, pairs(rs[i].Params)))
			}
			return rows
		})
	cmd.Flags().StringVar(&tableName, "table", "", "only those of this `TABLE`: identity, l3, dsm_home, dsm_access, rpc_route or next_hop")
	return cmd
}

// pairs prints fields in the order of their names: a=1 b=2.
func pairs(m map[string]string) string {
	var out []string
	for k, v := range m {
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func newDeniedCmd() *cobra.Command {
	o := &clientOptions{}
	ports := false
	cmd := show(o, helpText{"denied", "List the latest memory accesses that the switch has denied",
		`List the latest memory accesses that the switch has denied, as far as it told: the
counter in bifrost status has them all. With --ports: for each port of the switch, how
many of its accesses were denied, how many of its packets the switch has dropped, and
why, how many it has dropped because they came faster than their class may, and how
many the Gatekeeper has refused, and why.`,
		"  bifrost denied\n  bifrost denied --json | jq -r .node | sort | uniq -c\n  bifrost denied --ports"},
		func(ctx context.Context, c *client.Client) ([]api.Denial, error) { return c.Denied(ctx) },
		func(ds []api.Denial, n names) []string {
			rows := []string{"TIME\tNODE\tOPERATION\tPOINTER\tPORT"}
			for i := range ds {
				d := &ds[i]
				rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%s\t%d", clock(d.Time), n.of(d.Node), d.Op, d.Pointer, d.Port))
			}
			return rows
		})
	cmd.Flags().BoolVar(&ports, "ports", false, "count by port what was denied, dropped, throttled and refused")
	list := cmd.RunE
	stopped := shown(o, func(ctx context.Context, c *client.Client) ([]api.Stopped, error) { return c.Stopped(ctx) }, stoppedRows)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if ports {
			return stopped(cmd, args)
		}
		return list(cmd, args)
	}
	return cmd
}

func stoppedRows(all []api.Stopped, _ names) []string {
	rows := []string{"PORT\tBLADE\tDENIED\tDROPPED\tTHROTTLED\tREFUSED"}
	for i := range all {
		s := &all[i]
		rows = append(rows, fmt.Sprintf("%d\t%s\t%d\t%s\t%s\t%s", s.Port, or(s.Blade, "-"), s.Denied, or(counts(s.Dropped), "-"), or(counts(s.Throttled), "-"), or(counts(s.Refused), "-")))
	}
	return rows
}

// counts prints counters in the order of their names: a 1, b 2.
func counts(m map[string]uint64) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, fmt.Sprintf("%s %d", k, m[k]))
	}
	return strings.Join(out, ", ")
}
