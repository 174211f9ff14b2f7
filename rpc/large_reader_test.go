package rpc

import (
	"bytes"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/bulk"
	"github.com/bifrost-rack/bifrost/rpc/direct"
	"github.com/bifrost-rack/bifrost/rpc/internal/sent"
	"github.com/bifrost-rack/bifrost/rpc/internal/testsvc"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// queued is an endpoint that has received datagrams.
type queued struct {
	netio.Conn
	from      netip.AddrPort
	datagrams [][]byte
}

func (q *queued) ReadBatch(ms []netio.Message) (n int, _ error) {
	for n < len(ms) && len(q.datagrams) > 0 {
		if ms[n].Fill(q.datagrams[0]) {
			ms[n].Remote = q.from
			n++
		}
		q.datagrams = q.datagrams[1:]
	}
	return n, nil
}

// receiveAll has a node receive datagrams at its endpoint for parts, so many at a time.
func receiveAll(n *Node, from netip.AddrPort, datagrams [][]byte, batch int) {
	q := &queued{from: from, datagrams: datagrams}
	r := &largeReader{conn: q}
	defer r.free()
	for len(q.datagrams) > 0 {
		r.size = batch
		count, _ := r.next(n.large.expected(r.rooms[:r.size]))
		for i := range count {
			n.large.receive(r, i)
		}
	}
}

// arrivals counts how often a message has come whole.
type arrivals int

func (a *arrivals) whole(*bulk.Transfer) { *a++ }
func (a *arrivals) lost()                { *a = -1 }

// TestLargeReader: a message is right in whatever order its parts come, with copies,
// cut ones and foreign datagrams among them, although each is received where the part
// belongs that was expected.
func TestLargeReader(t *testing.T) {
	n, _ := quietNode(t)
	from := netip.AddrPortFrom(rackaddr.Node(7), rackaddr.PortBulk)
	sequence := uint64(0)
	rapid.Check(t, func(t *rapid.T) {
		const size = 100
		total := rapid.IntRange(size, 30*size).Draw(t, "bytes")
		message := make([]byte, total)
		for i := range message {
			message[i] = byte(i * i >> 3)
		}
		key := bulk.Key{Peer: from.Addr(), Call: rpcpacket.PlainID(from.Addr(), 16, rpcpacket.Number(sequence))}
		sequence++
		n.large.mu.Lock()
		x, v := n.large.in.Begin(n.pulse.now(), key, uint64(total), message[:10], size, 0)
		whole := new(arrivals)
		if x != nil {
			x.Tag = whole
		}
		n.large.asks()
		n.large.mu.Unlock()
		if v != bulk.Taken {
			t.Fatalf("begin: %d", v)
		}
		var parts [][]byte
		for _, c := range bulk.Cut(nil, []bulk.Range{{Offset: 10, Length: uint64(total - 10)}}, size) {
			h := bulk.Header{Kind: bulk.Part, Call: key.Call, Total: uint64(total), First: 10, Offset: c.Offset, Size: uint32(c.Length)}
			parts = append(parts, h.Append(nil))
			parts[len(parts)-1] = append(parts[len(parts)-1], message[c.Offset:c.Offset+c.Length]...)
		}
		var datagrams [][]byte
		for _, p := range rapid.Permutation(parts).Draw(t, "order") {
			switch rapid.IntRange(0, 5).Draw(t, "between") {
			case 0:
				datagrams = append(datagrams, p)
			case 1:
				datagrams = append(datagrams, p[:len(p)-1])
			case 2:
				datagrams = append(datagrams, rapid.SliceOfN(rapid.Byte(), 0, 3*size).Draw(t, "foreign"))
			}
			datagrams = append(datagrams, p)
		}
		datagrams = append(datagrams, parts...) // what has overtaken too many is asked for again
		receiveAll(n, from, datagrams, rapid.IntRange(1, readBatch).Draw(t, "batch"))
		n.large.mu.Lock()
		defer n.large.mu.Unlock()
		if n.large.in.Find(key) != nil || *whole != 1 {
			t.Fatalf("after all %d parts it has come whole %d times", len(parts), *whole)
		}
		n.large.in.Release(key.Peer, uint64(total))
		if !bytes.Equal(x.Body(), message) {
			t.Error("the message is another one")
		}
	})
}

// TestAnswerAgain_Held: a large answer that is about to be sent again stays what it is, though its caller says meanwhile that it has it: its memory
// is used for another message only afterwards.
func TestAnswerAgain_Held(t *testing.T) {
	n, x := quietNode(t)
	from := netip.AddrPortFrom(rackaddr.Node(2), rackaddr.PortBulk)
	call, err := rpcpacket.Parse(seedCall(t, "ping", &testsvc.BasePingArgs{}, x.hash))
	if err != nil {
		t.Fatal(err)
	}
	for range 16 {
		n.in.core = direct.NewVolatile(1, direct.DefaultLimits, nil)
		a, e, _ := n.decide(x, from, &call, lineage{})
		if a.Verdict != direct.Run {
			t.Fatalf("a new call: %v", a.Verdict)
		}
		const size = 1 << 17
		whole := append(sent.Buffer(size), make([]byte, size)...)
		n.in.core.Finish(e.entry, whole[:1000:1000], sent.New(whole, whole[1000:]))
		again, _, _ := n.decide(x, from, &call, lineage{})
		if again.Verdict != direct.Answer {
			t.Fatalf("a copy of it: %v", again.Verdict)
		}
		n.in.settle(from.Addr(), call.Call)
		_ = append(sent.Buffer(size), bytes.Repeat([]byte{1}, size)...)
		if bytes.IndexByte(again.Reply, 1) >= 0 {
			t.Fatal("another message stands in the answer's memory")
		}
		again.Payload.Release()
	}
}
