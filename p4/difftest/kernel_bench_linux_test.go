//go:build linux

package difftest

import (
	"encoding/binary"
	"errors"
	"math"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4/rights"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	bpf "github.com/bifrost-rack/bifrost/p4switch/ebpf"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/p4switch/shared/privilege"
	"github.com/bifrost-rack/bifrost/p4switch/trace"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// What the program takes for a packet, without the kernel around it: forwarded by
// address, and a read of memory by who owns the region. The least of
// many runs is told, since others may have the CPU.
func BenchmarkProgram(b *testing.B) {
	x := forwarding(b)
	memory := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(77, 1)).With(dsmpacket.OpRead)
	if err := errors.Join(
		x.SetRegister("BifrostIngress.rights.switch_state", 1, []byte{7: 1}), x.SetRegister("BifrostIngress.rights.words", 77, []byte{2: 1, 4: 0x10, 6: 0})); err != nil {
		b.Fatal(err)
	}
	h := dsmpacket.Header{Kind: dsmpacket.Request, Length: 8}
	request := func(to dsmpacket.Pointer) []byte {
		return frame.UDP6{Src: netip.AddrPortFrom(benchA, rackaddr.PortDSM), Dst: netip.AddrPortFrom(netip.AddrFrom16(to), rackaddr.PortDSM), Payload: h.Append(nil)}.Append(nil)
	}
	read := request(memory)
	denied := request(dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(20_099, 1)).With(dsmpacket.OpRead))
	for _, c := range []struct {
		name   string
		frame  []byte
		repeat int           // at once
		pace   time.Duration // between runs
		counts p4.Verdict
	}{
		{"forward", toB(), 250, 0, p4.Forwarded},
		{"read", read, 250, 0, p4.Forwarded},
		{"digest", denied, 1, 20 * time.Microsecond, p4.Denied}, // and what waking its reader takes
	} {
		b.Run(c.name, func(b *testing.B) {
			c.frame[21] = math.MaxUint8 // every repetition goes on with a hop less
			before := passed(b, x, c.counts)
			var took []time.Duration
			for b.Loop() {
				d, err := x.Benchmark(1, c.frame, c.repeat)
				if err != nil {
					b.Fatal(err)
				}
				took = append(took, d)
				for next := time.Now().Add(c.pace); time.Now().Before(next); {
					continue
				}
			}
			if n := passed(b, x, c.counts) - before; n < uint64(c.repeat*len(took)) { // more if a signal interrupts a run
				b.Fatalf("%d of %d packets were counted", n, c.repeat*len(took))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[0].Nanoseconds()), "ns/packet")
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns/packet")
		})
	}
}

// BenchmarkTraced is what forwarding takes without a trace, while packets of another port are traced, and while all are, 100 a second.
func BenchmarkTraced(b *testing.B) {
	for _, c := range []struct {
		name string
		spec *trace.Spec
	}{{"never", nil}, {"others", &trace.Spec{Filter: []string{"port=9"}}}, {"all", &trace.Spec{}}} {
		b.Run(c.name, func(b *testing.B) {
			x := forwarding(b)
			if c.spec != nil {
				s, err := x.Trace(*c.spec)
				if err != nil {
					b.Fatal(err)
				}
				defer s.Stop()
			}
			packet := toB()
			packet[21] = math.MaxUint8
			var took []time.Duration
			for b.Loop() {
				d, err := x.Benchmark(1, packet, 250)
				if err != nil {
					b.Fatal(err)
				}
				took = append(took, d)
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[0].Nanoseconds()), "ns/packet")
		})
	}
}

var benchA, benchB = netip.MustParseAddr("fd00::a"), netip.MustParseAddr("fd00::b")

// toB is a frame from node A to node B.
func toB() []byte {
	return frame.UDP6{Src: netip.AddrPortFrom(benchA, 1), Dst: netip.AddrPortFrom(benchB, 7), Payload: []byte("x")}.Append(nil)
}

// forwarding is an executor in which node A is at port 1, and node B and memory machine 1 are at port 2, which is an interface that nothing reaches.
func forwarding(b *testing.B) *bpf.Executor {
	b.Helper()
	privilege.Need(b)
	x, err := bpf.New(bifrost(b), bpf.Config{CPUPort: p4.CPUPort})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = x.Close() })
	whole := func(a netip.Addr) datapath.Match { return datapath.Match{Value: a.AsSlice(), PrefixLen: 128} }
	machine := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, 0)
	toHop := func(table string, match datapath.Match) datapath.Entry {
		return datapath.Entry{Table: "BifrostIngress." + table, Match: []datapath.Match{match}, Action: &datapath.Action{Name: "BifrostIngress.to_hop", Params: [][]byte{{0, 1}}}}
	}
	err = x.Announce(2, "lo")
	for _, e := range []datapath.Entry{
		{Table: "BifrostIngress.identity", Match: []datapath.Match{exactly(be16(1)), whole(benchA)}, Action: &datapath.Action{Name: "BifrostIngress.known", Params: p4.Known(p4.Node, 1, 0)}},
		toHop("l3", whole(benchB)), toHop("dsm_home", exactly(machine[:6])),
		{Table: "BifrostIngress.next_hop", Match: []datapath.Match{exactly(be16(1))}, Action: &datapath.Action{Name: "BifrostIngress.forward", Params: [][]byte{{0, 2}, make([]byte, 6), make([]byte, 6)}}},
	} {
		err = errors.Join(err, x.Apply(datapath.Insert, e))
	}
	if err != nil {
		b.Fatal(err)
	}
	return x
}

