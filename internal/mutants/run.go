package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// result is what became of a mutant.
type result struct {
	mutant  *mutant
	outcome outcome
	took    time.Duration
	err     error // it could not be run
	output  string
}

// outcome is how the tests of a mutant have ended.
type outcome int

// The outcomes. Tests that do not end within patience have found nothing: the machine
// may have been slow. Package bubble ends those that wait for ever in virtual time.
const (
	survived outcome = iota
	caught
	timedOut
)

// patience is how long a mutant's tests may take.
const patience = 20 * time.Minute

// run runs the tests that must find a mutant, with the fault laid over the module's
// files by go's -overlay. The tree is not touched. It ends with the first tests that find nothing.
func (m *mutant) run(ctx context.Context, root string) (r result) {
	r.mutant = m
	began := time.Now()
	defer func() { r.took = time.Since(began) }()
	mutated, err := m.apply(root)
	if err != nil {
		r.err = err
		return r
	}
	dir, err := os.MkdirTemp("", "mutant")
	if err != nil {
		r.err = err
		return r
	}
	defer func() { r.err = errors.Join(r.err, os.RemoveAll(dir)) }()
	overlay, err := lay(dir, root, mutated)
	if err != nil {
		r.err = err
		return r
	}
	for _, f := range m.finds {
		var output string
		output, r.outcome, r.err = f.run(ctx, root, overlay)
		r.output += output
		if r.err != nil || r.outcome != caught {
			break
		}
	}
	return r
}

// run runs tests with the files of an overlay.
func (f *find) run(ctx context.Context, root, overlay string) (output string, o outcome, err error) {
	args := []string{
		"test", "-overlay", overlay, "-vet=off", "-count=1", "-failfast", "-ldflags=-s -w", "-timeout", patience.String(), "-run", f.pattern, f.dir,
	}
	c := exec.CommandContext(ctx, "go", append(args, f.flags...)...)
	c.Dir = root
	c.Env = append(os.Environ(), "RAPID_SEED=1") // property tests draw what they draw in make test
	b, err := c.CombinedOutput()
	o, err = verdict(string(b), err)
	return string(b), o, cmp.Or(ctx.Err(), err)
}

// lay writes changed files into a directory, and the file that has go lay them over the
// module's.
func lay(dir, root string, changed map[string][]byte) (overlay string, err error) {
	replace := map[string]string{}
	for path, text := range changed {
		file := filepath.Join(dir, strings.ReplaceAll(path, "/", "-"))
		if err := os.WriteFile(file, text, 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(root, path)] = file
	}
	text, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, text, 0o600)
}

// verdict reads what go test has said: a failure caught the mutant, unless nothing was
// tested.
func verdict(output string, err error) (outcome, error) {
	var exit *exec.ExitError
	switch {
	case err != nil && !errors.As(err, &exit):
		return survived, err
	case strings.Contains(output, "[build failed]"), strings.Contains(output, "[setup failed]"):
		return survived, fmt.Errorf("it does not build:\n%s", output)
	case strings.Contains(output, "no tests to run"), strings.Contains(output, "no test files"):
		return survived, errors.New("its pattern names no test")
	case err != nil && !strings.Contains(output, "FAIL"):
		return survived, fmt.Errorf("%w:\n%s", err, output)
	case err == nil:
		return survived, nil
	case strings.Contains(output, "panic: test timed out after"):
		return timedOut, nil
	}
	return caught, nil
}
