package rawsys

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Two threads that never sleep take a CPU that they share from each other.
func TestPreempted(t *testing.T) {
	var one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	for cpu := 0; one.Count() > 1; cpu++ {
		one.Clear(cpu)
	}
	alone := func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its goroutine
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			t.Error(err)
		}
	}
	stop, done := make(chan struct{}), make(chan struct{})
	busy := func() bool {
		select {
		case <-stop:
			return false
		default:
			return true
		}
	}
	go func() {
		defer close(done)
		for alone(); busy(); {
			continue
		}
	}()
	taken := make(chan bool, 1)
	go func() {
		alone()
		thread, before := Preempted()
		for limit := time.Now().Add(10 * time.Second); time.Now().Before(limit); {
			if again, now := Preempted(); again != thread {
				t.Error("another thread")
			} else if now > before {
				taken <- true
				return
			}
		}
		taken <- false
	}()
	if !<-taken {
		t.Error("nobody has taken the CPU in 10 s")
	}
	close(stop)
	<-done
}
