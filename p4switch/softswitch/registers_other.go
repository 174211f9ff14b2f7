//go:build !linux

package softswitch

import (
	"github.com/bifrost-rack/bifrost/p4switch/interp"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// Registers outlive a process on Linux only.

func (k *persister) newRegisters(*v1model.Program) (*interp.Registers, error) {
	return nil, nil //nolint:nilnil // the executor makes its own
}

func (k *persister) inheritRegisters(*v1model.Program) (*interp.Registers, error) {
	return nil, nil //nolint:nilnil // the executor makes its own
}

func (k *persister) keepRegisters(*goExecutor, uint64) error { return nil }
