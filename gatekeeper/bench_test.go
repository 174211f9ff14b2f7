package gatekeeper

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/frame"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4/softswitch"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// heldPair makes the frames of a call with a pointer and of its reply, both held,
// from node 1 at port 1 to node 2 at port 2.
func heldPair(s rpcpacket.Slot, n uint64, index int, ps ...dsmpacket.Pointer) (call, reply []byte) {
	return heldPairOf(1, s, n, index, ps...)
}

// heldPairOf is heldPair of another caller: the k-th node, whose incarnation is the rack's k-th, too.
func heldPairOf(k uint32, s rpcpacket.Slot, n uint64, index int, ps ...dsmpacket.Pointer) (call, reply []byte) {
	caller := rackaddr.Node(uint64(k))
	method, _ := rpcpacket.MethodOf("add")
	m := rpcpacket.Message{Header: rpcpacket.Header{
		Type: rpcpacket.Call, Method: method, Slot: s, Number: rpcpacket.NumberOf(k, n), CallerIncarnation: k, CalleeIncarnation: 2, Service: serviceHash(rackaddr.Service("Arrays")), Index: uint32(index),
	}, Lists: rpcpacket.ListsOf(ps...), Payload: make([]byte, 64)}
	m.Call = rpcpacket.PlainID(caller, m.Slot, m.Number)
	proof := endpoint.NewProver(testSecret.Node(caller)).Prove(m.Call, rpcpacket.PolicyNone)
	m.Trailer = append(proof[:], make([]byte, 8)...)
	call = frameOf(&m, caller, rackaddr.Node(2), 1)
	m.Type, m.Flags, m.CalleeIncarnation, m.Lists = rpcpacket.Reply, m.Flags|rpcpacket.FlagHeld, 2, nil
	return call, frameOf(&m, rackaddr.Node(2), caller, 2)
}

// frameOf is a message between the RPC ports of two nodes, from the one at a port of the switch.
func frameOf(m *rpcpacket.Message, src, dst netip.Addr, port byte) []byte {
	return frame.UDP6{
		SrcMAC: frame.MAC{2, 0, 0, 0, 0, port}, DstMAC: frame.MAC{2, 0xb1, 0xf0, 0, 0, 1},
		Src: netip.AddrPortFrom(src, rackaddr.PortRPC), Dst: netip.AddrPortFrom(dst, rackaddr.PortRPC), Payload: m.Append(nil),
	}.Append(nil)
}

// BenchmarkController is a call with a pointer and its reply, without a switch and a
// log: what the loop itself can do while so many other calls are out, each with a
// region of its own.
func BenchmarkController(b *testing.B) {
	for _, others := range []int{10, 1000, 100_000, 1_000_000} {
		b.Run(fmt.Sprintf("others=%d", others), func(b *testing.B) {
			if testing.Short() && others > 100_000 {
				b.Skip("takes a minute and some GiB")
			}
			benchmarkController(b, others)
		})
	}
}

func benchmarkController(b *testing.B, others int) {
	s := newSolo(b)
	p := s.region(rackaddr.Node(1), 1)
	const each = 50_000 // calls of one node
	for i := range others {
		caller, slot := uint32(i/each)+3, otherSlot(i)
		s.blocks.has(rackaddr.Node(uint64(caller)), slot.Block())
		if i%each == 0 {
			s.ask(b, 1, control.KindJoin, control.Join{Blade: "c1", Name: "program", Token: uint64(i/each) + 2})
		}
		call, _ := heldPairOf(caller, slot, 1, 0, s.region(rackaddr.Node(uint64(caller)), uint64(i)+2))
		s.packetIn(1, reasonCall, call)
		s.obey()
	}
	if n := s.leases.Calls(); n != others {
		b.Fatalf("%d calls are out, want %d: %+v", n, others, s.count)
	}
	s.measure(b, p)
}

// firstSlot is node 1's first slot, and otherSlot is one of further ones.
const firstSlot = rpcpacket.BlockSlots

func otherSlot(i int) rpcpacket.Slot { return rpcpacket.Slot(8*rpcpacket.BlockSlots + i) }

