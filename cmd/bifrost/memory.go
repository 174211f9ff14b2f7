//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"strconv"

	"github.com/bifrost-rack/bifrost/daemon"
	"github.com/bifrost-rack/bifrost/dsm/memory"
	"github.com/bifrost-rack/bifrost/p4switch/shared/metrics"
	"github.com/bifrost-rack/bifrost/p4switch/shared/process"
	"github.com/bifrost-rack/bifrost/rack/config"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// memoryOptions are the flags of `bifrost memory`.
type memoryOptions struct {
	blade       bladeOptions
	capacity    string
	ledgerSpace string
	ledgerTotal string
	ledgerDir   string
	ledgerSync  bool
	machine     uint8
}

func newMemoryCmd() *cobra.Command {
	var o memoryOptions
	cmd := &cobra.Command{
		Use:   "memory",
		Short: "Run the daemon of a memory blade",
		Long: `Run the daemon of a memory blade. The daemon announces the blade to the Gatekeeper,
which gives the blade a machine id, and serves the blade's memory to the rack. It takes
memory from the machine only when that memory is first written to. The content is gone
when the daemon ends. A second process, the witness, then tells the Gatekeeper at once
that the daemon has ended.

Ledgers record the outcomes of exactly-once calls, and have space of their own. With
--ledger-dir they outlive the daemon, so that the whole rack can be switched off and on.

The daemon needs root, or CAP_NET_ADMIN, to receive packets for the addresses of its
pointers. The interface needs a route to the rack by way of the switch's MAC address.
bifrost rack up makes this route. If it is missing, the error says how to make it.`,
		Example: `  # One GiB, on the interface that is connected to the switch.
  sudo bifrost memory --blade m1 --iface eth0 --capacity 1GiB

  # A blade whose ledgers survive a loss of power.
  sudo bifrost memory --blade m1 --iface eth0 --ledger-dir /var/lib/bifrost/m1 --ledger-sync

  # A blade that keeps its machine id when the Gatekeeper forgets it.
  sudo bifrost memory --blade m2 --iface eth1 --capacity 64GiB --machine 2`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	o.blade.register(cmd.Flags())
	cmd.Flags().StringVar(&o.capacity, "capacity", "1GiB", "memory to serve, in `BYTES` or with KiB, MiB, GiB, TiB")
	cmd.Flags().StringVar(&o.ledgerSpace, "ledger-space", config.FormatSize(memory.DefaultLedgerSpace), "how many `BYTES` of records the ledger of one node may take, and as much for a moment while it is folded")
	cmd.Flags().StringVar(&o.ledgerTotal, "ledger-total", "", "how many `BYTES` all ledgers may take together (default: 16 times --ledger-space)")
	cmd.Flags().StringVar(&o.ledgerDir, "ledger-dir", "", "`DIRECTORY` that keeps the ledgers when the daemon ends (default: ledgers are in memory only)")
	cmd.Flags().BoolVar(&o.ledgerSync, "ledger-sync", false, "with --ledger-dir: acknowledge a record only when the disk has it, so that a loss of power loses no acknowledged record")
	cmd.Flags().Uint8Var(&o.machine, "machine", 0, "machine `ID` to ask for, 1 to 255 (0: the Gatekeeper chooses)")
	cmd.AddCommand(newMemoryWitnessCmd())
	return cmd
}

// run runs the daemon until ctx ends.
func (o *memoryOptions) run(ctx context.Context) (err error) {
	process.CollectRarely()
	process.Processors(1)
	capacity, err := config.ParseSize(o.capacity)
	if err != nil || capacity == 0 {
		return fmt.Errorf("--capacity %s: want a number of bytes, such as 512MiB", o.capacity)
	}
	ledgers, err := o.ledgers()
	if err != nil {
		return err
	}
	if o.ledgerDir != "" {
		if ledgers.Disk, err = memory.OpenLedgerDisk(o.ledgerDir, o.ledgerSync); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, ledgers.Disk.Close()) }()
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
	if err := o.blade.startWitness(&b, ledgers.Disk); err != nil {
		return err
	}
	d, err := daemon.NewMemory(daemon.MemoryConfig{Blade: b, Capacity: capacity, Machine: o.machine, Ledgers: ledgers})
	if err != nil {
		return err
	}
	b.Log.Info("memory blade starts", "blade", b.Name, "interface", o.blade.iface, "address", b.Address, "capacity", config.FormatSize(capacity))
	stop, err := o.blade.serveMetrics(ctx, g, memoryMetrics{d}, metrics.Refusals("bifrost_memory_refused_owner_total",
		"What owners, users of blades, were refused beyond their share of the machine: bytes of ledgers, and of undo.", "owner", refusedOwners(d)))
	if err != nil {
		return err
	}
	defer stop()
	return d.Run(ctx)
}

// ledgers is the space for ledgers.
func (o *memoryOptions) ledgers() (c memory.LedgerConfig, err error) {
	if c.Space, err = config.ParseSize(o.ledgerSpace); err != nil || c.Space < minLedgerSpace {
		return c, fmt.Errorf("--ledger-space %s: want a number of bytes from %s on, such as 64MiB", o.ledgerSpace, config.FormatSize(minLedgerSpace))
	}
	if o.ledgerSync && o.ledgerDir == "" {
		return c, errors.New("--ledger-sync needs --ledger-dir: ledgers in memory are not written to a disk")
	}
	if o.ledgerTotal == "" {
		return c, nil
	}
	if c.Total, err = config.ParseSize(o.ledgerTotal); err != nil || c.Total < c.Space {
		return c, fmt.Errorf("--ledger-total %s: want a number of bytes, not below --ledger-space", o.ledgerTotal)
	}
	return c, nil
}

