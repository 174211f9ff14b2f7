// Package rack runs an emulated rack on one Linux machine: every blade is a
// process in a network namespace of its own, joined to the switch by one virtual
// wire, and nothing touches the machine's own network.
//
//	rack file ──config──▶ Config ──plan──▶ Plan ──rack──▶ namespaces, wires, processes
//	                              (pure)          (package internal/kernel)
//
// Up makes a rack and leaves it running; it belongs to nobody's process tree.
// What is up is recorded under /run/bifrost/<rack>:
//
//	state.json   the plan, and the processes with their start times
//	log/         what each process prints
//	notify/      where daemons say that they are ready, while the rack starts
//	switch.sock  the switch's P4Runtime server
//	admin.sock   the Gatekeeper's admin API
//	metrics-*    sockets with the metrics of switch and daemons
//
// Programs that serve are the Gatekeeper's as soon as they are deployed: it has them
// started again when they end, and on a spare when their blade fails. Everything
// else that runs on a blade ends with it.
//
// The namespaces are the truth: whatever runs in a rack's namespaces belongs to
// it, so Down needs no record to find every process, and a process id that has
// been recycled since is never signalled.
package rack

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/rack/config"
	"github.com/bifrost-rack/bifrost/rack/internal/kernel"
	"github.com/bifrost-rack/bifrost/rack/plan"
)

// DefaultDir is where racks keep their state.
const DefaultDir = "/run/bifrost"

// Limits of time; each is far above what a healthy rack takes.
const (
	// DefaultTimeout bounds the start of a rack, process by process. The Gatekeeper waits for the switch, which
	// verifies its program: that takes seconds of a CPU, and much longer on a machine that does other things.
	DefaultTimeout = 2 * time.Minute
	// stopGrace is how long processes have to end in good order.
	stopGrace = 3 * time.Second
	// teardownTimeout bounds the clean-up after a failed or interrupted start.
	teardownTimeout = 30 * time.Second
)

// Host is where racks are made: the machine, and what of Bifröst is installed
// on it. Methods may be called concurrently, also by several processes: what
// changes a rack takes a lock on it.
type Host struct {
	// Dir holds the racks' state. Default: DefaultDir.
	Dir string
	// Bifrost is the path of the bifrost binary.
	Bifrost string
	// Timeout bounds how long a process may take to be ready. Default:
	// DefaultTimeout.
	Timeout time.Duration
	// Begin, if set, writes what a rack begins with: the Gatekeeper's log into one new
	// directory, and the ledgers of memory blades below another one, each in a directory of
	// the blade's name. Up calls it before it starts anything.
	Begin func(log, ledgers string) error
	// Force has Down also remove namespaces that are hidden (ErrHidden), from all mount
	// namespaces of the machine.
	Force bool
	// Progress, if set, is told each step as it is done. It is called from one
	// goroutine at a time.
	Progress func(step string)
}

func (h *Host) dir(rack string) string {
	base := h.Dir
	if base == "" {
		base = DefaultDir
	}
	return filepath.Join(base, rack)
}

// AdminSocket is the path of the admin API's socket of a rack that is up.
func (h *Host) AdminSocket(rack string) string { return plan.AdminPath(h.dir(rack)) }

// SwitchSocket is the path of the switch's P4Runtime server.
func (h *Host) SwitchSocket(rack string) string { return plan.SocketPath(h.dir(rack)) }

func (h *Host) timeout() time.Duration {
	if h.Timeout <= 0 {
		return DefaultTimeout
	}
	return h.Timeout
}

func (h *Host) progress(format string, args ...any) {
	if h.Progress != nil {
		h.Progress(fmt.Sprintf(format, args...))
	}
}

// Racks returns the names of all racks of which anything is there, also of
// killed runs, sorted.
func (h *Host) Racks() ([]string, error) {
	entries, err := os.ReadDir(h.dir(""))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list racks: %w", err)
	}
	namespaces, err := kernel.Namespaces(plan.NamespacePrefix)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	for _, ns := range namespaces {
		name, _, _ := strings.Cut(strings.TrimPrefix(ns, plan.NamespacePrefix), "-")
		names = append(names, name)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !config.ValidName(name) })
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Find returns the rack that is meant: the one asked for, else the only one
// there is, else the one of the default name.
func (h *Host) Find(asked string) (string, error) {
	if asked != "" {
		return asked, checkName(asked)
	}
	names, err := h.Racks()
	switch {
	case err != nil:
		return "", err
	case len(names) == 0:
		return config.DefaultName, nil
	case len(names) > 1:
		return "", &Error{Msg: "several racks are up: " + strings.Join(names, ", "), Remedy: "choose one with --rack"}
	}
	return names[0], nil
}

// checkName keeps names that are none away from the file system.
func checkName(name string) error {
	if !config.ValidName(name) {
		return &Error{Msg: fmt.Sprintf("%q cannot name a rack", name), Remedy: "use 1 to 16 lower-case letters and digits, a letter first"}
	}
	return nil
}
