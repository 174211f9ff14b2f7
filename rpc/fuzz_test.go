package rpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc/bulk"
	"github.com/bifrost-rack/bifrost/rpc/direct"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/internal/testrack"
	"github.com/bifrost-rack/bifrost/rpc/internal/testsvc"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// silence is a network on which nothing arrives and everything gets lost.
type silence struct{ closed chan struct{} }

func (s silence) ListenUDP(netip.AddrPort) (netio.Conn, error) {
	return silence{make(chan struct{})}, nil
}
func (silence) MTU() int { return 9000 }

func (s silence) ReadBatch([]netio.Message) (int, error) {
	<-s.closed
	return 0, net.ErrClosed
}
func (silence) WriteBatch(ms []netio.Message) (int, error) { return len(ms), nil }
func (silence) SetReadDeadline(time.Time) error            { return nil }
func (silence) LocalAddr() netip.AddrPort                  { return netip.AddrPort{} }
func (s silence) Close() error                             { close(s.closed); return nil }

// quietNode is a node on a silent network that exports the test service.
func quietNode(t testing.TB) (*Node, *export) {
	t.Helper()
	id := join.Identity{Name: "fuzz", Address: rackaddr.Node(1), Incarnation: 1}
	return exporting(t, testrack.Fixed(testrack.NewSession(silence{}, id)))
}

// exporting is a node that exports the test service.
func exporting(t testing.TB, j join.Joiner) (*Node, *export) {
	t.Helper()
	n, err := Join(join.NewContext(t.Context(), j), WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // nobody acknowledges what is to be
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = n.Close(ended)
	})
	h := &testsvc.Handler{Gate: everythingOutside}
	if err := n.Export(t.Context(), "Test", testsvc.NewTestProcessor(h)); err != nil {
		t.Fatal(err)
	}
	return n, n.exports.named("Test")
}

// everythingOutside does each thing that an execution journals, for count.
func everythingOutside(ctx context.Context, _ int64) error {
	Now(ctx)
	_, failed := Effect(ctx, "key", func(context.Context) ([]byte, error) { return []byte("done"), nil })
	a, b := Go(ctx, func(context.Context) error { return nil }), Go(ctx, func(context.Context) error { return nil })
	_, lost := WaitAny(ctx, a, b)
	return errors.Join(Random(ctx, make([]byte, 4)), failed, lost)
}

// journalSeeds are trailers of re-runs of count.
func journalSeeds() [][]byte {
	full := []trailer.Section{
		{Type: trailer.Time, Index: 1, Data: make([]byte, 8)}, {Type: trailer.Effect, Index: 2, Data: []byte("\x00\x03key\x00done")},
		{Type: trailer.Order, Index: 5, Data: []byte{0, 0, 0, 4}}, {Type: trailer.Random, Index: 6, Data: make([]byte, 4)},
	}
	failed := trailer.Section{Type: trailer.Outcome, Index: 5, Data: outcome{code: Deadline, message: "late"}.encode()}
	return [][]byte{
		trailer.Append(nil, full), trailer.Append(nil, full[:1]), trailer.Append(nil, full[1:]),
		trailer.Append(nil, []trailer.Section{full[0], full[1], failed}),
	}
}

// received is a reader that holds one datagram.
func received(b []byte) *reader {
	r := newReader(nil)
	r.buffers[0] = newDatagram()
	n := copy(r.buffers[0][:], b)
	r.messages[0] = netio.Message{Buf: r.buffers[0][:n], Remote: netip.AddrPortFrom(rackaddr.Node(2), rackaddr.PortRPC)}
	return r
}

