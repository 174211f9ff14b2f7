package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../.."

// TestUpToDate: each mutant's old text is in the code once, and the tests that must
// find it exist.
func TestUpToDate(t *testing.T) {
	all, err := load("testdata")
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 40 {
		t.Errorf("only %d mutants", len(all))
	}
	for _, m := range all {
		if _, err := m.apply(root); err != nil {
			t.Error(err)
		}
		for _, f := range m.finds {
			tests := testsOf(t, f.dir)
			for _, name := range regexp.MustCompile(`Test\w+`).FindAllString(f.pattern, -1) {
				if !strings.Contains(tests, "func "+name) {
					t.Errorf("mutant %s: there is no %s in %s", m.name, name, f.dir)
				}
			}
		}
	}
}

// testsOf is the text of a package's tests.
func testsOf(t *testing.T, dir string) (text string) {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		text += string(b)
	}
	return text
}

func TestParse_Wrong(t *testing.T) {
	good := "wrong: w\nfile: f\nfind: ./p ^Test$\n--- old\na\n--- new\nb\n"
	if m, err := parse("good", good); err != nil || len(m.edits) != 1 || m.edits[0] != (edit{"f", "a\n", "b\n"}) || len(m.finds) != 1 {
		t.Fatalf("%+v, %v", m, err)
	}
	if m, err := parse("two", good+"--- file g\n--- old\nc\n--- new\n"); err != nil || len(m.edits) != 2 || m.edits[1] != (edit{"g", "c\n", ""}) {
		t.Errorf("%+v, %v", m, err)
	}
	if m, err := parse("twice", strings.Replace(good, "--- old", "find: ./q ^TestQ$ -short\n--- old", 1)); err != nil || m.where() != "./p ^Test$, ./q ^TestQ$ -short" {
		t.Errorf("%+v, %v", m, err)
	}
	for _, second := range []string{"--- file g\n--- new\n", "--- file g\n--- old\nc\n"} {
		if _, err := parse("bad", good+second); err == nil {
			t.Errorf("no error with the second block %q", second)
		}
	}
	for _, cut := range []string{"wrong: w\n", "file: f\n", "find: ./p ^Test$\n", "--- old\n", "--- new\n", " ^Test$"} {
		if _, err := parse("bad", strings.Replace(good, cut, "", 1)); err == nil {
			t.Errorf("no error without %q", cut)
		}
	}
	if _, err := parse("bad", strings.Replace(good, "b\n", "a\n", 1)); err == nil {
		t.Error("a mutant that changes nothing")
	}
	if _, err := (&mutant{name: "gone", edits: []edit{{"go.mod", "not there", ""}}}).apply(root); err == nil {
		t.Error("a mutant whose text is gone")
	}
}

func TestVerdict(t *testing.T) {
	failed := &exec.ExitError{}
	for _, c := range []struct {
		output string
		err    error
		want   outcome
		broken bool
	}{
		{"ok x 1s", nil, survived, false},
		{"--- FAIL: TestX", failed, caught, false},
		{"panic: test timed out after 5m0s\nrunning tests:\nFAIL x 300s", failed, timedOut, false},
		{"FAIL x [build failed]", failed, survived, true},
		{"ok x 1s [no tests to run]", nil, survived, true},
		{"go: no such tool", failed, survived, true},
		{"", errors.New("no go"), survived, true},
	} {
		if got, err := verdict(c.output, c.err); got != c.want || (err != nil) != c.broken {
			t.Errorf("%q: %v, %v", c.output, got, err)
		}
	}
}

// TestInTurn: all mutants have their turn.
func TestInTurn(t *testing.T) {
	all := make([]*mutant, 43)
	for i := range all {
		all[i] = new(mutant)
	}
	had := map[*mutant]bool{}
	for turn := range 5 {
		picked := inTurn(all, 10, turn)
		if len(picked) > 10 {
			t.Errorf("turn %d has %d", turn, len(picked))
		}
		for _, m := range picked {
			had[m] = true
		}
	}
	if len(had) != len(all) {
		t.Errorf("%d of %d have had their turn", len(had), len(all))
	}
}
