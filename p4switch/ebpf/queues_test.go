//go:build linux

package ebpf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
)

// A packet has the depth of its egress port's queue as enq_qdepth and deq_qdepth, on both executors, saturated to 19 bits. A program that
// does not use them has no map of depths, and is told them to no effect.
func TestQueueDepths(t *testing.T) {
	p := newPair(t, load(t, "../softswitch/testdata/queues.json"), 0)
	set := map[datapath.Port]uint32{}
	told := func(port datapath.Port, want uint32) {
		t.Helper()
		frame := make([]byte, 60)
		frame[4], frame[5], frame[12], frame[13] = byte(port>>8), byte(port), 0x99, 0x99
		copy(frame[14:], bytes.Repeat([]byte{0xff}, 8))
		out := bytes.Clone(frame)
		binary.BigEndian.PutUint32(out[14:], want)
		binary.BigEndian.PutUint32(out[18:], want)
		line := fmt.Sprintf("out %d: %x", port, out)
		for end := time.Now().Add(patience); ; {
			for port, depth := range set { // it holds for a second
				p.kernel.SetQueueDepth(port, depth)
				p.Golang.SetQueueDepth(port, depth)
			}
			if kernel, golang, differ := p.Differs(1, frame); !differ && len(golang) == 1 && golang[0] == line {
				return
			} else if time.Now().After(end) {
				t.Fatalf("port %d\nkernel: %q\nGo:     %q\nwant    %s", port, kernel, golang, line)
			}
		}
	}
	const most = 1<<19 - 1
	told(2, 0)
	set = map[datapath.Port]uint32{0: 7, 1: 1, 2: most, 3: most + 1, 510: math.MaxUint32, 512: 9}
	for port, depth := range map[datapath.Port]uint32{0: 7, 1: 1, 2: most, 3: most, 4: 0, 510: most} {
		told(port, depth)
	}
	set[2] = 12
	told(2, 12)
	set[2] = 0
	told(2, 0)

	other := newPair(t, load(t, "testdata/match.json"), 0)
	if other.kernel.maps.depths != nil {
		t.Error("a program that does not use the depths of queues has a map of them")
	}
	other.kernel.SetQueueDepth(1, 1)
	other.Golang.SetQueueDepth(1, 1)
	if err := p.kernel.Close(); err != nil {
		t.Error(err)
	}
	p.kernel.SetQueueDepth(2, 1)
}

// A depth that has not been told for a second counts as 0: the process may be away.
func TestQueueDepths_Old(t *testing.T) {
	x := newPair(t, load(t, "../softswitch/testdata/queues.json"), 0)
	frame := make([]byte, 60)
	frame[5], frame[12], frame[13] = 2, 0x99, 0x99
	x.kernel.SetQueueDepth(2, 7)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); ; <-tick.C {
		var depth uint32
		if err := x.kernel.Test(1, bytes.Clone(frame), func(_ datapath.Port, b []byte) { depth = binary.BigEndian.Uint32(b[14:]) }); err != nil {
			t.Fatal(err)
		}
		if depth == 0 {
			return
		}
		if depth != 7 || time.Now().After(end) {
			t.Fatalf("the depth is %d", depth)
		}
	}
}
