package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// multiplied is a time that is the product of a number and a unit, or of a number of seconds.
var multiplied = regexp.MustCompile(`time\.Duration\([^()]*[a-z][^()]*(\([^()]*\))?[^()]*\) ?\* ?(time\.|[A-Za-z])|[A-Za-z] ?\* ?time\.Duration\(|float64\(time\.Second\)`)

// bounded are files in which such a product is in range, with reasons.
var bounded = map[string]string{
	"bench/switches/udp_linux.go":     "a number of pauses that have passed",
	"examples/counter/client.go":      "a time that was measured",
	"gatekeeper/admin/stream.go":      "a rate of 10,000 at most",
	"internal/join/unixjoin/watch.go": "a number of heartbeats that have passed",
	"rpc/direct.go":                   "a timeout of 32 bits of milliseconds",
	"rpc/endpoint/rtt.go":             "a number of calls under way",
	"rpc/run.go":                      "a timeout of 32 bits of milliseconds",
}

// TestFarTimes: a time that is calculated from a number of others' choice does not overflow: internal/duration does it.
func TestFarTimes(t *testing.T) {
	found := map[string]bool{}
	must(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		name := filepath.ToSlash(strings.TrimPrefix(path, "../"))
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), "gen-") || name == "internal/crash" || name == "internal/duration" || d.Name() == ".git"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for i, line := range strings.Split(string(text), "\n") {
			code, _, _ := strings.Cut(line, "//")
			if !multiplied.MatchString(code) {
				continue
			}
			found[name] = true
			if bounded[name] == "" {
				t.Errorf("%s:%d: use duration.Times or duration.Seconds, which stay in range: %s", name, i+1, strings.TrimSpace(line))
			}
		}
		return nil
	}))
	for name := range bounded {
		if !found[name] {
			t.Errorf("%s has no such product any more: take it off the list", name)
		}
	}
}
