//go:build linux

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/backup/restore"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rack"
	"github.com/bifrost-rack/bifrost/rack/config"
	"github.com/bifrost-rack/bifrost/rack/outage"
	"github.com/bifrost-rack/bifrost/rack/torture"
	"github.com/spf13/cobra"
)

// rackOptions are the flags that all rack commands share.
type rackOptions struct {
	name string
	json bool
}

func newRackCmd() *cobra.Command {
	o := &rackOptions{}
	cmd := &cobra.Command{
		Use:   "rack",
		Short: "Run a rack of network namespaces on this machine",
		Long: `Run an emulated rack on this machine. Every blade is a process in a network namespace of
its own. A virtual wire connects each namespace to a software switch that runs Bifröst's P4
program. The machine's own network is not touched. Needs root.`,
		Example: `  sudo bifrost rack up
  sudo bifrost rack status
  sudo bifrost rack exec c1 -- arrays add --size 65536 --by reference
  sudo bifrost rack fail s2 && sudo bifrost rack restore s2
  sudo bifrost rack down`,
		Args: cobra.NoArgs,
	}
	cmd.PersistentFlags().StringVar(&o.name, "rack", "", "the rack's name (default: $"+rackVariable+", or else the one whose Gatekeeper is $"+addressVariable+", or else the one that is up)")
	cmd.AddCommand(newRackUpCmd(o), newRackExecCmd(o), newRackStatusCmd(o), newRackLogsCmd(o), newRackFailCmd(o), newRackRestoreCmd(o), newRackTortureCmd(o), newRackOutageCmd(o), newRackDownCmd(o))
	return cmd
}

// host is this machine; steps are shown if someone watches.
func (o *rackOptions) host() (*rack.Host, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the bifrost binary: %w", err)
	}
	h := &rack.Host{Bifrost: exe}
	if isTerminal(os.Stderr) {
		h.Progress = func(step string) { fmt.Fprintln(os.Stderr, step) }
	}
	return h, nil
}

// find returns this machine and the name of the rack that is meant.
func (o *rackOptions) find() (*rack.Host, string, error) {
	h, err := o.host()
	if err != nil {
		return nil, "", err
	}
	name, err := h.Find(cmp.Or(o.name, os.Getenv(rackVariable), rackOf(h, os.Getenv(addressVariable))))
	return h, name, err
}

// rackOf is the rack of this machine whose Gatekeeper has an address, "" if there is none.
func rackOf(h *rack.Host, address string) string {
	path, _ := strings.CutPrefix(address, "unix:")
	if name := filepath.Base(filepath.Dir(path)); path != "" && path == h.AdminSocket(name) {
		return name
	}
	return ""
}

// racksHere are the racks of namespaces that are up on this machine.
func racksHere() ([]string, error) {
	h, err := (&rackOptions{}).host()
	if err != nil {
		return nil, err
	}
	return h.Racks()
}