// minLedgerSpace is room for the largest outcome of a call, 1 MiB, in the last eighth of a
// ledger.
const minLedgerSpace = 8 << 20

func memoryMetric(name, help, label string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName("bifrost_memory", "", name), help, []string{label}, nil)
}

var (
	metricServed   = memoryMetric("requests_total", "Requests answered with success.", "operation")
	metricFailed   = memoryMetric("refused_requests_total", "Requests answered with an error.", "operation")
	metricIgnored  = memoryMetric("dropped_packets_total", "Datagrams without an answer.", "reason")
	metricBlame    = prometheus.NewDesc("bifrost_memory_refused_node_packets_total", "Requests that were refused, by the node that sent them; \"other\" stands for further nodes than 256.", []string{"node", "reason"}, nil)
	metricNoLedger = memoryMetric("refused_ledger_requests_total", "Requests and commands about ledgers that were refused.", "reason")
	metricUndo     = memoryMetric("undo_words_total", "What nodes have said of what executions had changed: committed, taken back, refused; and last words on durable mains that were forgotten for lack of room.", "word")
)

// refusedOwners is what a memory server refuses by owner.
func refusedOwners(d *daemon.Memory) metrics.Refused {
	return func(each func(owner, what string, n uint64)) {
		server := d.Server()
		if server == nil {
			return // not registered yet
		}
		for what, all := range server.RefusedOwners() {
			for o, n := range all {
				each(o.Label(), what, n)
			}
		}
	}
}

// memoryMetrics tells Prometheus of a memory server's counters.
type memoryMetrics struct{ d *daemon.Memory }

// Describe implements prometheus.Collector.
func (m memoryMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{metricServed, metricFailed, metricIgnored, metricNoLedger, metricUndo, metricBlame} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m memoryMetrics) Collect(to chan<- prometheus.Metric) {
	server := m.d.Server()
	if server == nil {
		return // not registered yet
	}
	c := server.Metrics()
	for _, r := range c.Refused {
		to <- prometheus.MustNewConstMetric(metricBlame, prometheus.CounterValue, float64(r.Packets), r.Sender(), r.Reason)
	}
	for desc, counts := range memoryCounts(&c) {
		for label, n := range counts {
			to <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), label)
		}
	}
}

// memoryCounts are the counters with one label.
func memoryCounts(c *memory.Metrics) map[*prometheus.Desc]map[string]uint64 {
	u := &c.Undo
	return map[*prometheus.Desc]map[string]uint64{
		metricServed: c.Done, metricFailed: c.Failed, metricIgnored: c.Dropped, metricNoLedger: c.RefusedLedgers,
		metricUndo: {"committed": u.Commits, "taken back": u.Rollbacks, "refused": u.Refused, "forgotten": u.Forgotten},
	}
}

// A memory daemon that is killed cannot say so, and its blade's kernel refuses requests only
// to those who send them, by ICMPv6 messages that the switch drops. So the daemon has a
// witness: a process that sleeps until the daemon has ended, tells the Gatekeeper, and ends.
//
//	bifrost memory ── starts, with a descriptor of its own process ──▶ bifrost memory witness
//	      ✝ ─────────────── the descriptor can be read ────────────────────▶ Ended ──▶ Gatekeeper

// witnessFD is the descriptor of the daemon's process in the witness's.
const witnessFD = 3

// startWitness starts the witness of this process, the daemon of a memory blade, and gives
// the daemon a boot number that the witness knows. The witness outlives the daemon by some
// milliseconds, or by a second if the Gatekeeper does not answer.
func (o *bladeOptions) startWitness(b *daemon.Blade, of *memory.LedgerDisk) error {
	b.Boot = of.Boot(1 + rand.Uint64()>>1)
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return fmt.Errorf("witness: descriptor of this process: %w", err)
	}
	self := os.NewFile(uintptr(fd), "this process")
	defer self.Close()
	cmd := exec.Command("/proc/self/exe", "memory", "witness", strconv.FormatUint(b.Boot, 10),
		"--blade", b.Name, "--iface", o.iface, "--address", b.Address.String(), "--log-format", o.logging.Format, "--log-level", o.logging.Level)
	cmd.Stderr, cmd.ExtraFiles = os.Stderr, []*os.File{self}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("witness: %w", err)
	}
	go func() { _ = cmd.Wait() }() // if it is killed, silence tells of the daemon's end
	return nil
}

func newMemoryWitnessCmd() *cobra.Command {
	var o bladeOptions
	cmd := &cobra.Command{
		Use: "witness BOOT", Hidden: true, Args: cobra.ExactArgs(1),
		Short: "Tell the Gatekeeper when the daemon that has started this process has ended",
		RunE: func(cmd *cobra.Command, args []string) error {
			boot, err := strconv.ParseUint(args[0], 10, 64)
			if err != nil {
				return fmt.Errorf("boot number %q: %w", args[0], err)
			}
			return o.witness(boot)
		},
	}
	o.register(cmd.Flags())
	return cmd
}

// witness waits for the daemon's end, and tells. Who ends the daemon in good order may ask
// the witness to end, too; it has still to tell.
func (o *bladeOptions) witness(boot uint64) (err error) {
	signal.Ignore(unix.SIGTERM, unix.SIGINT)
	process.Processors(1)
	b, stack, err := o.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stack.Close()) }()
	b.Boot = boot
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: witnessFD, Events: unix.POLLIN}}, -1)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for the daemon: %w", err)
		}
	}
	return daemon.TellEnded(context.Background(), b)
}
