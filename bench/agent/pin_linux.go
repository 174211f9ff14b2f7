package agent

import (
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// Pin keeps this process, and what it starts, on some of the machine's CPUs. Go's
// scheduler is told, too.
func Pin(cpus []int) error {
	var set unix.CPUSet
	for _, c := range cpus {
		set.Set(c)
	}
	runtime.GOMAXPROCS(max(1, len(cpus)))
	// A thread that begins meanwhile has the affinity of one seen before or is
	// seen in the second turn.
	for range 2 {
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return fmt.Errorf("pin to CPUs %v: %w", cpus, err)
		}
		for _, t := range threads {
			id, err := strconv.Atoi(t.Name())
			if err != nil {
				continue
			}
			if err := unix.SchedSetaffinity(id, &set); err != nil && err != unix.ESRCH {
				return fmt.Errorf("pin to CPUs %v: %w", cpus, err)
			}
		}
	}
	return nil
}
