package simrack_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/bulk"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// blamed is how many packets of a node another one has refused for a reason.
func blamed(by *rpc.Node, who netip.Addr, reason string) (packets uint64) {
	by.Refused(func(from netip.Addr, why string, n uint64) {
		if from == who && why == reason {
			packets += n
		}
	})
	return packets
}

// arguments is a call of echo as a runtime writes it.
func arguments(t *testing.T, ctx context.Context, data []byte) []byte {
	t.Helper()
	args := thrift.NewTMemoryBuffer()
	out := thrift.NewTBinaryProtocolConf(args, nil)
	if err := errors.Join(out.WriteMessageBegin(ctx, "echo", thrift.CALL, 0), (&arrays.ArraysEchoArgs{Data: data}).Write(ctx, out), out.WriteMessageEnd(ctx)); err != nil {
		t.Fatal(err)
	}
	return args.Bytes()
}

// sentTo counts the packets that a hostile blade gets which have some bytes in them.
func sentTo(cfg *simrack.Config, blade string, secret []byte) *atomic.Int64 {
	told, before := new(atomic.Int64), cfg.OnFrame
	cfg.OnFrame = func(f wire.Frame) {
		before(f)
		if !f.ToSwitch && f.Host == blade && f.Stage == wire.Arrived && bytes.Contains(f.Data, secret) {
			told.Add(1)
		}
	}
	return told
}

// TestHostile_Copies is row 2 for answers and arguments. A program knows the id of a direct call and its
// arguments, and sends the same call in a slot of its own: it gets no answer. It asks the caller of a large
// call for the arguments, and the callee for the answer: it gets neither.
func TestHostile_Copies(t *testing.T) {
	cfg, seen := watched("c1", "c2", "s1", "s2")
	secret := []byte("nobody else's")
	told := sentTo(&cfg, "s1", secret)
	inVirtualTimeWith(t, cfg, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		nodes := joinAll(t, ctx, r, "c1", "c2", "s1", "s2")
		caller, front, stranger, callee := nodes[0], nodes[1], nodes[2], nodes[3]
		send := func(to *rpc.Node, port uint16, b []byte) {
			r.Host("s1").SendRaw(netip.AddrPortFrom(stranger.Address(), port), netip.AddrPortFrom(to.Address(), port), b)
			<-time.After(time.Second) // virtual: it has arrived, and so has what follows
		}
		pull := func(m *rpcpacket.Message, of *rpc.Node, answer bool) {
			o, err := m.Opening()
			if err != nil {
				t.Error(err)
			}
			total, first := o.Total, o.First
			h := bulk.Header{Kind: bulk.Pull, Answer: answer, Call: m.Call, CallerIncarnation: incarnationOf(t, r, front.Address()), CalleeIncarnation: incarnationOf(t, r, callee.Address()), Total: total, Size: partsOf(m), First: uint32(len(first))}
			send(of, rackaddr.PortBulk, h.Append(nil, bulk.Range{Offset: uint64(len(first)), Length: total - uint64(len(first))}))
		}
		handler := &during{f: func(b []byte) {
			if m := *seen.Load(); len(b) > 1<<16 {
				pull(&m, front, false)
			}
		}}
		if err := callee.Export(ctx, "Arrays", arrays.NewArraysProcessor(handler)); err != nil {
			t.Fatal(err)
		}
		echo := arrays.NewArraysClient(front.Client("Arrays", rpc.WithPolicy(rpc.PolicyRecover)))
		if err := front.Export(ctx, "Ping", arrays.NewPingProcessor(pinger(func(ctx context.Context) error {
			if _, err := echo.Echo(ctx, secret); err != nil {
				return err
			}
			m := *seen.Load()
			if !m.Flags.Exact() || !m.Call.Derived() {
				t.Errorf("%+v is no direct call of an execution", m.Header)
			}
			place(t, r, &m.Header, stranger.Address(), incarnationOf(t, r, stranger.Address()), 0, 1)
			send(callee, rackaddr.PortDirect, m.Append(nil))
			_, err := echo.Echo(ctx, bytes.Repeat(secret, 1<<14))
			large := *seen.Load()
			pull(&large, callee, true)
			return err
		}))); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err := arrays.NewPingClient(caller.Client("Ping", rpc.WithPolicy(rpc.PolicyRecover))).Ping(ctx); err != nil {
			t.Error(err)
		}
		if n := told.Load(); n != 0 {
			t.Errorf("the stranger got %d packets with what is another's", n)
		}
		if at, of := blamed(callee, stranger.Address(), "foreign"), blamed(front, stranger.Address(), "foreign"); at != 1 || of != 1 {
			t.Errorf("the callee counts %d foreign packets, the caller %d, want 1 each", at, of)
		}
	})
}

