package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
)

// newOperateCmds are the commands that do something to a rack.
func newOperateCmds() []*cobra.Command {
	return []*cobra.Command{newDrainCmd(), newFailCmd(), newReturnCmd(), newPolicyCmd(), newTokenCmd(), newReconcileCmd(), newDeployCmd(), newUndeployCmd()}
}

func newDrainCmd() *cobra.Command {
	return newBladeCmd("drain", "Let a blade run empty", `Let a blade run empty: it takes no new nodes or regions, deployed programs move to
other blades, and what is there may finish. It is empty when bifrost events tells
that it is drained.`, "  bifrost drain s2 --cause 'new memory'\n  bifrost events -f --kind blade.drained", (*client.Client).Drain)
}

func newFailCmd() *cobra.Command {
	return newBladeCmd("fail", "Take a blade out of service at once", `Take a blade out of service at once, whatever it reports: its nodes are fenced,
deployed programs start elsewhere, its memory is unavailable. What would go with
it, bifrost domain tells before. (bifrost rack fail is for breaking a blade of an
emulated rack.)`, "  bifrost domain m1 && bifrost fail m1 --cause 'smells of smoke'", (*client.Client).Fail)
}

func newReturnCmd() *cobra.Command {
	return newBladeCmd("return", "Put a blade back into service", `Put a blade back into service, after bifrost drain or bifrost fail. One that has
failed is back when its daemon has said hello.`, "  bifrost return s2", func(c *client.Client, ctx context.Context, name, _ string) (api.Blade, error) {
		return c.Return(ctx, name)
	})
}

// newBladeCmd makes a command that does something to a blade.
func newBladeCmd(verb, short, long, example string, act func(c *client.Client, ctx context.Context, name, cause string) (api.Blade, error)) *cobra.Command {
	var o clientOptions
	var why string
	cmd := o.command(&cobra.Command{
		Use: verb + " BLADE", Short: short, Long: long, Example: example, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd, func(c *client.Client) error {
				b, err := act(c, cmd.Context(), args[0], why)
				if err != nil {
					return err
				}
				if o.json {
					return jsonLines(cmd.OutOrStdout(), []api.Blade{b})
				}
				return printBlade(cmd.OutOrStdout(), &b)
			})
		},
	})
	if verb != "return" {
		cmd.Flags().StringVar(&why, "cause", "", "why, for people: it is shown with the blade")
	}
	return cmd
}

func printBlade(w io.Writer, b *api.Blade) error {
	text := fmt.Sprintf("%s is %s", b.Name, b.Status)
	if b.Cause != "" {
		text += ": " + b.Cause
	}
	_, err := fmt.Fprintln(w, text)
	return err
}

func newReconcileCmd() *cobra.Command {
	var o clientOptions
	return o.command(&cobra.Command{
		Use:   "reconcile",
		Short: "Make the switch's tables what they should be",
		Long: `Read the switch's tables back and repair what is wrong, missing or not wanted. The
Gatekeeper does so by itself whenever it finds the switch; this is for when
somebody else has written to it.`,
		Example: "  bifrost reconcile",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd, func(c *client.Client) error {
				r, err := c.Reconcile(cmd.Context())
				if err != nil {
					return err
				}
				if o.json {
					return jsonLines(cmd.OutOrStdout(), []api.Reconciled{r})
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d entries repaired\n", r.Repaired)
				return err
			})
		},
	})
}
