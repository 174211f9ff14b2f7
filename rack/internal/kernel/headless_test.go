package kernel

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// headlessVariable makes the test binary a process whose first thread has ended.
const headlessVariable = "HEADLESS"

func init() {
	if os.Getenv(headlessVariable) == "" {
		return
	}
	runtime.LockOSThread() // init runs on the first thread
	_, _, _ = unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
}

// TestWaitForAllThreads: a process has ended when its last thread has, for until then
// its files are open and locked; what /proc calls a zombie may be its first thread.
func TestWaitForAllThreads(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), headlessVariable+"=1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := Identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for p.State() != Gone {
		<-tick.C
	}
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := p.Wait(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait for a process whose other threads live: %v", err)
	}
	if err := p.Signal(unix.SIGKILL); err != nil {
		t.Error(err)
	}
	if err := p.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	_ = cmd.Process.Kill() // if it was not hit
	_ = cmd.Wait()         // killed
}
