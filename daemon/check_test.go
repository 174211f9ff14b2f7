package daemon

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/wire"
)

// TestExecCheck: what this machine cannot start is known beforehand, and why.
func TestExecCheck(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	self, err := os.ReadFile("/proc/self/exe")
	if runtime.GOOS != "linux" || err != nil {
		t.Skip("formats of programs are known on Linux only")
	}
	const machine = 18 // where a program in the format ELF names its processor
	foreign := append([]byte(nil), self...)
	binary.NativeEndian.PutUint16(foreign[machine:], 8) // MIPS
	of := func(b string) string { h := sha256.Sum256([]byte(b)); return hex.EncodeToString(h[:]) }
	kept, err := OpenBinaries(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	script := write("script", "#!/bin/sh\nexit 0\n", 0o755)
	for _, tc := range []struct {
		start control.Start
		want  string // "" for a program that could be started
	}{
		{control.Start{Args: []string{"/proc/self/exe"}}, ""},
		{control.Start{Args: []string{"sh"}}, ""},
		{control.Start{Args: []string{script}}, ""},
		{control.Start{Args: []string{script}, Binary: of("#!/bin/sh\nexit 0\n")}, ""},
		{control.Start{Args: []string{script}, Binary: of("other")}, "has other content"},
		{control.Start{Args: []string{"/opt/missing"}}, "there is no program /opt/missing"},
		{control.Start{Args: []string{"missing-program"}}, "there is no program missing-program"},
		{control.Start{Args: []string{write("plain", "#!/bin/sh\n", 0o644)}}, "may not be executed: chmod +x " + dir + "/plain"},
		{control.Start{Args: []string{write("orphan", "#!/opt/none -x\n", 0o755)}}, "wants /opt/none, which is not there"},
		{control.Start{Args: []string{write("text", "hello\n", 0o755)}}, "is no program"},
		{control.Start{Args: []string{write("empty", "", 0o755)}}, "is no program"},
		{control.Start{Args: []string{write("cut", "\x7fELF", 0o755)}}, "is damaged"},
		{control.Start{Args: []string{write("foreign", string(foreign), 0o755)}}, "is for another processor (MIPS), and this blade is " + runtime.GOARCH},
	} {
		err := Exec{Binaries: kept}.Check(tc.start)
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%q: %v, want %q", tc.start.Args, err, tc.want)
		}
	}
}

// The Gatekeeper asks a blade whether it could start a program, and nothing is started.
func TestCheck(t *testing.T) {
	inRack(t, wire.Impairment{}, func(r *rack) {
		runner := &fakeRunner{started: make(chan *fakeProcess, 10)}
		_, _, stop := r.compute(ComputeConfig{Runner: runner})
		if err := r.gk.command(control.KindCheck, control.Start{Name: "a/p", Args: []string{"arrays"}}, nil); err != nil {
			t.Error(err)
		}
		err := r.gk.command(control.KindCheck, control.Start{Name: "a/p", Args: []string{"missing"}}, nil)
		if fault.CodeOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "there is no program missing") {
			t.Errorf("a program that is missing: %v", err)
		}
		if err := r.gk.command(control.KindCheck, control.Start{Name: "a/p"}, nil); fault.CodeOf(err) != fault.BadRequest {
			t.Errorf("no program: %v", err)
		}
		if len(runner.started) > 0 {
			t.Error("a program was started")
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
