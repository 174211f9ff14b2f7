package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
	"github.com/bifrost-rack/bifrost/internal/control"
)

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

func listApps(cmd *cobra.Command) ([]cobra.Completion, error) {
	return askFor(cmd,
		func(ctx context.Context, c *client.Client) ([]api.App, error) { return c.Apps(ctx) },
		func(a *api.App) cobra.Completion { return a.Name })
}

// listInstances lists apps, and the instances of their programs.
func listInstances(cmd *cobra.Command) ([]cobra.Completion, error) {
	return askFor(cmd,
		func(ctx context.Context, c *client.Client) (all []string, err error) {
			apps, err := c.Apps(ctx)
			for _, a := range apps {
				all = append(all, a.Name)
				for _, i := range a.Instances {
					all = append(all, i.Name)
				}
			}
			return all, err
		}, func(name *string) cobra.Completion { return *name })
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

func listRacks(*cobra.Command) ([]cobra.Completion, error) {
	host, err := (&rackOptions{}).host()
	if err != nil {
		return nil, err
	}
	return host.Racks()
}

// listRackBlades lists the blades of a rack on this machine, switch and Gatekeeper
// among them.
func listRackBlades(cmd *cobra.Command) (all []cobra.Completion, err error) {
	name, _ := cmd.Flags().GetString("rack")
	host, name, err := (&rackOptions{name: name}).find()
	if err != nil {
		return nil, err
	}
	s, err := host.Status(name)
	for _, b := range s.Blades {
		all = append(all, cobra.CompletionWithDesc(b.Name, b.Address))
	}
	return all, err
}
