package main

import (
	"bytes"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestAlone: of Bifröst the switch has the switch, and these: what its program says on the wire, and what every process here has.
func TestAlone(t *testing.T) {
	const module = "github.com/bifrost-rack/bifrost/"
	may := []string{
		"cmd/bifrost-switch", "dsm/dsmpacket", "internal/fault", "internal/frame", "internal/metrics", "internal/outstream", "internal/process", "internal/rackaddr",
		"internal/rawsys", "internal/rotate", "internal/sdnotify", "internal/spin", "internal/wirefmt", "rpc/rpcpacket",
	}
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for p := range strings.FieldsSeq(string(out)) {
		if of, ours := strings.CutPrefix(p, module); ours && of != "p4" && !strings.HasPrefix(of, "p4/") && !slices.Contains(may, of) {
			t.Errorf("it has %s in it", of)
		}
	}
}

// TestNames: help and errors name the command as it is called, and bmv2's name makes it behave as bmv2 does.
func TestNames(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"entry", "--help"}, {"trace", "--help"}, {"test", "--help"}, {"gen-tests", "--help"}, {"entries", "--help"}} {
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
	if got := arguments("/usr/bin/simple_switch_grpc", []string{"x.json"}); !slices.Equal(got, []string{"--grpc-server-insecure", "--grpc-server-addr", "0.0.0.0:9559", "x.json"}) {
		t.Error(got)
	}
	if got := arguments("bifrost-switch", []string{"x.json"}); !slices.Equal(got, []string{"x.json"}) {
		t.Error(got)
	}
}
