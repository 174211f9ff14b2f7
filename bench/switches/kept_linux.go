package switches

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/bifrost-rack/bifrost/p4"
)

// kept is the switch in a process of its own, which is killed and started again while
// the kernel goes on forwarding (bifrost switch --keep).
type kept struct {
	dir, name string
	process   *process
}

// contender is the contender that runs it.
func (k *kept) contender() *contender {
	return &contender{name: "ebpf", start: func(dir string) (*joint, error) {
		k.dir, k.name = dir, fmt.Sprintf("soak%d", os.Getpid())
		err := errors.Join(
			os.WriteFile(dir+"/program.json", p4.JSON, 0o600),
			os.WriteFile(dir+"/program.p4info.txt", p4.Info, 0o600),
			k.launch())
		return &joint{addr: k.addr(), loaded: true, stop: k.stop}, err
	}}
}

func (k *kept) addr() string { return "unix:" + k.dir + "/p4runtime" }

// launch starts the process, in the namespace of the calling thread.
func (k *kept) launch() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	k.process, err = launch(nil, self, "switch", "--keep", k.name, "--datapath", "ebpf", "--device-id", strconv.Itoa(deviceID),
		"--cpu-port", strconv.Itoa(int(p4.CPUPort)), "-i", "1@"+near(0), "-i", "2@"+near(1), "--log-level", "error",
		"--p4info", k.dir+"/program.p4info.txt", "--grpc-server-addr", k.addr(), k.dir+"/program.json")
	return err
}

// kill ends the process as a crash would.
func (k *kept) kill() error {
	if err := k.process.cmd.Process.Kill(); err != nil {
		return err
	}
	_ = k.process.cmd.Wait() // it was killed
	return nil
}

// stop ends the process, and tells what it has left behind.
func (k *kept) stop() error {
	err := k.process.end()
	for _, dir := range []string{"/sys/fs/bpf/bifrost-switch", "/run/bifrost-switch"} {
		if path := filepath.Join(dir, k.name); exists(path) {
			err = errors.Join(err, fmt.Errorf("%s is left behind; the switch said: %s", path, k.process.out.Bytes()))
		}
	}
	return err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// restart kills the switch and starts it again; the controller comes back when it
// answers.
func (s *soaking) restart(ctx context.Context) error {
	if err := s.kept.kill(); err != nil {
		return err
	}
	s.result.Restarts++
	s.control.session.Close()
	if err := s.in(s.mid, s.kept.launch); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		session, err := s.control.client.Open(context.WithoutCancel(ctx))
		if err == nil {
			s.control.session = session
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the switch does not come back: %w; it said: %s", err, s.kept.process.out.Bytes())
		case <-tick.C:
		}
	}
}
