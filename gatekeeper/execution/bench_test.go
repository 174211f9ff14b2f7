package execution

import (
	"testing"

	"github.com/bifrost-rack/bifrost/rpc/packet"
)

// BenchmarkCall is what the Table costs a call with 1 KiB of arguments and its
// answer, with 10,000 others under way.
func BenchmarkCall(b *testing.B) {
	t := New(0)
	t.Up(server, arrays)
	payload := make([]byte, 1<<10)
	call := func(n uint64) packet.Message {
		m := message(n)
		m.Payload = payload
		t.Call(Request{Message: &m, Datagram: m.Append(nil), Caller: client, Callee: server, Now: now})
		t.Admitted(m.Call, nil)
		return m
	}
	for n := range uint64(10_000) {
		m := message(n + 1)
		m.Call, m.Floor = packet.SessionID(4, n+1), 1
		t.Call(Request{Message: &m, Datagram: m.Append(nil), Caller: client, Callee: server, Now: now})
		t.Admitted(m.Call, nil)
	}
	b.ReportAllocs()
	n := uint64(0)
	for b.Loop() {
		n++
		m := call(n)
		m.Type, m.CalleeIncarnation = packet.Reply, 1
		t.Reply(Response{Message: &m, Datagram: m.Append(nil), Callee: server, Now: now})
		t.Committed(m.Call)
		t.Returned(m.Call, nil, now)
	}
	if calls, open := t.Calls(); calls != 10_001 || open != 10_000 {
		b.Fatalf("%d calls, %d open", calls, open)
	}
}
