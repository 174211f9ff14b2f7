//go:build !linux

package softswitch

import (
	"fmt"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
)

// LoadEBPF needs Linux.
func LoadEBPF([]byte, Env) (Executor, error) {
	return nil, fmt.Errorf("eBPF needs Linux: %w", datapath.ErrUnsupported)
}

// pinFS would be where the BPF file system is.
func pinFS() string { return "/sys/fs/bpf" }
