package main

import (
	"context"
	"fmt"
	"io"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
)

// newShowCmds are the commands that list one kind of thing each.
func newShowCmds() []*cobra.Command {
	return []*cobra.Command{
		newBladesCmd(), newMachinesCmd(), newNodesCmd(), newServicesCmd(), newRegionsCmd(), newCallsCmd(), newMethodsCmd(), newRulesCmd(), newDeniedCmd(), newEventsCmd(),
		newTraceCmd(), newAppsCmd(), newLogsCmd(), newWhoCmd(), newDomainCmd(),
	}
}

// helpText is what the help of a command says.
type helpText struct{ use, short, long, example string }

// show makes a command that lists what ask returns, in rows or as JSON.
func show[T any](o *clientOptions, h helpText, ask func(context.Context, *client.Client) ([]T, error), rows func([]T, names) []string) *cobra.Command {
	return o.command(&cobra.Command{
		Use: h.use, Short: h.short, Long: h.long, Example: h.example, Args: cobra.NoArgs,
		RunE: shown(o, ask, rows),
	})
}

// shown asks for a list and prints it.
func shown[T any](o *clientOptions, ask func(context.Context, *client.Client) ([]T, error), rows func([]T, names) []string) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		return o.run(func(c *client.Client) error {
			items, err := ask(cmd.Context(), c)
			if err != nil {
				return err
			}
			if o.json {
				return jsonLines(cmd.OutOrStdout(), items)
			}
			n, err := nodeNames(cmd.Context(), c)
			if err != nil {
				return err
			}
			return table(cmd.OutOrStdout(), rows(items, n)...)
		})
	}
}

// names are those of nodes, for people: BLADE/NAME.
type names map[netip.Addr]string

// nodeNames asks for the names of all nodes, also of those that are gone, as far as
// their joining is remembered.
func nodeNames(ctx context.Context, c *client.Client) (names, error) {
	joined, err := c.Recent(ctx, 4096, "node.joined")
	if err != nil {
		return nil, err
	}
	nodes, err := c.Nodes(ctx)
	n := names{}
	for i := range joined {
		n.learn(&joined[i])
	}
	for i := range nodes {
		n[nodes[i].Address] = nodes[i].Blade + "/" + nodes[i].Name
	}
	return n, err
}

// of is a node's name, or the address of one that is gone.
func (n names) of(a netip.Addr) string {
	switch {
	case !a.IsValid():
		return "-"
	case n[a] == "":
		return a.String()
	}
	return n[a]
}

func (n names) all(as []netip.Addr) string {
	var out []string
	for _, a := range as {
		out = append(out, n.of(a))
	}
	return or(strings.Join(out, ","), "-")
}

func newBladesCmd() *cobra.Command {
	return show(&clientOptions{}, helpText{"blades", "List the blades",
		`List the blades: free, in use, draining or failed, at which port of the switch, how
much of each is in use, and by whom.`,
		"  bifrost blades\n  bifrost blades --json | jq 'select(.status == \"failed\").name'"},
		func(ctx context.Context, c *client.Client) ([]api.Blade, error) { return c.Blades(ctx) },
		bladeRows)
}

func newNodesCmd() *cobra.Command {
	return show(&clientOptions{}, helpText{"nodes", "List the nodes",
		`List the nodes: the programs that take part in the rack, with their addresses, the
blades that they run on, and the services that they export. LEDGER ROOM is how many
bytes new calls may still take in a node's ledger, as it told last.`,
		"  bifrost nodes\n  bifrost nodes --json | jq -r 'select(.blade == \"s2\").address'"},
		func(ctx context.Context, c *client.Client) ([]api.Node, error) { return c.Nodes(ctx) },
		func(ns []api.Node, _ names) []string {
			rows := []string{"NODE\tNAME\tBLADE\tINCARNATION\tLEDGER ROOM\tSERVICES"}
			for i := range ns {
				n := &ns[i]
				room := "-"
				if n.LedgerRoom != nil {
					room = bytesText(*n.LedgerRoom)
				}
				rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%d\t%s\t%s", n.Address, n.Name, n.Blade, n.Incarnation, room, or(strings.Join(n.Services, ","), "-")))
			}
			return rows
		})
}

func newServicesCmd() *cobra.Command {
	o := &clientOptions{}
	var idl string
	cmd := show(o, helpText{"services", "List the services, their methods and where their calls go",
		`List the services and their methods. The switch sends a call to one of the nodes by
as many routes; a stateful service has none, for the Gatekeeper hands on its calls.`,
		"  bifrost services\n  bifrost services --json | jq -r .name\n  bifrost services --idl Arrays > arrays.thrift"},
		func(ctx context.Context, c *client.Client) ([]api.Service, error) { return c.Services(ctx) },
		func(ss []api.Service, n names) []string {
			rows := []string{"SERVICE\tMETHOD\tNODES\tROUTES"}
			for i := range ss {
				for _, m := range ss[i].Methods {
					var nodes []netip.Addr
					for _, r := range m.Routes {
						if !slices.Contains(nodes, r.Node) {
							nodes = append(nodes, r.Node)
						}
					}
					rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%d", ss[i].Name, m.Name, servedAt(nodes, ss[i].NotServing, n), len(m.Routes)))
				}
			}
			return rows
		})
	cmd.Flags().StringVar(&idl, "idl", "", "print the IDL of this `SERVICE`, if its program tells it, and nothing else")
	list := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if idl == "" {
			return list(cmd, args)
		}
		return o.run(func(c *client.Client) error { return printIDL(cmd, c, idl) })
	}
	return cmd
}

// servedAt names the nodes that serve a method, and those of them that say it should not
// be called.
func servedAt(nodes, resting []netip.Addr, n names) string {
	text := n.all(nodes)
	var not []netip.Addr
	for _, a := range nodes {
		if slices.Contains(resting, a) {
			not = append(not, a)
		}
	}
	if len(not) > 0 {
		text += "; not serving: " + n.all(not)
	}
	return text
}

// printIDL prints the IDL of a service.
func printIDL(cmd *cobra.Command, c *client.Client, service string) error {
	s, err := c.Service(cmd.Context(), service)
	if err != nil {
		return err
	}
	if s.IDL == "" {
		return fmt.Errorf("no program tells the IDL of service %s: export it with rpc.WithIDL", service)
	}
	_, err = io.WriteString(cmd.OutOrStdout(), s.IDL)
	return err
}

// clock prints the time of day here, to the millisecond.
func clock(t time.Time) string { return t.Local().Format("15:04:05.000") }

// collect takes all items, or fails.
func collect[T any](items iter.Seq2[T, error]) (all []T, err error) {
	for item, err := range items {
		if err != nil {
			return nil, err
		}
		all = append(all, item)
	}
	return all, nil
}
