package gatekeeper

import (
	"os"
	"regexp"
	"slices"
	"testing"
)

// EventKinds has every kind that trace.go declares.
func TestEventKinds(t *testing.T) {
	source, err := os.ReadFile("trace.go")
	if err != nil {
		t.Fatal(err)
	}
	declared := regexp.MustCompile(`EventKind = "([a-z.]+)"`).FindAllStringSubmatch(string(source), -1)
	kinds := EventKinds()
	if len(declared) < 30 || len(kinds) != len(declared) {
		t.Errorf("%d kinds are declared, %d listed", len(declared), len(kinds))
	}
	for _, d := range declared {
		if !slices.Contains(kinds, d[1]) {
			t.Errorf("%s is not listed", d[1])
		}
	}
}
