package rack

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/bifrost-rack/bifrost/rack/internal/kernel"
	"github.com/bifrost-rack/bifrost/rack/plan"
)

// Start starts a command on a blade, or beside switch and Gatekeeper. The
// caller waits for it as usual; Down kills it.
func (h *Host) Start(rack, blade string, cmd *exec.Cmd) error {
	ns, err := h.namespace(rack, blade)
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }() // only a descriptor
	return ns.Do(cmd.Start)
}

// Exec replaces this process by a command on a blade, or beside switch and
// Gatekeeper. It returns only if that fails.
func (h *Host) Exec(rack, blade string, args []string) error {
	path, err := h.Locate(args[0])
	if err != nil {
		return err
	}
	ns, err := h.namespace(rack, blade)
	if err != nil {
		return err
	}
	if err := ns.Enter(); err != nil {
		return err
	}
	return fmt.Errorf("run %s: %w", path, syscall.Exec(path, args, os.Environ()))
}

func (h *Host) namespace(rack, blade string) (*kernel.Namespace, error) {
	if err := needRoot(); err != nil {
		return nil, err
	}
	s, err := h.open(rack)
	if err != nil {
		return nil, err
	}
	if len(s.Plan.Of(blade)) == 0 {
		return nil, noBlade(rack, blade, s.Plan)
	}
	return kernel.OpenNamespace(plan.Namespace(rack, blade))
}
