package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
)

// newOperateCmds are the commands that do something to a rack.
func newOperateCmds() []*cobra.Command {
	return []*cobra.Command{newDrainCmd(), newFailCmd(), newReturnCmd(), newMirrorCmd(), newUnmirrorCmd(), newForgetCmd(), newCancelCmd(), newFreeCmd(), newPolicyCmd(), newTokenCmd(), newReconcileCmd(), newBackupCmd(), newRestoreCmd(), newDeployCmd(), newJobCmd(), newRestartCmd(), newRollbackCmd(), newUndeployCmd()}
}

func newDrainCmd() *cobra.Command {
	return newBladeCmd(bladeCmd{
		verb: "drain", short: "Let a blade run empty",
		long: `Let a blade run empty. It takes no new nodes or regions, deployed programs move to other
blades, and the nodes and regions that it still has may finish. A memory blade whose
machine has a second copy gives up its own copy, and is empty at once. bifrost events shows
blade.drained when the blade is empty; --wait waits for that.`,
		example: "  bifrost drain s2 --cause 'new memory'\n  bifrost drain m2 --wait\n  bifrost events -f --kind blade.drained",
		act:     (*client.Client).Drain, waits: drained, until: "the blade is empty",
	})
}

func newFailCmd() *cobra.Command {
	return newBladeCmd(bladeCmd{
		verb: "fail", short: "Take a blade out of service at once",
		long: `Take a blade out of service at once, whatever it reports. Its nodes are fenced, and
deployed programs start elsewhere. Its memory is unavailable, unless there is a second copy
(bifrost machines). To see beforehand what would fail with the blade, use bifrost domain. To
break a blade of an emulated rack, use bifrost rack fail.`,
		example: "  bifrost domain m1 && bifrost fail m1 --cause 'smells of smoke'", act: (*client.Client).Fail,
	})
}

func newReturnCmd() *cobra.Command {
	return newBladeCmd(bladeCmd{
		verb: "return", short: "Put a blade back into service",
		long: `Put a blade back into service, after bifrost drain, fail or unmirror. A blade that has
failed is back when its daemon has said hello. A memory blade becomes the second copy of
its machine again, and is filled from the first copy; --wait shows the progress.`,
		example: "  bifrost return s2\n  bifrost return m2 --wait",
		act: func(c *client.Client, ctx context.Context, name, _ string) (api.Blade, error) {
			return c.Return(ctx, name)
		}, waits: returned, until: "the blade is in service, and its copy complete",
	})
}

// bladeCmd is a command that does something to a blade.
type bladeCmd struct {
	verb, short, long, example string
	act                        func(c *client.Client, ctx context.Context, name, cause string) (api.Blade, error)
	waits                      func(c *client.Client, blade string) look // nil for a command that does not wait
	until                      string                                    // what is waited for
}

func newBladeCmd(b bladeCmd) *cobra.Command {
	var o clientOptions
	var w waitOptions
	var why string
	cmd := o.command(&cobra.Command{
		Use: b.verb + " BLADE", Short: b.short, Long: b.long, Example: b.example, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(func(c *client.Client) error {
				blade, err := b.act(c, cmd.Context(), args[0], why)
				if err == nil && w.wanted() {
					if err = w.until(cmd, b.verb+" "+args[0], b.waits(c, args[0])); err == nil {
						blade, err = c.Blade(cmd.Context(), args[0])
					}
				}
				if err != nil {
					return err
				}
				if o.json {
					return jsonLines(cmd.OutOrStdout(), []api.Blade{blade})
				}
				return printBlade(cmd.OutOrStdout(), &blade)
			})
		},
	})
	if b.verb != "return" {
		cmd.Flags().StringVar(&why, "cause", "", "the reason, a `TEXT` for people; it is shown with the blade")
	}
	if b.waits != nil {
		w.register(cmd, b.until)
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

func newFreeCmd() *cobra.Command {
	var o clientOptions
	return o.command(&cobra.Command{
		Use:   "free POINTER",
		Short: "Free a region of which nobody can say whose it is",
		Long: `Free a frozen region. When the switch has lost its registers, the Gatekeeper asks all nodes
what is theirs. Regions that two nodes claim are frozen then, and so is what may belong to
a node that did not answer: no program can reach them (bifrost regions says which they
are, bifrost events since when). What is in a frozen region is lost when it is freed.
A region that a node has is not freed: that is for the node to do.`,
		Example: "  bifrost regions\n  bifrost free 0:0:1001::4000:0",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := pointerArg(args[0])
			if err != nil {
				return err
			}
			return o.run(func(c *client.Client) error {
				r, err := c.FreeRegion(cmd.Context(), p)
				switch {
				case err != nil:
					return err
				case o.json:
					return jsonLines(cmd.OutOrStdout(), []api.Region{r})
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "region %s of %s on blade %s is free\n", r.Region, bytesText(r.Size), cmp.Or(r.Blade, "-"))
				return err
			})
		},
	})
}

func newForgetCmd() *cobra.Command {
	var o clientOptions
	return o.command(&cobra.Command{
		Use:   "forget NODE",
		Short: "Give up a node that waits for its program, or an heir",
		Long: `Give up a node that waits for its program. Somebody had started the program by hand, and it
has ended (bifrost nodes). The states of its services and its durable mains are lost, its
regions and its ledger are freed, and calls to it fail. NODE is its address.

A node of a deployment that is being undeployed can be given up, too, when an heir has
taken its place or is to do so (bifrost undeploy --help).`,
		Example: "  bifrost nodes\n  bifrost forget fd00:b1f0:0:2::7",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			node, err := netip.ParseAddr(args[0])
			if err != nil {
				return fmt.Errorf("%q is not a node's address: bifrost nodes lists them", args[0])
			}
			return o.run(func(c *client.Client) error {
				n, err := c.ForgetNode(cmd.Context(), node)
				if err != nil {
					return err
				}
				if o.json {
					return jsonLines(cmd.OutOrStdout(), []api.Node{n})
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s/%s is forgotten\n", n.Blade, n.Name)
				return err
			})
		},
	})
}

func newReconcileCmd() *cobra.Command {
	var o clientOptions
	return o.command(&cobra.Command{
		Use:   "reconcile",
		Short: "Make the switch's tables what they should be",
		Long: `Read the switch's tables back, and repair entries that are wrong, missing or not wanted.
The Gatekeeper does this by itself whenever it connects to the switch. Use the command when
somebody else has written to the switch.`,
		Example: "  bifrost reconcile",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(func(c *client.Client) error {
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
