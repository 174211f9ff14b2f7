//go:build linux

package ebpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/internal/sample"
	"github.com/cilium/ebpf"
)

// Registers, counters, meters, hashes, checksums: the same on both executors. The
// meters' rates are zero, so that no time has to pass.
func TestDifferential_State(t *testing.T) {
	prog := load(t, "../interp/testdata/state.json")
	for s, replay := range seeds(t, max(*rounds/3, 2)) {
		p := newPair(t, prog, 0)
		r := rand.New(rand.NewPCG(s, 0))
		entry := func(i byte) datapath.Entry {
			return datapath.Entry{Table: "I.direct", Match: []datapath.Match{{Value: []byte{i}}}, Action: &datapath.Action{Name: "I.metered"}}
		}
		for i := range 3 {
			p.Update(t, datapath.Insert, entry(byte(i)))
		}
		burst := func() *datapath.MeterConfig {
			if r.IntN(5) == 0 {
				return nil
			}
			return &datapath.MeterConfig{CBurst: r.Int64N(8), PBurst: r.Int64N(12)}
		}
		for range 20 {
			c, d, i := burst(), burst(), r.IntN(4)
			if d != nil {
				d.CBurst, d.PBurst = 100*d.CBurst, 100*d.PBurst
			}
			value := []byte{byte(r.Uint32()), byte(r.Uint32()), 3, 4}
			p.Both(t, func(x datapath.Datapath) error {
				return errors.Join(x.Meter("I.rate", i, c), x.EntryMeter(entry(byte(i%3)), d), x.SetRegister("I.sums", i, value))
			})
			for range 40 {
				frame := make([]byte, 58+r.IntN(1400))
				for i := range frame {
					frame[i] = byte(r.Uint32())
				}
				ops := []byte{1, 1, 1, 2, 2, 3, 4, 4, 4, 5, 6, 7, 8, 9, 10, 12, 12, 12, 20, 21, 30, 31}
				frame[0], frame[1] = ops[r.IntN(len(ops))], byte(r.IntN(6)) // also beyond the arrays
				p.Check(t, 1, frame, replay)
			}
		}
		p.compareRegisters(t, replay)
		p.Counters(t, []datapath.Entry{entry(0), entry(1), entry(2)}, replay)
	}
}

// compareRegisters compares all registers of both, read cell by cell and at once.
func (p *pair) compareRegisters(t testing.TB, replay string) {
	t.Helper()
	all, err := p.kernel.Registers()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range p.Prog.Registers {
		for i := range r.Size {
			a, err1 := p.kernel.Register(r.Name, i)
			b, err2 := p.Golang.Register(r.Name, i)
			c, err3 := all.Cell(r.Name, i)
			if !bytes.Equal(a, b) || !bytes.Equal(a, c) || errors.Join(err1, err2, err3) != nil {
				t.Fatalf("register %s[%d]: kernel %x %v, Go %x %v, at once %x %v\nreplay: %s", r.Name, i, a, err1, b, err2, c, err3, replay)
			}
		}
		if _, err := all.Cell(r.Name, r.Size); !errors.Is(err, datapath.ErrNotFound) {
			t.Errorf("register %s has a cell behind its last: %v", r.Name, err)
		}
	}
}

// A counter reads the same as a whole and cell by cell, whether each CPU has cells of its
// own or all share them.
func TestCounters(t *testing.T) {
	x := start(t, nil, known())
	for range 3 {
		sendTo(t, x, 1) // nowhere
	}
	all, err := x.Counters("SampleIngress.verdicts")
	if err != nil || len(all) != numPorts<<4 {
		t.Fatalf("%d cells, %v", len(all), err)
	}
	cell := sample.NoRoute.Cell(1)
	if one, err := x.Counter("SampleIngress.verdicts", cell); err != nil || one.Packets != 3 || all[cell] != one {
		t.Errorf("the cell is %+v by itself and %+v among all, %v", one, all[cell], err)
	}
	if _, err := x.Counters("none"); !errors.Is(err, datapath.ErrNotFound) {
		t.Errorf("a counter that is not there: %v", err)
	}
	for _, typ := range []ebpf.MapType{ebpf.Array, ebpf.PerCPUArray} {
		m, err := newMap(&ebpf.MapSpec{Name: "cells", Type: typ, KeySize: 4, ValueSize: 16, MaxEntries: 5})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		want := datapath.Counts{Packets: 7, Bytes: 700}
		if err := setCell(m, 3, want); err != nil {
			t.Fatal(err)
		}
		if got, err := cells(m); err != nil || !slices.Equal(got, []datapath.Counts{3: want, 4: {}}) {
			t.Errorf("%v: %v, %v", typ, got, err)
		}
	}
}

