package rawsys

import (
	"syscall"
	"unsafe"
)

// Preempted says how often other threads have taken the CPU from this thread, and which thread
// this is: a goroutine may continue on another one.
func Preempted() (thread uintptr, times int64) {
	const thisThread = 1 // RUSAGE_THREAD
	var u syscall.Rusage
	thread, _, _ = syscall.RawSyscall(syscall.SYS_GETTID, 0, 0, 0)
	_, _, _ = syscall.RawSyscall(syscall.SYS_GETRUSAGE, thisThread, uintptr(unsafe.Pointer(&u)), 0)
	return thread, int64(u.Nivcsw) //nolint:unconvert // of 32 bits on some machines
}
