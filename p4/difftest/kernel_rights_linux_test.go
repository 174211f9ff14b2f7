//go:build linux

package difftest

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4switch/compare"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/ebpf"
	"github.com/bifrost-rack/bifrost/p4switch/inputs"
	"github.com/bifrost-rack/bifrost/p4switch/shared/privilege"
	"github.com/bifrost-rack/bifrost/p4switch/trace"
)

// kernel is the kernel's executor as a Target.
type kernel struct {
	*ebpf.Executor
	out       []Leaves
	registers ebpf.Registers // behind the last packet
}

func (k *kernel) emit(port datapath.Port, b []byte) {
	k.out = append(k.out, Leaves{port, bytes.Clone(b)})
}
func (k *kernel) PacketIn(b []byte)      { k.emit(p4.CPUPort, b) }
func (k *kernel) Digest(datapath.Digest) {}
func (k *kernel) Idle(datapath.Entry)    {}

// Cell is what Register returns, but for what a packet costs: all registers are read at once.
func (k *kernel) Cell(register string, index int) ([]byte, error) {
	return k.registers.Cell(register, index)
}

func (k *kernel) Run(in datapath.Port, b []byte) ([]Leaves, error) {
	k.out = nil
	err := k.Test(in, b, k.emit)
	if err == nil {
		k.registers, err = k.Registers()
	}
	return k.out, err
}

// newKernel loads the program.
func newKernel(t *testing.T) *kernel {
	t.Helper()
	privilege.Need(t)
	k := &kernel{}
	var err error
	if k.Executor, err = ebpf.New(bifrost(t), ebpf.Config{CPUPort: p4.CPUPort, Sink: k, RegisterCells: 512, Stale: true}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	return k
}

// TestKernel_Ports: the kernel's executor judges what comes to the ports of calls, and nothing else.
func TestKernel_Ports(t *testing.T) {
	if err := Ports(newKernel(t)); err != nil {
		t.Error(err)
	}
}

// TestKernel_Rights: the kernel's executor does what the model of rights does, packet by packet, and each row of the model's tables has
// its turn. To run a difference again: go test ./p4/difftest -run TestKernel_Rights -rights-seed N -kernel-rights-steps 2000
func TestKernel_Rights(t *testing.T) {
	steps := ofKernel(*kernelSteps, 1_000)
	r, err := NewRights(newKernel(t), *rightsSeed)
	for n := 0; n < steps && err == nil; n++ {
		err = r.Step()
	}
	if err != nil {
		t.Fatal(err)
	}
	rows := r.Rows()
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		if rows[name] == 0 && steps >= 8_000 {
			t.Errorf("nothing came to row %q", name)
		}
	}
	t.Log(rows)
}

// bothTargets are both executors as what is compared with the model of rights: what they do must be the same.
type bothTargets struct {
	*compare.Pair
	session *trace.Session
	reached *compare.Reached
}

// Apply implements Target.
func (b *bothTargets) Apply(op datapath.Op, e datapath.Entry) error {
	kernel, golang := b.Kernel.Apply(op, e), b.Golang.Apply(op, e)
	if (kernel == nil) != (golang == nil) {
		return fmt.Errorf("op %d of %+v: kernel says %w, Go says %w", op, e, kernel, golang)
	}
	return golang
}

// Cell implements Target.
func (b *bothTargets) Cell(register string, index int) ([]byte, error) {
	return b.Golang.Register(register, index)
}

// Run implements Target.
func (b *bothTargets) Run(in datapath.Port, frame []byte) (out []Leaves, err error) {
	kernel, golang, differ := b.Differs(in, frame)
	if differ {
		return nil, fmt.Errorf("port %d, packet %x\nkernel: %q\nGo:     %q", in, frame, kernel, golang)
	}
	b.reached.Add(<-b.session.Packets())
	for _, line := range golang {
		l := Leaves{Port: p4.CPUPort}
		if _, err := fmt.Sscanf(line, "out %d: %x", &l.Port, &l.Frame); err != nil {
			if _, err := fmt.Sscanf(line, "cpu: %x", &l.Frame); err != nil {
				continue // a digest
			}
		}
		out = append(out, l)
	}
	return out, nil
}

// TestKernel_Compared runs packets of all kinds on both executors, which must do the same with each, and tells how much of the program's graph they met:
// that is what is compared of the generated code.
func TestKernel_Compared(t *testing.T) {
	if testing.Short() {
		t.Skip("loads the program four times")
	}
	prog := bifrost(t)
	if lacks := ebpf.Lacks(prog, p4.CPUPort); len(lacks) > 0 {
		t.Fatal("eBPF lacks ", lacks)
	}
	w := compare.NewReached(prog)
	for n := range max(*kernelRounds/5, 1) {
		s := *seed + uint64(n)
		p, _ := onBoth(t, ebpf.Config{})
		a := inputs.New(p.Prog, s)
		for range 60 {
			if e, ok := a.Entry(); ok {
				p.Update(t, datapath.Insert, e)
			}
		}
		other := feedBifrost(t, p, Bifrost{rand.New(rand.NewPCG(s, 0))})
		p.Ways(t, w, a, 6000, other, nil, fmt.Sprintf("go test ./p4/difftest -run TestKernel_Compared -seed %d -kernel-rounds 1", s))
	}
	both := func() *bothTargets {
		p, _ := onBoth(t, ebpf.Config{RegisterCells: 512})
		s, err := p.Golang.Trace(trace.Spec{Rate: trace.MaxRate})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Stop)
		return &bothTargets{p, s, w}
	}
	if err := Ports(both()); err != nil {
		t.Error(err)
	}
	r, err := NewRights(both(), *rightsSeed)
	for n := 0; n < *kernelSteps/4 && err == nil; n++ {
		err = r.Step()
	}
	if err != nil {
		t.Error(err)
	}
	shares := w.Shares(prog)
	t.Logf("%s steps, %s ways between them, %s actions of tables", shares[0], shares[1], shares[2])
	if *seed != 1 || *kernelRounds < 10 || *kernelSteps < 8_000 {
		return // other packets may meet less
	}
	for _, m := range w.Missed("bifrost", prog) {
		t.Errorf("no packet has met %s", m)
	}
	if least := 95; shares[1].Met*100 < least*shares[1].Of {
		t.Errorf("%s ways were met, less than %d %%", shares[1], least)
	}
}

// feedBifrost has machines with two copies, and meters that let nothing pass.
func feedBifrost(t *testing.T, p *compare.Pair, m Bifrost) compare.Packet {
	p.Unordered = true
	p.Both(t, func(x datapath.Datapath) error {
		for group := range uint32(10) {
			if err := x.Multicast(group+1, []datapath.Replica{{Port: 2, Instance: 1}, {Port: 3, Instance: 2}, {Port: 4, Instance: 9}}); err != nil {
				return err
			}
		}
		for _, meter := range p.Prog.Meters {
			for cell := range 4 { // of ports
				if err := x.Meter(meter.Name, cell, &datapath.MeterConfig{}); err != nil {
					return err
				}
			}
		}
		return nil
	})
	for range 300 {
		p.Update(t, datapath.Insert, m.Entry())
	}
	return func() (datapath.Port, []byte) {
		p.Update(t, []datapath.Op{datapath.Insert, datapath.Modify, datapath.Delete}[m.IntN(3)], m.Entry())
		in := datapath.Port(m.Pick(1, 2, 3, 4, p4.CPUPort))
		return in, m.Packet(in)
	}
}