// TestHostile_Arguments is row 2 for large calls of policy none. A program knows such a call's id and length, and asks the caller for the arguments: it
// gets nothing, since the call has not gone to it.
func TestHostile_Arguments(t *testing.T) {
	cfg, seen := watched("c1", "s1", "s2")
	secret := []byte("nobody else's")
	told := sentTo(&cfg, "s1", secret)
	inVirtualTimeWith(t, cfg, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		nodes := joinAll(t, ctx, r, "c1", "s1", "s2")
		caller, stranger, callee := nodes[0], nodes[1], nodes[2]
		handler := &during{f: func([]byte) {
			m := *seen.Load()
			o, err := m.Opening()
			if err != nil || m.Flags.Exact() {
				t.Errorf("%+v is no large call of policy none: %v", m.Header, err)
			}
			for _, guess := range []uint64{0, 2, 1 << 32} {
				h := bulk.Header{
					Kind: bulk.Pull, Call: m.Call, CallerIncarnation: m.CallerIncarnation, CalleeIncarnation: m.CalleeIncarnation, Total: o.Total, Offset: guess, Size: partsOf(&m), First: uint32(len(o.First)),
				}
				b := h.Append(nil, bulk.Range{Offset: uint64(len(o.First)), Length: o.Total - uint64(len(o.First))})
				r.Host("s1").SendRaw(netip.AddrPortFrom(stranger.Address(), rackaddr.PortBulk), netip.AddrPortFrom(caller.Address(), rackaddr.PortBulk), b)
				<-time.After(time.Second) // virtual: it has arrived, and so has what follows
			}
		}}
		if err := callee.Export(ctx, "Arrays", arrays.NewArraysProcessor(handler)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		data := bytes.Repeat(secret, 1<<16)
		if got, err := arrays.NewArraysClient(caller.Client("Arrays", rpc.WithPolicy(rpc.PolicyNone))).Echo(ctx, data); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		if n := told.Load(); n != 0 {
			t.Errorf("the stranger got %d packets with what is another's", n)
		}
		if n := blamed(caller, stranger.Address(), "foreign"); n != 3 {
			t.Errorf("the caller counts %d foreign packets, want 3", n)
		}
	})
}

// partsOf is the size of the parts of a message whose first packet is m.
func partsOf(m *rpcpacket.Message) uint32 { return uint32(len(m.Append(nil)) - bulk.HeaderSize) }

// during is a service that does something while a call runs.
type during struct {
	service.Arrays
	f func(b []byte)
}

// Echo implements arrays.Arrays.
func (d *during) Echo(_ context.Context, b []byte) ([]byte, error) {
	d.f(b)
	return b, nil
}

// TestHostile_Words is row 10 for words to forget: a program that has a callee forget calls that it has never
// made fills nobody's ledger with the slots that it names, whatever incarnations it speaks for.
func TestHostile_Words(t *testing.T) {
	cfg, _ := watched("c1", "s1", "s2")
	cfg.LedgerSpace = 256 << 10
	inVirtualTimeWith(t, cfg, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		nodes := joinAll(t, ctx, r, "c1", "s1", "s2")
		caller, stranger, callee := nodes[0], nodes[1], nodes[2]
		if err := callee.Export(ctx, "Arrays", arrays.NewArraysProcessor(service.Arrays{})); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		echo := func() {
			t.Helper()
			got, err := arrays.NewArraysClient(caller.Client("Arrays", rpc.WithPolicy(rpc.PolicyRecover))).Echo(ctx, make([]byte, 1<<10))
			if err != nil || len(got) != 1<<10 {
				t.Errorf("a call beside the flood: %d bytes, %v", len(got), err)
			}
		}
		echo()
		const words, items = 200, 100
		incarnation := incarnationOf(t, r, stranger.Address())
		for i := range uint32(words) {
			m := rpcpacket.Message{Header: rpcpacket.Header{
				Type: rpcpacket.Forget, Flags: rpcpacket.FlagSettled.WithPolicy(rpcpacket.PolicyRecover), Call: rpcpacket.ID{2}, CallerIncarnation: incarnation,
			}}
			for k := range uint32(items) {
				m.Payload = append(m.Payload, m.Call[:]...)
				m.Payload = binary.BigEndian.AppendUint32(m.Payload, rpcpacket.BlockSlots+i*items+k)
				m.Payload = binary.BigEndian.AppendUint64(m.Payload, uint64(rpcpacket.NumberOf(incarnation, 1)))
			}
			r.Host("s1").SendRaw(netip.AddrPortFrom(stranger.Address(), rackaddr.PortDirect), netip.AddrPortFrom(callee.Address(), rackaddr.PortDirect), m.Append(nil))
			<-time.After(time.Millisecond) // virtual
		}
		echo()
		if n := blamed(callee, stranger.Address(), "quota"); n == 0 {
			t.Error("no word is counted as beyond the stranger's quota")
		}
	})
}

