package interp

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestProgramsAreCurrent fails when a test program was not recompiled.
func TestProgramsAreCurrent(t *testing.T) {
	sums, err := os.ReadFile("testdata/SHA256SUMS")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("testdata/*.*")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if ext := filepath.Ext(f); ext != ".p4" && ext != ".json" {
			continue
		}
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if line := fmt.Sprintf("%x  %s\n", sha256.Sum256(data), filepath.Base(f)); !strings.Contains(string(sums), line) {
			t.Errorf("%s is not what testdata/SHA256SUMS was made for: run testdata/compile.sh with p4c on PATH", f)
		}
	}
}

// loadFile loads one of the test programs.
func loadFile(t testing.TB, name string) *v1model.Program {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	p, err := v1model.Load(data)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// start makes an executor for one of the test programs.
func start(t testing.TB, name string, config Config) *Executor {
	t.Helper()
	x, err := New(loadFile(t, name), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	return x
}

// process runs a packet and returns what came out, as "port:hex" each.
func process(x *Executor, in uint32, frame ...byte) []string {
	var out []string
	x.Process(portOf(in), append([]byte(nil), frame...), func(port portType, b []byte) {
		out = append(out, fmt.Sprintf("%d:%x", port, b))
	})
	return out
}