// seedCall is a well-formed call, and pieces that lead a fuzzer to more.
func seedCall(t testing.TB, method string, args thrift.TStruct, service uint64) []byte {
	t.Helper()
	c := newCodec(maxDatagram)
	defer c.free()
	ctx := context.Background()
	if err := c.WriteMessageBegin(ctx, method, thrift.CALL, 0); err != nil {
		t.Fatal(err)
	}
	if err := args.Write(ctx, c); err != nil {
		t.Fatal(err)
	}
	wire, _ := rpcpacket.MethodOf(method)
	h := rpcpacket.Header{
		Type: rpcpacket.Call, NameLength: uint8(len(method)), Method: wire,
		Slot: 45, Number: rpcpacket.NumberOf(1, 6), CallerIncarnation: 1, CalleeIncarnation: 1, Service: service,
	}
	h.Call = rpcpacket.PlainID(rackaddr.Node(2), h.Slot, h.Number)
	return append([]byte(nil), c.datagram(&h)...)
}

// thing is the least that the generated code can write.
func thing() *testsvc.Everything {
	name := "x"
	return &testsvc.Everything{Shape: &testsvc.Shape{Name: &name}, Point: &testsvc.Point{}}
}

// No datagram may do more to a server than be refused: every call that begins
// ends, with an answer of its own.
func FuzzCall(f *testing.F) {
	n, x := quietNode(f)
	fill := thing()
	fill.Strings, fill.Shapes, fill.Inner = []string{"a"}, map[string][]*testsvc.Point{"x": {{X: 1}}}, thing()
	for method, args := range map[string]thrift.TStruct{
		"ping": &testsvc.BasePingArgs{}, "echo": &testsvc.TestEchoArgs{Thing: fill}, "note": &testsvc.TestNoteArgs{Number: 3},
		"plant": &testsvc.TestPlantArgs{Tree: &testsvc.Tree{Here: GlobalPointer([16]byte{4: 16, 5: 1, 12: 64})}},
	} {
		f.Add(seedCall(f, method, args, x.hash))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > maxDatagram {
			return
		}
		n.in.mu.Lock()
		n.in.core = direct.NewVolatile(1, direct.DefaultLimits, nil)
		n.in.mu.Unlock()
		r := received(b)
		if e := n.receiveDirect(r, 0); e != nil {
			x.pool.work(e)
			m := e.call
			a := n.in.core.Receive(0, e.from.Addr(), &m.Header)
			if a.Verdict != direct.Answer {
				t.Fatalf("a call that has run is now: %v", a.Verdict)
			}
			reply, err := rpcpacket.Parse(a.Reply)
			if err != nil || len(a.Reply) > n.ports.budget {
				t.Fatalf("answered with %d bytes, %v", len(a.Reply), err)
			}
			if reply.Type != rpcpacket.Reply && reply.Type != rpcpacket.Exception || reply.Call != m.Call || reply.Method != m.Method || reply.Service != m.Service ||
				reply.CallerIncarnation != m.CallerIncarnation || reply.CalleeIncarnation != 1 || reply.Slot != m.Slot || reply.Number != m.Number ||
				reply.Flags.Policy() != m.Flags.Policy() || reply.Turned != rpcpacket.NotTurned || reply.Had != 0 || reply.Type == rpcpacket.Exception && len(reply.Lists) > 0 {
				t.Fatalf("%+v is answered with %+v", m.Header, reply.Header)
			}
		}
		r.free()
	})
}

