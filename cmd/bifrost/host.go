package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/host"
	"github.com/bifrost-rack/bifrost/host/hostwire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/process"
	"github.com/bifrost-rack/bifrost/rack/config"
)

// hostOptions are the flags of `bifrost host`.
type hostOptions struct {
	config     host.Config
	maxMessage string
	logging    process.LogOptions
}

func newHostCmd() *cobra.Command {
	var o hostOptions
	cmd := &cobra.Command{
		Use:   "host [flags] -- COMMAND [ARG...]",
		Short: "Serve services whose handlers run in a process of another language",
		Long: `Serve services whose handlers run in a process of another language, such as Python. The host is a
program of the rack: it joins through the daemon of a compute blade, and needs no privilege. It
starts COMMAND, which says what it serves on the stream whose descriptor is in the environment
variable ` + hostwire.Variable + `. The host has the calls, the ledger and the state; COMMAND runs the handlers. So
calls are exactly once, and services may have state, whoever dies.

Host and COMMAND end together: if one of them dies, the rack starts both again, and what was
under way runs again. In Python, bifrost.host is the other end. docs/wire.md has the
protocol ("Services in another language").`,
		Example: `  bifrost host -- python3 bank_service.py
  bifrost host --log-level debug --max-message 256MiB -- ./service`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || cmd.ArgsLenAtDash() != 0 {
				return errors.New("want the command behind --: bifrost host -- python3 service.py")
			}
			return nil
		},
		RunE: o.run,
	}
	f := cmd.Flags()
	f.StringVar(&o.config.Name, "name", "", "what people call the node (default: what the command says, or the program's name in its deployment)")
	f.IntVar(&o.config.Calls, "calls", 256, "how many calls of each service the command has at a time, those included that wait for calls of their own")
	f.StringVar(&o.maxMessage, "max-message", "64MiB", "how many `BYTES` a message, a value of the state and the result of an effect have at most")
	f.DurationVar(&o.config.HelloTimeout, "hello-timeout", time.Minute, "how long the command may take to say what it serves")
	f.DurationVar(&o.config.DrainTimeout, "drain-timeout", 2*time.Second, "how long calls under way may take when the host ends")
	o.logging.Register(f, "")
	return cmd
}

// run serves until the command's context ends.
func (o *hostOptions) run(cmd *cobra.Command, command []string) error {
	n, err := config.ParseSize(o.maxMessage)
	if err != nil || n == 0 || n > 1<<30 {
		return fmt.Errorf("--max-message %s: want a number of bytes up to 1GiB, such as 64MiB", o.maxMessage)
	}
	o.config.MaxMessage = int(n) //nolint:gosec // bounded
	log, err := o.logging.Open()
	if err != nil {
		return err
	}
	o.config.Logger = log
	return host.Run(cmd.Context(), command, o.config)
}
