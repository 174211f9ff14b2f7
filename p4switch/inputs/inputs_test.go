package inputs

import (
	"bytes"
	"os"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/interp"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// TestMaker: the same seed makes the same packets, and another one others. Entries fit the program's tables, and packets meet them.
func TestMaker(t *testing.T) {
	b, err := os.ReadFile("../ebpf/testdata/router.json")
	if err != nil {
		t.Fatal(err)
	}
	prog, err := v1model.Load(b)
	if err != nil {
		t.Fatal(err)
	}
	const packets = 500
	made := func(seed uint64) (frames []byte, hits, taken int) {
		x, err := interp.New(prog, interp.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer x.Close()
		a := New(prog, seed)
		for range 60 {
			if e, ok := a.Entry(); ok && x.Apply(datapath.Insert, e) == nil {
				taken++
			}
		}
		for range packets {
			port, frame := a.Packet()
			if len(frame) < ShortestFrame || port < 1 || port > ports {
				t.Fatalf("port %d, %d bytes", port, len(frame))
			}
			frames = append(frames, frame...)
			x.Process(datapath.Port(port), frame, nil)
		}
		for _, n := range x.TableStats() {
			hits += int(n.Hits)
		}
		return frames, hits, taken
	}
	one, hits, taken := made(1)
	if taken < 10 || hits < packets/10 {
		t.Errorf("of 60 entries %d were taken, and %d packets hit some %d times", taken, packets, hits)
	}
	if again, _, _ := made(1); !bytes.Equal(one, again) {
		t.Error("the same seed makes other packets")
	}
	if other, _, _ := made(2); bytes.Equal(one, other) {
		t.Error("another seed makes the same packets")
	}
}
