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

// ValueSet implements datapath.Datapath.
func (x *Executor) ValueSet(name string, _ [][]datapath.Match) error {
	return absent("value set", name)
}

// Meter implements datapath.Datapath.
func (x *Executor) Meter(name string, _ int, _ *datapath.MeterConfig) error {
	return absent("meter", name)
}

// EntryMeter implements datapath.Datapath.
func (x *Executor) EntryMeter(e datapath.Entry, _ *datapath.MeterConfig) error {
	return absent("direct meter of table", e.Table)
}

// Register implements datapath.Datapath.
func (x *Executor) Register(name string, _ int) ([]byte, error) {
	return nil, absent("register", name)
}

// SetRegister implements datapath.Datapath.
func (x *Executor) SetRegister(name string, _ int, _ []byte) error {
	return absent("register", name)
}
