package gen

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestPython: the modules for Python are those that the tests of clients/python read.
func TestPython(t *testing.T) {
	for input, name := range map[string]string{
		"testdata/python/marks-of-lists.thrift": "labtest/marks/marks_of_lists_bifrost.py",
		"testdata/python/parent.thrift":         "labtest/parent/parent_bifrost.py",
		"internal/lab/lab.thrift":               "lab/lab_bifrost.py",
	} {
		files, err := Python(input, os.ReadFile, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if len(files) != 1 || files[0].Name != name {
			t.Errorf("%s makes %v, want %s", input, files, name)
		}
		golden := filepath.Join("testdata/python", filepath.Base(name))
		if *update {
			if err := os.WriteFile(golden, files[0].Content, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(golden); err != nil || !bytes.Equal(files[0].Content, want) {
			t.Errorf("%s is stale (-update rewrites it): %v", golden, err)
		}
	}
}

// goOnly are mistakes that Python need not tell: names that Go code has beside each other, types that go by value, and files for which there are no stubs.
var goOnly = regexp.MustCompile(`the stubs of|has a method|^unknown.thrift:4: |nothing to generate|Go package`)

// TestPython_Mistakes: what is wrong with marks is told as for Go. What only Go's names are to blame for is not.
func TestPython_Mistakes(t *testing.T) {
	text, err := os.ReadFile("testdata/errors.txt")
	if err != nil {
		t.Fatal(err)
	}
	files, order := cases(string(text))
	read := func(path string) ([]byte, error) {
		if text, ok := files[path]; ok {
			return []byte(text), nil
		}
		return nil, fs.ErrNotExist
	}
	for _, name := range order {
		_, forGo := Generate(name, read, Options{})
		_, err := Python(name, read, Options{})
		told := strings.Split(fmt.Sprint(err), "\n")
		for _, line := range strings.Split(forGo.Error(), "\n") {
			if !goOnly.MatchString(line) && !slices.Contains(told, line) {
				t.Errorf("for Go %s\nfor Python %v", line, err)
			}
		}
		if err == nil && !goOnly.MatchString(forGo.Error()) {
			t.Errorf("%s: Python takes what Go refuses: %v", name, forGo)
		}
	}
	files["a.thrift"] = "service S { void f(1: list<Unknown> a (bifrost.ref)) }"
	if _, err = Python("a.thrift", read, Options{}); err == nil || !strings.Contains(err.Error(), "a.thrift:1: a of method f: ") {
		t.Errorf("a type that is not defined: %v", err)
	}
}
