//go:build linux

package ebpf

import (
	"errors"
	"math"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/frame"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/trace"
)

// What the program takes for a packet, without the kernel around it: forwarded by
// address, and a read of memory by who owns the region. The least of
// many runs is told, since others may have the CPU.
func BenchmarkProgram(b *testing.B) {
	x := start(b, nil, route(), hop(), at(0, nodeA))
	if err := x.maps.ports.Put(uint32(2), description(1, math.MaxUint16, false)); err != nil {
		b.Fatal(err)
	}
	memory := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(77, 1)).With(dsmpacket.OpRead)
	if err := errors.Join(x.Apply(datapath.Insert, memoryHome()),
		x.SetRegister("BifrostIngress.rights.switch_state", 1, []byte{7: 1}), x.SetRegister("BifrostIngress.rights.words", 77, []byte{2: 1, 4: 0x10, 6: 0})); err != nil {
		b.Fatal(err)
	}
	h := dsmpacket.Header{Kind: dsmpacket.Request, Length: 8}
	read := frame.UDP6{Src: netip.AddrPortFrom(nodeA, rackaddr.PortDSM), Dst: netip.AddrPortFrom(netip.AddrFrom16(memory), rackaddr.PortDSM), Payload: h.Append(nil)}
	for _, c := range []struct {
		name   string
		frame  []byte
		repeat int           // at once
		pace   time.Duration // between runs
		counts p4.Verdict
	}{
		{"forward", datagram(7), 250, 0, p4.Forwarded},
		{"read", read.Append(nil), 250, 0, p4.Forwarded},
		{"digest", denied(0), 1, 20 * time.Microsecond, p4.Denied}, // and what waking its reader takes
	} {
		b.Run(c.name, func(b *testing.B) {
			c.frame[21] = math.MaxUint8 // every repetition goes on with a hop less
			before := verdicts(b, x, c.counts)
			var took []time.Duration
			for b.Loop() {
				_, d, err := x.main.Benchmark(c.frame, c.repeat, nil)
				if err != nil {
					b.Fatal(err)
				}
				took = append(took, d)
				for next := time.Now().Add(c.pace); time.Now().Before(next); {
					continue
				}
			}
			if n := verdicts(b, x, c.counts) - before; n < uint64(c.repeat*len(took)) { // more if a signal interrupts a run
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
			x := start(b, nil, route(), hop(), at(0, nodeA))
			if err := x.maps.ports.Put(uint32(2), description(1, math.MaxUint16, false)); err != nil {
				b.Fatal(err)
			}
			if c.spec != nil {
				s, err := x.Trace(*c.spec)
				if err != nil {
					b.Fatal(err)
				}
				defer s.Stop()
			}
			packet := datagram(7)
			packet[21] = math.MaxUint8
			var took []time.Duration
			for b.Loop() {
				_, d, err := x.running().Benchmark(packet, 250, nil)
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

// at lets a node speak at a port.
func at(port byte, a netip.Addr) datapath.Entry {
	e := known()
	e.Match = []datapath.Match{{Value: []byte{0, port}}, whole(a)}
	return e
}
