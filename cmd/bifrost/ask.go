package main

import (
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
)

func newWhoCmd() *cobra.Command {
	var o clientOptions
	return o.command(&cobra.Command{
		Use:   "who POINTER",
		Short: "Show who holds a pointer",
		Long: `Show the region that a global pointer lies in: who controls it, and the calls that
have lent it.`,
		Example: "  bifrost who 0:0:1001::40",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := netip.ParseAddr(args[0])
			if err != nil {
				return fmt.Errorf("%s: want a global pointer, such as 0:0:1001::40", args[0])
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
		Long: `Show the failure domain of a blade: its nodes and those that share their fate, the
calls that would run again or fail, and who waits for them; of a memory blade, the
regions that could not be reached.`,
		Example: "  bifrost domain s2     # before: bifrost drain s2",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(func(c *client.Client) error {
				d, err := c.FailureDomain(cmd.Context(), args[0])
				if err != nil {
					return err
				}
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
