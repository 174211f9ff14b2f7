package interp

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// Two executors with the same registers both write there, and each action of either is atomic. A third one goes on where they have ended.
func TestSharedRegisters(t *testing.T) {
	one := start(t, "state", Config{})
	two := start(t, "state", Config{Registers: one.Registers()})
	const each = 500
	var wg sync.WaitGroup
	for _, x := range []*Executor{one, two, one, two} {
		wg.Go(func() {
			for range each {
				f := stateFrame(1, 2)
				f[5] = 1
				x.Process(1, f, nil)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(one.Close(), two.Close()); err != nil {
		t.Fatal(err)
	}
	three := start(t, "state", Config{Registers: two.Registers()})
	if got, _ := three.Register("I.sums", 2); fmt.Sprintf("%x", got) != fmt.Sprintf("%08x", 4*each) {
		t.Errorf("summed up to %x, not %08x", got, 4*each)
	}
}

// Registers of another program are refused.
func TestSharedRegisters_OtherProgram(t *testing.T) {
	x := start(t, "state", Config{})
	same := *x.c.prog.Registers[0]
	for name, change := range map[string]func(r *v1model.Register){
		"name":  func(r *v1model.Register) { r.Name += "2" },
		"width": func(r *v1model.Register) { r.Width++ },
		"size":  func(r *v1model.Register) { r.Size++ },
	} {
		changed := same
		change(&changed)
		prog := *x.c.prog
		prog.Registers = append([]*v1model.Register{&changed}, prog.Registers[1:]...)
		if _, err := New(&prog, Config{Registers: x.Registers(), Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}); !errors.Is(err, datapath.ErrUnsupported) {
			t.Errorf("another %s: %v", name, err)
		}
	}
	prog := *x.c.prog
	if prog.Registers = prog.Registers[1:]; x.Registers().Of(&prog) {
		t.Error("a program with fewer registers has the same ones")
	}
}

// Registers that lie in memory which is given have each cell there, the last one, too.
func TestRegistersInMemory(t *testing.T) {
	prog := start(t, "state", Config{}).Program()
	of := *prog
	for i, size := range []int{2*pageCells + 3, pageCells, 1} {
		r := *prog.Registers[i%len(prog.Registers)]
		r.Name, r.Size = fmt.Sprint("r", i), size
		if of.Registers = append(of.Registers[:i:i], &r); i == 2 {
			break
		}
	}
	memory := make([]uint64, RegisterWords(&of))
	r := NewRegisters(&of, memory, nil)
	n := 0
	for a, c := range r.arrays {
		for i := range c.size {
			for j := range c.toWrite(uint64(i)) { //nolint:gosec // not negative
				n++
				c.toWrite(uint64(i))[j] = uint64(n) //nolint:gosec // not negative
			}
		}
		if c.cell(uint64(c.size)) != nil || c.toWrite(uint64(c.size)) != nil { //nolint:gosec // not negative
			t.Errorf("register %d has a cell beyond the last one", a)
		}
	}
	if n != len(memory) {
		t.Errorf("%d words in %d", n, len(memory))
	}
	for i, w := range memory {
		if w != uint64(i+1) { //nolint:gosec // not negative
			t.Fatalf("word %d is %d", i, w)
		}
	}
}
