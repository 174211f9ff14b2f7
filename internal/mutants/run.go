package main

import (
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
	mutant *mutant
	caught bool
	took   time.Duration
	err    error // it could not be run
	output string
}

// patience is how long a mutant's tests may take: one that hangs is caught.
const patience = 5 * time.Minute

// run runs the tests that must find a mutant, with the fault laid over the module's
// file by go's -overlay. The tree is not touched.
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
	file, overlay := filepath.Join(dir, filepath.Base(m.file)), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(root, m.file): file}})
	if err == nil {
		err = errors.Join(os.WriteFile(file, mutated, 0o600), os.WriteFile(overlay, replace, 0o600))
	}
	if err != nil {
		r.err = err
		return r
	}
	args := []string{
		"test", "-overlay", overlay, "-vet=off", "-count=1", "-failfast", "-ldflags=-s -w", "-timeout", patience.String(), "-run", m.find[1], m.find[0],
	}
	c := exec.CommandContext(ctx, "go", append(args, m.find[2:]...)...)
	c.Dir = root
	output, err := c.CombinedOutput()
	r.output = string(output)
	r.caught, r.err = verdict(r.output, err)
	if ctx.Err() != nil {
		r.err = ctx.Err()
	}
	return r
}

// verdict reads what go test has said: a failure caught the mutant, unless nothing was
// tested.
func verdict(output string, err error) (caught bool, broken error) {
	var exit *exec.ExitError
	switch {
	case err != nil && !errors.As(err, &exit):
		return false, err
	case strings.Contains(output, "[build failed]"), strings.Contains(output, "[setup failed]"):
		return false, fmt.Errorf("it does not build:\n%s", output)
	case strings.Contains(output, "no tests to run"), strings.Contains(output, "no test files"):
		return false, errors.New("its pattern names no test")
	case err != nil && !strings.Contains(output, "FAIL"):
		return false, fmt.Errorf("%w:\n%s", err, output)
	}
	return err != nil, nil
}
