//go:build !linux || race

package rawsys

import (
	"errors"
	"syscall"
)

// The race detector takes what one end writes and the other reads for an order of
// what both ends do, if package syscall does it.

// Read is syscall.Read, but that it is not interrupted. The number is 0 if all went
// well.
func Read(fd uintptr, b []byte) (int, syscall.Errno) { return again(syscall.Read, fd, b) }

// Write is syscall.Write, but that it is not interrupted.
func Write(fd uintptr, b []byte) (int, syscall.Errno) { return again(syscall.Write, fd, b) }

func again(call func(int, []byte) (int, error), fd uintptr, b []byte) (int, syscall.Errno) {
	for {
		n, err := call(int(fd), b)
		errno := syscall.Errno(0)
		if errors.As(err, &errno); errno != syscall.EINTR {
			return max(n, 0), errno
		}
	}
}

// Yield does nothing here.
func Yield() {}