// TestHostile_Marks is row 1 for the marks of direct calls: those that the Gatekeeper makes, or a callee's
// ledger, come from nobody else. Each packet is refused, and counted as its sender's.
func TestHostile_Marks(t *testing.T) {
	cfg, _ := watched("s1", "s2")
	inVirtualTimeWith(t, cfg, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		nodes := joinAll(t, ctx, r, "s1", "s2")
		stranger, callee := nodes[0], nodes[1]
		if err := callee.Export(ctx, "Arrays", arrays.NewArraysProcessor(service.Arrays{})); err != nil {
			t.Fatal(err)
		}
		method, err := rpcpacket.MethodOf("echo")
		if err != nil {
			t.Fatal(err)
		}
		a := rackaddr.Service("Arrays").As16()
		good := rpcpacket.Message{Header: rpcpacket.Header{
			Type: rpcpacket.Call, Flags: rpcpacket.Flags(0).WithPolicy(rpcpacket.PolicyRecover), NameLength: 4, Method: method,
			Service: binary.BigEndian.Uint64(a[8:]),
		}, Payload: arguments(t, ctx, []byte("mine"))}
		incarnation := incarnationOf(t, r, stranger.Address())
		var sent []rpcpacket.Message
		for _, kind := range []rpcpacket.Type{rpcpacket.Call, rpcpacket.Oneway} {
			for _, f := range []rpcpacket.Flags{
				rpcpacket.FlagReleased, rpcpacket.FlagReleased | 1<<2, // the Gatekeeper's
				1 << 2, 1 << 5, 1 << 8, 1 << 13, 1 << 15, rpcpacket.FlagDone, rpcpacket.FlagUnbegun, // the numbers are flags that nobody uses
			} {
				m := good
				m.Type, m.Flags = kind, m.Flags|f
				sent = append(sent, m)
			}
		}
		oneway := good
		oneway.Type, oneway.Flags = rpcpacket.Oneway, oneway.Flags|rpcpacket.FlagGivenUp
		sent = append(sent, oneway)
		begun := good
		begun.Attempt = 4
		noLineage := good
		noLineage.Trailer = make([]byte, 24)
		sent = append(sent, begun, noLineage)
		for _, kind := range []rpcpacket.Type{rpcpacket.Reply, rpcpacket.Exception, rpcpacket.Ack} {
			m := good
			m.Type = kind
			sent = append(sent, m)
		}
		for i := range sent {
			m := &sent[i]
			m.Call = rpcpacket.ID{9, byte(i)}
			m.Call.Derive()
			place(t, r, &m.Header, stranger.Address(), incarnation, uint32(i), 1)
			r.Host("s1").SendRaw(netip.AddrPortFrom(stranger.Address(), rackaddr.PortDirect), netip.AddrPortFrom(callee.Address(), rackaddr.PortDirect), m.Append(nil))
		}
		<-time.After(time.Second) // virtual: all have arrived
		const stopped = 2 + 2*2   // answers to calls that there are not, and the Gatekeeper's mark: the switch drops them
		s, come := callee.Stats(), len(sent)-stopped
		if n := blamed(callee, stranger.Address(), "malformed"); s.Accepted != 0 || s.Lending != 0 || n != uint64(come) {
			t.Errorf("%d of %d packets are refused; %d calls run", n, come, s.Accepted)
		}
	})
}

