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
// what is wrong, which tests must fail, and what text of which file of the module is
// replaced:
//
//	wrong: a rollback of an earlier run is obeyed
//	file: dsm/memory/store/undo.go
//	find: ./dsm/memory/store ^TestScripts$
//	--- old
//	text that stands in the file once
//	--- new
//	text in its place
//
// After the package and the pattern of the tests, find may have flags for them. If there are several lines find, the
// tests of each must fail: a rule of the model of rights is held by the model's own tests, and by the comparison with the
// P4 program. A fault that several texts make has further blocks, each behind a line "--- file PATH".
type mutant struct {
	name  string
	wrong string
	finds []find
	edits []edit
}

// find names tests that must fail.
type find struct {
	dir, pattern string
	flags        []string
}

// edit replaces one text of a file.
type edit struct{ file, old, new string }

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
	slices.SortStableFunc(all, func(a, b *mutant) int { return strings.Compare(a.finds[0].dir, b.finds[0].dir) })
	return all, nil
}

// parse reads a mutant's file.
func parse(name, text string) (*mutant, error) {
	m := &mutant{name: name}
	head, rest, ok := strings.Cut(text, "--- old\n")
	if !ok {
		return nil, fmt.Errorf("mutant %s: no line --- old", name)
	}
	var file string
	for line := range strings.Lines(head) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "wrong":
			m.wrong = value
		case "file":
			file = value
		case "find":
			f := strings.Fields(value)
			if len(f) < 2 {
				return nil, fmt.Errorf("mutant %s: find needs package and pattern", name)
			}
			m.finds = append(m.finds, find{f[0], f[1], f[2:]})
		default:
			return nil, fmt.Errorf("mutant %s: line %q", name, line)
		}
	}
	if err := m.parseEdits(file, rest); err != nil {
		return nil, err
	}
	if m.wrong == "" || len(m.finds) == 0 {
		return nil, fmt.Errorf("mutant %s: it needs wrong and find", name)
	}
	return m, nil
}

// parseEdits reads what stands behind the first line --- old.
func (m *mutant) parseEdits(file, text string) error {
	for more := true; more; {
		var e edit
		var ok bool
		if e.old, text, ok = strings.Cut(text, "--- new\n"); !ok {
			return fmt.Errorf("mutant %s: no line --- new", m.name)
		}
		e.file = file
		e.new, text, more = strings.Cut(text, "--- file ")
		if more {
			file, text, _ = strings.Cut(text, "\n")
			if text, ok = strings.CutPrefix(text, "--- old\n"); !ok {
				return fmt.Errorf("mutant %s: no line --- old behind --- file %s", m.name, file)
			}
		}
		if e.file == "" || e.old == "" || e.old == e.new {
			return fmt.Errorf("mutant %s: it needs a file, and an old and a new text that differ", m.name)
		}
		m.edits = append(m.edits, e)
	}
	return nil
}

// apply returns the mutant's files with the fault, by their paths in the module. It
// fails if an old text does not stand in its file exactly once: the mutant is to be
// brought up to date then.
func (m *mutant) apply(root string) (map[string][]byte, error) {
	changed := map[string][]byte{}
	for _, e := range m.edits {
		b, ok := changed[e.file]
		if !ok {
			var err error
			if b, err = os.ReadFile(filepath.Join(root, e.file)); err != nil {
				return nil, fmt.Errorf("mutant %s: %w", m.name, err)
			}
		}
		if n := bytes.Count(b, []byte(e.old)); n != 1 {
			return nil, fmt.Errorf("mutant %s: its old text stands %d times in %s; bring the mutant up to date", m.name, n, e.file)
		}
		changed[e.file] = bytes.Replace(b, []byte(e.old), []byte(e.new), 1)
	}
	return changed, nil
}

// where says which tests must find the mutant.
func (m *mutant) where() string {
	var all []string
	for _, f := range m.finds {
		all = append(all, strings.Join(append([]string{f.dir, f.pattern}, f.flags...), " "))
	}
	return strings.Join(all, ", ")
}
