package switchcmd

import (
	"fmt"

	"github.com/bifrost-rack/bifrost/p4switch/ebpf"
	"github.com/bifrost-rack/bifrost/p4switch/interp/stf"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// testedCopies is how many copies of a packet a script sees at most.
const testedCopies = 256

// kernelSwitch is a program in the kernel, for a script.
func kernelSwitch(prog *v1model.Program, r *stf.Runner) (stf.Switch, func() error, error) {
	x, err := ebpf.New(prog, ebpf.Config{Sink: r, Copies: testedCopies})
	if err != nil {
		return nil, nil, fmt.Errorf("in the kernel: %w", err)
	}
	return x, x.Close, nil
}
