//go:build linux

package ebpf

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// barrier waits until no packet is on the path any more that was there before.
//
// A packet runs from its receipt to its transmission with bottom halves
// disabled, and so does a test's: no thread runs on that CPU meanwhile. So when
// a thread has run on every CPU, all packets that were under way have gone.
// (Where the kernel may preempt bottom halves, or a CPU cannot be visited, a
// global membarrier waits for the same, some hundred times as long.)
//
// Concurrent callers share a visit: it serves all who came before it began.
type barrier struct {
	mu      sync.Mutex
	next    *visitAll // begins when the one under way ends; nil if nobody waits
	running bool
}

// visitAll is one visit of all CPUs.
type visitAll struct {
	done chan struct{}
	err  error
}

// wait returns when every packet that is on the path now has gone.
func (b *barrier) wait() error {
	b.mu.Lock()
	v := b.next
	if v == nil {
		v = &visitAll{done: make(chan struct{})}
		b.next = v
	}
	if !b.running {
		b.running = true
		b.mu.Unlock()
		b.run()
	} else {
		b.mu.Unlock()
	}
	<-v.done
	return v.err
}

// run visits as long as somebody waits, on the goroutine that came first.
func (b *barrier) run() {
	for {
		b.mu.Lock()
		v := b.next
		b.next = nil
		if v == nil {
			b.running = false
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		v.err = visitCPUs()
		close(v.done)
	}
}

// visitCPUs runs on every CPU in turn.
func visitCPUs() error {
	if preemptibleBottomHalves() {
		return globalBarrier()
	}
	cpus, err := possibleCPUs()
	if err != nil {
		return globalBarrier()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var home unix.CPUSet
	if err := unix.SchedGetaffinity(0, &home); err != nil {
		return globalBarrier()
	}
	urgent := hurry()
	defer urgent()
	defer func() { _ = unix.SchedSetaffinity(0, &home) }()
	for _, c := range cpus {
		var one unix.CPUSet
		one.Set(c)
		if err := unix.SchedSetaffinity(0, &one); err != nil && online(c) {
			return globalBarrier() // outside of the process's cpuset
		}
	}
	return nil
}

// hurry lets the thread run before others until the function it returns is
// called, where that is allowed.
func hurry() func() {
	attr, err := unix.SchedGetAttr(0, 0)
	if err != nil || attr.Policy != unix.SCHED_NORMAL {
		return func() {}
	}
	if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0); err != nil {
		return func() {}
	}
	return func() { _ = unix.SchedSetAttr(0, attr, 0) }
}

const (
	membarrierGlobal = 1 // MEMBARRIER_CMD_GLOBAL: an RCU grace period
)

func globalBarrier() error {
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0); errno != 0 {
		return fmt.Errorf("ebpf: wait for packets in flight: %w", errno)
	}
	return nil
}

// preemptibleBottomHalves tells whether this is a real-time kernel.
var preemptibleBottomHalves = sync.OnceValue(func() bool {
	b, err := os.ReadFile("/sys/kernel/realtime")
	return err == nil && strings.TrimSpace(string(b)) == "1"
})

// possibleCPUs are all CPUs that this kernel may ever use.
var possibleCPUs = sync.OnceValues(func() ([]int, error) { return readCPUs("possible") })

// online tells whether packets may run on a CPU. CPUs come and go, so it is read
// every time.
func online(cpu int) bool {
	cpus, err := readCPUs("online")
	return err != nil || slices.Contains(cpus, cpu)
}

func readCPUs(which string) ([]int, error) {
	b, err := os.ReadFile("/sys/devices/system/cpu/" + which)
	if err != nil {
		return nil, err
	}
	return parseCPUs(strings.TrimSpace(string(b)))
}

// parseCPUs reads a list such as 0-3,8.
func parseCPUs(s string) ([]int, error) {
	var out []int
	for part := range strings.SplitSeq(s, ",") {
		first, last, isRange := strings.Cut(part, "-")
		from, err := strconv.ParseUint(first, 10, 16)
		to := from
		if err == nil && isRange {
			to, err = strconv.ParseUint(last, 10, 16)
		}
		if err != nil {
			return nil, fmt.Errorf("list of CPUs %q: %w", s, err)
		}
		for c := from; c <= to; c++ {
			out = append(out, int(c))
		}
	}
	return out, nil
}
