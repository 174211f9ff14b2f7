package gatekeeper

import (
	"fmt"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// firstSlot is node 1's first slot.
const firstSlot = rpcpacket.BlockSlots

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
