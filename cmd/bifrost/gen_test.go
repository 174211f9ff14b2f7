package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestGen: a file is generated, and of two files with a mistake in one, none.
func TestGen(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	right := write("right.thrift", "include \"sub/types.thrift\"\nnamespace go a.b\nservice S { types.Film m(1: types.Film f (bifrost.ref)) }\n")
	wrong := write("wrong.thrift", "\nservice S { void m(1: binary f (bifrost.ref = \"inout\")) }\n")
	if err := os.MkdirAll(filepath.Join(dir, "lib", "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	write("lib/sub/types.thrift", "typedef binary Film\n")
	run := func(args ...string) (string, error) {
		var out bytes.Buffer
		cmd := newRoot()
		cmd.SetOut(&out)
		cmd.SetArgs(append([]string{"gen", "--out", filepath.Join(dir, "out"), "-I", filepath.Join(dir, "lib")}, args...))
		err := cmd.Execute()
		return out.String(), err
	}
	if _, err := run(right, wrong); err == nil || !strings.HasPrefix(err.Error(), wrong+":2: ") {
		t.Errorf("one wrong: %v", err)
	}
	if files, _ := os.ReadDir(filepath.Join(dir, "out")); len(files) != 0 {
		t.Errorf("written in spite of an error: %v", files)
	}
	out, err := run(right, "--package-prefix", "example.com/gen/")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "out", "a", "b", "right-bifrost.go")
	if out != file+"\n" {
		t.Errorf("printed %q", out)
	}
	if out, err := run("--python", right); err != nil || out != filepath.Join(dir, "out", "right", "right_bifrost.py")+"\n" {
		t.Errorf("for Python: %q, %v", out, err)
	}
	b, err := os.ReadFile(file)
	if err != nil || !bytes.Contains(b, []byte(`types "example.com/gen/types"`)) || !bytes.Contains(b, []byte("func OpenS(")) {
		t.Errorf("%v:\n%s", err, b)
	}
}
