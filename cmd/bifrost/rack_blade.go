package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/rack"
)

func newRackExecCmd(o *rackOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "exec BLADE -- COMMAND [ARG...]",
		Short: "Run a command on a blade",
		Long: `Run a command in a blade's network namespace; its input, output, signals and exit
code are the command's own. BLADE may also be switch or gatekeeper, which share
a namespace. A bare command name is looked for beside bifrost, then on PATH.`,
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
		Long: `Make a blade fail: kill everything on it (SIGKILL), pause it (SIGSTOP), pull its
cable, or kill its daemon alone. BLADE may also be switch or gatekeeper, or one of the rack's programs.
Undo it with rack restore. A program that serves needs no help: it goes on at once
if only it was killed, and on a spare when its blade has been silent for three
heartbeats. Calls that must happen exactly once wait for it.`,
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
	cmd.Flags().StringVar(&how, "how", string(rack.Kill), "kill, pause, link or daemon")
	return cmd
}

func newRackRestoreCmd(o *rackOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "restore BLADE",
		Short: "Bring a failed blade back",
		Long: `Plug a blade's cable in, let its paused processes go on, and start again what has
ended. Returns when the blade is registered. A program that has gone on elsewhere
stays there: the blade is a spare now.`,
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
