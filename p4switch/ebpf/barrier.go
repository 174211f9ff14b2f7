//go:build linux

package ebpf

import (
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// epochs tell which CPUs are running the program, so that an update can be
// answered when no packet is left that may have seen what it has changed.
//
//	CPU 0 │ entered │ left │ …  a cache line
//	CPU 1 │ entered │ left │ …
//
// The program adds one to its CPU's "entered" before it looks anything up, and
// to "left" when it has looked up everything. wait adds nothing to each
// "entered": of the two atomic additions to one word either the program's comes
// first, so that wait sees it and waits until the packet has left; or wait's
// does, and then the packet sees all that was changed before. On one CPU the
// program never runs inside itself: bottom halves do not nest. So a CPU that has
// left as often as it had entered is through.
//
// The array is mapped into this process: a wait asks nothing of the kernel, of
// the scheduler or of other CPUs. On an idle switch it takes less than a
// microsecond, else as long as the packets under way.
type epochs struct{ *mapped }

const (
	epochEntered = 0
	epochLeft    = 8
	epochSize    = 64 // a cache line
)

// newEpochs makes the array, with a cell for every CPU that there may be.
func newEpochs() (epochs, error) {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return epochs{}, err
	}
	m, err := newMapped("epochs", epochSize, cpus)
	return epochs{m}, err
}

// word is a counter of a CPU. Callers hold mu.
func (e epochs) word(cpu, at int) *uint64 {
	return (*uint64)(unsafe.Pointer(&e.mem[cpu*epochSize+at]))
}

// wait returns when every packet that is being judged now has been.
func (e epochs) wait() {
	e.mu.RLock()
	defer e.mu.RUnlock()
	for cpu := range len(e.mem) / epochSize {
		entered := atomic.AddUint64(e.word(cpu, epochEntered), 0)
		for try := 0; atomic.LoadUint64(e.word(cpu, epochLeft)) < entered; try++ {
			pause(try)
		}
	}
}

// pause lets some time pass: little at first, since a packet takes about a
// microsecond, and more if it is long, since then its CPU does something else,
// such as an interrupt, or has been taken away from this machine.
func pause(try int) {
	const spins, yields = 100, 50
	switch {
	case try < spins:
	case try < spins+yields:
		runtime.Gosched()
	default:
		time.Sleep(20 * time.Microsecond) //nolint:forbidigo // the kernel counts, and wakes nobody
	}
}

// epochAt is where the program keeps the address of its CPU's cell.
const epochAt = -16

// enter generates the beginning of what wait waits for.
func (g *gen) enter(fail string) {
	g.emit(asm.FnGetSmpProcessorId.Call(), asm.StoreMem(asm.R10, -4, asm.R0, asm.Word))
	g.lookup(g.objs.epochs, asm.R10, -4)
	g.emit(
		asm.JEq.Imm(asm.R0, 0, fail),
		asm.Mov.Imm(asm.R1, 1),
		asm.FetchAdd.Mem(asm.R0, asm.R1, asm.DWord, epochEntered),
		asm.StoreMem(asm.R10, epochAt, asm.R0, asm.DWord))
}

// leave generates its end; nothing is looked up in a table any more. It changes
// R1 and R2; R0 to R5 while packets are traced. (Additions that return the old value are full barriers, others need
// not be.)
func (g *gen) leave() {
	g.traceEnd()
	g.emit(
		asm.LoadMem(asm.R1, asm.R10, epochAt, asm.DWord),
		asm.Mov.Imm(asm.R2, 1),
		asm.FetchAdd.Mem(asm.R1, asm.R2, asm.DWord, epochLeft))
}
