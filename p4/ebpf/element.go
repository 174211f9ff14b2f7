//go:build linux

package ebpf

import (
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Changes of a table's entries, which held packets wait for, are made without
// telling Go's scheduler: package rawsys says why. They never block.

// elementCall is bpf_attr of the calls that change one element of a map.
type elementCall struct {
	fd         uint32
	_          uint32
	key, value unsafe.Pointer
	flags      uint64
}

// putElement is Map.Put, of bytes.
func putElement(m *ebpf.Map, key, value []byte) error {
	return changeElement(unix.BPF_MAP_UPDATE_ELEM, m, key, unsafe.Pointer(&value[0]))
}

// deleteElement is Map.Delete, of bytes.
func deleteElement(m *ebpf.Map, key []byte) error {
	return changeElement(unix.BPF_MAP_DELETE_ELEM, m, key, nil)
}

func changeElement(command uintptr, m *ebpf.Map, key []byte, value unsafe.Pointer) error {
	c := elementCall{fd: uint32(m.FD()), key: unsafe.Pointer(&key[0]), value: value}
	if _, _, errno := unix.RawSyscall(unix.SYS_BPF, command, uintptr(unsafe.Pointer(&c)), unsafe.Sizeof(c)); errno != 0 {
		return errno
	}
	return nil
}
