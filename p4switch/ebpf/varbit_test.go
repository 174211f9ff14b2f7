//go:build linux

package ebpf

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// TestVarbit: fields of every length, advances of every length, and copies of stacks do the same on both executors: parsed, compared, assigned, summed,
// made invalid, and sent, also when the packet ends in the midst of them.
func TestVarbit(t *testing.T) {
	prog := load(t, "testdata/varbit.json")
	for s, replay := range seeds(t, max(*rounds/2, 2)) {
		p, r := newPair(t, prog, 0), rand.New(rand.NewPCG(s, 7))
		for range 600 {
			p.Check(t, 1, varied(r), replay)
		}
	}
}

// varied is a packet of testdata/varbit.p4.
func varied(r *rand.Rand) []byte {
	frame := make([]byte, 12, 140)
	frame = binary.BigEndian.AppendUint16(frame, uint16(0x800+r.IntN(4))) //nolint:gosec // small
	elements := func() {
		for range r.IntN(5) {
			frame = append(frame, byte([]int{1, 1, 2, 2, 7}[r.IntN(5)]), byte(r.Uint32()))
		}
	}
	skip := func() {
		frame = append(frame, byte([]int{0, 8, 16, 24, 80, 200, 4}[r.IntN(7)]), byte(r.IntN(4)))
		elements()
	}
	switch frame[13] {
	case 0:
		frame = append(frame, 0x40|byte(r.IntN(16)), byte(r.IntN(5)), byte(r.Uint32()), byte(r.Uint32()))
		n := 4 * max(int(frame[14]&15)-2, 0)
		if r.IntN(8) == 0 {
			n += r.IntN(5)
		}
		for range n {
			frame = append(frame, byte(r.IntN(3)))
		}
		frame = append(frame, byte(r.Uint32()), byte(r.Uint32()))
		switch frame[15] {
		case 1:
			frame = append(frame, byte([]int{0, 8, 16, 40, 88, 96, 104, 3}[r.IntN(8)]), byte(r.IntN(6)))
		case 2:
			skip()
		case 3:
			elements()
		}
	case 1:
		skip()
	case 2:
		elements()
	}
	for least := 58 + r.IntN(70); len(frame) < least; {
		frame = append(frame, byte(r.IntN(4)))
	}
	if r.IntN(3) == 0 {
		frame = frame[:58+r.IntN(min(len(frame)-58+1, 8))]
	}
	return frame
}
