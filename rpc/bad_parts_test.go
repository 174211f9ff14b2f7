package rpc_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/bulk"
	"github.com/bifrost-rack/bifrost/rpc/internal/testrack"
	"github.com/bifrost-rack/bifrost/rpc/internal/testsvc"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// inParts makes the first packet of a message, and its parts.
func inParts(t *testing.T, m rpcpacket.Message, answer bool) (first []byte, parts []packetPart) {
	t.Helper()
	const budget = 60_000
	first, ok := rpcpacket.First(m.Append(nil), budget, 0, 0)
	if !ok {
		t.Fatal("the message fits a packet")
	}
	begin, err := rpcpacket.Parse(first)
	if err != nil {
		t.Fatal(err)
	}
	o, err := begin.Opening()
	if err != nil {
		t.Fatal(err)
	}
	size, total, payload := budget-bulk.HeaderSize, o.Total, o.First
	rest := bulk.Range{Offset: uint64(len(payload)), Length: total - uint64(len(payload))}
	for _, c := range bulk.Cut(nil, []bulk.Range{rest}, size, size) {
		parts = append(parts, packetPart{bulk.Header{
			Kind: bulk.Part, Answer: answer, Call: m.Call, CallerIncarnation: m.CallerIncarnation, CalleeIncarnation: m.CalleeIncarnation,
			Total: total, Offset: c.Offset, Size: uint32(c.Length), First: uint32(len(payload)),
		}, m.Payload[c.Offset : c.Offset+c.Length]})
	}
	return first, parts
}

// packetPart is a part to be sent.
type packetPart struct {
	bulk.Header
	data []byte
}

func (p packetPart) datagram() []byte { return append(p.Append(nil), p.data...) }

// contradictions are parts that differ from what the first packet says.
func contradictions(p packetPart) (bad []packetPart) {
	total, between, begin := p, p, p
	total.Total++
	between.Offset++
	begin.First--
	return append(bad, total, between, begin)
}

// unused fails if a node has transfers, or memory of them, left.
func unused(t *testing.T, n *rpc.Node) {
	t.Helper()
	if open, claimed := n.LargeInUse(); open != 0 || claimed != 0 {
		t.Errorf("%s: %d transfers, %d bytes are left", n.Name(), open, claimed)
	}
}

// TestPartsOfCall: a large call whose parts contradict its first packet, are another
// node's, or do not come, is forgotten after a while, with its memory; late parts do
// nothing. When the whole of it comes, in any order, it runs.
func TestPartsOfCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		caller, stranger := newPeer(t, p.rack, "caller", rackaddr.Node(77)), newPeer(t, p.rack, "stranger", rackaddr.Node(78))
		message := thriftMessage(t, "blob", thrift.CALL, &testsvc.TestBlobArgs{Raw: noise(1, 200_000)})
		first, parts := inParts(t, callOf(t, "blob", 1, message), false)
		caller.send(rackaddr.Service("Test"), first)
		synctest.Wait()
		if open, claimed := p.server.LargeInUse(); open != 1 || claimed != uint64(len(message)) {
			t.Errorf("%d transfers of %d bytes have begun", open, claimed)
		}
		for _, bad := range contradictions(parts[1]) {
			caller.sendTo(p.server.Address(), rackaddr.PortBulk, bad.datagram())
		}
		for _, part := range parts {
			stranger.sendTo(p.server.Address(), rackaddr.PortBulk, part.datagram())
		}
		for _, part := range parts[1:] {
			caller.sendTo(p.server.Address(), rackaddr.PortBulk, part.datagram())
		}
		synctest.Wait()
		if s := p.server.Stats(); s.Malformed != 3 || s.Served != 0 {
			t.Errorf("%d parts were malformed, %d calls served", s.Malformed, s.Served)
		}
		pass(time.Minute)
		unused(t, p.server)
		caller.sendTo(p.server.Address(), rackaddr.PortBulk, parts[0].datagram())
		synctest.Wait()
		if s := p.server.Stats(); s.Served != 0 {
			t.Error("a part that came too late made the call run")
		}
		caller.send(rackaddr.Service("Test"), first)
		synctest.Wait() // the parts are asked for
		slices.Reverse(parts)
		for _, part := range parts {
			caller.sendTo(p.server.Address(), rackaddr.PortBulk, part.datagram())
		}
		if a := caller.must(); a.Type != rpcpacket.Reply || a.Flags&rpcpacket.FlagMore == 0 {
			t.Errorf("answer %v, flags %x: %q", a.Type, a.Flags, a.Payload[:min(100, len(a.Payload))])
		}
		synctest.Wait() // the handler has returned
		unused(t, p.server)
	})
}

// TestPartsOfAnswer: an answer whose parts contradict its first packet, or do not come, is
// none: the caller's deadline ends the call, and nothing is left of it.
func TestPartsOfAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := testrack.New(t, wire.Config{})
		callee, n := newPeer(t, r, "callee", rackaddr.Service("Test")), joinNode(t, r, "client")
		stranger := newPeer(t, r, "stranger", rackaddr.Node(78))
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		done := make(chan error)
		go func() {
			_, err := testsvc.NewTestClient(plain(n, "Test")).Blob(ctx, []byte("a call"))
			done <- err
		}()
		call := callee.must()
		call.Type, call.Timeout = rpcpacket.Reply, 0
		call.Payload = thriftMessage(t, "blob", thrift.REPLY, &testsvc.TestBlobResult{Success: noise(1, 200_000)})
		first, parts := inParts(t, call, true)
		callee.send(n.Address(), first)
		synctest.Wait()
		if open, claimed := n.LargeInUse(); open != 1 || claimed != uint64(len(call.Payload)) {
			t.Errorf("%d transfers of %d bytes have begun", open, claimed)
		}
		for _, bad := range contradictions(parts[1]) {
			callee.sendTo(n.Address(), rackaddr.PortBulk, bad.datagram())
		}
		for _, part := range parts {
			stranger.sendTo(n.Address(), rackaddr.PortBulk, part.datagram())
		}
		callee.sendTo(n.Address(), rackaddr.PortBulk, parts[1].datagram())
		if err := <-done; rpc.CodeOf(err) != rpc.Deadline || rpc.NeverBegan(err) {
			t.Errorf("the call: %v", err)
		}
		unused(t, n)
		for _, part := range parts {
			callee.sendTo(n.Address(), rackaddr.PortBulk, part.datagram())
		}
		synctest.Wait()
		unused(t, n)
		if s := n.Stats(); s.Malformed != 3 {
			t.Errorf("%d parts were malformed", s.Malformed)
		}
	})
}
