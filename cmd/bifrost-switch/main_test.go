package main

import (
	"bytes"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestAlone: of Bifröst the switch has its own packages, and these, which every process here has. Bifröst's program is not in it, nor what tests that.
func TestAlone(t *testing.T) {
	const module = "github.com/bifrost-rack/bifrost/"
	may := []string{
		"cmd/bifrost-switch", "internal/loglimit", "internal/metrics", "internal/outstream", "internal/process", "internal/rawsys", "internal/rotate", "internal/sdnotify", "internal/spin",
	}
	bifrosts := []string{"p4", "p4/difftest", "p4/proof", "p4/rights"}
	// Nor are modules that only Bifröst needs: the log's store, Thrift, the tracing of calls.
	foreign := []string{"github.com/apache/thrift", "github.com/cockroachdb/", "github.com/danielgtaylor/huma", "github.com/google/nftables", "go.opentelemetry.io/"}
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for p := range strings.FieldsSeq(string(out)) {
		of, ours := strings.CutPrefix(p, module)
		bad := slices.ContainsFunc(foreign, func(prefix string) bool { return strings.HasPrefix(p, prefix) })
		if bad || ours && !slices.Contains(may, of) && (!strings.HasPrefix(of, "p4/") || slices.Contains(bifrosts, of)) {
			t.Errorf("it has %s in it", p)
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
