package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"iter"
	"maps"
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
		newBladesCmd(), newMachinesCmd(), newNodesCmd(), newServicesCmd(), newRegionsCmd(), newSlotsCmd(), newCallsCmd(), newMethodsCmd(), newRulesCmd(), newDeniedCmd(), newEventsCmd(), newHistoryCmd(),
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
	all, err := c.Names(ctx)
	n := names{}
	for _, k := range all {
		n[k.Address] = k.Blade + "/" + k.Name
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
	return cmp.Or(strings.Join(out, ","), "-")
}

func newBladesCmd() *cobra.Command {
	return show(&clientOptions{}, helpText{"blades", "List the blades",
		`List the blades: whether each is free, in use, draining or failed, its port of the
switch, how much of it is in use, and the nodes that run on it.`,
		"  bifrost blades\n  bifrost blades --json | jq 'select(.status == \"failed\").name'"},
		func(ctx context.Context, c *client.Client) ([]api.Blade, error) { return c.Blades(ctx) },
		bladeRows)
}

func newNodesCmd() *cobra.Command {
	return show(&clientOptions{}, helpText{"nodes", "List the nodes",
		`List the nodes, which are the programs that have joined the rack: their addresses, the
blades that they run on, and the services that they export. LEDGER ROOM is how many bytes
new calls may still take in a node's ledger, as the node has last reported. STATE is how
many bytes the states of its services and the checkpoints of its durable mains have there,
and how many they may have together: half of the ledger. Calls that need more fail as no
space. A node may wait
for its program: somebody had started that by hand, it has ended, and the node keeps the
state of a service or a durable main. The next program of that name on that blade goes on as
that node; bifrost forget gives the node up.`,
		"  bifrost nodes\n  bifrost nodes --json | jq -r 'select(.blade == \"s2\").address'"},
		func(ctx context.Context, c *client.Client) ([]api.Node, error) { return c.Nodes(ctx) },
		func(ns []api.Node, _ names) []string {
			rows := []string{"NODE\tNAME\tBLADE\tINCARNATION\tLEDGER ROOM\tSTATE\tSERVICES"}
			for i := range ns {
				n := &ns[i]
				room := "-"
				if n.LedgerRoom != nil {
					room = bytesText(*n.LedgerRoom)
				}
				state := "-"
				if n.MaxStates > 0 {
					state = bytesText(n.States) + " of " + bytesText(n.MaxStates)
				}
				services := cmp.Or(strings.Join(n.Services, ","), "-")
				if n.Awaited != nil {
					services = "waits for its program since " + n.Awaited.Local().Format(time.DateTime)
				}
				rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%d\t%s\t%s\t%s", n.Address, n.Name, n.Blade, n.Incarnation, room, state, services))
			}
			return rows
		})
}

