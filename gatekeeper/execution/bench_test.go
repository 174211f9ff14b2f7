package execution

import (
	"fmt"
	"testing"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// BenchmarkCall is what the Table costs a call with 1 KiB of arguments and its
// answer, while so many others are under way at another service.
func BenchmarkCall(b *testing.B) {
	for _, serial := range []bool{false, true} {
		for _, others := range []int{10, 1000, 100_000, 1_000_000} {
			b.Run(fmt.Sprintf("serial=%t/others=%d", serial, others), func(b *testing.B) {
				if testing.Short() && others > 100_000 {
					b.Skip("takes a minute and a GiB")
				}
				t := crowded(others)
				payload := make([]byte, 1<<10)
				n := uint64(0)
				b.ReportAllocs()
				for b.Loop() {
					n++
					m := message(n)
					m.Payload = payload
					t.Call(Request{Message: &m, Datagram: m.Append(nil), Caller: client, Callee: server, Serial: serial, Now: now})
					t.Admitted(m.Call, nil)
					m.Type, m.CalleeIncarnation = rpcpacket.Reply, 1
					t.Reply(Response{Message: &m, Datagram: m.Append(nil), Callee: server, Now: now})
					t.Committed(m.Call)
					t.Returned(m.Call, nil, now)
				}
				if calls, open := t.Calls(); calls != others+1 || open != others {
					b.Fatalf("%d calls, %d open", calls, open)
				}
			})
		}
	}
}

// crowded is a Table with open calls, a thousand at each of so many nodes.
func crowded(others int) *Table {
	const crowd, each = 99, 1000
	t := New(0)
	t.Up(server, arrays)
	for n := range others {
		at := wal.Node{Address: rackaddr.Node(uint64(n/each) + 3), Incarnation: 1}
		if n%each == 0 {
			t.Up(at, crowd)
		}
		m := message(1)
		m.Call, m.Floor, m.Service = rpcpacket.SessionID(uint64(n)+4, 1), 1, crowd
		t.Call(Request{Message: &m, Datagram: m.Append(nil), Caller: client, Callee: at, Now: now})
		t.Admitted(m.Call, nil)
	}
	return t
}
