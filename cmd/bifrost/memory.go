package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/daemon"
	"github.com/bifrost-rack/bifrost/rack/config"
)

// memoryOptions are the flags of `bifrost memory`.
type memoryOptions struct {
	blade    bladeOptions
	capacity string
	machine  uint8
}

func newMemoryCmd() *cobra.Command {
	var o memoryOptions
	cmd := &cobra.Command{
		Use:   "memory",
		Short: "Run the daemon of a memory blade",
		Long: `Run the daemon of a memory blade: it announces the blade to the Gatekeeper, which
gives it a machine id, and serves its memory to the rack. The memory is taken
from the machine only when it is written to, and is gone when the daemon ends.

It needs root, or CAP_NET_ADMIN, to receive for the addresses of its pointers.
The interface needs a route to the rack by way of the switch's MAC address;
bifrost rack up makes one, and an error says how to.`,
		Example: `  # One GiB, on the interface that is connected to the switch.
  sudo bifrost memory --blade m1 --iface eth0 --capacity 1GiB

  # A blade that keeps its machine id when the Gatekeeper forgets it.
  sudo bifrost memory --blade m2 --iface eth1 --capacity 64GiB --machine 2`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	o.blade.register(cmd.Flags())
	cmd.Flags().StringVar(&o.capacity, "capacity", "1GiB", "memory to serve, in `BYTES` or with KiB, MiB, GiB, TiB")
	cmd.Flags().Uint8Var(&o.machine, "machine", 0, "machine `ID` to ask for, 1 to 255 (0: the Gatekeeper chooses)")
	return cmd
}

// run runs the daemon until ctx ends.
func (o *memoryOptions) run(ctx context.Context) (err error) {
	collectRarely()
	processors(1)
	capacity, err := config.ParseSize(o.capacity)
	if err != nil || capacity == 0 {
		return fmt.Errorf("--capacity %s: want a number of bytes, such as 512MiB", o.capacity)
	}
	b, stack, err := o.blade.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stack.Close()) }()
	d, err := daemon.NewMemory(daemon.MemoryConfig{Blade: b, Capacity: capacity, Machine: o.machine})
	if err != nil {
		return err
	}
	b.Log.Info("memory blade starts", "blade", b.Name, "interface", o.blade.iface, "address", b.Address, "capacity", config.FormatSize(capacity))
	stop, err := o.blade.serveMetrics(ctx)
	if err != nil {
		return err
	}
	defer stop()
	return d.Run(ctx)
}
