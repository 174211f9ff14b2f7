// Package topology is the rack that a benchmark runs on, as far as it must know
// it: blades to start commands on, and their addresses. One is made of network
// namespaces for the run (namespaces.go), the other is Mininet's (mininet.go).
package topology

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/bench/report"
	"github.com/bifrost-rack/bifrost/rack"
)

// Topology is a rack that is up.
type Topology interface {
	// Start starts a command in a blade's network.
	Start(blade string, cmd *exec.Cmd) error
	// Address is a blade's own address.
	Address(blade string) (netip.Addr, error)
	// Describe says what it is.
	Describe() report.Topology
	// Close ends what was made for the run.
	Close() error
}

// noBlade is the error of a blade that is not there.
func noBlade(name string) error { return fmt.Errorf("the rack has no blade %s", name) }

// DefaultDir is where a run's rack keeps its files: in memory, so that the disk
// below the Gatekeeper's log is not what is measured.
const DefaultDir = "/dev/shm/bifrost-bench"

// claim keeps a rack's name for one run at a time. It is given up when the file is
// closed, by a kill as well.
type claim struct {
	file *os.File
	path string
}

func claimName(dir, name string) (*claim, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("files of the rack: %w", err)
	}
	path := filepath.Join(dir, name+".lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("files of the rack: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("another run is on the rack %s: wait until it has ended, or choose another name with --rack", name)
	}
	return &claim{f, path}, nil
}

// release gives the name back.
func (c *claim) release() error {
	err := os.Remove(c.path)
	_ = os.Remove(filepath.Dir(c.path)) // fails while there are others
	return errors.Join(err, c.file.Close())
}

// Claim keeps a rack's name for this run until it is released, and removes what a
// killed run has left under it, which progress is told.
func Claim(ctx context.Context, h *rack.Host, name string, progress func(format string, args ...any)) (release func() error, err error) {
	c, err := claimName(h.Dir, name)
	if err != nil {
		return nil, err
	}
	cleared, err := clearAway(ctx, h, name)
	if err != nil {
		return nil, errors.Join(err, c.release())
	}
	if cleared {
		progress("removed what a killed run had left of the rack %s", name)
	}
	return c.release, nil
}

// clearAway removes what a killed run has left of a rack. Who has claimed the name
// knows that its rack is nobody's any more.
func clearAway(ctx context.Context, h *rack.Host, name string) (cleared bool, err error) {
	if _, err := os.Stat(filepath.Join(h.Dir, name)); err != nil {
		return false, nil
	}
	if err := h.Down(ctx, name); err != nil {
		return false, fmt.Errorf("what a killed run has left of the rack %s: %w", name, err)
	}
	return true, nil
}
