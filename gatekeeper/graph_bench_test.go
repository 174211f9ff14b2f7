package gatekeeper

import (
	"fmt"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// BenchmarkGraph is a call with a pointer and its reply, without a switch, while so
// many calls are under way that are not held: what the call graph costs the loop.
func BenchmarkGraph(b *testing.B) {
	for _, others := range []int{10, 1000, 100_000, 1_000_000} {
		b.Run(fmt.Sprintf("active=%d", others), func(b *testing.B) {
			s := newSolo(b)
			p := s.region(rackaddr.Node(1), 1)
			from, to, service := s.nodes[rackaddr.Node(1)], s.nodes[rackaddr.Node(2)], s.services[rackaddr.Service("Arrays")]
			method, err := rpcpacket.MethodOf("add")
			if err != nil {
				b.Fatal(err)
			}
			for i := range others {
				m := rpcpacket.Header{Type: rpcpacket.Call, Method: method, Call: rpcpacket.SessionID(uint64(i)+2, 1)}
				if why := s.unheld(from, to, service, &m); why != nil {
					b.Fatal(why)
				}
			}
			s.sent = 0
			b.ReportAllocs()
			n := uint64(0)
			for b.Loop() {
				n++
				call, reply := heldPair(1, n, 0, p)
				s.packetIn(1, reasonCall, call)
				s.obey()
				s.packetIn(2, reasonCall, reply)
				s.obey()
			}
			if s.sent != 2*int(n) || s.graph.Len() != others {
				b.Fatalf("%d packets went on, want %d; %d calls are under way: %+v", s.sent, 2*n, s.graph.Len(), s.count)
			}
			b.ReportMetric(2*float64(n)/b.Elapsed().Seconds(), "events/s")
		})
	}
}
