package rack

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/shared/sdnotify"
	"github.com/bifrost-rack/bifrost/rack/config"
	"github.com/bifrost-rack/bifrost/rack/plan"
)

// program makes an executable file.
func program(t *testing.T, dir, name string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// Beside bifrost goes before PATH, and a path is a path.
func TestLocate(t *testing.T) {
	beside, onPath := t.TempDir(), t.TempDir()
	t.Setenv("PATH", onPath)
	bifrost := program(t, beside, "bifrost")
	both, only := program(t, beside, "both"), program(t, onPath, "only")
	program(t, onPath, "both")
	h := &Host{Bifrost: bifrost}
	for name, want := range map[string]string{plan.BifrostProgram: bifrost, "both": both, "only": only, only: only} {
		if got, err := h.Locate(name); err != nil || got != want {
			t.Errorf("%s is at %s, %v; want %s", name, got, err, want)
		}
	}
	for _, name := range []string{"none", plan.BMv2Program, "./both", filepath.Join(beside, "none")} {
		var e *Error
		if got, err := h.Locate(name); !errors.Is(err, ErrMissing) || !errors.As(err, &e) || e.Remedy == "" {
			t.Errorf("%s is at %s, %v", name, got, err)
		}
	}
}

func TestFind(t *testing.T) {
	h := &Host{Dir: t.TempDir()}
	if racks, err := h.Racks(); err != nil || len(racks) > 0 {
		t.Skipf("racks are up on this machine: %v, %v", racks, err)
	}
	find := func(asked, want string) {
		t.Helper()
		if got, err := h.Find(asked); err != nil || got != want {
			t.Errorf("asked for %q, found %q, %v; want %q", asked, got, err, want)
		}
	}
	find("", config.DefaultName)
	for _, name := range []string{"one", ".hidden", "Not a Rack"} {
		if err := os.Mkdir(filepath.Join(h.Dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	find("", "one")
	find("other", "other")
	if err := os.Mkdir(filepath.Join(h.Dir, "two"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Find(""); err == nil || !strings.Contains(err.Error(), "one, two: choose one with --rack") {
		t.Errorf("two racks: %v", err)
	}
	if _, err := h.Find("../one"); err == nil {
		t.Error("a path names a rack")
	}
}

func TestStages(t *testing.T) {
	var got []string
	c := config.Thesis()
	c.Programs = append(c.Programs, config.Program{Name: "load", Blade: "c1", Command: []string{"arrays", "add"}})
	for stage, ps := range stages(plan.Make(c, "/d").Processes) {
		var names []string
		for _, p := range ps {
			names = append(names, p.Name)
		}
		got = append(got, stage.String()+": "+strings.Join(names, " "))
	}
	want := []string{"switch: switch", "gatekeeper: gatekeeper", "blades: c1 s1 s2 m1 m2 m3", "programs: load"}
	if !slices.Equal(got, want) {
		t.Errorf("stages %q, want %q", got, want)
	}
	for range stages(nil) {
		t.Error("no processes have a stage")
	}
}

// A child gets this program's environment, but answers to nobody else.
func TestEnvironment(t *testing.T) {
	t.Setenv("KEPT", "1")
	t.Setenv("REPLACED", "1")
	t.Setenv(sdnotify.Variable, "/somebody")
	env := environment(map[string]string{"REPLACED": "2", "ADDED": "3"})
	for _, want := range []string{"KEPT=1", "REPLACED=2", "ADDED=3"} {
		if !slices.Contains(env, want) {
			t.Errorf("%s is missing", want)
		}
	}
	for _, kv := range env {
		if kv == "REPLACED=1" || strings.HasPrefix(kv, sdnotify.Variable) {
			t.Errorf("%s is there", kv)
		}
	}
}
