//go:build linux

package ebpf

import (
	"encoding/binary"
	"errors"
	"runtime"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/difftest"
	"github.com/bifrost-rack/bifrost/p4/rights"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// BenchmarkRights is what the program takes for packets of nodes with rows, without the kernel around it. Most packets change registers, so each
// runs alone, which takes some more than in a row: compare "write" and "write-alone".
func BenchmarkRights(b *testing.B) {
	k, w := rightsBench(b)
	for _, c := range []struct {
		name   string
		repeat int
		before []func() rights.Packet // what comes first, each time
		packet func() rights.Packet
		after  []func() rights.Packet
		counts p4.Verdict
	}{
		{name: "write", repeat: 250, packet: w.access(rights.Write)},
		{name: "write-alone", repeat: 1, packet: w.access(rights.Write)},
		{name: "free", repeat: 250, packet: w.access(rights.Free)},
		{name: "read-own", repeat: 250, packet: w.access(rights.Read)},
		{name: "read-by-slot", repeat: 250, before: []func() rights.Packet{w.call(1)}, packet: w.bySlot, after: []func() rights.Packet{w.reply}},
		{name: "alloc", repeat: 250, packet: w.access(rights.Alloc)},
		{name: "alloc-answer", repeat: 1, packet: w.allocated},
		{name: "call-0", repeat: 1, packet: w.call(0), after: []func() rights.Packet{w.reply}},
		{name: "call-1", repeat: 1, packet: w.call(1), after: []func() rights.Packet{w.reply}},
		{name: "call-4", repeat: 1, packet: w.call(4), after: []func() rights.Packet{w.reply}},
		{name: "call-16", repeat: 1, packet: w.call(16), after: []func() rights.Packet{w.reply}},
		{name: "call-copy-1", repeat: 250, before: []func() rights.Packet{w.call(1)}, packet: w.again, after: []func() rights.Packet{w.reply}},
		{name: "reply-0", repeat: 1, before: []func() rights.Packet{w.call(0)}, packet: w.reply},
		{name: "reply-1", repeat: 1, before: []func() rights.Packet{w.call(1)}, packet: w.reply},
		{name: "reply-4", repeat: 1, before: []func() rights.Packet{w.call(4)}, packet: w.reply},
		{name: "reply-16", repeat: 1, before: []func() rights.Packet{w.call(16)}, packet: w.reply},
		{name: "ask", repeat: 250, packet: w.ask},
	} {
		b.Run(c.name, func(b *testing.B) {
			run := func(next func() rights.Packet, repeat int) time.Duration {
				p := next()
				f := w.tables.Frame(&p)
				f[21] = 255 // hop limit
				before := verdicts(b, k, p4.Forwarded)
				d, err := timed(k.main.FD(), int(p.Source.Port), f, repeat)
				if err != nil {
					b.Fatal(err)
				}
				if n := verdicts(b, k, p4.Forwarded) - before; n < uint64(repeat) { //nolint:gosec // small
					b.Fatalf("%d of %d packets %+v passed", n, repeat, p)
				}
				return d
			}
			var took []time.Duration
			for b.Loop() {
				for _, p := range c.before {
					run(p, 1)
				}
				took = append(took, run(c.packet, c.repeat))
				for _, p := range c.after {
					run(p, 1)
				}
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[0].Nanoseconds()), "ns/packet")
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns/packet")
		})
	}
}

// BenchmarkCalls is what a call and its answer take together, one after the other as they come at full rate. "harness" is what it takes to make
// the two packets, which the other figures have in them.
func BenchmarkCalls(b *testing.B) {
	x, w := rightsBench(b)
	for _, c := range []struct {
		name    string
		regions int
		slot    int32
	}{{"harness", 0, 1}, {"regions-0", 0, 0}, {"regions-1", 1, 0}, {"regions-4", 4, 0}, {"regions-16", 16, 0}} {
		b.Run(c.name, func(b *testing.B) {
			call := w.call(c.regions)()
			answer := w.reply()
			m := w.maker(b, x, c.slot, call, answer)
			before := verdicts(b, x, p4.Forwarded)
			const calls = 200
			var took []time.Duration
			for b.Loop() {
				d, err := timed(m.program.FD(), 0, m.frame, 2*calls)
				if err != nil {
					b.Fatal(err)
				}
				took = append(took, 2*d)
			}
			if made, err := m.work.LookupBytes(uint32(0)); err != nil || made[0]&1 != 0 { // a signal has ended a run behind a call
				if _, err2 := timed(m.program.FD(), 0, m.frame, 1); errors.Join(err, err2) != nil {
					b.Fatal(err, err2)
				}
			}
			if n := verdicts(b, x, p4.Forwarded) - before; c.slot == 0 && n < uint64(2*calls*len(took)) {
				b.Fatalf("%d of %d packets passed", n, 2*calls*len(took))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[0].Nanoseconds()), "ns/packet")
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns/packet")
		})
	}
}

