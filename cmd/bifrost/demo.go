package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/internal/demo"
)

func newDemoCmd() *cobra.Command {
	var asJSON bool
	var cfg demo.Config
	var serve demo.ServeConfig
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "A whole rack in this process: a call by reference, and what is denied",
		Long: `Bring up the thesis's rack (c1, s1, s2, m1, m2, m3) in one unprivileged process, on
a virtual wire that carries the same packets through the same P4 program as any
other rack, and show a call by reference step by step. Every result is checked.

With --serve, keep a somewhat larger rack busy instead, and serve the page to watch
it, until Ctrl-C.`,
		Example: "  bifrost demo\n  bifrost demo --json | tail -1\n  bifrost demo --serve 127.0.0.1:8045",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.Out, serve.Out, serve.Version = cmd.OutOrStdout(), cmd.OutOrStdout(), versionString()
			if serve.Address != "" {
				serve.Token = os.Getenv(tokenVariable)
				return demo.Serve(cmd.Context(), serve)
			}
			if asJSON {
				cfg.Out = io.Discard
			}
			report, err := demo.Run(cmd.Context(), cfg)
			if asJSON {
				line, _ := json.Marshal(report)
				fmt.Fprintln(cmd.OutOrStdout(), string(line))
			}
			return err
		},
	}
	cmd.Flags().StringVar(&serve.Address, "serve", "", "keep a rack busy and serve its page at `HOST:PORT`")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print nothing but the result, as one JSON line")
	cmd.Flags().IntVar(&cfg.Size, "size", 1<<20, "bytes of each array of the call that is looked at")
	return cmd
}
