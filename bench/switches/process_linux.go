package switches

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process is a program in the background, which ends with the calling thread at
// the latest.
type process struct {
	cmd *exec.Cmd
	out bytes.Buffer
}

// launch starts a program in the calling thread's namespace.
func launch(env []string, name string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(name, args...)}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

// end asks the program to end, and kills it if it does not.
func (p *process) end() error {
	if p == nil {
		return nil
	}
	late := time.AfterFunc(5*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer late.Stop()
	err := p.cmd.Process.Signal(unix.SIGTERM)
	var exit *exec.ExitError
	if werr := p.cmd.Wait(); !errors.As(werr, &exit) { // how it ends does not matter
		err = errors.Join(err, werr)
	}
	return err
}

// call runs a program to its end.
func call(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(out))
	}
	return nil
}
