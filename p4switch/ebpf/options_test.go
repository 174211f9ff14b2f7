//go:build linux

package ebpf

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// TestOptions: parsers that loop over lengths which only the packet tells, or that read nothing, do the same on both executors, also when the packet ends
// in the midst of a loop or a loop has no end.
func TestOptions(t *testing.T) {
	prog := load(t, "testdata/options.json")
	if l := Lacks(prog, 0); len(l) > 0 {
		t.Fatal(l)
	}
	ended := map[byte]int{} // how packets have: by the program's code for the parser's error
	for s, replay := range seeds(t, max(*rounds/2, 2)) {
		p, r := newPair(t, prog, 0), rand.New(rand.NewPCG(s, 8))
		for range 400 {
			frame := optioned(r)
			kernel, golang, differ := p.Differs(1, frame)
			if differ || len(golang) != 1 {
				t.Fatalf("packet %x\n\tkernel: %q\n\tGo:     %q\n\treplay: %s", frame, kernel, golang, replay)
			}
			ended[golang[0][len("out 2: 0")]-'0']++
		}
	}
	for code, what := range map[byte]string{0: "an end", 2: "a value that is too long", 3: "a packet that is too short", 4: "a loop without end"} {
		if ended[code] == 0 {
			t.Errorf("no packet had %s", what)
		}
	}
}

// optioned is a packet of testdata/options.p4. It becomes shorter by at most maxTagged bytes.
func optioned(r *rand.Rand) []byte {
	frame := make([]byte, 12, 300)
	frame[5] = byte(r.IntN(2))
	frame = binary.BigEndian.AppendUint16(frame, uint16(0x800+r.IntN(5))) //nolint:gosec // small
	value := func(n int) {
		for range n {
			frame = append(frame, byte(r.Uint32()))
		}
	}
	if frame[13] == 1 {
		for range r.IntN(6) {
			n := r.IntN(6)
			if r.IntN(20) == 0 {
				n = 33 // too long
			}
			frame = append(frame, byte([]int{1, 2, 3, 9, 9, 5}[r.IntN(6)]), byte(n))
			value(n)
		}
		switch r.IntN(8) {
		case 0: // an option of which the packet may have only a part
			frame = append(frame, 5, 32)
			value(max(60-len(frame), 10))
			return frame
		case 1, 2:
			frame = append(frame, 7, 0)
		default:
			frame = append(frame, 0)
		}
	}
	for range r.IntN(6) { // skips
		n := 1 + r.IntN(4)
		frame = append(frame, byte(n))
		value(n - 1)
	}
	frame = append(frame, 0, byte(r.Uint32()), byte(r.Uint32()))
	if n := len(frame); n > 60 && r.IntN(4) == 0 {
		frame = frame[:60+r.IntN(n-60)]
	}
	for len(frame) < 60 {
		frame = append(frame, byte(r.IntN(3)))
	}
	return frame
}
