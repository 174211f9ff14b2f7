package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/bifrost-rack/bifrost/bench/report"
	"github.com/bifrost-rack/bifrost/p4switch/shared/privilege"
	"github.com/bifrost-rack/bifrost/rack/config"
)

func TestAssignCPUs(t *testing.T) {
	for _, tc := range []struct {
		n    int
		want CPUs
	}{
		{1, CPUs{[]int{0}, []int{0}, []int{0}, []int{0}}},
		{2, CPUs{[]int{1}, []int{0}, []int{0}, []int{0}}},
		{3, CPUs{[]int{2}, []int{1}, []int{0}, []int{0}}},
		{4, CPUs{[]int{3}, []int{2}, []int{1}, []int{0, 1}}},
		{8, CPUs{[]int{7}, []int{6}, []int{5}, []int{0, 1, 2, 3, 4, 5}}},
	} {
		got := AssignCPUs(tc.n)
		if fmt.Sprint(got) != fmt.Sprint(tc.want) {
			t.Errorf("%d CPUs: %v, want %v", tc.n, got, tc.want)
		}
		if got.of(clientBlade)[0] != tc.n-1 || !slices.Equal(got.of(memoryBlade), got.Rack) {
			t.Errorf("%d CPUs: of blades", tc.n)
		}
	}
}

func TestChoose(t *testing.T) {
	all, err := Choose(nil)
	if err != nil || len(all) != len(Names()) {
		t.Errorf("%d of %d: %v", len(all), len(Names()), err)
	}
	two, err := Choose([]string{"add-arrays", "ping-overhead", "add-arrays"})
	if err != nil || len(two) != 2 || two[0].Name != "add-arrays" {
		t.Errorf("%v, %v", two, err)
	}
	if _, err := Choose([]string{"ping"}); err == nil || !strings.Contains(err.Error(), `no experiment "ping": there are switch-round-trip, `) {
		t.Error(err)
	}
	for _, e := range all {
		if e.Question == "" || e.Method == "" || e.X.Title == "" || e.Y.Unit == "" || e.Run == nil {
			t.Errorf("%s does not say what it is", e.Name)
		}
	}
}

// binary is the bifrost that agents run, with bifrost-bench beside it; make build makes both.
func binary(t *testing.T) string {
	t.Helper()
	privilege.Need(t)
	bin, err := filepath.Abs("../bin/bifrost")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(bin + "-bench"); err != nil {
		t.Skip("needs bin/bifrost-bench: make build")
	}
	return bin
}

// command runs bifrost bench and checks that nothing of its rack is left.
func command(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	name := fmt.Sprintf("bench%d", os.Getpid())
	cmd := exec.CommandContext(t.Context(), binary(t), append([]string{"bench", "--rack", name, "--quick"}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	namespaces, _ := filepath.Glob("/var/run/netns/bf-" + name + "*")
	files, _ := filepath.Glob("/dev/shm/bifrost-bench/" + name + "*")
	if left := slices.Concat(namespaces, files); len(left) > 0 {
		t.Errorf("bench %s left %v", strings.Join(args, " "), left)
	}
	return out.String(), errs.String(), err
}

// Experiments really run: a rack, one with two copies of memory, peers, exactly-once calls, a report with
// pictures and a document; and can be shown again without measuring.
func TestSmoke(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "eval")
	document := filepath.Join(dir, "evaluation.md")
	out, errs, err := command(t, "exactly-once", "exactly-once-work", "ping-overhead", "mirrored-memory", "patterns-onward-3", "posts", "by-region", "by-region-rate", "by-region-work", "--out", dir, "--document", document)
	if err != nil {
		t.Fatal(err, errs)
	}
	if !strings.Contains(errs, "ping-overhead: repeat 2 of 2") {
		t.Errorf("progress: %s", errs)
	}
	if !strings.Contains(out, "What is the base overhead of a call?") {
		t.Errorf("tables: %s", out)
	}
	r, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"exactly-once", "ping-overhead", "mirrored-memory", "exactly-once-work", "patterns-onward-3", "posts", "by-region", "by-region-rate", "by-region-work"} {
		e := r.Experiment(name)
		repeats := 2
		if strings.HasSuffix(name, "-work") || name == "by-region-rate" {
			repeats = 1
		}
		if e == nil || len(e.Notes) > 0 || e.Repeats != repeats {
			t.Fatalf("%s: %+v", name, e)
		}
		for _, s := range e.Series {
			for _, p := range s.Points {
				if p.Detail == nil && (strings.HasSuffix(name, "-work") || name == "by-region-rate" && p.Value > 0) {
					continue // a counter
				}
				if p.Value <= 0 || p.Low > p.Value || p.High < p.Value || p.Detail.N < 2 || p.Detail.P99 < p.Detail.P50 {
					t.Errorf("%s of %s: %+v", name, s.Name, p)
				}
			}
		}
		for _, format := range []string{".svg", ".png"} {
			if st, err := os.Stat(filepath.Join(dir, name+format)); err != nil || st.Size() == 0 {
				t.Errorf("%s%s: %v", name, format, err)
			}
		}
	}
	if len(r.Experiment("ping-overhead").Series) != 8 || r.Machine.CPUs < 1 || r.Machine.CPU == "" || r.Versions["grpc-go"] == "" {
		t.Errorf("%+v", r)
	}
	aims := map[string]int{}
	for _, f := range r.Findings() {
		large := strings.HasSuffix(f.Measure, " MiB") // which are not measured quickly
		if about, _, _ := strings.Cut(f.Measure, ":"); about == "exactly once" || strings.HasPrefix(about, "by region") && !large {
			about, _, _ = strings.Cut(about, ",")
			about, _, _ = strings.Cut(about, " /")
			aims[about]++
			if !f.Measured() || !strings.Contains(out, "\n"+f.Measure+" ") {
				t.Errorf("%s: %v, or it is not in the table of aims", f.Measure, f.Value)
			}
		}
	}
	if aims["exactly once"] != 10 || aims["by region"] != 9 {
		t.Errorf("aims: %v", aims)
	}
	first, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	again, _, err := command(t, "--again", "--out", dir, "--document", document)
	second, _ := os.ReadFile(document)
	if err != nil || again != out || !bytes.Equal(first, second) {
		t.Errorf("shown again: %v, same tables %v, same document %v", err, again == out, bytes.Equal(first, second))
	}
}

