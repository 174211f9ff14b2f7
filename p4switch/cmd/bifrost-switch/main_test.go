package main

import (
	"bytes"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestAlone: of what Bifröst needs and a switch does not, nothing is in it: the rest of Bifröst, the log's store, Thrift, the tracing of calls. The tests
// of the module need nothing of it either.
func TestAlone(t *testing.T) {
	const bifrost = "github.com/bifrost-rack/bifrost/"
	foreign := []string{"github.com/apache/thrift", "github.com/cockroachdb/", "github.com/danielgtaylor/huma", "github.com/google/nftables", "go.opentelemetry.io/"}
	for _, args := range [][]string{{"."}, {"-test", "../../..."}} {
		cmd := exec.Command("go", append([]string{"list", "-deps"}, args...)...)
		cmd.Env = append(os.Environ(), "GOWORK=off") // as for those who have the module alone
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go list -deps %s: %v", args, err)
		}
		packages := strings.Fields(string(out))
		if len(packages) < 100 {
			t.Errorf("go list -deps %s lists %d packages", args, len(packages))
		}
		for _, p := range packages {
			of, ours := strings.CutPrefix(p, bifrost)
			if ours && !strings.HasPrefix(of, "p4switch") || slices.ContainsFunc(foreign, func(prefix string) bool { return strings.HasPrefix(p, prefix) }) {
				t.Errorf("go list -deps %s lists %s", args, p)
			}
		}
	}
}

// TestNames: help and errors name the command as it is called, and bmv2's name makes it behave as bmv2 does.
func TestNames(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"entry", "--help"}, {"trace", "--help"}, {"page", "--help"}, {"test", "--help"}, {"gen-tests", "--help"}, {"entries", "--help"}} {
		root := newRoot()
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetArgs(args)
		if err := root.Execute(); err != nil {
			t.Error(err)
		}
		if text := out.String(); strings.Contains(text, "bifrost switch") || !strings.Contains(text, "bifrost-switch") {
			t.Errorf("%s:\n%s", args, text)
		}
	}
	if got := arguments("/usr/bin/simple_switch_grpc", []string{"x.json"}); !slices.Equal(got, []string{"--grpc-server-insecure", "--grpc-server-addr", "0.0.0.0:9559", "--device-id", "0", "x.json"}) {
		t.Error(got)
	}
	if got := arguments("bifrost-switch", []string{"x.json"}); !slices.Equal(got, []string{"x.json"}) {
		t.Error(got)
	}
}
