package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/demo/failure"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func newCompletionCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print a script that completes commands in a shell",
		Long: `Print a script that makes a shell complete bifrost's commands and flags. It also
completes the names of blades, nodes, apps, tables and racks that exist at that moment.`,
		Example: `  source <(bifrost completion bash)                                  # this shell
  bifrost completion bash | sudo tee /etc/bash_completion.d/bifrost   # all later shells
  bifrost completion zsh >"${fpath[1]}/_bifrost"
  bifrost completion fish >~/.config/fish/completions/bifrost.fish`,
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"bash", "zsh", "fish"},
		RunE: func(cmd *cobra.Command, args []string) error {
			root, w := cmd.Root(), cmd.OutOrStdout()
			switch args[0] {
			case "zsh":
				return root.GenZshCompletion(w)
			case "fish":
				return root.GenFishCompletion(w, true)
			}
			return root.GenBashCompletionV2(w, true)
		},
	}
}

// lister returns the names that may stand somewhere.
type lister func(cmd *cobra.Command) ([]cobra.Completion, error)

// completeArgs are the names that a command's first argument may be, and the second one
// of bifrost mirror.
var completeArgs = map[string]lister{
	"bifrost drain": listBlades, "bifrost fail": listBlades, "bifrost return": listBlades, "bifrost domain": listBlades,
	"bifrost mirror": listMemoryBlades, "bifrost unmirror": listMemoryBlades, "bifrost forget": listAwaited,
	"bifrost undeploy": listApps, "bifrost restart": listApps, "bifrost rollback": listApps, "bifrost trace": listTraced, "bifrost cancel": listCalls, "bifrost job run": listJobs, "bifrost policy": listMethods, "bifrost logs": listInstances, "bifrost who": listRegions,
	"bifrost token revoke": listTokens, "bifrost man": listCommands, "bifrost token add": listed(), "bifrost ingress token": listed(),
	"bifrost rack exec": listRackBlades, "bifrost rack fail": listRackBlades, "bifrost rack restore": listRackBlades, "bifrost rack logs": listRackBlades,
}

// completeFlags are the values of flags: of one command's, or of all of that name.
var completeFlags = map[string]lister{
	"--rack": listRacks, "--node": listNodes, "bifrost trace --caller": listNodes, "bifrost trace --method": listMethodNames, "bifrost trace --code": listed(fault.Names()...),
	"bifrost events --blade": listBlades, "bifrost events --app": listInstances, "bifrost events --kind": listed(gatekeeper.EventKinds()...),
	"--idl": listServices, "--pointer": listRegions, "--service": listServices,
	"--table":      listed("identity", "l3", "dsm_home", "control_rule", "block_rule", "rpc_route", "next_hop", "tcp_allowed", "replica"),
	"--log-level":  listed("debug", "info", "warn", "error", "off"),
	"--log-format": listed("text", "json"),
	"--datapath":   listed("auto", "ebpf", "go"),

	"--iface": listInterfaces, "bifrost demo --fail": listed(failure.Names()...),

	"bifrost switch --log-level": listed("trace", "debug", "info", "warn", "error", "off"),
	"bifrost rack up --switch":   listed("bifrost", "bmv2"),
	"bifrost rack fail --how":    listed("kill", "pause", "link", "daemon"),
}

// complete gives a command and those below it their completions.
func complete(cmd *cobra.Command) {
	if list := completeArgs[cmd.CommandPath()]; list != nil {
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			switch {
			case len(args) == 0, len(args) == 1 && cmd.Name() == "mirror":
				return list.ask(cmd)
			case len(args) == 1 && cmd.Name() == "policy":
				return policies, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveDefault
		}
	}
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		list := completeFlags[cmd.CommandPath()+" --"+f.Name]
		if list == nil {
			list = completeFlags["--"+f.Name]
		}
		if name, _ := pflag.UnquoteUsage(f); list == nil && name == strings.ToUpper(name) && !namesFile.MatchString(name) {
			list = listed() // it takes a text
		}
		if list != nil {
			_ = cmd.RegisterFlagCompletionFunc(f.Name, func(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
				return list.ask(cmd)
			})
		}
	})
	for _, sub := range cmd.Commands() {
		complete(sub)
	}
}

// namesFile matches what stands for a file in the help of a flag; shells complete that by themselves.
var namesFile = regexp.MustCompile("FILE|DIR|PATH|^$")

// completionTime bounds how long a shell waits for names; tests wait for longer.
var completionTime = 2 * time.Second

