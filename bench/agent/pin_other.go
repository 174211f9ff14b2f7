//go:build !linux

package agent

import "errors"

// Pin needs Linux.
func Pin([]int) error { return errors.New("processes are pinned to CPUs on Linux only") }
