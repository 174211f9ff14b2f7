package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// The last line of --json is the report, whatever is shown.
func TestDemoFailJSON(t *testing.T) {
	for _, args := range [][]string{{"--fail", "f3"}, {"--fail", "memory"}, {"--fail", "random", "--seed", "5"}} {
		var out bytes.Buffer
		root := newRoot()
		root.SetArgs(append([]string{"demo", "--json"}, args...))
		root.SetOut(&out)
		if err := root.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		var r struct {
			OK         bool
			Fail       string
			Executions int
			Killed     []string
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &r); err != nil || !r.OK || r.Executions != 1 || r.Fail != args[1] || len(r.Killed) == 0 {
			t.Errorf("%v: %v, %s", args, err, out.String())
		}
	}
}

// The demo without a failure of one's choice ends with what scripts rely on.
func TestDemoJSON(t *testing.T) {
	var out bytes.Buffer
	root := newRoot()
	root.SetArgs([]string{"demo", "--json"})
	root.SetOut(&out)
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	var r map[string]any
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &r); err != nil || r["ok"] != true {
		t.Fatalf("%v: %s", err, out.String())
	}
	for _, name := range []string{"calls", "held", "rules", "denied"} {
		if n, ok := r[name].(float64); !ok || n < 1 {
			t.Errorf("%s is %v", name, r[name])
		}
	}
}

func TestDemoFailUnknown(t *testing.T) {
	root := newRoot()
	root.SetArgs([]string{"demo", "--fail", "f9"})
	root.SetOut(&bytes.Buffer{})
	if err := root.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "f1, f2, f3, f4, nested, both, memory, random") {
		t.Error(err)
	}
}