// TestHostile_CalleeFates: a callee that says that it has begun anew does not have its caller's program started
// anew, unless the caller has said that it shares the callee's fate. Nobody else can say so for the callee.
func TestHostile_CalleeFates(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		stranger := r.join("c1", "stranger")
		callee := r.join("c1", "callee")
		handler := &during{f: func([]byte) {
			m := *r.seen.Load()
			ask := rpcpacket.Message{Header: rpcpacket.Header{
				Type: rpcpacket.Ack, Flags: rpcpacket.FlagUnbegun.WithPolicy(rpcpacket.PolicyFateShare), Call: m.Call,
				CallerIncarnation: 2, CalleeIncarnation: m.CallerIncarnation,
			}}
			for _, from := range []*rpc.Node{callee, stranger} {
				r.Host("c1").SendRaw(netip.AddrPortFrom(from.Address(), rackaddr.PortDirect), netip.AddrPortFrom(r.server.Address(), rackaddr.PortDirect), ask.Append(nil))
			}
			<-time.After(3 * time.Second) // virtual
		}}
		if err := callee.Export(r.Context(), "Evil", arrays.NewArraysProcessor(handler)); err != nil {
			r.Fatal(err)
		}
		server := r.server
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			_, err := arrays.NewArraysClient(server.Client("Evil", rpc.WithPolicy(rpc.PolicyRecover))).Echo(ctx, []byte("x"))
			return err
		})
		if s := server.Stats(); s.TakenBack != 0 || r.server != server {
			r.Errorf("taken back %d times; the same program: %v", s.TakenBack, r.server == server)
		}
		for _, from := range []*rpc.Node{callee, stranger} {
			if n := blamed(server, from.Address(), "foreign"); n != 1 {
				r.Errorf("%d packets of %s are counted as foreign, want 1", n, from.Address())
			}
		}
	})
}

// TestHostile_Ledger is row 3 for ledgers: a program opens, reads and writes the ledger of another node, and
// settles what that one's executions have done. Each request is refused, and counted as its sender's; the ledger stays
// what it is.
func TestHostile_Ledger(t *testing.T) {
	cfg, seen := watched("c1", "s1", "s2")
	inVirtualTimeWith(t, cfg, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		nodes := joinAll(t, ctx, r, "c1", "s1", "s2")
		caller, stranger, callee := nodes[0], nodes[1], nodes[2]
		if err := callee.Export(ctx, "Arrays", arrays.NewArraysProcessor(service.Arrays{})); err != nil {
			t.Fatal(err)
		}
		echo := func() {
			t.Helper()
			if _, err := arrays.NewArraysClient(caller.Client("Arrays", rpc.WithPolicy(rpc.PolicyRecover))).Echo(ctx, []byte("kept")); err != nil {
				t.Error(err)
			}
			<-time.After(time.Second) // virtual: all is forgotten
		}
		echo()
		server, name := r.MemoryServer("m1"), control.LedgerOf(callee.Address())
		before, was, ok := server.ReadLedger(name)
		if !ok || len(before) == 0 {
			t.Fatalf("the callee's ledger: %+v", was)
		}
		sent, incarnation := 0, incarnationOf(t, r, stranger.Address())
		for run := was.Run - min(was.Run, 1); run <= was.Run+1; run++ {
			for _, q := range []dsmpacket.LedgerRequest{
				{Op: dsmpacket.LedgerOpen},
				{Op: dsmpacket.LedgerAppend, Keep: was.Next, Chunk: dsmpacket.Chunk{Number: was.Next, Data: []byte("forged")}},
				{Op: dsmpacket.LedgerRead, Chunk: dsmpacket.Chunk{Number: was.First}, Size: 1 << 16},
			} {
				q.Ledger, q.Run, q.Incarnation = callee.Address().As16(), run, incarnation
				r.Host("s1").SendRaw(netip.AddrPortFrom(stranger.Address(), rackaddr.PortDSM),
					netip.AddrPortFrom(dsmpacket.LedgerAddress(rackaddr.DefaultDSMPrefix, 1, q.Op).Addr(), rackaddr.PortDSM), q.Append(nil))
				sent++
			}
		}
		for _, op := range []dsmpacket.LedgerOp{dsmpacket.LedgerCommit, dsmpacket.LedgerRollback} { // of its own run of the execution, of which there is none
			q := dsmpacket.LedgerRequest{Op: op, Ledger: seen.Load().Call, Run: 1, Incarnation: incarnation}
			r.Host("s1").SendRaw(netip.AddrPortFrom(stranger.Address(), rackaddr.PortDSM),
				netip.AddrPortFrom(dsmpacket.LedgerAddress(rackaddr.DefaultDSMPrefix, 1, op).Addr(), rackaddr.PortDSM), q.Append(nil))
		}
		<-time.After(time.Second) // virtual: all have arrived
		after, is, _ := server.ReadLedger(name)
		if is != was || len(after) != len(before) {
			t.Errorf("the ledger was %+v, and is %+v", was, is)
		}
		refused := uint64(0)
		for _, c := range server.Metrics().Refused {
			if c.From == stranger.Address() {
				refused += c.Packets
			}
		}
		if refused != uint64(sent) {
			t.Errorf("%d of %d requests are counted as the stranger's", refused, sent)
		}
		echo()
	})
}
