package rack

import (
	"fmt"

	"github.com/bifrost-rack/bifrost/rack/plan"
)

// Locate returns the file of a program: a path as it is, a bare name beside the
// bifrost binary (where `make build` puts the examples), else on PATH.
func (h *Host) Locate(program string) (string, error) {
	if program == plan.BifrostProgram && h.Bifrost != "" {
		return h.Bifrost, nil
	}
	path, err := plan.Locate(h.Bifrost, program)
	if err == nil {
		return path, nil
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