// ask lists names for a shell; none if the rack cannot be asked.
func (l lister) ask(cmd *cobra.Command) ([]cobra.Completion, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(context.Background(), completionTime)
	defer cancel()
	cmd.SetContext(ctx)
	all, err := l(cmd)
	if err != nil {
		cobra.CompDebugln(err.Error(), false)
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return all, cobra.ShellCompDirectiveNoFileComp
}

// listed is a lister of names that are always the same.
func listed(all ...cobra.Completion) lister {
	return func(*cobra.Command) ([]cobra.Completion, error) { return all, nil }
}

// askFor asks the Gatekeeper that the command's flags mean.
func askFor[T any](cmd *cobra.Command, what func(context.Context, *client.Client) ([]T, error), name func(*T) cobra.Completion) ([]cobra.Completion, error) {
	var o clientOptions
	for flag, value := range map[string]*string{
		"admin-addr": &o.address, "rack": &o.rack, "admin-token-file": &o.tokenFile, "admin-ca": &o.ca,
	} {
		*value, _ = cmd.Flags().GetString(flag)
	}
	c, err := o.connect()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	items, err := what(cmd.Context(), c)
	var all []cobra.Completion
	for i := range items {
		all = append(all, name(&items[i]))
	}
	return all, err
}

// askForNames is askFor where what is asked for are names.
func askForNames(cmd *cobra.Command, ask func(ctx context.Context, c *client.Client) ([]string, error)) ([]cobra.Completion, error) {
	return askFor(cmd, ask, func(name *string) cobra.Completion { return *name })
}

func listBlades(cmd *cobra.Command) ([]cobra.Completion, error) {
	return askFor(cmd,
		func(ctx context.Context, c *client.Client) ([]api.Blade, error) { return c.Blades(ctx) },
		func(b *api.Blade) cobra.Completion { return cobra.CompletionWithDesc(b.Name, b.Kind+", "+b.Status) })
}

func listMemoryBlades(cmd *cobra.Command) ([]cobra.Completion, error) {
	return askFor(cmd,
		func(ctx context.Context, c *client.Client) ([]api.Blade, error) {
			all, err := c.Blades(ctx)
			return slices.DeleteFunc(all, func(b api.Blade) bool { return b.Kind != control.Memory }), err
		},
		func(b *api.Blade) cobra.Completion {
			return cobra.CompletionWithDesc(b.Name, fmt.Sprintf("machine %d, %s", b.Machine, b.Status))
		})
}

func listNodes(cmd *cobra.Command) ([]cobra.Completion, error) {
	return askFor(cmd,
		func(ctx context.Context, c *client.Client) ([]api.Node, error) { return c.Nodes(ctx) },
		func(n *api.Node) cobra.Completion {
			return cobra.CompletionWithDesc(n.Address.String(), n.Blade+"/"+n.Name)
		})
}

// listAwaited lists the nodes that wait for their programs.
func listAwaited(cmd *cobra.Command) ([]cobra.Completion, error) {
	return askFor(cmd,
		func(ctx context.Context, c *client.Client) ([]api.Node, error) {
			all, err := c.Nodes(ctx)
			return slices.DeleteFunc(all, func(n api.Node) bool { return n.Awaited == nil }), err
		},
		func(n *api.Node) cobra.Completion {
			return cobra.CompletionWithDesc(n.Address.String(), n.Blade+"/"+n.Name)
		})
}

func listApps(cmd *cobra.Command) ([]cobra.Completion, error) {
	return askFor(cmd,
		func(ctx context.Context, c *client.Client) ([]api.App, error) { return c.Apps(ctx) },
		func(a *api.App) cobra.Completion { return a.Name })
}

// listInstances lists apps, and the instances of their programs.
func listInstances(cmd *cobra.Command) ([]cobra.Completion, error) {
	return askForNames(cmd,
		func(ctx context.Context, c *client.Client) (all []string, err error) {
			apps, err := c.Apps(ctx)
			for _, a := range apps {
				all = append(all, a.Name)
				for _, i := range a.Instances {
					all = append(all, i.Name)
				}
			}
			return all, err
		})
}

// listJobs lists the jobs of deployments.
func listJobs(cmd *cobra.Command) ([]cobra.Completion, error) {
	return askForNames(cmd,
		func(ctx context.Context, c *client.Client) (all []string, err error) {
			apps, err := c.Apps(ctx)
			for _, a := range apps {
				for _, p := range a.Programs {
					if p.Job {
						all = append(all, a.Name+"/"+p.Name)
					}
				}
			}
			return all, err
		})
}

func listServices(cmd *cobra.Command) ([]cobra.Completion, error) {
	return askFor(cmd,
		func(ctx context.Context, c *client.Client) ([]api.Service, error) { return c.Services(ctx) },
		func(s *api.Service) cobra.Completion { return s.Name })
}

// listMethods lists services, and their methods.
func listMethods(cmd *cobra.Command) ([]cobra.Completion, error) {
	return askForNames(cmd,
		func(ctx context.Context, c *client.Client) (all []string, err error) {
			services, err := c.Services(ctx)
			for _, s := range services {
				all = append(all, s.Name)
				for _, m := range s.Methods {
					all = append(all, s.Name+"."+m.Name)
				}
			}
			return all, err
		})
}

// listMethodNames lists the names of methods, without their services.
func listMethodNames(cmd *cobra.Command) ([]cobra.Completion, error) {
	return askForNames(cmd,
		func(ctx context.Context, c *client.Client) (all []string, err error) {
			services, err := c.Services(ctx)
			for _, s := range services {
				for _, m := range s.Methods {
					all = append(all, m.Name)
				}
			}
			slices.Sort(all)
			return slices.Compact(all), err
		})
}

// mostCalls is how many calls a shell is offered.
const mostCalls = 100

// listTraced lists the latest calls that bifrost trace tells of.
func listTraced(cmd *cobra.Command) ([]cobra.Completion, error) {
	return askFor(cmd,
		func(ctx context.Context, c *client.Client) (some []api.Timeline, err error) {
			for t, err := range c.Timelines(ctx, client.TimelineFilter{}) {
				if err != nil || len(some) == mostCalls {
					return some, err
				}
				some = append(some, t)
			}
			return some, nil
		},
		func(t *api.Timeline) cobra.Completion { return cobra.CompletionWithDesc(t.ID, t.Service+"."+t.Method) })
}

// listCalls lists calls that are under way.
func listCalls(cmd *cobra.Command) ([]cobra.Completion, error) {
	return askFor(cmd,
		func(ctx context.Context, c *client.Client) (some []api.Call, err error) {
			for k, err := range c.Calls(ctx, netip.Addr{}) {
				if err != nil || len(some) == mostCalls {
					return some, err
				}
				some = append(some, k)
			}
			return some, nil
		},
		func(k *api.Call) cobra.Completion { return cobra.CompletionWithDesc(k.ID, k.Service+"."+k.Method) })
}

// mostRegions is how many regions a shell is offered.
const mostRegions = 100

func listRegions(cmd *cobra.Command) ([]cobra.Completion, error) {
	return askFor(cmd,
		func(ctx context.Context, c *client.Client) (some []api.Region, err error) {
			for r, err := range c.Regions(ctx, client.RegionFilter{}) {
				if err != nil || len(some) == mostRegions {
					return some, err
				}
				some = append(some, r)
			}
			return some, nil
		},
		func(r *api.Region) cobra.Completion {
			first, _, _ := strings.Cut(r.Region, "/")
			return cobra.CompletionWithDesc(first, fmt.Sprintf("%s on %s", bytesText(r.Size), r.Blade))
		})
}

// listTokens lists the tokens of the file that the command's flags mean.
func listTokens(cmd *cobra.Command) (all []cobra.Completion, err error) {
	file, _ := cmd.Flags().GetString("admin-tokens")
	if file == "" {
		if file, err = admin.DefaultGrantsFile(); err != nil {
			return nil, err
		}
	}
	grants, err := admin.ReadGrants(file)
	for _, g := range grants {
		all = append(all, cobra.CompletionWithDesc(g.Name, g.Role.String()))
	}
	return all, err
}

// listInterfaces lists the network interfaces of this machine.
func listInterfaces(*cobra.Command) (all []cobra.Completion, err error) {
	interfaces, err := net.Interfaces()
	for _, i := range interfaces {
		all = append(all, i.Name)
	}
	return all, err
}

// listCommands lists the commands.
func listCommands(cmd *cobra.Command) (all []cobra.Completion, err error) {
	for _, c := range cmd.Root().Commands() {
		all = append(all, cobra.CompletionWithDesc(c.Name(), c.Short))
	}
	return all, nil
}

func listRacks(*cobra.Command) ([]cobra.Completion, error) { return racksHere() }
