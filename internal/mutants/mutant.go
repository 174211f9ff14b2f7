package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// mutant is one fault that is put into the code on purpose. Its file in testdata says
// what is wrong, in which file of the module, which tests must fail, and what text is
// replaced:
//
//	wrong: a rollback of an earlier run is obeyed
//	file: dsm/memory/store/runs.go
//	find: ./dsm/memory/store ^TestScripts$
//	--- old
//	text that stands in the file once
//	--- new
//	text in its place
//
// After the package and the pattern of the tests, find may have flags for them.
type mutant struct {
	name  string
	wrong string
	file  string
	find  []string // package, pattern, flags
	old   string
	new   string
}

// load reads all mutants of a directory, in the order of the packages that find them,
// so that what they share is built once.
func load(dir string) ([]*mutant, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil {
		return nil, err
	}
	all := make([]*mutant, 0, len(files))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		m, err := parse(strings.TrimSuffix(filepath.Base(file), ".txt"), string(text))
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no mutants in %s", dir)
	}
	slices.SortStableFunc(all, func(a, b *mutant) int { return strings.Compare(a.find[0], b.find[0]) })
	return all, nil
}

// parse reads a mutant's file.
func parse(name, text string) (*mutant, error) {
	m := &mutant{name: name}
	head, rest, ok := strings.Cut(text, "--- old\n")
	if !ok {
		return nil, fmt.Errorf("mutant %s: no line --- old", name)
	}
	if m.old, m.new, ok = strings.Cut(rest, "--- new\n"); !ok {
		return nil, fmt.Errorf("mutant %s: no line --- new", name)
	}
	for line := range strings.Lines(head) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "wrong":
			m.wrong = value
		case "file":
			m.file = value
		case "find":
			m.find = strings.Fields(value)
		default:
			return nil, fmt.Errorf("mutant %s: line %q", name, line)
		}
	}
	if m.wrong == "" || m.file == "" || len(m.find) < 2 || m.old == "" || m.old == m.new {
		return nil, fmt.Errorf("mutant %s: it needs wrong, file, find (package and pattern), and an old and a new text that differ", name)
	}
	return m, nil
}

// apply returns the mutant's file with the fault. It fails if the old text does not
// stand there exactly once: the mutant is to be brought up to date then.
func (m *mutant) apply(root string) ([]byte, error) {
	b, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		return nil, fmt.Errorf("mutant %s: %w", m.name, err)
	}
	if n := bytes.Count(b, []byte(m.old)); n != 1 {
		return nil, fmt.Errorf("mutant %s: its old text stands %d times in %s; bring the mutant up to date", m.name, n, m.file)
	}
	return bytes.Replace(b, []byte(m.old), []byte(m.new), 1), nil
}
