//go:build linux

package ebpf

import (
	"bytes"
	"encoding/binary"
	"flag"
	mapsutil "maps"
	"slices"
	"testing"

	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/difftest"
)

// To run a difference again: go test ./p4/ebpf -run TestRights -rights-seed N -rights-steps 2000
var (
	rightsSeed  = flag.Uint64("rights-seed", 1, "seed of the sequence of packets that is compared with the model of rights")
	rightsSteps = flag.Int("rights-steps", 8_000, "its packets and operations")
)

// target is the kernel's executor as one that is compared with the model of rights.
type target struct {
	*Executor
	out   []difftest.Leaves
	cells []byte // what all registers have
}

func (k *target) emit(port datapath.Port, b []byte) {
	k.out = append(k.out, difftest.Leaves{Port: port, Frame: bytes.Clone(b)})
}
func (k *target) PacketIn(b []byte)      { k.emit(p4.CPUPort, b) }
func (k *target) Digest(datapath.Digest) {}
func (k *target) Idle(datapath.Entry)    {}

// Cell is what Register returns, but for what a packet costs: all registers are read at once.
func (k *target) Cell(register string, index int) ([]byte, error) {
	all, _ := registerLayout(k.prog, k.Executor.cells)
	for i, r := range k.prog.Registers {
		if r.Name == register {
			at := all[i].at + all[i].stride*index
			return binary.BigEndian.AppendUint64(nil, binary.NativeEndian.Uint64(k.cells[at:])), nil
		}
	}
	return k.Register(register, index)
}

func (k *target) Run(in datapath.Port, b []byte) ([]difftest.Leaves, error) {
	k.out = nil
	err := k.test(in, b, k.emit)
	if err == nil {
		k.cells, err = k.maps.registers.LookupBytes(uint32(0))
	}
	return k.out, err
}

// newTarget loads the program.
func newTarget(t *testing.T) *target {
	t.Helper()
	needRoot(t)
	k := &target{}
	var err error
	if k.Executor, err = New(bifrost(t), Config{CPUPort: p4.CPUPort, Sink: k, RegisterCells: 512, before: stale}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	return k
}

// TestPorts: the kernel's executor judges what comes to the ports of calls, and nothing else.
func TestPorts(t *testing.T) {
	if err := difftest.Ports(newTarget(t)); err != nil {
		t.Error(err)
	}
}

// TestRights: the kernel's executor does what the model of rights does, packet by packet, and each row of the model's tables has
// its turn.
func TestRights(t *testing.T) {
	k := newTarget(t)
	r, err := difftest.NewRights(k, *rightsSeed)
	for n := 0; n < *rightsSteps && err == nil; n++ {
		err = r.Step()
	}
	if err != nil {
		t.Fatal(err)
	}
	rows := r.Rows()
	for _, name := range slices.Sorted(mapsutil.Keys(rows)) {
		if rows[name] == 0 && *rightsSteps >= 8_000 {
			t.Errorf("nothing came to row %q", name)
		}
	}
	t.Log(rows)
}
