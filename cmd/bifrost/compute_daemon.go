//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/daemon"
	"github.com/bifrost-rack/bifrost/daemon/output"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/join/unixjoin"
	"github.com/bifrost-rack/bifrost/internal/netio/linux"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4switch/shared/metrics"
	"github.com/bifrost-rack/bifrost/p4switch/shared/process"
	"github.com/bifrost-rack/bifrost/rack/config"
)

// computeOptions are the flags of `bifrost compute`.
type computeOptions struct {
	blade   bladeOptions
	nodes   int
	logs    string
	logSize string
	files   string
}

func newComputeDaemonCmd() *cobra.Command {
	var o computeOptions
	cmd := &cobra.Command{
		Use:   "compute",
		Short: "Run the daemon of a compute blade",
		Long: `Run the daemon of a compute blade. The daemon announces the blade to the Gatekeeper,
and makes each program that joins the rack here a node. It also starts and stops the
programs that the Gatekeeper places here. Programs find the daemon by the abstract Unix
socket ` + join.SocketName + ` of their network namespace, and need no privilege.

The daemon needs root, or CAP_NET_ADMIN and CAP_NET_RAW, to give the interface the
addresses of its nodes, and to make and end their sockets. Nobody else on this machine can
use the UDP ports of nodes: 45100, 45101, 45103 and 45105.

The interface needs a route to the rack by way of the switch's MAC address. bifrost rack up
makes this route. If it is missing, the error says how to make it.
Packets between two nodes of this blade leave by the interface, too, so that the switch
judges them.

Three users may send from the address of a program's node: the user that the program
runs as, the daemon's user, and root. Only the daemon's user and root speak for the
blade. The daemon enforces this with nftables (table bifrost-INTERFACE).`,
		Example: `  # On the interface that is connected to the switch.
  sudo bifrost compute --blade c1 --iface eth0

  # The nodes of this blade, and the regions that are lent to them.
  bifrost compute status`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	o.blade.register(cmd.Flags())
	cmd.Flags().IntVar(&o.nodes, "nodes", 64, "how many nodes may run here at a time")
	cmd.Flags().StringVar(&o.logs, "program-logs", "", "`DIRECTORY` that keeps what programs print, for bifrost logs; each blade needs its own (default: a temporary directory)")
	cmd.Flags().StringVar(&o.logSize, "program-log-size", config.FormatSize(output.DefaultSize), "size in `BYTES` of a file of what a program prints; each program has two files")
	cmd.Flags().StringVar(&o.files, "program-files", "", "`DIRECTORY` that keeps the files of programs, so that a program can be started again after its file was replaced; blades of one machine may share it (default: /var/cache/bifrost-programs, or bifrost-programs in the user's cache directory)")
	return cmd
}

// run runs the daemon until ctx ends.
func (o *computeOptions) run(ctx context.Context) (err error) {
	process.CollectRarely()
	if o.nodes < 1 {
		return fmt.Errorf("--nodes %d: want 1 at least", o.nodes)
	}
	b, stack, err := o.blade.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stack.Close()) }()
	g, err := o.blade.guard()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeGuard(g)) }()
	l, err := unixjoin.Listen(join.SocketName)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }() // Serve has closed it, if it came to that
	if err := holdPorts(ctx, stack); err != nil {
		return err
	}
	kept, forget, err := o.openOutput()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, forget()) }()
	files, err := daemon.OpenBinaries(cmp.Or(o.files, programFiles()))
	if err != nil {
		return fmt.Errorf("--program-files: %w", err)
	}
	cfg := daemon.ComputeConfig{Blade: b, Nodes: o.nodes, Runner: daemon.Exec{Binaries: files}, Output: kept}
	if g != nil {
		cfg.Guard = g
	}
	d, err := daemon.NewCompute(cfg)
	if err != nil {
		return err
	}
	limits := unixjoin.NewLimits(o.nodes)
	stopMetrics, err := o.blade.serveMetrics(ctx, g, metrics.Refusals("bifrost_compute_refused_total",
		"What users of this blade were refused beyond their share: nodes, sockets of services, questions to the Gatekeeper, connections to the daemon, and bytes of lines there.", "user", d.Refused, limits.Refused))
	if err != nil {
		return err
	}
	defer stopMetrics()
	b.Log.Info("compute blade starts", "blade", b.Name, "interface", o.blade.iface, "address", b.Address, "nodes", o.nodes)
	serving, stop := context.WithCancel(context.WithoutCancel(ctx)) // programs hear of the daemon's end after their nodes have left
	served := make(chan error, 1)
	running, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		served <- unixjoin.Serve(serving, l, d, limits, b.Log)
	}()
	err = d.Run(running)
	stop()
	return errors.Join(err, <-served)
}

// portPatience is how long programs of a daemon before may take to close their sockets.
const portPatience = 5 * time.Second

// holdPorts keeps the ports of nodes from all others of this machine.
func holdPorts(ctx context.Context, stack *linux.Stack) error {
	ctx, cancel := context.WithTimeout(ctx, portPatience)
	defer cancel()
	return stack.HoldPorts(ctx, rackaddr.NodePorts...)
}

// programFiles is where the files of programs are kept unless it is said.
func programFiles() string {
	if dir, err := os.UserCacheDir(); err == nil && os.Geteuid() != 0 {
		return filepath.Join(dir, "bifrost-programs")
	}
	return "/var/cache/bifrost-programs"
}

// openOutput opens what is kept of programs' output. Forget removes it, unless it has a
// directory that is to stay.
func (o *computeOptions) openOutput() (kept *output.Store, forget func() error, err error) {
	size, err := config.ParseSize(o.logSize)
	if err != nil || size < output.MaxLine {
		return nil, nil, fmt.Errorf("--program-log-size %s: want a number of bytes from %d on, such as 4MiB", o.logSize, output.MaxLine)
	}
	dir, forget := o.logs, func() error { return nil }
	if dir == "" {
		if dir, err = os.MkdirTemp("", "bifrost-programs-"); err != nil {
			return nil, nil, fmt.Errorf("make a directory for what programs print: %w: name one with --program-logs", err)
		}
		forget = func() error { return os.RemoveAll(dir) }
	}
	kept, err = output.Open(output.Config{Dir: dir, Size: int64(size)}) //nolint:gosec // a file's
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("--program-logs %s: %w", dir, err), forget())
	}
	return kept, forget, nil
}
