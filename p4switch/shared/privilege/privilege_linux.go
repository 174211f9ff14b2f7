// Package privilege tells tests what they may do on this machine.
package privilege

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
)

// Need skips a test that makes network namespaces, or loads programs into the kernel,
// where that is not allowed: to all but root, and to root in a container without the
// capabilities. Where it is allowed, what goes wrong later is the test's failure.
func Need(t testing.TB) {
	t.Helper()
	if err := Missing(); err != nil {
		t.Skipf("NOT CHECKED: %v", err)
	}
}

// Missing returns why this process may not make network namespaces, nil if it may.
var Missing = sync.OnceValue(func() error {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces need root")
	}
	child := exec.Command("true") // has them to itself, and ends with them
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}
	if err := child.Run(); err != nil {
		return fmt.Errorf("root may not make network namespaces here: %w", err)
	}
	return nil
})
