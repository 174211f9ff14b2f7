package switchcmd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/shared/privilege"
)

// TestSwitchTest: scripts run against the program beside them or the one that is named, in Go; each is told of.
func TestSwitchTest(t *testing.T) {
	scripts, err := filepath.Glob("../interp/testdata/*.stf")
	if err != nil || len(scripts) < 5 {
		t.Fatal(scripts, err)
	}
	out, err := execute(t.Context(), append([]string{"test", "--datapath", "go"}, scripts...)...)
	if err != nil || strings.Count(out, "ok   ") != len(scripts) {
		t.Errorf("%s%v", out, err)
	}
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	wrong := write("wrong.stf", "packet 1 00 00 aa\nexpect 2 01\n")
	cut := write("cut.stf", "packet 1 00 00 a")
	bad := write("bad.json", "{")
	for _, c := range []struct {
		args []string
		says []string
	}{
		{[]string{"--datapath", "go", "--program", "../interp/testdata/stacks.json", scripts[0], wrong}, []string{"FAIL " + wrong + ": in Go: port 2", "of 2 scripts failed"}},
		{[]string{"--program", "../interp/testdata/stacks.json", cut}, []string{"line 1: packet 1 00 00 a: ", "odd length"}},
		{[]string{wrong}, []string{"compile it with p4c-bm2-ss", "--program"}},
		{[]string{"--program", bad, wrong}, []string{"bad.json: "}},
		{[]string{"--datapath", "fast", wrong}, []string{"choose auto, ebpf or go"}},
		{[]string{filepath.Join(dir, "none.stf")}, []string{"none.stf"}},
	} {
		out, err := execute(t.Context(), append([]string{"test"}, c.args...)...)
		if err == nil {
			t.Fatalf("%v: %s", c.args, out)
		}
		for _, want := range c.says {
			if !strings.Contains(out+err.Error(), want) {
				t.Errorf("%v: %s%v does not say %q", c.args, out, err, want)
			}
		}
	}
}

// TestSwitchTest_Kernel: the same in the kernel.
func TestSwitchTest_Kernel(t *testing.T) {
	privilege.Need(t)
	out, err := execute(t.Context(), "test", "../interp/testdata/tables.stf", "../interp/testdata/sets.stf", "../interp/testdata/stacks.stf")
	if err != nil || strings.Count(out, "(go, ebpf)") != 2 || !strings.Contains(out, "stacks.stf (go, not ebpf: ") {
		t.Errorf("%s%v", out, err)
	}
	out, err = execute(t.Context(), "test", "--datapath", "ebpf", "../interp/testdata/stacks.stf")
	if err == nil || !strings.Contains(out, "--datapath go needs none") {
		t.Errorf("%s%v", out, err)
	}
}

// TestSwitchGenTests: the script that is made holds, in Go and in the kernel, and bad options are refused.
func TestSwitchGenTests(t *testing.T) {
	out := filepath.Join(t.TempDir(), "m.stf")
	said, err := execute(t.Context(), "gen-tests", "../ebpf/testdata/router.json", "-o", out, "--packets", "2000")
	if err != nil || !strings.Contains(said, "ways of 2000 packets tried") || !strings.Contains(said, "ok   "+out) {
		t.Errorf("%s%v", said, err)
	}
	for _, args := range [][]string{{"none.json"}, {"../ebpf/testdata/router.p4", "-o", out}, {"../ebpf/testdata/router.json", "--packets", "0", "-o", out}} {
		if said, err := execute(t.Context(), append([]string{"gen-tests"}, args...)...); err == nil {
			t.Errorf("%v: %s", args, said)
		}
	}
}
