package main

import "github.com/spf13/cobra"

func newBenchCmd() *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "bench [EXPERIMENT...]",
		Short: "Measure, with peers in the same run",
		Long: `Measure Bifröst on this machine beside what one would use instead: bare sockets,
Apache Thrift over TCP, gRPC, Redis. Without arguments all experiments run, on a
rack of network namespaces that is made for the run and removed afterwards:

` + experimentList() + `

What is compared is measured in turns, in the same run and on CPUs of its own:
numbers of one machine say little about another, ratios a bit more. Needs root.`,
		Example: `  sudo bifrost bench ping-overhead --quick
  sudo bifrost bench --out /tmp/eval
  sudo bifrost bench switch --quick`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, args) },
	}
	o.register(cmd)
	cmd.AddCommand(newBenchSwitchCmd(), newBenchFairnessCmd(), newBenchFloodCmd(), newBenchAgentCmd())
	return cmd
}
