package docs_test

import (
	"os"
	"os/exec"
	"testing"
)

// TestOperators does what the operators' page says.
func TestOperators(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a rack for half a minute")
	}
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	if out, err := exec.Command("make", "-C", "..", "build").CombinedOutput(); err != nil {
		t.Fatalf("make build: %v\n%s", err, out)
	}
	s := newShell(t, true)
	if out, err := s.run("export PATH=$BIFROST/bin:$PATH"); err != nil {
		t.Fatal(out, err)
	}
	s.follow("operators.md", true)
}