// adminOf is the address of the admin API of a rack of namespaces on this machine.
func adminOf(name string) (string, error) {
	h, name, err := (&rackOptions{name: name}).find()
	if err != nil {
		return "", err
	}
	return "unix:" + h.AdminSocket(name), nil
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

// withJSON adds --json to a command.
func (o *rackOptions) withJSON(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON")
	return cmd
}

func newRackUpCmd(o *rackOptions) *cobra.Command {
	var file, sw, saved string
	var at config.Admin
	var detach bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Make a rack and start everything on it",
		Long: `Make a rack. The command returns when every blade is registered, every program has started,
and the programs with services export them. If anything fails, the command removes
everything that it has made.

Without -c it makes the thesis's rack: compute blades c1, s1 and s2, memory blades m1, m2
and m3, and the arrays example. examples/rack.yaml describes the same rack as a file. The
file also says where a program goes on when its blade fails.

The rack's admin API is a Unix socket, for root. With --admin-addr it is at an address of this
machine, too, where requests need a token, as bifrost gatekeeper has it.`,
		Example: `  sudo bifrost rack up
  sudo bifrost rack up --admin-addr 127.0.0.1:8045
  sudo bifrost rack up -c examples/rack.yaml --switch bmv2
  sudo bifrost rack up --detach=false    # keep the rack until Ctrl-C`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.config(file, sw, at)
			if err != nil {
				return err
			}
			h, err := o.host()
			if err != nil {
				return err
			}
			h.Timeout = timeout
			if saved != "" {
				h.Begin = func(log, ledgers string) error { return restoreForRack(saved, log, ledgers, &c) }
			}
			if err := h.Up(cmd.Context(), c); err != nil {
				return err
			}
			err = o.printStatus(cmd.OutOrStdout(), h, c.Name)
			if detach {
				return err
			}
			<-cmd.Context().Done()
			return errors.Join(err, h.Down(context.WithoutCancel(cmd.Context()), c.Name))
		},
	}
	cmd.Flags().StringVarP(&file, "config", "c", "", "rack `FILE` (default: the thesis's rack)")
	cmd.Flags().StringVar(&saved, "backup", "", "begin with this backup `FILE` (bifrost backup); the rack must have the blades of the saved rack")
	cmd.Flags().StringVar(&sw, "switch", "", "software switch: bifrost, or bmv2 (simple_switch_grpc on PATH) (default: what the rack file says)")
	cmd.Flags().StringVar(&at.Address, "admin-addr", "", "serve the admin API and page at this loopback `ADDRESS` of the machine, too, such as "+defaultAdmin+" (default: on its Unix socket only)")
	cmd.Flags().StringVar(&at.TokenFile, "admin-token-file", "", "`FILE` of mode 0600 with the token for --admin-addr; the Gatekeeper makes a missing file "+
		"(default: $"+tokenVariable+", or else bifrost/admin.token in the user's configuration directory)")
	cmd.Flags().BoolVar(&detach, "detach", true, "return and leave the rack running")
	cmd.Flags().DurationVar(&timeout, "timeout", rack.DefaultTimeout, "how long each process may take to be ready")
	return o.withJSON(cmd)
}

// restoreForRack writes what a rack begins with, if it has the blades of the backup.
func restoreForRack(file, log, ledgers string, c *config.Config) error {
	m, err := restore.Files(file, log, ledgers)
	if err != nil {
		return err
	}
	for _, b := range m.Blades {
		if !slices.ContainsFunc(c.Blades, func(o config.Blade) bool { return o.Name == b.Name && o.Kind == control.Memory }) {
			return fmt.Errorf("%s has the ledgers of memory blade %s, which the rack does not have: use the rack file of the rack that was saved", file, b.Name)
		}
	}
	return nil
}

// config reads the rack file, if any, and lets flags override it.
func (o *rackOptions) config(file, sw string, at config.Admin) (config.Config, error) {
	c := config.Thesis()
	if file != "" {
		var err error
		if c, err = config.Read(file); err != nil {
			return c, err
		}
	}
	if sw != "" {
		c.Switch = config.Switch(sw)
	}
	c.Name = cmp.Or(o.name, os.Getenv(rackVariable), c.Name)
	c.Admin = at
	if at.TokenFile != "" {
		var err error
		if c.Admin.TokenFile, err = filepath.Abs(at.TokenFile); err != nil {
			return c, err
		}
	}
	return c, c.Validate()
}

func newRackDownCmd(o *rackOptions) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "End a rack and remove every trace of it",
		Long: `End every process in the rack's namespaces, whoever started it. Then remove the rack's
namespaces, links, sockets and files, also those that a killed run left behind.

If another program has mounted something over /run/netns while the rack was up, the names of
the rack's namespaces stay. The command then says so, and --force removes them, too. Other
network namespaces stay as they are.`,
		Example: "  sudo bifrost rack down\n  sudo bifrost rack down --rack demo --force",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, name, err := o.find()
			if err != nil {
				return err
			}
			h.Force = force
			return h.Down(cmd.Context(), name)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "remove namespaces also where something was mounted over them")
	return cmd
}

func newRackExecCmd(o *rackOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "exec BLADE -- COMMAND [ARG...]",
		Short: "Run a command on a blade",
		Long: `Run a command in a blade's network namespace. Input, output, signals and exit code are
the command's own. BLADE may also be switch or gatekeeper, which share a namespace. A
command name without a slash is looked for beside bifrost first, then on PATH.`,
		Example: `  sudo bifrost rack exec c1 -- arrays add --size 2097152 --count 10 --by reference
  sudo bifrost rack exec c1 -- ping -c 3 fd00:b1f0:0:1::2
  sudo bifrost rack exec switch -- tcpdump -ni port1`,
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			blade, command, err := splitExec(args)
			if err != nil {
				return err
			}
			h, name, err := o.find()
			if err != nil {
				return err
			}
			return h.Exec(name, blade, command)
		},
	}
	cmd.Flags().SetInterspersed(false) // the command's flags are its own, also without --
	return cmd
}

