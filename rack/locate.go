package rack

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/bifrost-rack/bifrost/rack/plan"
)

// Locate returns the file of a program: a path as it is, a bare name beside the
// bifrost binary (where `make build` puts the examples), else on PATH.
func (h *Host) Locate(program string) (string, error) {
	if program == plan.BifrostProgram && h.Bifrost != "" {
		return h.Bifrost, nil
	}
	candidates := []string{program}
	if !strings.Contains(program, "/") && h.Bifrost != "" {
		candidates = []string{filepath.Join(filepath.Dir(h.Bifrost), program), program}
	}
	var err error
	for _, c := range candidates {
		var path string
		if path, err = exec.LookPath(c); err == nil {
			return filepath.Abs(path)
		}
	}
	return "", &Error{Msg: fmt.Sprintf("cannot run %s: %v", program, err), Remedy: remedyFor(program), Err: ErrMissing}
}

func remedyFor(program string) string {
	if program == plan.BMv2Program {
		return "install bmv2 (github.com/p4lang/behavioral-model) so that it is on PATH, or use --switch bifrost"
	}
	return "build it (`make build` puts the examples beside bifrost), put it on PATH, or give its path"
}

// locateAll replaces the programs of a plan by their files.
func (h *Host) locateAll(p *plan.Plan) error {
	for i := range p.Processes {
		if err := h.locateFirst(&p.Processes[i].Args); err != nil {
			return err
		}
	}
	for i := range p.Deployed {
		if err := h.locateFirst(&p.Deployed[i].Args); err != nil {
			return err
		}
	}
	return nil
}

func (h *Host) locateFirst(args *[]string) error {
	path, err := h.Locate((*args)[0])
	if err == nil {
		*args = append([]string{path}, (*args)[1:]...)
	}
	return err
}