// What cannot be done is refused with a clear message, and nothing is left.
func TestRefusals(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"no-such-thing", "no experiment"},
		{"ping-overhead --switch ovs", "use bifrost or bmv2"},
		{"ping-overhead --rack a-b", "lower-case letters"},
		{"ping-overhead --mininet /no/such/file", "/no/such/file"},
		{"recovery-time --mininet /no/such/file", "not for Mininet"},
		{"--document x.md", "--out"},
		{"--again --out /no/such/directory", "/no/such/directory"},
	} {
		if _, errs, err := command(t, strings.Fields(tc.args)...); err == nil || !strings.Contains(errs, tc.want) {
			t.Errorf("bench %s: %v: %s", tc.args, err, errs)
		}
	}
}

// A peer that fails to start fails the run by name, and nothing is left.
func TestPeerFails(t *testing.T) {
	bin := binary(t)
	broken := filepath.Join(t.TempDir(), "bifrost")
	script := "#!/bin/sh\ncase \"$1 $2\" in 'bench agent') echo 'this agent is broken' >&2; exit 1;; esac\nexec " + bin + " \"$@\"\n"
	if err := os.WriteFile(broken, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	o := Options{
		Experiments: []Experiment{pingOverhead}, Pace: Quick, Bifrost: broken, Rack: fmt.Sprintf("bp%d", os.Getpid()), Switch: config.Bifrost,
		Progress: func(string, ...any) {},
	}
	_, err := Run(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "ping-overhead: udp's server on s1 has ended: this agent is broken") {
		t.Error(err)
	}
	if left, _ := filepath.Glob("/var/run/netns/bf-" + o.Rack + "*"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// An interrupt ends the run in good order.
func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o := Options{
		Experiments: []Experiment{pingOverhead}, Pace: Thorough, Bifrost: binary(t), Rack: fmt.Sprintf("bi%d", os.Getpid()), Switch: config.Bifrost,
		Progress: func(format string, _ ...any) {
			if strings.Contains(format, "repeat") {
				cancel()
			}
		},
	}
	r, err := Run(ctx, o)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "interrupted") || len(r.Experiments) != 0 {
		t.Errorf("%v, %+v", err, r.Experiments)
	}
	if left, _ := filepath.Glob("/var/run/netns/bf-" + o.Rack + "*"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// Without root a run says so at once.
func TestNotRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		if _, err := Run(t.Context(), Options{}); !errors.Is(err, ErrNotRoot) {
			t.Error(err)
		}
		return
	}
	dir, err := os.MkdirTemp("", "bifrost-bench-test-") // others may enter it, unlike t.TempDir's
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "bifrost")
	for _, suffix := range []string{"", "-bench"} {
		b, err := os.ReadFile(binary(t) + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(bin+suffix, b, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), bin, "bench", "ping-overhead")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "run it with sudo") {
		t.Errorf("%v: %s", err, out)
	}
}

// A report that cannot be written is an error that says where.
func TestWriteFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Write(&report.Report{}, filepath.Join(file, "dir")); err == nil || !strings.Contains(err.Error(), file) {
		t.Error(err)
	}
	if err := WriteDocument(&report.Report{}, filepath.Join(file, "x.md"), t.TempDir()); err == nil || !strings.Contains(err.Error(), file) {
		t.Error(err)
	}
}
