package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/rack"
	"github.com/bifrost-rack/bifrost/rack/config"
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
		Long: `Run an emulated rack on this machine: every blade is a process in a network
namespace of its own, joined by one virtual wire to a software switch that runs
Bifröst's P4 program. Nothing touches the machine's own network. Needs root.`,
		Example: `  sudo bifrost rack up
  sudo bifrost rack status
  sudo bifrost rack exec c1 -- arrays add --size 65536 --by reference
  sudo bifrost rack fail s2 && sudo bifrost rack restore s2
  sudo bifrost rack down`,
		Args: cobra.NoArgs,
	}
	cmd.PersistentFlags().StringVar(&o.name, "rack", "", "the rack's name (default: the one that is up)")
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
	name, err := h.Find(o.name)
	return h, name, err
}

// withJSON adds --json to a command.
func (o *rackOptions) withJSON(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON")
	return cmd
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

func newRackUpCmd(o *rackOptions) *cobra.Command {
	var file, sw, saved string
	var detach bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Make a rack and start everything on it",
		Long: `Make a rack and return when every blade is registered and every program has
started, or serves what it is to. Without -c it is the thesis's rack: c1, s1 and s2
compute, m1, m2 and m3 hold memory, and the arrays example is served
(examples/rack.yaml says the same in writing, and where a program goes on when its
blade fails). It is all or nothing: if anything fails, nothing stays.`,
		Example: `  sudo bifrost rack up
  sudo bifrost rack up -c examples/rack.yaml --switch bmv2
  sudo bifrost rack up --detach=false    # until Ctrl-C, then down`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.config(file, sw)
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
	cmd.Flags().StringVar(&saved, "backup", "", "begin with a backup `FILE` of a rack with these blades (bifrost backup)")
	cmd.Flags().StringVar(&sw, "switch", "", "bifrost, or bmv2: simple_switch_grpc on PATH (default: what the rack file says)")
	cmd.Flags().BoolVar(&detach, "detach", true, "return and leave the rack running")
	cmd.Flags().DurationVar(&timeout, "timeout", rack.DefaultTimeout, "how long each process may take to be ready")
	return o.withJSON(cmd)
}

// restoreForRack writes what a rack begins with, if it has the blades of the backup.
func restoreForRack(file, log, ledgers string, c *config.Config) error {
	m, err := restoreBackup(file, log, ledgers)
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
func (o *rackOptions) config(file, sw string) (config.Config, error) {
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
	if o.name != "" {
		c.Name = o.name
	}
	return c, c.Validate()
}

func newRackDownCmd(o *rackOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "End a rack and remove every trace of it",
		Long: `End every process in the rack's namespaces, whoever started it, and remove
namespaces, links, sockets and files; also those that a killed run left behind.`,
		Example: "  sudo bifrost rack down\n  sudo bifrost rack down --rack demo",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, name, err := o.find()
			if err != nil {
				return err
			}
			return h.Down(cmd.Context(), name)
		},
	}
}
