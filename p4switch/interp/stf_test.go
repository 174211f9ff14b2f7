package interp_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/interp"
	"github.com/bifrost-rack/bifrost/p4switch/interp/stf"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// To find differences from bmv2, point these at p4c's test programs:
//
//	go test ./p4switch/interp -run TestSTF -stf 'p4_16_samples/*.stf' -programs compiled
var (
	stfScripts = flag.String("stf", "testdata/*.stf", "scripts to run, a pattern")
	stfJSON    = flag.String("programs", "testdata", "where the scripts' programs are, NAME.json each")
)

func TestSTF(t *testing.T) {
	scripts, err := filepath.Glob(*stfScripts)
	if err != nil || len(scripts) == 0 {
		t.Fatalf("no scripts %s: %v", *stfScripts, err)
	}
	for _, script := range scripts {
		name := strings.TrimSuffix(filepath.Base(script), ".stf")
		t.Run(name, func(t *testing.T) { runScript(t, script, filepath.Join(*stfJSON, name+".json")) })
	}
}

func runScript(t *testing.T, script, program string) {
	data, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	prog, err := v1model.Load(data)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(script)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := stf.New(prog)
	x, err := interp.New(prog, interp.Config{Sink: r})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	r.Attach(x)
	if err := r.Run(f); err != nil {
		t.Error(err)
	}
}
