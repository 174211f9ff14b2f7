package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Process identifies one run of a program: process ids are recycled, the pair
// with the start time is not.
type Process struct {
	PID int `json:"pid"`
	// Start is when it began, in clock ticks since boot.
	Start uint64 `json:"start"`
}

// Identify returns the process that has this id now, be it a zombie.
func Identify(pid int) (Process, error) {
	_, start, err := readStat(pid)
	return Process{PID: pid, Start: start}, err
}

// State is what a process is doing.
type State string

// The states that matter to a rack.
const (
	Running State = "running"
	Paused  State = "paused"
	Gone    State = "gone"
)

// State returns the process's state; Gone also if its id belongs to another now.
func (p Process) State() State {
	state, start, err := readStat(p.PID)
	switch {
	case err != nil || start != p.Start || state == "Z" || state == "X":
		return Gone
	case state == "T":
		return Paused
	}
	return Running
}

// readStat reads a process's state letter and start time (proc_pid_stat(5)). The
// name in the second field may hold anything, so fields count from its end.
func readStat(pid int) (state string, start uint64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0, fmt.Errorf("process %d: %w", pid, err)
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	const stateField, startField = 0, 22 - 3 // the state is the manual's field 3
	if len(fields) <= startField {
		return "", 0, fmt.Errorf("process %d: stat has %d fields", pid, len(fields))
	}
	start, err = strconv.ParseUint(fields[startField], 10, 64)
	return fields[stateField], start, err
}

// Signal sends a signal to this very process; that it is gone is no error. The
// descriptor pins the process while its start time is compared, so a process
// that has got its id since is never hit.
func (p Process) Signal(sig unix.Signal) error {
	fd, err := p.open()
	if fd < 0 {
		return err
	}
	defer closeFD(fd)
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal process %d: %w", p.PID, err)
	}
	return nil
}

// open returns a descriptor of this very process, -1 if it is gone.
func (p Process) open() (int, error) {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) { // EINVAL: a thread has the id now
		return -1, nil
	}
	if err != nil {
		return -1, fmt.Errorf("open process %d: %w", p.PID, err)
	}
	// A process whose first thread has ended counts as a zombie, though the others
	// may still hold its files: it is there until its descriptor says otherwise.
	if _, start, err := readStat(p.PID); err != nil || start != p.Start {
		return -1, unix.Close(fd)
	}
	return fd, nil
}

// closeFD closes a descriptor that was only looked at.
func closeFD(fd int) { _ = unix.Close(fd) }

// pollInterval bounds how late Wait sees that its context has ended.
const pollInterval = 50 * time.Millisecond

// Wait returns nil when the process has ended, or ctx's error. It need not be a
// child.
func (p Process) Wait(ctx context.Context) error {
	fd, err := p.open()
	if fd < 0 {
		return err
	}
	defer closeFD(fd)
	for ctx.Err() == nil {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(pollInterval.Milliseconds()))
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("wait for process %d: %w", p.PID, err)
		case n > 0:
			return nil
		}
	}
	return ctx.Err()
}
