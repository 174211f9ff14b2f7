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
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
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
	first, ok := rpcpacket.First(m.Append(nil), budget, rpcpacket.Push{})
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
	for _, c := range bulk.Cut(nil, []bulk.Range{rest}, size) {
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
	bubble.Test(t, func(t *testing.T) {
		p := newPair(t)
		caller, stranger := newPeerOn(t, p.rack, "caller", rackaddr.Node(77), rackaddr.PortBulk), newPeer(t, p.rack, "stranger", rackaddr.Node(78))
		message := thriftMessage(t, "blob", thrift.CALL, &testsvc.TestBlobArgs{Raw: noise(1, 200_000)})
		first, parts := inParts(t, callOf(t, "blob", 1, message), false)
		caller.first(p.server.Address(), first)
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
		caller.first(p.server.Address(), first)
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
	bubble.Test(t, func(t *testing.T) {
		r := testrack.New(t, wire.Config{})
		callee, n := newCallee(t, r, "callee", rackaddr.Node(78), "Test"), joinNode(t, r, "client")
		stranger := newPeer(t, r, "stranger", rackaddr.Node(79))
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
		stranger.first(n.Address(), slices.Clone(first))
		callee.first(n.Address(), first)
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

// TestHostilePulls: a pull makes a node send no more packets than its answer has parts, however small the parts are that it
// asks for, and however often it names the same bytes. It is refused, and counted by who sent it.
func TestHostilePulls(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newPair(t)
		caller := newPeerOn(t, p.rack, "caller", rackaddr.Node(77), rackaddr.PortBulk)
		call := callOf(t, "blob", 1, thriftMessage(t, "blob", thrift.CALL, &testsvc.TestBlobArgs{Raw: noise(1, 2<<20)}))
		first, parts := inParts(t, call, false)
		caller.first(p.server.Address(), first)
		synctest.Wait()
		for _, part := range parts {
			caller.sendTo(p.server.Address(), rackaddr.PortBulk, part.datagram())
		}
		answer := caller.must()
		o, err := answer.Opening()
		if err != nil {
			t.Fatal(err)
		}
		begun := uint64(len(o.First))
		size := uint32(len(answer.Append(nil)) - bulk.HeaderSize)
		pull := bulk.Header{
			Kind: bulk.Pull, Answer: true, Call: answer.Call, CallerIncarnation: 1, CalleeIncarnation: answer.CalleeIncarnation,
			Total: o.Total, Size: size, First: uint32(begun),
		}
		synctest.Wait() // it has counted what it sends of its own accord
		before := p.server.Stats()
		caller.sendTo(p.server.Address(), rackaddr.PortBulk, pull.Append(nil, bulk.Range{Offset: begun, Length: o.Total - begun}))
		synctest.Wait()
		honest := p.server.Stats().Parts - before.Parts
		if honest == 0 || honest > o.Total/uint64(size)+1 {
			t.Fatalf("an honest pull is answered with %d parts of %d bytes", honest, size)
		}
		before = p.server.Stats()
		repeated := make([]bulk.Range, bulk.MaxRanges)
		for i := range repeated {
			repeated[i] = bulk.Range{Offset: begun, Length: uint64(size)}
		}
		for _, hostile := range []struct {
			size   uint32
			ranges []bulk.Range
		}{
			{1, []bulk.Range{{Offset: begun, Length: o.Total - begun}}},
			{size - 1, []bulk.Range{{Offset: begun, Length: uint64(size) - 1}}},
			{size + 1, []bulk.Range{{Offset: begun, Length: uint64(size) + 1}}},
			{size, repeated},
			{size, []bulk.Range{{Offset: begun + 1, Length: uint64(size)}}},
			{size, []bulk.Range{{Offset: begun, Length: 1}}},
		} {
			pull.Size = hostile.size
			caller.sendTo(p.server.Address(), rackaddr.PortBulk, pull.Append(nil, hostile.ranges...))
			synctest.Wait()
		}
		after := p.server.Stats()
		if after.Parts != before.Parts || after.Malformed-before.Malformed != 6 {
			t.Errorf("hostile pulls are answered with %d parts, %d are malformed", after.Parts-before.Parts, after.Malformed-before.Malformed)
		}
	})
}

// TestFirstElsewhere: a first packet that the Gatekeeper has not seen comes to the endpoint for large messages; elsewhere it is malformed, and so is there
// what is none.
func TestFirstElsewhere(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newPair(t)
		caller := newPeerOn(t, p.rack, "caller", rackaddr.Node(77), rackaddr.PortBulk)
		call := callOf(t, "blob", 1, thriftMessage(t, "blob", thrift.CALL, &testsvc.TestBlobArgs{Raw: noise(1, 200_000)}))
		first, _ := inParts(t, call, false)
		small := callOf(t, "check", 1, thriftMessage(t, "check", thrift.CALL, &testsvc.TestCheckArgs{}))
		marked := callOf(t, "blob", 2, call.Payload)
		marked.Flags |= rpcpacket.FlagReleased
		released, _ := inParts(t, marked, false)
		caller.call(p.server, first)
		caller.send(p.server.Address(), first)
		caller.first(p.server.Address(), small.Append(nil))
		caller.first(p.server.Address(), released)
		synctest.Wait()
		if s := p.server.Stats(); s.Malformed != 4 || s.Served+s.LargeMessages != 0 {
			t.Errorf("%d malformed, %d served, %d large messages begun", s.Malformed, s.Served, s.LargeMessages)
		}
		unused(t, p.server)
	})
}