// rightsBench is an executor in which node 1 owns regions.
func rightsBench(b *testing.B) (*Executor, *rightsWork) {
	b.Helper()
	needRoot(b)
	k := &target{}
	var err error
	if k.Executor, err = New(bifrost(b), Config{CPUPort: p4.CPUPort, Sink: k}); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = k.Close() })
	tables, err := difftest.NewRights(discardCells{k}, 1)
	if err != nil {
		b.Fatal(err)
	}
	tables.CallPort = rackaddr.PortDirect
	for port := range uint32(4) {
		if err := k.maps.ports.Put(port+1, description(1, 1500, false)); err != nil {
			b.Fatal(err)
		}
		// At full rate nearly all digests of half used batches are beyond their rate.
		if err := k.Meter("BifrostIngress.rights.half_used_digests", int(port)+1, &datapath.MeterConfig{CIR: 1, CBurst: 1, PIR: 1, PBurst: 1}); err != nil {
			b.Fatal(err)
		}
	}
	w := &rightsWork{tables: tables, counter: 2}
	for i := range uint32(16) {
		w.regions = append(w.regions, rights.Region{Slot: rights.Rack.Batch + i, Generation: 1})
		p := w.answer(w.regions[i])
		if _, err := timed(k.main.FD(), int(p.Source.Port), tables.Frame(&p), 1); err != nil {
			b.Fatal(err)
		}
	}
	return k.Executor, w
}

// packets is a program that makes a call of each even packet and its answer of each odd one, and hands them to the switch's.
type packets struct {
	program *ebpf.Program
	work    *ebpf.Map // begins with how many it has made
	frame   []byte    // that it makes them of
}

func (w *rightsWork) maker(b *testing.B, x *Executor, slot int32, all ...rights.Packet) packets {
	b.Helper()
	const (
		room, port = 512, 504
		number     = 14 + 40 + 8 + 56
	)
	ne := binary.NativeEndian
	value, length := make([]byte, 8+2*room), 0
	ne.PutUint64(value, w.counter)
	w.counter += 1 << 26 // more than there will be
	for i := range all {
		f := w.tables.Frame(&all[i])
		f[21] = 255
		copy(value[8+i*room:], f)
		ne.PutUint32(value[8+i*room+port:], uint32(all[i].Source.Port))
		length = max(length, len(f))
	}
	work, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: uint32(len(value)), MaxEntries: 1})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = work.Close() })
	if err := work.Put(uint32(0), value); err != nil {
		b.Fatal(err)
	}
	store := func(at, n int32) asm.Instructions { // of what R3 points to
		return asm.Instructions{
			asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, at), asm.Mov.Imm(asm.R4, n), asm.Mov.Imm(asm.R5, 0), asm.FnSkbStoreBytes.Call(),
		}
	}
	code := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1), asm.StoreImm(asm.R10, -4, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, work.FD()), asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -4), asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"), asm.Mov.Reg(asm.R7, asm.R0),
		asm.LoadMem(asm.R8, asm.R7, 0, asm.DWord), asm.Mov.Reg(asm.R1, asm.R8), asm.Add.Imm(asm.R1, 1), asm.StoreMem(asm.R7, 0, asm.R1, asm.DWord),
		asm.Mov.Reg(asm.R9, asm.R8), asm.And.Imm(asm.R9, 1), asm.Mul.Imm(asm.R9, room), asm.Add.Reg(asm.R9, asm.R7),
		asm.Mov.Reg(asm.R3, asm.R9), asm.Add.Imm(asm.R3, 8),
	}
	code = append(code, store(0, int32(length))...)
	code = append(code,
		asm.And.Imm(asm.R8, -2), asm.LoadImm(asm.R1, int64(rights.MakeNumber(1, 0)), asm.DWord), asm.Add.Reg(asm.R8, asm.R1),
		asm.HostTo(asm.BE, asm.R8, asm.DWord), asm.StoreMem(asm.R10, -16, asm.R8, asm.DWord),
		asm.Mov.Reg(asm.R3, asm.R10), asm.Add.Imm(asm.R3, -16))
	code = append(code, store(number, 8)...)
	code = append(code,
		asm.LoadMem(asm.R1, asm.R9, 8+port, asm.Word), asm.StoreMem(asm.R6, cbPort, asm.R1, asm.Word),
		asm.StoreImm(asm.R6, cbSum, 0, asm.Word), // as the stub does
		asm.Mov.Reg(asm.R1, asm.R6), asm.LoadMapPtr(asm.R2, x.slot.FD()), asm.Mov.Imm(asm.R3, slot), asm.FnTailCall.Call(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("out"), asm.Return())
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "maker", Type: ebpf.SchedCLS, Instructions: code, License: "Apache-2.0"})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = p.Close() })
	return packets{p, work, make([]byte, length)}
}