// An action that reads a register and writes it loses no other's change, on
// whatever CPUs packets are.
func TestRegisterActionsAreAtomic(t *testing.T) {
	x := newPair(t, load(t, "../interp/testdata/state.json"), 0).kernel
	const senders, each = 4, 2000
	frame := make([]byte, 60)
	frame[0], frame[5] = 1, 1 // adds one to the first cell
	var all sync.WaitGroup
	for range senders {
		all.Go(func() {
			for range each {
				run := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, 512), Context: &skBuff{CB: [5]uint32{1 | testFlag}}}
				if _, err := x.main.Run(run); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	got, err := x.Register("I.sums", 0)
	if err != nil || binary.BigEndian.Uint32(got) != senders*each {
		t.Errorf("%d instead of %d, %v", binary.BigEndian.Uint32(got), senders*each, err)
	}
}

// A meter with rate 0 lets its burst pass, and nothing more; with a rate it lets
// something pass again.
func TestMeter_Rates(t *testing.T) {
	p := newPair(t, load(t, "../interp/testdata/state.json"), 0)
	colour := func() byte {
		frame := make([]byte, 60)
		frame[0] = 4
		if err := p.kernel.Test(1, frame, p.K.Emit); err != nil {
			t.Fatal(err)
		}
		var port, colour int
		line := p.K.Take()
		if len(line) != 1 {
			t.Fatalf("%q", line)
		}
		if _, err := fmt.Sscanf(line[0], "out %d: 0400%08x", &port, &colour); err != nil {
			t.Fatal(line, err)
		}
		return byte(colour)
	}
	set := func(c *datapath.MeterConfig) {
		if err := p.kernel.Meter("I.rate", 0, c); err != nil {
			t.Fatal(err)
		}
	}
	see := func(want ...byte) {
		t.Helper()
		var got []byte
		for range want {
			got = append(got, colour())
		}
		if !bytes.Equal(got, want) {
			t.Errorf("colours %d instead of %d", got, want)
		}
	}
	see(green, green, green)
	set(&datapath.MeterConfig{CBurst: 1, PBurst: 3})
	see(green, yellow, yellow, red, red)
	set(&datapath.MeterConfig{})
	see(red, red)
	set(&datapath.MeterConfig{CIR: 1 << 40, CBurst: 1, PIR: 1 << 40, PBurst: 1}) // full again at once
	see(green, green, green)
	set(nil)
	see(green)
	rate := datapath.MeterCell{Name: "I.rate"}
	counts := func(green, yellow, red uint64) datapath.MeterCounts { // of packets of 60 bytes
		return datapath.MeterCounts{
			Green: datapath.Counts{Packets: green, Bytes: 60 * green}, Yellow: datapath.Counts{Packets: yellow, Bytes: 60 * yellow}, Red: datapath.Counts{Packets: red, Bytes: 60 * red},
		}
	}
	if got, err := p.kernel.MeterCounts(rate); err != nil || got != counts(8, 2, 4) {
		t.Errorf("counted %+v, %v", got, err)
	}
	if got, err := p.kernel.MeterCounts(datapath.MeterCell{Name: "I.rate", Index: 1}); err != nil || got != counts(0, 0, 0) {
		t.Errorf("another cell counted %+v, %v", got, err)
	}
	if err := p.kernel.SetMeterCounts(rate, counts(0, 7, 0)); err != nil {
		t.Fatal(err)
	}
	see(green)
	if got, err := p.kernel.MeterCounts(rate); err != nil || got != counts(1, 7, 0) {
		t.Errorf("counted %+v, %v", got, err)
	}
	if err := p.kernel.Meter("I.rate", 0, &datapath.MeterConfig{CBurst: maxBurst + 1}); !errors.Is(err, datapath.ErrUnsupported) {
		t.Errorf("a burst that does not fit: %v", err)
	}
	for _, i := range []int{-1, 4} {
		if err := p.kernel.Meter("I.rate", i, nil); !errors.Is(err, datapath.ErrNotFound) {
			t.Errorf("meter %d: %v", i, err)
		}
		if _, err := p.kernel.MeterCounts(datapath.MeterCell{Name: "I.rate", Index: i}); !errors.Is(err, datapath.ErrNotFound) {
			t.Errorf("counts of meter %d: %v", i, err)
		}
		if err := p.kernel.SetRegister("I.sums", i, make([]byte, 4)); !errors.Is(err, datapath.ErrNotFound) {
			t.Errorf("register cell %d: %v", i, err)
		}
	}
	if err := p.kernel.SetRegister("I.sums", 0, make([]byte, 5)); err == nil {
		t.Error("a value that is too long")
	}
}

// What a direct meter has counted is its entry's: an entry that takes another's place begins with nothing.
func TestMeter_DirectCounts(t *testing.T) {
	p := newPair(t, load(t, "../interp/testdata/state.json"), 0)
	e := datapath.Entry{Table: "I.direct", Match: []datapath.Match{{Value: []byte{7}}}, Action: &datapath.Action{Name: "I.metered"}}
	frame := make([]byte, 60)
	frame[0], frame[1] = 12, 7
	for range 2 {
		if err := p.kernel.Apply(datapath.Insert, e); err != nil {
			t.Fatal(err)
		}
		if err := p.kernel.EntryMeter(e, &datapath.MeterConfig{CBurst: 60, PBurst: 60}); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := p.kernel.Test(1, frame, p.K.Emit); err != nil {
				t.Fatal(err)
			}
		}
		p.K.Take()
		want := datapath.MeterCounts{Green: datapath.Counts{Packets: 1, Bytes: 60}, Red: datapath.Counts{Packets: 2, Bytes: 120}}
		if got, err := p.kernel.MeterCounts(datapath.MeterCell{Entry: &e}); err != nil || got != want {
			t.Errorf("counted %+v, %v", got, err)
		}
		if err := p.kernel.Apply(datapath.Delete, e); err != nil {
			t.Fatal(err)
		}
		if _, err := p.kernel.MeterCounts(datapath.MeterCell{Entry: &e}); !errors.Is(err, datapath.ErrNotFound) {
			t.Errorf("of an entry that is gone: %v", err)
		}
	}
	if _, err := p.kernel.MeterCounts(datapath.MeterCell{Entry: &datapath.Entry{Table: "I.direct"}}); !errors.Is(err, datapath.ErrUnsupported) {
		t.Errorf("of the default entry: %v", err)
	}
}
