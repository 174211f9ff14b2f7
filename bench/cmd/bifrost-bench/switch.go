package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/bifrost-rack/bifrost/bench/switches"
	"github.com/spf13/cobra"
)

// benchSwitch is the flags of `bifrost bench switch`.
type benchSwitch struct {
	switches.Options
	quick, json bool
	soak        time.Duration
	restart     time.Duration
	datapath    string
}

func newSwitchCmd() *cobra.Command {
	o := benchSwitch{Options: switches.Options{
		Rules: 10_000, Rounds: 10, RoundTrip: 2 * time.Second, Stream: 2 * time.Second, Flood: time.Second, Write: time.Second,
	}}
	cmd := &cobra.Command{
		Use:   "switch",
		Short: "The switch on both executors, beside a bare cable, a Linux bridge, OVS and bmv2",
		Long: `Measure what joins two network namespaces: in turn a bare cable, a Linux bridge,
the software switch with Bifröst's whole program and many rules on the eBPF and
on the Go executor, and, where installed, Open vSwitch in user space
and bmv2 with the same program and rules. Measured are UDP round trips, TCP and
UDP throughput, packets a second, and of P4Runtime how many rules a second come
into force, how long a revocation takes, and that no packet is judged by a rule
whose deletion was answered. Client and server have a CPU each.

With --soak, the switch carries memory requests at full rate while their rules
change; every verdict is checked, and what the switch holds of memory and
descriptors must not grow. With --restart, the switch is a process of its own that
is killed and started again while the kernel forwards on.

Needs root; leaves nothing behind.`,
		Example: "  sudo bifrost bench switch --quick\n  sudo bifrost bench switch --json | tail -1\n  sudo bifrost bench switch --soak 10m\n  sudo bifrost bench switch --soak 1h --restart 1m",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if os.Getuid() != 0 {
				return errors.New("bench switch makes network namespaces, which needs root: run it with sudo")
			}
			o.Progress = cmd.ErrOrStderr()
			return o.run(cmd)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.quick, "quick", false, "measure for less than 40 seconds")
	f.BoolVar(&o.json, "json", false, "print the result as JSON in the last line")
	f.IntVar(&o.Rules, "rules", o.Rules, "`RULES` to load, which say who may allocate where")
	f.DurationVar(&o.soak, "soak", 0, "instead of measuring, change rules at full rate for so long")
	f.BoolVar(&o.Stateful, "stateful", false, "the P4 switches count in a register, meter, and send by a multicast group, instead of running Bifröst's program")
	f.DurationVar(&o.restart, "restart", 0, "while soaking, kill the switch and start it again after each such time")
	f.StringVar(&o.datapath, "datapath", "ebpf", "the executor to soak: ebpf or go")
	return cmd
}

// printable is a result for people.
type printable interface{ Print(io.Writer) error }

func (o *benchSwitch) run(cmd *cobra.Command) error {
	if o.quick {
		o.Rounds, o.RoundTrip, o.Stream, o.Flood, o.Write = 6, 200*time.Millisecond, 200*time.Millisecond, 60*time.Millisecond, 30*time.Millisecond
	}
	var r printable
	var err, wrong error
	if o.soak > 0 {
		var s switches.SoakResult
		s, err = switches.Soak(cmd.Context(), switches.SoakOptions{Rules: o.Rules, Duration: o.soak, Datapath: o.datapath, Restart: o.restart, Progress: o.Progress})
		r, wrong = s, s.Wrong()
	} else {
		r, err = switches.Run(cmd.Context(), o.Options)
	}
	if err != nil {
		return err
	}
	if err := r.Print(cmd.OutOrStdout()); err != nil || !o.json {
		return errors.Join(err, wrong)
	}
	line, err := json.Marshal(r)
	if err == nil {
		_, err = fmt.Fprintln(cmd.OutOrStdout(), string(line))
	}
	return errors.Join(err, wrong)
}
