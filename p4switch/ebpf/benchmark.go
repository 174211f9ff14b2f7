//go:build linux

package ebpf

import (
	"runtime"
	"time"
	"unsafe"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// TailCall is how another program hands a packet to an executor's: it sets two words of the context, and calls what is at index 0 of the map.
type TailCall struct {
	Slot *ebpf.Map
	// Port and Sum are where in struct __sk_buff the port is that the packet comes by, and what is left to do of its checksum, 0 for nothing.
	Port, Sum int16
}

// TailCall tells how another program enters this one. The map is the executor's.
func (x *Executor) TailCall() TailCall { return TailCall{x.slot, cbPort, cbSum} }

// Benchmark runs a frame that comes by a port some times, each as the one before has left it, and returns how long the program took for one. The
// packet does not leave.
func (x *Executor) Benchmark(in datapath.Port, frame []byte, repeat int) (time.Duration, error) {
	return RunTimed(x.running(), in, frame, repeat)
}

// RunTimed is Benchmark with any program for packets, such as one that hands what it makes of them to an executor's ([Executor.TailCall]).
func RunTimed(program *ebpf.Program, in datapath.Port, frame []byte, repeat int) (time.Duration, error) {
	ctx := skBuff{CB: [5]uint32{uint32(in)}}
	attr := struct {
		prog, ret, inSize, outSize uint32
		in, out                    uint64
		repeat, duration           uint32
		ctxInSize, ctxOutSize      uint32
		ctxIn, ctxOut              uint64
		flags, cpu, batch, _       uint32
	}{
		prog: uint32(program.FD()), inSize: uint32(len(frame)), in: uint64(uintptr(unsafe.Pointer(&frame[0]))), repeat: uint32(repeat), //nolint:gosec // small
		ctxInSize: uint32(unsafe.Sizeof(ctx)), ctxIn: uint64(uintptr(unsafe.Pointer(&ctx))),
	}
	const progTestRun = 10
	errno := unix.EINTR
	for errno == unix.EINTR {
		_, _, errno = unix.Syscall(unix.SYS_BPF, progTestRun, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	}
	runtime.KeepAlive(program)
	runtime.KeepAlive(frame)
	runtime.KeepAlive(&ctx)
	if errno != 0 {
		return 0, errno
	}
	return time.Duration(attr.duration), nil
}
