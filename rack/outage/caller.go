package outage

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/bifrost-rack/bifrost/rack"
)

// caller is a client that calls all the time and says when it was answered. Its
// methods belong to one goroutine.
type caller struct {
	cmd     *exec.Cmd
	answers chan time.Time
	failure chan error // why it has ended
	ended   chan error
	out     io.Closer
}

// startCaller starts one on c1, with flags of `counter add`.
func startCaller(h *rack.Host, name string, flags ...string) (*caller, error) {
	program, err := h.Locate("counter")
	if err != nil {
		return nil, err
	}
	c := &caller{
		cmd:     exec.Command(program, append([]string{"add", "--stamps"}, flags...)...),
		answers: make(chan time.Time, 1<<16), failure: make(chan error, 1), ended: make(chan error, 1),
	}
	r, w := io.Pipe()
	c.out, c.cmd.Stdout, c.cmd.Stderr = w, w, w
	if err := h.Start(name, "c1", c.cmd); err != nil {
		return nil, err
	}
	go c.read(r)
	go func() {
		c.ended <- c.cmd.Wait()
		_ = w.Close()
	}()
	return c, nil
}

// read takes what the client prints: when it was answered, and what the account has.
func (c *caller) read(r io.Reader) {
	defer close(c.answers)
	for lines := bufio.NewScanner(r); lines.Scan(); {
		var at, total int64
		if _, err := fmt.Sscan(lines.Text(), &at, &total); err != nil {
			c.failure <- errors.New(lines.Text())
			break
		}
		c.answers <- time.Unix(0, at)
	}
	_, _ = io.Copy(io.Discard, r)
}

// stop ends the client.
func (c *caller) stop() error {
	err := c.cmd.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) { // it has made all its calls
		err = nil
	}
	for range c.answers { // so that the reader does not wait
	}
	<-c.ended //nolint:errcheck // killed
	return err
}

// next is when the next answer came.
func (c *caller) next(ctx context.Context) (time.Time, error) {
	select {
	case at, ok := <-c.answers:
		if ok {
			return at, nil
		}
		select {
		case err := <-c.failure:
			return at, err
		default:
			return at, errors.New("the client has ended")
		}
	case <-ctx.Done():
		return time.Time{}, ctx.Err()
	}
}

// calm waits until answers have come for a time, and returns what was between them.
func (c *caller) calm(ctx context.Context, d time.Duration) (gaps []time.Duration, err error) {
	first, err := c.next(ctx)
	for last := first; err == nil && (time.Since(first) < d || len(c.answers) > 0); {
		var at time.Time
		if at, err = c.next(ctx); err == nil {
			gaps = append(gaps, at.Sub(last))
			last = at
		}
	}
	return gaps, err
}

// after returns when the first answer after a moment came.
func (c *caller) after(ctx context.Context, moment time.Time) (time.Time, error) {
	for {
		if at, err := c.next(ctx); err != nil || at.After(moment) {
			return at, err
		}
	}
}

// silence waits until no answer has come for a time, and reports false if answers still come
// after twice that time.
func (c *caller) silence(ctx context.Context, d time.Duration) (quiet bool, err error) {
	began := time.Now()
	for {
		quietly, cancel := context.WithTimeout(ctx, d)
		_, err := c.next(quietly)
		over := quietly.Err() != nil
		cancel()
		switch {
		case over && ctx.Err() == nil:
			return true, nil
		case err != nil:
			return false, err
		case time.Since(began) > 2*d:
			return false, nil
		}
	}
}