func newServicesCmd() *cobra.Command {
	o := &clientOptions{}
	var idl string
	cmd := show(o, helpText{"services", "List the services, their methods and where their calls go",
		`List the services, their methods, and the nodes that serve them. ROUTES is how many routes
the switch has for a method; it sends each call to a node by one of them. A service with
state has no routes in the switch.`,
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
	cmd.Flags().StringVar(&idl, "idl", "", "print only the IDL of this `SERVICE`, if its program publishes it (rpc.WithIDL)")
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
		return fmt.Errorf("service %s was exported without its IDL: export it with rpc.WithIDL", service)
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

// tellMissing says on standard error who has not answered, so that what is printed is not complete.
func tellMissing(cmd *cobra.Command, missing []string) {
	if len(missing) > 0 {
		fmt.Fprintln(cmd.ErrOrStderr(), "not complete, since there was no answer from: "+strings.Join(missing, ", "))
	}
}

func newRegionsCmd() *cobra.Command {
	var node, pointer string
	var cmd *cobra.Command
	cmd = show(&clientOptions{}, helpText{"regions", "List the regions with their controllers and leases",
		`List the regions of the distributed memory: the blade that holds each, the node that
controls it, and the nodes to which calls, or standing leases, have lent it. A region is
orphaned when its controller is gone: it is being freed. It is frozen if nobody can say
whose it is: bifrost free frees it. If a memory blade, or the switch, has not answered,
a line on standard error says so: what it knows is left out.`,
		"  bifrost regions --node fd00:b1f0:0:2::1\n  bifrost regions --pointer 0:0:1001::1040   # who holds this pointer?"},
		func(ctx context.Context, c *client.Client) ([]api.Region, error) {
			f, err := regionFilter(ctx, c, node, pointer)
			if err != nil {
				return nil, err
			}
			var missing []string
			f.Missing = &missing
			all, err := collect(c.Regions(ctx, f))
			tellMissing(cmd, missing)
			return all, err
		}, regionRows)
	cmd.Flags().StringVar(&node, "node", "", "only regions that this `NODE` (its address, or BLADE/NAME) controls, has allocated or leases")
	cmd.Flags().StringVar(&pointer, "pointer", "", "only the region that this `POINTER` lies in")
	return cmd
}

func regionFilter(ctx context.Context, c *client.Client, node, pointer string) (f client.RegionFilter, err error) {
	if f.Node, err = nodeOf(ctx, c, "--node", node); err == nil {
		f.Pointer, err = optional("--pointer", pointer)
	}
	return f, err
}

// nodeOf is the address of a node that is given by its address, or by BLADE/NAME: the one that has this name, or else the last one that
// had it. It is the zero Addr if none is given.
func nodeOf(ctx context.Context, c *client.Client, flag, text string) (a netip.Addr, err error) {
	if !strings.Contains(text, "/") {
		return optional(flag, text)
	}
	all, err := c.Names(ctx)
	for _, n := range slices.Backward(all) {
		if n.Blade+"/"+n.Name == text && (!n.Left || !a.IsValid()) {
			a = n.Address
		}
	}
	if err == nil && !a.IsValid() {
		err = fmt.Errorf("%s %s: no node has, or had, this name: bifrost nodes lists those that are there", flag, text)
	}
	return a, err
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
		case r.Frozen:
			state = "frozen"
		case !r.Controller.IsValid():
			state = "orphaned"
		case len(readers) > 0:
			state = "leased"
		}
		rows = append(rows, strings.Join([]string{
			r.Region, bytesText(r.Size), cmp.Or(r.Blade, "-"), n.of(r.Controller), n.all(readers), state,
		}, "\t"))
	}
	return rows
}

func newRulesCmd() *cobra.Command {
	var tableName string
	cmd := show(&clientOptions{}, helpText{"rules", "List the switch's table entries, read back from the switch",
		`List the entries of the switch's tables. The entries are read from the switch itself, not
from what the Gatekeeper remembers.`,
		"  bifrost rules --table control_rule   # which node may allocate where"},
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
	cmd.Flags().StringVar(&tableName, "table", "", "only entries of this `TABLE`: identity, l3, dsm_home, control_rule, block_rule, rpc_route or next_hop")
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
		`List the latest memory accesses that the switch has denied. The switch does not report
every one of them; the counter in bifrost status has them all.

With --ports, list for each port of the switch:

  DENIED      how many memory accesses the switch has denied
  DROPPED     how many packets the switch has dropped, and why
  THROTTLED   how many packets the switch has dropped because they exceeded the rate of
              their class (bifrost gatekeeper --rate)
  REFUSED     how many packets the Gatekeeper has refused, and why`,
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
	cmd.Flags().BoolVar(&ports, "ports", false, "show for each port of the switch what was denied, dropped, throttled and refused")
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
		rows = append(rows, fmt.Sprintf("%d\t%s\t%d\t%s\t%s\t%s", s.Port, cmp.Or(s.Blade, "-"), s.Denied, cmp.Or(counts(s.Dropped), "-"), cmp.Or(counts(s.Throttled), "-"), cmp.Or(counts(s.Refused), "-")))
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

func newStatusCmd() *cobra.Command {
	var o clientOptions
	return o.command(&cobra.Command{
		Use:   "status",
		Short: "Show a rack at a glance",
		Long: `Show the Gatekeeper and its counters, the blades of its rack and their status, and how many
copies of their memory there are. The command asks the Gatekeeper's admin API, as all
commands do that watch or operate a rack.`,
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
	fmt.Fprintf(w, "%d nodes, %d services, %d regions, %d calls under way\n", now.Nodes, now.Services, now.Regions, now.Calls)
	fmt.Fprintf(w, "held %d packets; wrote %d rules; denied %d accesses, refused %d requests\n",
		sum.Held, sum.RulesWritten, sum.Denied, sum.Refused)
	if now.FullStates > 0 {
		fmt.Fprintf(w, "the states of %d nodes have more than 80 %% of what they may have: bifrost nodes shows them\n", now.FullStates)
	}
	for _, r := range s.Recoveries {
		fmt.Fprintf(w, "%s has failed: %s, waits for %s: %s\n", n.of(r.Node), r.Phase, cmp.Or(strings.Join(r.Waits, ", "), "nothing"), r.Cause)
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

func pointerArg(text string) (netip.Addr, error) {
	p, err := netip.ParseAddr(text)
	if err != nil {
		return p, fmt.Errorf("%s: want a global pointer, such as 0:0:1001::4000:0", text)
	}
	return p, nil
}

func newWhoCmd() *cobra.Command {
	var o clientOptions
	return o.command(&cobra.Command{
		Use:   "who POINTER",
		Short: "Show who holds a pointer",
		Long: `Show the region that a global pointer lies in, the node that controls the region, and the
calls that have lent it.`,
		Example: "  bifrost who 0:0:1001::4000:0",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := pointerArg(args[0])
			if err != nil {
				return err
			}
			return o.run(func(c *client.Client) error {
				h, err := c.Holders(cmd.Context(), p)
				if err != nil {
					return err
				}
				if o.json {
					return jsonLines(cmd.OutOrStdout(), []api.Holders{h})
				}
				n, err := nodeNames(cmd.Context(), c)
				if err != nil {
					return err
				}
				if err := table(cmd.OutOrStdout(), regionRows([]api.Region{h.Region}, n)...); err != nil || len(h.Calls) == 0 {
					return err
				}
				return printCalls(cmd.OutOrStdout(), "lent by", h.Calls, n)
			})
		},
	})
}

func newDomainCmd() *cobra.Command {
	var o clientOptions
	return o.command(&cobra.Command{
		Use:   "domain BLADE",
		Short: "Show what would fail with a blade",
		Long: `Show the failure domain of a blade: its nodes and the nodes that share their fate, the
calls that would run again or fail, and the calls that would wait for them. For a memory
blade, show the regions that would be out of reach. If nobody has listed all of them, a
line on standard error says who was to.`,
		Example: "  bifrost domain s2     # use it before bifrost drain s2",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(func(c *client.Client) error {
				d, err := c.FailureDomain(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				tellMissing(cmd, d.Missing)
				if o.json {
					return jsonLines(cmd.OutOrStdout(), []api.FailureDomain{d})
				}
				n, err := nodeNames(cmd.Context(), c)
				if err != nil {
					return err
				}
				return printDomain(cmd.OutOrStdout(), &d, n)
			})
		},
	})
}

func printDomain(w io.Writer, d *api.FailureDomain, n names) error {
	fmt.Fprintf(w, "nodes: %s\n", n.all(d.Nodes))
	if len(d.Regions) > 0 {
		fmt.Fprintln(w, "regions out of reach:")
		if err := table(w, regionRows(d.Regions, n)...); err != nil {
			return err
		}
	}
	for _, part := range []struct {
		what  string
		calls []api.Call
	}{
		{"calls that would run again", d.Rerun}, {"calls that would fail", d.Cut},
		{"calls made elsewhere, which run on", d.Out}, {"calls elsewhere that would wait", d.Waiting},
	} {
		if err := printCalls(w, part.what, part.calls, n); err != nil {
			return err
		}
	}
	return nil
}

// printCalls prints calls under a headline, or nothing if there are none.
func printCalls(w io.Writer, what string, calls []api.Call, n names) error {
	if len(calls) == 0 {
		return nil
	}
	fmt.Fprintln(w, what+":")
	return table(w, callRows(calls, n, time.Now())...)
}
