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

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/daemon"
	"github.com/bifrost-rack/bifrost/dsm/memory"
)

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
		"--blade", b.Name, "--iface", o.iface, "--address", b.Address.String(), "--log-format", o.logging.format, "--log-level", o.logging.level)
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
	processors(1)
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