// measure makes a call at a time.
func (s *solo) measure(b *testing.B, ps ...dsmpacket.Pointer) {
	s.sent = 0
	b.ReportAllocs()
	n := uint64(0)
	for b.Loop() {
		n++
		call, reply := heldPair(firstSlot, n, 0, ps...)
		s.packetIn(1, reasonCall, call)
		s.obey()
		s.packetIn(2, reasonCall, reply)
		s.obey()
	}
	if s.sent != 2*int(n) {
		b.Fatalf("%d packets went on, want %d: %+v", s.sent, 2*n, s.count)
	}
	b.ReportMetric(2*float64(n)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkLoans is an exactly-once call by reference of a plain client, and its answer, without a switch and a log, while so many
// other calls of other clients are on record, each in a slot of its own. It winds the timer as the loop does.
func BenchmarkLoans(b *testing.B) {
	for _, others := range []int{0, 1024, 8192, 32_768} {
		b.Run(fmt.Sprintf("others=%d", others), func(b *testing.B) {
			s := newSolo(b)
			p := s.region(rackaddr.Node(1), 1)
			for i := range others {
				slot := otherSlot(i)
				s.blocks.has(rackaddr.Node(1), slot.Block())
				call, _ := directPair(b, s, slot, 1, s.region(rackaddr.Node(1), uint64(i)+2))
				s.packetIn(1, reasonCall, call)
				s.obey()
			}
			if len(s.loans) != others {
				b.Fatalf("%d calls are on record, want %d: %+v", len(s.loans), others, s.count)
			}
			s.sent = 0
			b.ReportAllocs()
			n := uint64(0)
			for b.Loop() {
				n++
				call, reply := directPair(b, s, firstSlot, n, p)
				s.packetIn(1, reasonCall, call)
				s.obey()
				s.deadline()
				s.packetIn(2, reasonCall, reply)
				s.obey()
				s.deadline()
			}
			if s.sent != 2*int(n) {
				b.Fatalf("%d packets went on, want %d: %+v", s.sent, 2*n, s.count)
			}
		})
	}
}

// directPair makes the frames of an exactly-once call of node 1's session that lends a region to node 2, and of its answer.
func directPair(b *testing.B, s *solo, slot rpcpacket.Slot, number uint64, p dsmpacket.Pointer) (call, reply []byte) {
	b.Helper()
	method, err := rpcpacket.MethodOf("add")
	if err != nil {
		b.Fatal(err)
	}
	m := rpcpacket.Message{Header: rpcpacket.Header{
		Type: rpcpacket.Call, Flags: rpcpacket.FlagHeld.WithPolicy(rpcpacket.PolicyRecover), Method: method,
		Slot: slot, Number: rpcpacket.NumberOf(1, number), CallerIncarnation: 1,
		Service: serviceHash(rackaddr.Service("Arrays")),
	}, Lists: rpcpacket.ListsOf(p), Payload: make([]byte, 64)}
	m.Call = rpcpacket.PlainID(rackaddr.Node(1), m.Slot, m.Number)
	proof := endpoint.NewProver(s.secret.Node(rackaddr.Node(1))).Prove(m.Call, rpcpacket.PolicyRecover)
	m.Trailer = append(proof[:], make([]byte, 8)...)
	call = frameOf(&m, rackaddr.Node(1), rackaddr.Node(2), 1)
	m.Type, m.CalleeIncarnation, m.Lists, m.Trailer = rpcpacket.Reply, 2, nil, nil
	return call, frameOf(&m, rackaddr.Node(2), rackaddr.Node(1), 2)
}

// BenchmarkDirectCalls is what a node tells of direct calls that have ended: what such a call costs
// the loop, with as many in a message as it holds, and with a few.
func BenchmarkDirectCalls(b *testing.B) {
	for _, each := range []int{1, 16, control.MaxDirectCalls} {
		b.Run(fmt.Sprintf("each=%d", each), func(b *testing.B) {
			s := newSolo(b)
			q := control.NodeCalls{Node: rackaddr.Node(2), Incarnation: 2, First: true}
			calls := uint64(0)
			b.ReportAllocs()
			for b.Loop() {
				q.Ended = q.Ended[:0]
				for range each {
					calls++
					q.Ended = append(q.Ended, control.DirectCall{
						ID: control.ExecutionID(rpcpacket.PlainID(rackaddr.Node(1), 7, rpcpacket.Number(calls))), Caller: rackaddr.Node(1), Incarnation: 1,
						Service: "Arrays", Method: "add", Began: 1000, Took: 100,
					})
				}
				q.Counts = []control.MethodCount{{Service: "Arrays", Method: "add", Calls: calls}}
				s.ask(b, 2, control.KindCalls, q)
				q.First = false
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(calls), "ns/call")
		})
	}
}

// BenchmarkHeldCall is BenchmarkController through the real switch and P4Runtime, with so
// many calls out at a time, each on a region of its own; without a log, with one
// in the page cache, and with one on disk.
func BenchmarkHeldCall(b *testing.B) {
	for _, logged := range []string{"none", "cache", "sync"} {
		for _, parallel := range []int{1, 16, 256} {
			b.Run(fmt.Sprintf("log=%s/parallel=%d", logged, parallel), func(b *testing.B) {
				cfg := Config{Heartbeat: time.Hour} // there is none here
				if logged != "none" {
					var err error
					if cfg.Store, err = wal.Open(b.TempDir(), wal.Options{Sync: logged == "sync"}); err != nil {
						b.Fatal(err)
					}
				}
				benchmarkHeldCall(b, cfg, parallel)
			})
		}
	}
}

func benchmarkHeldCall(b *testing.B, cfg Config, parallel int) {
	r := newRack(b)
	r.settle = r.quiet
	r.start(cfg)
	m1 := r.plug(3)
	m1.hello("m1", control.Memory)
	var nodes []*testNode
	for i, name := range []string{"c1", "s1"} {
		blade := r.plug(uint16(i + 1))
		blade.hello(name, control.Compute)
		nodes = append(nodes, blade.join(name, "program"))
	}
	if err := nodes[1].export("Arrays", "add"); err != nil {
		b.Fatal(err)
	}
	l := load{b: b, sw: r.sw, calls: uint64(b.N), done: make(chan struct{})}
	r.settle = func() {}
	for i := range parallel {
		p := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(uint32(i+1), 1))
		m1.allocated(nodes[0], p)
		l.pointers, l.slots = append(l.pointers, p), append(l.slots, nodes[0].slot(uint32(i)))
	}
	for len(r.snapshot().Regions) < parallel {
		r.quiet()
	}
	l.caller, l.callee = l.atCaller, l.atCallee
	nodes[0].tap.Store(&l.caller)
	nodes[1].tap.Store(&l.callee)
	b.ResetTimer()
	for i := range min(parallel, b.N) {
		l.next(i)
	}
	l.wait(r)
	b.ReportMetric(2*float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// quiet waits until nothing has arrived at any blade for some milliseconds; real
// time has no better sign that a rack has settled.
func (r *rack) quiet() {
	ticks := time.NewTicker(time.Millisecond)
	defer ticks.Stop()
	for last, same := -1, 0; same < 20; {
		<-ticks.C
		if n := int(r.frames.Load()); n != last {
			last, same = n, 0
		} else {
			same++
		}
	}
}

// load keeps a number of calls going until enough are done.
type load struct {
	b        *testing.B
	sw       *softswitch.Switch
	pointers []dsmpacket.Pointer
	slots    []rpcpacket.Slot
	calls    uint64
	began    atomic.Uint64
	ended    atomic.Uint64
	done     chan struct{}

	caller, callee func([]byte)
}

// wait waits for the last reply. Nothing is sent again, so a lost packet would
// stop the run: it fails when it stands still.
func (l *load) wait(r *rack) {
	ticks := time.NewTicker(10 * time.Second)
	defer ticks.Stop()
	for last := uint64(0); ; {
		select {
		case <-l.done:
			return
		case <-ticks.C:
		}
		n := l.ended.Load()
		if n == last {
			l.b.Fatalf("stands still after %d of %d calls: %+v, switch %+v", n, l.calls, r.snapshot().Counters, r.sw.Server().Stats())
		}
		last = n
	}
}

// next begins a call on the i-th region, unless enough have begun.
func (l *load) next(i int) {
	if n := l.began.Add(1); n <= l.calls {
		call, _ := heldPair(l.slots[i], n, i, l.pointers[i])
		go l.sw.Input(1, call)
	}
}

// atCallee answers a call.
func (l *load) atCallee(f []byte) {
	if m, err := rpcpacket.Parse(f[frame.HeaderSize:]); err == nil && m.Type == rpcpacket.Call {
		_, reply := heldPair(m.Slot, m.Number.Count(), int(m.Index), m.Bases(rackaddr.DefaultDSMPrefix)[0])
		go l.sw.Input(2, reply)
	}
}

// atCaller takes a reply and begins the next call.
func (l *load) atCaller(f []byte) {
	m, err := rpcpacket.Parse(f[frame.HeaderSize:])
	if err != nil {
		return // control
	}
	if m.Type != rpcpacket.Reply {
		l.b.Errorf("got %+v", m)
	}
	if l.ended.Add(1) == l.calls {
		close(l.done)
		return
	}
	l.next(int(m.Index))
}
