package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/internal/demo"
	"github.com/bifrost-rack/bifrost/internal/demo/failure"
)

// demoOptions are the flags of `bifrost demo`.
type demoOptions struct {
	demo  demo.Config
	serve demo.ServeConfig
	fail  failure.Config
	roll  bool
	json  bool
}

func newDemoCmd() *cobra.Command {
	var o demoOptions
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "A whole rack in this process: a call by reference, what is denied, and a crash",
		Long: `Bring up the thesis's rack (c1, s1, s2, m1, m2, m3) in one unprivileged process, and
show a call by reference step by step. The rack's virtual wire carries the same packets
through the same P4 program as on any other rack. Every result is checked. At the end a
blade dies in the middle of a call, and the call still happens exactly once.

With --fail, show only a failure: an exactly-once call on a rack with two spare blades,
where blades lose their power (thesis, figures 4.2 and 5.3). The failures are:

` + failures() + `
The picture shows the steps of the call: a1 (called), b1 (received), b2 (answered) and a2
(answer received). It also shows what the Gatekeeper does about the failure: the fence,
the rollback, and the next incarnation. At the end, the counter must have counted once.

With --rollout, roll out two new versions of a service with state while clients call it.
The first version reads its predecessor's state, which has another form. The second
version does not work, and is rolled back. Every call must have been counted once.

With --serve, keep a somewhat larger rack busy instead, and serve the page that shows the
rack, until Ctrl-C.`,
		Example: `  bifrost demo
  bifrost demo --json | tail -1
  bifrost demo --fail f4
  bifrost demo --fail memory
  bifrost demo --fail random --seed 7
  bifrost demo --rollout
  bifrost demo --serve 127.0.0.1:8045`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	cmd.Flags().StringVar(&o.serve.Address, "serve", "", "keep a rack busy and serve its page at `HOST:PORT`")
	cmd.Flags().StringVar(&o.fail.Name, "fail", "", "show a failure: "+strings.Join(failure.Names(), ", "))
	cmd.Flags().Uint64Var(&o.fail.Seed, "seed", 0, "with --fail random: seed of the random choice; the same seed kills the same blades (default: a random seed)")
	cmd.Flags().BoolVar(&o.roll, "rollout", false, "show a rollout under load")
	cmd.Flags().BoolVar(&o.json, "json", false, "print nothing but the result, as one JSON line")
	cmd.Flags().IntVar(&o.demo.Size, "size", 1<<20, "how many bytes each array of the call by reference has")
	cmd.MarkFlagsMutuallyExclusive("serve", "fail", "rollout")
	return cmd
}

// failures lists what --fail knows.
func failures() string {
	var b strings.Builder
	for _, s := range failure.Scenarios {
		fmt.Fprintf(&b, "  %-8s%s.\n", s.Name, s.Title)
	}
	fmt.Fprintf(&b, "  %-8s%s.\n", failure.Random, "One, two or three blades die at any packet, as --seed says")
	return b.String()
}

func (o *demoOptions) run(cmd *cobra.Command) error {
	out := cmd.OutOrStdout()
	if o.serve.Address != "" {
		o.serve.Out, o.serve.Version, o.serve.Token = out, versionString(), os.Getenv(tokenVariable)
		return demo.Serve(cmd.Context(), o.serve)
	}
	told := out
	if o.json {
		told = io.Discard
	}
	o.demo.Out, o.fail.Out = told, told
	if o.roll {
		report, err := demo.Rollout(cmd.Context(), told)
		return o.end(out, report, err, "the same on a rack: docs/operators.md")
	}
	if o.fail.Name == "" {
		report, err := demo.Run(cmd.Context(), o.demo)
		return o.end(out, report, err, "other ways to die: bifrost demo --fail f1, f2, f3, nested, both, memory or random")
	}
	for o.fail.Name == failure.Random && o.fail.Seed == 0 {
		o.fail.Seed = rand.Uint64N(1e6)
	}
	report, err := failure.Run(cmd.Context(), o.fail)
	more := "others: " + strings.Join(slices.DeleteFunc(failure.Names(), func(n string) bool { return n == o.fail.Name }), ", ")
	if o.fail.Name == failure.Random {
		more = fmt.Sprintf("the same again: bifrost demo --fail random --seed %d; %s", o.fail.Seed, more)
	}
	return o.end(out, report, err, more)
}

// end prints the report, if that is asked for, or what else there is to see.
func (o *demoOptions) end(out io.Writer, report any, err error, more string) error {
	switch {
	case o.json:
		line, _ := json.Marshal(report)
		fmt.Fprintln(out, string(line))
	case err == nil:
		fmt.Fprintf(out, "\n  (%s; a rack at work: bifrost demo --serve 127.0.0.1:8045)\n", more)
	}
	return err
}
