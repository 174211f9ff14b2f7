//go:build !linux

package switchcmd

import (
	"errors"

	"github.com/bifrost-rack/bifrost/p4switch/interp/stf"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// kernelSwitch is a program in the kernel, for a script: on Linux only.
func kernelSwitch(*v1model.Program, *stf.Runner) (stf.Switch, func() error, error) {
	return nil, nil, errors.New("in the kernel: this needs Linux; use --datapath go")
}
