package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/join/unixjoin"
	"github.com/bifrost-rack/bifrost/rpc/heir"
)

func newComputeCmd() *cobra.Command {
	cmd := newComputeDaemonCmd()
	cmd.AddCommand(newComputeStatusCmd(), newComputeHeirCmd())
	return cmd
}

func newComputeHeirCmd() *cobra.Command {
	return &cobra.Command{
		Use: "heir [SERVICE...]", Hidden: true, Args: cobra.ArbitraryArgs,
		Short: "Answer the calls of a node whose deployment is taken back; the daemon starts this",
		RunE:  func(cmd *cobra.Command, services []string) error { return heir.Run(cmd.Context(), services...) },
	}
}

// computeStatusOptions are the flags of `bifrost compute status`.
type computeStatusOptions struct{ json bool }

func newComputeStatusCmd() *cobra.Command {
	var o computeStatusOptions
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the nodes of this blade, their services and leases",
		Long: `Show what the daemon of this blade knows: its nodes, the services that the nodes
export, the regions that are lent to them, and the programs that the Gatekeeper has
placed here. With ` + join.SocketVariable + `, it is the blade whose socket that is.`,
		Example: `  bifrost compute status
  sudo bifrost rack exec s2 -- bifrost compute status --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), 5*time.Second)
			defer cancel()
			s, err := unixjoin.AskStatus(ctx, join.Socket())
			if err != nil {
				return err
			}
			return o.print(cmd.OutOrStdout(), s)
		},
	}
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON")
	return cmd
}

func (o *computeStatusOptions) print(w io.Writer, s join.Status) error {
	if o.json {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(s)
	}
	state := "registered"
	if !s.Registered {
		state = "not registered: no Gatekeeper answers"
	}
	fmt.Fprintf(w, "blade %s, %s\n", s.Blade, state)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NODE\tADDRESS\tINCARNATION\tPID\tPROGRAM\tSERVICES")
	for _, n := range s.Nodes {
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%s\t%s\n", n.Name, n.Address, n.Incarnation, n.PID,
			cmp.Or(n.Instance, "-"), cmp.Or(strings.Join(n.Services, ","), "-"))
	}
	if err := t.Flush(); err != nil || len(s.Programs) == 0 {
		return err
	}
	fmt.Fprintln(t, "PROGRAM\tPID\tCOMMAND")
	for _, p := range s.Programs {
		fmt.Fprintf(t, "%s\t%d\t%s\n", p.Name, p.PID, cmp.Or(strings.Join(p.Args, " "), "-"))
	}
	return t.Flush()
}
