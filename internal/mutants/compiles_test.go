package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
)

// TestCompiles: each mutant is a program that the compiler takes. One that is not says nothing about the tests.
func TestCompiles(t *testing.T) {
	all, err := load("testdata")
	if err != nil {
		t.Fatal(err)
	}
	c := newChecker(t, all)
	for _, m := range all {
		changed, err := m.apply(root)
		if err != nil {
			continue // TestUpToDate says so
		}
		dirs := map[string]bool{}
		for file := range changed {
			if filepath.Ext(file) == ".go" {
				dirs[filepath.Dir(file)] = true
			}
		}
		for dir := range dirs {
			if err := c.check(dir, changed); err != nil {
				t.Errorf("mutant %s: %v", m.name, err)
			}
		}
	}
	if err := c.check("internal/mutants", map[string][]byte{"internal/mutants/mutant.go": []byte("package main\n\nfunc apply() { undefined() }\n")}); err == nil {
		t.Error("what is no program is taken for one")
	}
}

// checker checks the types of packages with some files replaced. What they import is read as the compiler has left it.
type checker struct {
	files    *token.FileSet
	packages map[string]*listed // by directory, in the repository
	parsed   map[string]*ast.File
	imports  types.Importer
}

// listed is a package as go list prints it.
type listed struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
}

// newChecker lists the packages of the mutants' files, and what these import.
func newChecker(t *testing.T, all []*mutant) *checker {
	t.Helper()
	dirs := map[string]bool{"./internal/mutants": true}
	for _, m := range all {
		for _, e := range m.edits {
			if filepath.Ext(e.file) == ".go" {
				dirs["./"+filepath.Dir(e.file)] = true
			}
		}
	}
	cmd := exec.Command("go", append([]string{"list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles"}, slices.Sorted(maps.Keys(dirs))...)...)
	cmd.Dir, cmd.Stderr = root, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	top, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	c := &checker{files: token.NewFileSet(), packages: map[string]*listed{}, parsed: map[string]*ast.File{}}
	exports := map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		p := new(listed)
		if err := d.Decode(p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
		if dir, err := filepath.Rel(top, p.Dir); err == nil {
			c.packages[dir] = p
		}
	}
	c.imports = importer.ForCompiler(c.files, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	return c
}

// check checks the package of a directory, in which some files have changed.
func (c *checker) check(dir string, changed map[string][]byte) error {
	p := c.packages[dir]
	if p == nil {
		return errors.New(dir + " is no package")
	}
	var files []*ast.File
	for _, name := range p.GoFiles {
		path := filepath.Join(dir, name)
		f := c.parsed[path]
		if text, is := changed[path]; is || f == nil {
			var source any
			if is {
				source = text
			}
			var err error
			if f, err = parser.ParseFile(c.files, filepath.Join(p.Dir, name), source, parser.SkipObjectResolution); err != nil {
				return err
			}
			if !is {
				c.parsed[path] = f
			}
		}
		files = append(files, f)
	}
	_, err := (&types.Config{Importer: c.imports, Sizes: types.SizesFor("gc", runtime.GOARCH)}).Check(p.ImportPath, c.files, files, nil)
	return err
}
