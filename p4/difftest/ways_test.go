package difftest

import (
	"bytes"
	"sync"
	"testing"

	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4switch/interp"
	"github.com/bifrost-rack/bifrost/p4switch/interp/stf"
	"github.com/bifrost-rack/bifrost/p4switch/pathtests"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// loaded is Bifröst's program, which tests share: to load it takes a fifth of a second, and one with the race detector.
var loaded = sync.OnceValues(func() (*v1model.Program, error) { return v1model.Load(p4.JSON) })

func bifrost(t testing.TB) *v1model.Program {
	t.Helper()
	prog, err := loaded()
	if err != nil {
		t.Fatal(err)
	}
	return prog
}

// TestWays: the script that a search makes of Bifröst's program, with a packet for each way that it finds, holds for the program.
func TestWays(t *testing.T) {
	prog := bifrost(t)
	found, err := pathtests.Generate(prog, pathtests.Options{Seed: 1, Entries: 60, Packets: 1500})
	if err != nil || found.Ways < 20 {
		t.Fatalf("%d ways, %v", found.Ways, err)
	}
	r := stf.New(prog)
	x, err := interp.New(prog, interp.Config{Sink: r})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	r.Attach(x)
	if err := r.Run(bytes.NewReader(found.Script)); err != nil {
		t.Errorf("%v\n%s", err, found.Script)
	}
}
