//go:build linux

package ebpf

import (
	"fmt"

	"github.com/bifrost-rack/bifrost/p4/datapath"
)

// A program that declares one of these objects and uses it is not run by this
// executor, so there is nothing to write to.

func absent(what, name string) error {
	return fmt.Errorf("%s %s: %w by the eBPF executor", what, name, datapath.ErrUnsupported)
}

// Member implements datapath.Datapath.
func (x *Executor) Member(_ datapath.Op, profile string, _ uint32, _ datapath.Action) error {
	return absent("action profile", profile)
}

// Group implements datapath.Datapath.
func (x *Executor) Group(_ datapath.Op, profile string, _ uint32, _ map[uint32]int) error {
	return absent("action profile", profile)
}
