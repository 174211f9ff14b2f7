package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/p4switch/shared/privilege"
)

// unitDir is where the systemd units are.
const unitDir = "../../packaging/systemd"

// installed is where the units look for bifrost.
const installed = "/usr/local/bin/bifrost"

// unit is a systemd unit: the values of each key, in their order.
type unit map[string][]string

func readUnit(t *testing.T, path string) unit {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	u := unit{}
	for line := range strings.Lines(string(b)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && key[0] != '#' {
			u[key] = append(u[key], value)
		}
	}
	return u
}

// variables are those of the environment files that belong to a unit.
func (u unit) variables(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, file := range u["EnvironmentFile"] {
		for key, values := range readUnit(t, filepath.Join(unitDir, "env", filepath.Base(file))) {
			all[key] = values[0]
		}
	}
	return all
}

// commands are what a unit runs, with the variables of its environment files; %I is
// iface.
func (u unit) commands(t *testing.T, env map[string]string, iface string) (all [][]string) {
	t.Helper()
	for _, line := range u["ExecStart"] {
		line = os.Expand(strings.ReplaceAll(line, "%I", iface), func(name string) string {
			value, ok := env[name]
			if !ok {
				t.Errorf("%s: $%s is in no environment file", line, name)
			}
			return value
		})
		all = append(all, strings.Fields(line))
	}
	return all
}

// The flags in the units and their environment files are those of the binary, and
// the pages that they refer to are there.
func TestUnits(t *testing.T) {
	units, err := filepath.Glob(unitDir + "/*.service")
	must(t, err)
	if len(units) != 5 {
		t.Errorf("units: %q", units)
	}
	pages := map[string]bool{}
	each(newRoot(), func(cmd *cobra.Command) { pages["man:"+manName(cmd)+"(1)"] = true })
	for _, path := range units {
		u := readUnit(t, path)
		for _, args := range u.commands(t, u.variables(t), "eth1") {
			if args[0] != installed {
				continue
			}
			if err := parses(args[1:]); err != nil {
				t.Errorf("%s: %v", path, err)
			}
			if page := strings.Fields(u["Documentation"][0])[0]; !pages[page] {
				t.Errorf("%s: there is no %s", path, page)
			}
		}
	}
}

// systemd has nothing to say against the units, and finds them hardened.
func TestUnits_Systemd(t *testing.T) {
	analyze := privilege.Program(t, "systemd-analyze")
	dir := t.TempDir()
	self, err := os.Executable()
	must(t, err)
	units, err := filepath.Glob(unitDir + "/*.service")
	must(t, err)
	exposure := regexp.MustCompile(`Overall exposure level for \S+: (\d+)\.\d`)
	for _, path := range units {
		b, err := os.ReadFile(path)
		must(t, err)
		path = filepath.Join(dir, strings.Replace(filepath.Base(path), "@", "@eth1", 1))
		must(t, os.WriteFile(path, bytes.ReplaceAll(b, []byte(installed), []byte(self)), 0o600))
		if said, err := exec.Command(analyze, "verify", "--man=no", path).CombinedOutput(); err != nil || len(said) > 0 {
			t.Errorf("systemd-analyze verify %s: %v\n%s", path, err, said)
		}
		said, err := exec.Command(analyze, "security", "--offline=true", "--no-pager", path).CombinedOutput()
		if m := exposure.FindSubmatch(said); err != nil || m == nil || len(m[1]) > 1 || string(m[1]) >= "3" {
			t.Errorf("systemd-analyze security %s: %v\n%s", path, err, said)
		}
	}
}