// No datagram to the port for direct calls may do more than that a call runs and ends: the node
// goes on, and its ledger can be read.
func FuzzDirect(f *testing.F) {
	r := testrack.New(f, wire.Config{})
	n, x := exporting(f, r.Joiner())
	from := rackaddr.Node(2)
	r.Play(from)
	exactly := func(method string, args thrift.TStruct) rpcpacket.Message {
		m, err := rpcpacket.Parse(seedCall(f, method, args, x.hash))
		if err != nil {
			f.Fatal(err)
		}
		m.Flags = m.Flags.WithPolicy(PolicyRecover)
		return m
	}
	count, note := exactly("count", &testsvc.TestCountArgs{Number: 1}), exactly("note", &testsvc.TestNoteArgs{Number: 3})
	note.Type = rpcpacket.Oneway
	child, ask := count, count
	child.Call = rpcpacket.ID{1, 8: 0x80}
	ask.Type, ask.CallerIncarnation, ask.Payload, ask.Trailer = rpcpacket.Ask, count.CallerIncarnation+1, nil, nil
	forget := rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Forget, Flags: rpcpacket.FlagSettled.WithPolicy(PolicyRecover), Call: count.Call, CallerIncarnation: 1}}
	forget.Payload = append(append(count.Call[:], count.Call[4:8]...), count.Call[8:]...)
	gatekeepers := ask
	gatekeepers.Flags, gatekeepers.Call = rpcpacket.FlagReleased, rpcpacket.ID{}
	for _, m := range []rpcpacket.Message{count, note, child, forget, ask, gatekeepers} {
		f.Add(m.Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > maxDatagram {
			return
		}
		r1 := received(b)
		if e := n.receiveDirect(r1, 0); e != nil {
			e.export.pool.work(e)
		}
		r1.free()
		if err := n.life.failure(); err != nil {
			t.Fatal(err)
		}
		if _, err := record.Fold(r.Ledger(n.Address())); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzAnswer: a datagram ends the call that it names, if it comes from its callee and names the call's place, and no other one. What it says is what the caller gets.
func FuzzAnswer(f *testing.F) {
	n, x := quietNode(f)
	method := &method{op: "call Test.echo", name: "echo", rtt: new(endpoint.RTT), meter: n.meters.of("Test", "echo", false)}
	seed := seedCall(f, "echo", &testsvc.TestEchoResult{Success: thing()}, x.hash)
	seed[3] = byte(rpcpacket.Reply)
	f.Add(seed, true)
	f.Add(seed, false)
	exception := append([]byte(nil), seed...)
	exception[3] = byte(rpcpacket.Exception)
	f.Add(exception, true)
	exception = append([]byte(nil), exception...)
	exception[7] = byte(Overloaded)
	f.Add(exception, true)
	f.Fuzz(func(t *testing.T, b []byte, ours bool) {
		if len(b) > maxDatagram {
			return
		}
		p := n.out.pendings.Get().(*pending)
		p.RTT, p.Node = method.rtt, rackaddr.Node(2).As16()
		codec := newCodec(n.ports.budget)
		defer codec.free()
		if err := n.out.takeSlot(t.Context(), nil, p, method); err != nil {
			t.Fatal(err)
		}
		if _, err := n.out.begin(p, codec, &rpcpacket.Header{Type: rpcpacket.Call}); err != nil {
			t.Fatal(err)
		}
		m, malformed := rpcpacket.Parse(b)
		if malformed == nil && ours {
			m.Call, m.Slot, m.Number = p.ID, p.Slot, p.Number
			b = m.Append(nil)
		}
		answer := malformed == nil && (m.Type == rpcpacket.Reply || m.Type == rpcpacket.Exception) && m.Flags&rpcpacket.FlagMore == 0 && m.Turned == rpcpacket.NotTurned &&
			m.Call == p.ID && m.Slot == p.Slot && m.Number == p.Number
		r := received(b)
		defer r.free()
		got := n.receiveAnswer(r, 0)
		if got && !answer || answer && !got && m.Had == 0 && len(b) <= n.ports.budget {
			t.Fatalf("taken for the answer: %v; %+v, %v", got, m.Header, malformed)
		}
		if !got {
			n.out.end(p)
		} else {
			<-p.ready
			client := &client{node: n}
			err := client.decode(t.Context(), codec, p, method, &testsvc.TestEchoResult{})
			if refused := m.Type == rpcpacket.Exception && m.Code != OK; refused && CodeOf(err) != m.Code || !refused && m.Type == rpcpacket.Exception && err == nil {
				t.Fatalf("%+v is the error %v", m.Header, err)
			}
		}
		n.out.release(p)
	})
}

// No datagram to the port for parts may do more than complete the message that it is
// of.
func FuzzParts(f *testing.F) {
	n, x := quietNode(f)
	from := netip.AddrPortFrom(rackaddr.Node(2), rackaddr.PortBulk)
	m, err := rpcpacket.Parse(seedCall(f, "blob", &testsvc.TestBlobArgs{Raw: make([]byte, 20_000)}, x.hash))
	if err != nil {
		f.Fatal(err)
	}
	first, ok := rpcpacket.First(m.Append(nil), n.ports.budget, n.large.pushTo(n.self.Address))
	if !ok {
		f.Fatal("it fits a packet")
	}
	total, begun := uint64(len(m.Payload)), n.ports.budget-rpcpacket.HeaderSize-rpcpacket.MorePreface
	var parts []byte
	for _, c := range bulk.Cut(nil, []bulk.Range{{Offset: uint64(begun), Length: total - uint64(begun)}}, n.large.size) {
		h := bulk.Header{Kind: bulk.Part, Call: m.Call, CallerIncarnation: 1, Total: total, Offset: c.Offset, Size: uint32(c.Length), First: uint32(begun)}
		part := append(h.Append(nil), m.Payload[c.Offset:c.Offset+c.Length]...)
		parts = append(binary.BigEndian.AppendUint16(parts, uint16(len(part))), part...)
	}
	f.Add(parts)
	f.Add(parts[len(parts)-8000:])
	for k := bulk.Pull; k <= bulk.Gone; k++ {
		h := bulk.Header{Kind: k, Call: m.Call, CallerIncarnation: 1, CalleeIncarnation: 1, Total: total, Size: 100, First: uint32(begun)}
		var asks []bulk.Range
		if k == bulk.Pull {
			asks = []bulk.Range{{Offset: uint64(begun), Length: 1000}}
		}
		b := h.Append(nil, asks...)
		f.Add(append([]byte{0, byte(len(b))}, b...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		n.in.mu.Lock()
		n.in.core = direct.NewVolatile(1, direct.DefaultLimits, nil)
		n.in.mu.Unlock()
		r := received(first)
		n.receiveDirect(r, 0)
		r.free()
		var datagrams [][]byte
		for len(b) >= 2 {
			size := min(int(binary.BigEndian.Uint16(b)), len(b)-2)
			datagrams = append(datagrams, b[2:2+size])
			b = b[2+size:]
		}
		receiveAll(n, from, datagrams, int(uint(len(datagrams))%readBatch)+1)
		n.large.cancel(bulk.Key{Peer: from.Addr(), Call: m.Call})
		x.pool.calls.Wait()
		n.large.mu.Lock()
		defer n.large.mu.Unlock()
		if n.large.in.Open() != 0 || n.large.in.Claimed() != 0 {
			t.Fatalf("%d messages, %d bytes are left", n.large.in.Open(), n.large.in.Claimed())
		}
	})
}

// A journal is refused or lasts: what it holds is found in its places, and only
// there.
func FuzzJournal(f *testing.F) {
	for _, b := range journalSeeds() {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		j, err := newJournal(b, newLifetime("test"))
		if err != nil {
			return
		}
		sections, err := trailer.Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		seen := make(map[position]bool)
		for _, s := range sections {
			at := position{s.Branch, s.Index}
			got, diverged := j.recall("", at, s.Type)
			if again := seen[at]; !again && (got == nil || !bytes.Equal(got.Data, s.Data)) || again && diverged == nil {
				t.Fatalf("operation %v: %v, %v", at, got, diverged)
			} else if again {
				return
			}
			seen[at] = true
		}
		if diverged := j.close(OK); diverged != nil {
			t.Fatal(diverged)
		}
	})
}

// An outcome is what it was.
func FuzzOutcome(f *testing.F) {
	f.Add(outcome{fingerprint: 7}.encode())
	f.Add(outcome{code: Deadline, message: "late"}.encode())
	f.Add(outcome{answer: &rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Reply}, Payload: []byte("x")}}.encode())
	f.Add(outcome{answer: &rpcpacket.Message{
		Header: rpcpacket.Header{Type: rpcpacket.Reply}, Lists: rpcpacket.ListsOf(dsmpacket.Make(16, 1, dsmpacket.IDOf(3, 1)), dsmpacket.Make(16, 2, dsmpacket.IDOf(4, 1))), Payload: []byte("x"),
	}}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if o, err := parseOutcome(b); err == nil && !bytes.Equal(o.encode(), b) {
			t.Fatalf("%x became %x", b, o.encode())
		}
	})
}
