//go:build linux

package ebpf

import (
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/internal/sample"
)

// TestZeroed: what a packet pays for before the program has looked at it does not grow with what the program can do with others.
func TestZeroed(t *testing.T) {
	g := newGen(sampled(t), sample.CPUPort, 0)
	if n := (g.st.zeroTo - g.st.zeroFrom) / 8; n > 16 { // 12; 60 when all headers and metadata were
		t.Errorf("a packet has %d words zeroed when it comes", n)
	}
}