// splitExec tells the blade from the command; -- between them is optional, since
// flags behind the blade are the command's anyway.
func splitExec(args []string) (blade string, command []string, err error) {
	if len(args) > 0 {
		blade, command = args[0], args[1:]
	}
	if len(command) > 0 && command[0] == "--" {
		command = command[1:]
	}
	if len(command) == 0 {
		return "", nil, errors.New("rack exec needs a blade and a command, such as: bifrost rack exec c1 -- ping -c 1 fd00:b1f0:0:1::2")
	}
	return blade, command, nil
}

func newRackFailCmd(o *rackOptions) *cobra.Command {
	var how string
	cmd := &cobra.Command{
		Use:   "fail BLADE",
		Short: "Make a blade fail",
		Long: `Make a blade fail, as --how says:

  kill     kill every process on the blade (SIGKILL)
  pause    stop every process on the blade (SIGSTOP)
  link     pull the blade's cable
  daemon   kill the blade's daemon alone

BLADE may also be switch or gatekeeper, or one of the rack's programs. bifrost rack restore
brings the blade back. A program that serves comes back by itself. If only the program was
killed, it is started again at once. If its blade failed, it goes on on a spare blade when
its own blade has been silent for three heartbeats. Exactly-once calls wait for it.`,
		Example: `  sudo bifrost rack fail s2
  sudo bifrost rack fail arrays
  sudo bifrost rack fail s2 --how pause
  sudo bifrost rack fail m1 --how link
  sudo bifrost rack fail m1 --how daemon`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, name, err := o.find()
			if err != nil {
				return err
			}
			return h.Fail(cmd.Context(), name, args[0], rack.How(how))
		},
	}
	cmd.Flags().StringVar(&how, "how", string(rack.Kill), "how the blade fails: kill, pause, link or daemon")
	return cmd
}

func newRackRestoreCmd(o *rackOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "restore BLADE",
		Short: "Bring a failed blade back",
		Long: `Bring a failed blade back: plug its cable in, let its paused processes go on, and start
its ended processes again. The command returns when the blade is registered. A program that
has gone on elsewhere stays there, and the blade is a spare from then on.`,
		Example: "  sudo bifrost rack fail s2 && sudo bifrost rack restore s2",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, name, err := o.find()
			if err != nil {
				return err
			}
			return h.Restore(cmd.Context(), name, args[0])
		},
	}
}

func newRackStatusCmd(o *rackOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show blades, processes and links",
		Long: `Show the namespaces, processes and links of a rack on this machine. bifrost status shows
what the Gatekeeper knows of the rack.`,
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
				b.Name, number(b.Port), link(b), cmp.Or(b.Address, "-"), b.Namespace, p.Name, number(p.PID), p.State)
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

func newRackLogsCmd(o *rackOptions) *cobra.Command {
	var lines int
	var follow bool
	cmd := &cobra.Command{
		Use:   "logs BLADE",
		Short: "Show what a blade's processes print",
		Long: `Show what the processes of a blade have printed: the log of its daemon, and the output of
its programs. BLADE may also be switch, gatekeeper, or a program's name.`,
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
	cmd.Flags().IntVarP(&lines, "lines", "n", 100, "how many of the latest lines to show")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "show lines as they are printed, until Ctrl-C")
	return cmd
}