// passed counts the packets of a benchmark's ports that had a verdict.
func passed(b *testing.B, x *bpf.Executor, v p4.Verdict) (n uint64) {
	b.Helper()
	for port := range uint16(8) {
		c, err := x.Counter("BifrostIngress.verdicts", v.Cell(port))
		if err != nil {
			b.Fatal(err)
		}
		n += c.Packets
	}
	return n
}

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
				before := passed(b, k, p4.Forwarded)
				d, err := k.Benchmark(datapath.Port(p.Source.Port), f, repeat)
				if err != nil {
					b.Fatal(err)
				}
				if n := passed(b, k, p4.Forwarded) - before; n < uint64(repeat) { //nolint:gosec // small
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
			before := passed(b, x, p4.Forwarded)
			const calls = 200
			var took []time.Duration
			for b.Loop() {
				d, err := bpf.RunTimed(m.program, 0, m.frame, 2*calls)
				if err != nil {
					b.Fatal(err)
				}
				took = append(took, 2*d)
			}
			if made, err := m.work.LookupBytes(uint32(0)); err != nil || made[0]&1 != 0 { // a signal has ended a run behind a call
				if _, err2 := bpf.RunTimed(m.program, 0, m.frame, 1); errors.Join(err, err2) != nil {
					b.Fatal(err, err2)
				}
			}
			if n := passed(b, x, p4.Forwarded) - before; c.slot == 0 && n < uint64(2*calls*len(took)) {
				b.Fatalf("%d of %d packets passed", n, 2*calls*len(took))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[0].Nanoseconds()), "ns/packet")
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns/packet")
		})
	}
}

// rightsBench is an executor in which node 1 owns regions.
func rightsBench(b *testing.B) (*bpf.Executor, *rightsWork) {
	b.Helper()
	privilege.Need(b)
	k := &kernel{}
	var err error
	if k.Executor, err = bpf.New(bifrost(b), bpf.Config{CPUPort: p4.CPUPort, Sink: k}); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = k.Close() })
	tables, err := NewRights(discardCells{k}, 1)
	if err != nil {
		b.Fatal(err)
	}
	tables.CallPort = rackaddr.PortDirect
	for port := range uint32(4) {
		if err := k.Announce(datapath.Port(port+1), "lo"); err != nil {
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
		if _, err := k.Benchmark(datapath.Port(p.Source.Port), tables.Frame(&p), 1); err != nil {
			b.Fatal(err)
		}
	}
	return k.Executor, w
}

// callMaker is a program that makes a call of each even packet and its answer of each odd one, and hands them to the switch's.
type callMaker struct {
	program *ebpf.Program
	work    *ebpf.Map // begins with how many it has made
	frame   []byte    // that it makes them of
}

func (w *rightsWork) maker(b *testing.B, x *bpf.Executor, slot int32, all ...rights.Packet) callMaker {
	b.Helper()
	const (
		room, port = 512, 504
		number     = 14 + 40 + 8 + 56
	)
	ne, to := binary.NativeEndian, x.TailCall()
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
		asm.LoadMem(asm.R1, asm.R9, 8+port, asm.Word), asm.StoreMem(asm.R6, to.Port, asm.R1, asm.Word),
		asm.StoreImm(asm.R6, to.Sum, 0, asm.Word), // as the stub does
		asm.Mov.Reg(asm.R1, asm.R6), asm.LoadMapPtr(asm.R2, to.Slot.FD()), asm.Mov.Imm(asm.R3, slot), asm.FnTailCall.Call(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("out"), asm.Return())
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "maker", Type: ebpf.SchedCLS, Instructions: code, License: "Apache-2.0"})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = p.Close() })
	return callMaker{p, work, make([]byte, length)}
}

// discardCells does not read all registers behind each packet.
type discardCells struct{ *kernel }

func (d discardCells) Cell(register string, index int) ([]byte, error) {
	return d.Register(register, index)
}

func (d discardCells) Run(in datapath.Port, b []byte) ([]Leaves, error) {
	d.out = nil
	err := d.Test(in, b, d.emit)
	return d.out, err
}

// rightsWork makes the packets of two nodes and a memory server.
type rightsWork struct {
	tables  *Rights
	regions []rights.Region
	counter uint64
	last    rights.Packet // the last call
	next    uint32        // generation
}

func (w *rightsWork) access(kind rights.Kind) func() rights.Packet {
	return func() rights.Packet {
		return rights.Packet{Kind: kind, Source: NodeSource(1), To: MemorySource().Address, Incarnation: 1, Machine: 1, Region: w.regions[0]}
	}
}

func (w *rightsWork) bySlot() rights.Packet {
	p := w.access(rights.Read)()
	p.Source, p.Ref = NodeSource(2), w.last.Ref
	return p
}

func (w *rightsWork) answer(r rights.Region) rights.Packet {
	return rights.Packet{
		Kind: rights.AllocAnswer, Source: MemorySource(), To: NodeSource(1).Address, Incarnation: 1, Machine: 1, OK: true, Region: r,
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
			Kind: rights.Call, Source: NodeSource(1), To: NodeSource(2).Address, Incarnation: 1,
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
	return rights.Packet{Kind: rights.Reply, Source: NodeSource(2), To: NodeSource(1).Address, Incarnation: 1, Ref: w.last.Ref}
}

func (w *rightsWork) ask() rights.Packet {
	return rights.Packet{Kind: rights.Ask, Source: NodeSource(1), To: NodeSource(2).Address, Incarnation: 1, Ref: w.last.Ref}
}