// discardCells does not read all registers behind each packet.
type discardCells struct{ *target }

func (d discardCells) Cell(register string, index int) ([]byte, error) {
	return d.Register(register, index)
}

func (d discardCells) Run(in datapath.Port, b []byte) ([]difftest.Leaves, error) {
	d.out = nil
	err := d.test(in, b, d.emit)
	return d.out, err
}

// rightsWork makes the packets of two nodes and a memory server.
type rightsWork struct {
	tables  *difftest.Rights
	regions []rights.Region
	counter uint64
	last    rights.Packet // the last call
	next    uint32        // generation
}

func (w *rightsWork) access(kind rights.Kind) func() rights.Packet {
	return func() rights.Packet {
		return rights.Packet{Kind: kind, Source: difftest.NodeSource(1), To: difftest.MemorySource().Address, Incarnation: 1, Machine: 1, Region: w.regions[0]}
	}
}

func (w *rightsWork) bySlot() rights.Packet {
	p := w.access(rights.Read)()
	p.Source, p.Ref = difftest.NodeSource(2), w.last.Ref
	return p
}

func (w *rightsWork) answer(r rights.Region) rights.Packet {
	return rights.Packet{
		Kind: rights.AllocAnswer, Source: difftest.MemorySource(), To: difftest.NodeSource(1).Address, Incarnation: 1, Machine: 1, OK: true, Region: r,
	}
}

func (w *rightsWork) allocated() rights.Packet {
	w.next++
	return w.answer(rights.Region{Slot: rights.Rack.Batch + 20, Generation: w.next})
}

// call is a new call of node 1 to node 2 that lends regions.
func (w *rightsWork) call(regions int) func() rights.Packet {
	return func() rights.Packet {
		w.counter += 2
		w.last = rights.Packet{
			Kind: rights.Call, Source: difftest.NodeSource(1), To: difftest.NodeSource(2).Address, Incarnation: 1,
			Ref: rights.Ref{Slot: rights.Rack.Block, Number: rights.MakeNumber(1, w.counter)},
		}
		for some := range slices.Chunk(w.regions[:regions], 4) {
			w.last.Blocks = append(w.last.Blocks, rights.Block{Regions: some})
		}
		if regions == 0 {
			w.last.Blocks = []rights.Block{{}}
		}
		return w.last
	}
}

func (w *rightsWork) again() rights.Packet { return w.last }

func (w *rightsWork) reply() rights.Packet {
	return rights.Packet{Kind: rights.Reply, Source: difftest.NodeSource(2), To: difftest.NodeSource(1).Address, Incarnation: 1, Ref: w.last.Ref}
}

func (w *rightsWork) ask() rights.Packet {
	return rights.Packet{Kind: rights.Ask, Source: difftest.NodeSource(1), To: difftest.NodeSource(2).Address, Incarnation: 1, Ref: w.last.Ref}
}

// timed runs a frame that comes by a port some times, and returns how long one took.
func timed(program, port int, frame []byte, repeat int) (time.Duration, error) {
	ctx := skBuff{CB: [5]uint32{uint32(port)}} //nolint:gosec // small
	attr := struct {
		prog, ret, inSize, outSize uint32
		in, out                    uint64
		repeat, duration           uint32
		ctxInSize, ctxOutSize      uint32
		ctxIn, ctxOut              uint64
		flags, cpu, batch, _       uint32
	}{
		prog: uint32(program), inSize: uint32(len(frame)), in: uint64(uintptr(unsafe.Pointer(&frame[0]))), repeat: uint32(repeat), //nolint:gosec // small
		ctxInSize: uint32(unsafe.Sizeof(ctx)), ctxIn: uint64(uintptr(unsafe.Pointer(&ctx))),
	}
	const progTestRun = 10
	errno := unix.EINTR
	for errno == unix.EINTR {
		_, _, errno = unix.Syscall(unix.SYS_BPF, progTestRun, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	}
	runtime.KeepAlive(frame)
	runtime.KeepAlive(&ctx)
	if errno != 0 {
		return 0, errno
	}
	return time.Duration(attr.duration), nil
}
