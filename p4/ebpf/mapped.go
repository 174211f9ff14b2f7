//go:build linux

package ebpf

import (
	"errors"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// bpfMmapable is BPF_F_MMAPABLE.
const bpfMmapable = 1024

// mapped is an array in the kernel that is also mapped into this process, so that
// to read or write it asks nothing of the kernel.
type mapped struct {
	cells *ebpf.Map

	mu  sync.RWMutex // held while mem is used: it goes when the map is closed
	mem []byte       // the values, one after the other; nil when closed
}

// newMapped makes an array of n values; their size is a multiple of eight.
func newMapped(name string, size, n int) (*mapped, error) {
	m, err := newMap(&ebpf.MapSpec{
		Name: name, Type: ebpf.Array, Flags: bpfMmapable, KeySize: 4, ValueSize: uint32(size), MaxEntries: uint32(n),
	})
	if err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(m.FD(), 0, n*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("map %s: %w", name, err), m.Close())
	}
	return &mapped{cells: m, mem: mem}, nil
}

// close does nothing for an array that was never made.
func (m *mapped) close() error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	err := unix.Munmap(m.mem)
	m.mem = nil
	return errors.Join(err, m.cells.Close())
}
