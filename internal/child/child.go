// Package child starts processes that do not outlive the one that starts them, and makes the streams that they get.
package child

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// Start starts a command. Its process leads a process group of its own, so what is meant for this process's group (Ctrl-C) does not reach it.
// On Linux it is killed when this process ends, however that happens; macOS can do nothing of the kind.
//
// Prepare, if it is not nil, runs first, on the thread that starts the process. Ended runs when the process has ended, with what
// [exec.Cmd.Wait] says: not if Start fails.
func Start(cmd *exec.Cmd, prepare func(), ended func(error)) error {
	cmd.SysProcAttr = attributes()
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // Linux kills the process when the thread ends that has started it
		defer runtime.UnlockOSThread()
		if prepare != nil {
			prepare()
		}
		err := cmd.Start()
		if started <- err; err == nil {
			ended(cmd.Wait())
		}
	}()
	return <-started
}

// Pair makes a stream, of which another process is to have the second end. Neither end is handed on to processes that are started
// meanwhile.
func Pair() (*net.UnixConn, *os.File, error) {
	syscall.ForkLock.RLock()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fds[0])
		syscall.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "stream"), os.NewFile(uintptr(fds[1]), "stream") //nolint:gosec // descriptors
	defer ours.Close()                                                                           // FileConn has a copy
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return conn.(*net.UnixConn), theirs, nil // it is one
}
