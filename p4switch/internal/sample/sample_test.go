package sample

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestCurrent fails when the program was not recompiled.
func TestCurrent(t *testing.T) {
	sums, err := os.ReadFile("SHA256SUMS")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"sample.p4", "sample.json", "sample.p4info.txt"} {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(sums), fmt.Sprintf("%x  %s\n", sha256.Sum256(b), f)) {
			t.Errorf("%s is not what SHA256SUMS was made for: run compile.sh with p4c on PATH", f)
		}
	}
}