func newRackOutageCmd(o *rackOptions) *cobra.Command {
	var cfg outage.Config
	var absent time.Duration
	cmd := &cobra.Command{
		Use:    "outage",
		Hidden: true, // for those who work on Bifröst
		Short:  "Measure how long a service is away when its program or its blade dies",
		Long: `Make a rack of its own, with a service that has state, a client that calls the service all
the time, and two spare blades. Kill the service's process --rounds times, and its whole
blade as often. Print how long it took until the next right answer.

With --gatekeeper, kill the Gatekeeper instead, and keep it away for that long. The client's
calls go on, another client begins to call, and the command prints the calls' rate before,
during and after the outage. At the end the service is killed, too, and must come back when
the Gatekeeper does.`,
		Example: "  sudo bifrost rack outage --rounds 20\n  sudo bifrost rack outage --heartbeat 100ms --json\n  sudo bifrost rack outage --gatekeeper 1m",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := o.host()
			if err != nil {
				return err
			}
			h.Progress = nil
			cfg.Host, cfg.Name = h, cmp.Or(o.name, "outage")
			if !o.json {
				cfg.Out = cmd.OutOrStdout()
			}
			if absent > 0 {
				a, err := outage.MeasureAbsence(cmd.Context(), cfg, absent)
				if err == nil && o.json {
					err = json.NewEncoder(cmd.OutOrStdout()).Encode(a)
				}
				return err
			}
			r, err := outage.Measure(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			if o.json {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(r)
			}
			beats := 3 * r.Heartbeat
			fmt.Fprintf(cmd.OutOrStdout(), "median of %d (and the longest): program %v (%v); blade %v (%v), which is three heartbeats (%v) and %v; usually an answer comes after %v\n",
				cfg.Rounds, round(outage.Median(r.Program)), round(outage.Longest(r.Program)), round(outage.Median(r.Blade)), round(outage.Longest(r.Blade)), beats, round(outage.Median(r.Blade)-beats), round(outage.Median(r.Usual)))
			return nil
		},
	}
	cmd.Flags().IntVar(&cfg.Rounds, "rounds", 10, "how often to kill the service's process, and how often its blade")
	cmd.Flags().DurationVar(&absent, "gatekeeper", 0, "kill the Gatekeeper for so long, and nothing else before the end")
	cmd.Flags().DurationVar(&cfg.Heartbeat, "heartbeat", config.DefaultHeartbeat, "how often blades report")
	cmd.Flags().DurationVar(&cfg.Explain, "explain", 0, "print what happened during outages that last this long or longer (default: never)")
	return o.withJSON(cmd)
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

func newRackTortureCmd(o *rackOptions) *cobra.Command {
	var cfg torture.Config
	var sw string
	cmd := &cobra.Command{
		Use:    "torture",
		Hidden: true, // for those who work on Bifröst
		Short:  "Kill and pause at random, and check that every call is counted once",
		Long: `Make a rack of its own, on which durable mains and plain clients call the counter example,
and clients a key-value service whose values are in the rack's memory. Two memory blades
hold a copy each of it.

For a time, kill and pause programs, compute blades, memory blades, the Gatekeeper and the
switch's process (not bmv2) at random. A memory blade is hit only while the other one has
everything. Each kind of victim is hit at least once, even if that takes longer. At the end every account must have exactly
what was added to it, every value must be what was set last, and nothing may be left: no
region, ledger, record, rule, node or call. Then the rack is removed.

With --hostile, nothing is killed. One program with raw sockets, on a blade of its own, and
one program without privileges, beside the callers, try each hole of docs/security.md. No
hole may open, no blade may fail, and no call may be counted twice.`,
		Example: `  sudo bifrost rack torture --for 1m
  sudo bifrost rack torture --for 20s --seed 7 --json
  sudo bifrost rack torture --hostile --for 1m`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := o.host()
			if err != nil {
				return err
			}
			h.Progress = nil
			cfg.Host, cfg.Switch, cfg.Name, cfg.Out = h, config.Switch(sw), cmp.Or(o.name, "torture"), cmd.OutOrStdout()
			if o.json {
				cfg.Out = io.Discard
			}
			for cfg.Seed == 0 {
				cfg.Seed = rand.Uint64N(1e6)
			}
			report, err := torture.Run(cmd.Context(), cfg)
			line, _ := json.Marshal(report)
			fmt.Fprintln(cmd.OutOrStdout(), string(line))
			return err
		},
	}
	cmd.Flags().DurationVar(&cfg.For, "for", time.Minute, "how long to kill and pause, or to attack")
	cmd.Flags().Uint64Var(&cfg.Seed, "seed", 0, "seed of the random choice of what fails, how, and in what order (default: a random seed)")
	cmd.Flags().DurationVar(&cfg.Heartbeat, "heartbeat", 0, fmt.Sprintf("how often blades report (default %s, with --hostile %s)", torture.DefaultHeartbeat, torture.HostileHeartbeat))
	cmd.Flags().IntVar(&cfg.MTU, "mtu", rackaddr.DefaultMTU, "the rack's largest IPv6 packet in bytes, 1280 to 65535")
	cmd.Flags().BoolVar(&cfg.Hostile, "hostile", false, "kill nothing: hostile programs attack the rack")
	cmd.Flags().BoolVar(&cfg.Keep, "keep", false, "leave the rack up if it fails")
	cmd.Flags().StringVar(&sw, "switch", "", "bifrost or bmv2 (default: bifrost)")
	return o.withJSON(cmd)
}
