package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Args are the arguments that make the bifrost binary an agent on some CPUs.
func Args(cpus []int) []string {
	return []string{"bench", "agent", "--cpus", FormatCPUs(cpus)}
}

// FormatCPUs writes CPU numbers as taskset does: 1,3.
func FormatCPUs(cpus []int) string {
	var s []string
	for _, c := range cpus {
		s = append(s, strconv.Itoa(c))
	}
	return strings.Join(s, ",")
}

// Process is the harness's end of an agent. One goroutine at a time may use it.
type Process struct {
	// Name is what errors call it.
	Name string

	cmd     *exec.Cmd
	in      io.WriteCloser
	answers chan Answer // closed when the agent says no more
	said    tail
	ended   chan struct{}
}

// Start starts an agent; start is how commands are started on its blade.
func Start(name string, cmd *exec.Cmd, start func(*exec.Cmd) error) (*Process, error) {
	p := &Process{Name: name, cmd: cmd, answers: make(chan Answer), ended: make(chan struct{})}
	cmd.Stderr = &p.said
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p.in = in
	if err := start(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go p.read(out)
	return p, nil
}

// read takes answers until the agent ends, and reaps it.
func (p *Process) read(out io.Reader) {
	defer close(p.ended)
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var a Answer
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			a = Answer{Error: fmt.Sprintf("an answer that is none: %v", err)}
		}
		p.answers <- a
	}
	close(p.answers)
	_ = p.cmd.Wait() // how it ended is told by what it said, and by its silence
}

// askTimeout bounds how long an answer may take beyond the time that was asked
// to be measured.
const askTimeout = 45 * time.Second

// MostMemory is the most memory that the agent has had, in bytes.
func (p *Process) MostMemory() (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, fmt.Errorf("memory of %s: %w", p.Name, err)
	}
	var kib uint64
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		return 0, fmt.Errorf("memory of %s: %w", p.Name, err)
	}
	return kib << 10, nil
}

// Ask sends a request and waits for its answer. An error ends the agent's use.
func (p *Process) Ask(ctx context.Context, r Request) (Answer, error) {
	limit := askTimeout
	if r.Measure != nil {
		limit += r.Measure.takes()
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	line, err := json.Marshal(r)
	if err != nil {
		return Answer{}, fmt.Errorf("%s: %w", p.Name, err)
	}
	_, _ = p.in.Write(append(line, '\n')) // fails when the agent has ended, which is told below
	select {
	case a, ok := <-p.answers:
		if !ok {
			<-p.ended
			return a, fmt.Errorf("%s has ended: %s", p.Name, p.said.last())
		}
		if a.Error != "" {
			return a, fmt.Errorf("%s: %s", p.Name, a.Error)
		}
		return a, nil
	case <-ctx.Done():
		p.kill() // it may be in the midst of a measurement
		return Answer{}, fmt.Errorf("%s does not answer: %w", p.Name, ctx.Err())
	}
}

// closeGrace is how long an agent has to end in good order.
const closeGrace = 10 * time.Second

// Close ends the agent and returns when it has ended.
func (p *Process) Close() {
	_ = p.in.Close()
	grace := time.AfterFunc(closeGrace, p.kill)
	defer grace.Stop()
	for range p.answers { // one that nobody waits for any more
	}
	<-p.ended
}

// kill ends the agent at once.
func (p *Process) kill() { _ = p.cmd.Process.Kill() }

// tail keeps the end of what was written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

// tailSize is how much of an agent's output is kept, in bytes.
const tailSize = 4 << 10

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, b...)
	t.b = t.b[max(0, len(t.b)-tailSize):]
	return len(b), nil
}

// last returns the last lines.
func (t *tail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := bytes.TrimSpace(t.b); len(s) > 0 {
		return string(s)
	}
	return "it said nothing"
}
