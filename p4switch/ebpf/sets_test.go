//go:build linux

package ebpf

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
)

// The parser looks keys up in value sets whose members are exact, masked, ranges, or
// several of them, as the Go executor does.
func TestDifferential_Sets(t *testing.T) {
	p := newPair(t, load(t, "../interp/testdata/sets.json"), 0)
	r := rand.New(rand.NewPCG(*seed, 9))
	for range 10 {
		setMembers(t, p, r)
		for range 60 {
			p.Check(t, 1, inSets(r), fmt.Sprintf("go test ./p4switch/ebpf -run TestDifferential_Sets -seed %d", *seed))
		}
	}
	if err := p.kernel.ValueSet("P.ones", make([][]datapath.Match, 1<<16)); !errors.Is(err, datapath.ErrFull) {
		t.Errorf("too many members: %v", err)
	}
	if err := p.kernel.ValueSet("absent", nil); !errors.Is(err, datapath.ErrNotFound) {
		t.Errorf("absent set: %v", err)
	}
}

// twelve is a number of 12 bits, of few.
func twelve(r *rand.Rand) []byte { return []byte{byte(r.IntN(3)), byte(r.IntN(256))} }

// setMembers gives both executors the same members of the sets of sets.p4, or both refuse them.
func setMembers(t *testing.T, p *pair, r *rand.Rand) {
	t.Helper()
	match := func() datapath.Match {
		switch v := twelve(r); r.IntN(4) {
		case 0:
			return datapath.Match{Value: v, Mask: []byte{byte(r.IntN(16)), byte(r.IntN(256))}}
		case 1:
			return datapath.Match{Value: v, High: []byte{4, 0}}
		case 2:
			return datapath.Match{Wildcard: true}
		default:
			return datapath.Match{Value: v}
		}
	}
	var ones, pairs [][]datapath.Match
	for range r.IntN(4) {
		ones = append(ones, []datapath.Match{match()})
		pairs = append(pairs, []datapath.Match{match(), {Value: []byte{byte(r.IntN(16))}}})
	}
	for name, members := range map[string][][]datapath.Match{"P.ones": ones, "P.pairs": pairs} {
		kernel, golang := p.kernel.ValueSet(name, members), p.Golang.ValueSet(name, members)
		if (kernel == nil) != (golang == nil) {
			t.Fatalf("%s = %v: kernel %v, Go %v", name, members, kernel, golang)
		}
	}
}

// inSets is a packet of sets.p4 that may be a member.
func inSets(r *rand.Rand) []byte {
	frame := make([]byte, 60)
	v := twelve(r)
	frame[0], frame[1] = v[0]<<4|v[1]>>4, v[1]<<4|byte(r.IntN(16))
	return frame
}

// A failed assertion drops the packet and is logged, as log messages are.
func TestAssertAndLog(t *testing.T) {
	needRoot(t)
	var out bytes.Buffer
	x, err := New(load(t, "testdata/says.json"), Config{Log: slog.New(slog.NewTextHandler(&out, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	frame := make([]byte, 60)
	for op, left := range []int{1, 0} {
		frame[0] = byte(op)
		n := 0
		x.Process(1, frame, func(datapath.Port, []byte) { n++ })
		if n != left {
			t.Errorf("op %d: %d packets left", op, n)
		}
	}
	for _, want := range []string{`msg="op 0, port 1, wide 340282366920938463463374607431768211455, less -1"`, "assertion failed", "h.h.op != 1"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s is not in the log:\n%s", want, out.String())
		}
	}
}
