package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/rack"
)

func newRackStatusCmd(o *rackOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show blades, processes and links",
		Long: `Show the namespaces, processes and links of a rack on this machine. (What the
Gatekeeper knows of a rack, bifrost status shows.)`,
		Example: "  sudo bifrost rack status\n  sudo bifrost rack status --json | jq '.blades[].name'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, name, err := o.find()
			if err != nil {
				return err
			}
			return o.printStatus(cmd.OutOrStdout(), h, name)
		},
	}
	return o.withJSON(cmd)
}

func (o *rackOptions) printStatus(w io.Writer, h *rack.Host, name string) error {
	st, err := h.Status(name)
	if err != nil {
		return err
	}
	if o.json {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(st)
	}
	state := "up since " + st.Created.Local().Format(time.DateTime)
	if !st.Complete {
		state = "half made: still starting, or its start was killed"
	}
	fmt.Fprintf(w, "rack %s, switch %s, %s\n", st.Rack, st.Switch, state)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "BLADE\tPORT\tLINK\tADDRESS\tNAMESPACE\tPROCESS\tPID\tSTATE")
	for _, b := range st.Blades {
		for _, p := range b.Processes {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
				b.Name, number(b.Port), link(b), or(b.Address, "-"), b.Namespace, p.Name, number(p.PID), p.State)
		}
	}
	return t.Flush()
}

// number writes a port or process id; 0 is none.
func number(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

func link(b rack.BladeStatus) string {
	switch {
	case b.Port == 0:
		return "-"
	case b.Link:
		return "up"
	}
	return "down"
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func newRackLogsCmd(o *rackOptions) *cobra.Command {
	var lines int
	var follow bool
	cmd := &cobra.Command{
		Use:   "logs BLADE",
		Short: "Show what a blade's processes print",
		Long: `Show what the processes of a blade have printed: its daemon's log and its
programs'. BLADE may also be switch, gatekeeper, or a program's name.`,
		Example: "  sudo bifrost rack logs gatekeeper -n 20\n  sudo bifrost rack logs s2 -f",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, name, err := o.find()
			if err != nil {
				return err
			}
			logs, err := h.Logs(name, args[0])
			if err != nil {
				return err
			}
			if follow && len(logs) > 1 {
				return fmt.Errorf("%s runs several processes: follow one by its name, such as %s", args[0], logs[1].Process)
			}
			for _, l := range logs {
				if len(logs) > 1 {
					fmt.Fprintf(cmd.OutOrStdout(), "==> %s <==\n", l.Process)
				}
				if err := l.Print(cmd.Context(), cmd.OutOrStdout(), lines, follow); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().IntVarP(&lines, "lines", "n", 100, "how many lines from the end")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on as lines are added")
	return cmd
}
