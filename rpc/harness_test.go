package rpc_test

import (
	"context"
	"net/netip"
	"testing"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
	"github.com/bifrost-rack/bifrost/rpc/internal/testrack"
	"github.com/bifrost-rack/bifrost/rpc/internal/testsvc"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// bench is a server with a ledger whose handler a test fills in, and a peer that makes direct
// calls to it.
type bench struct {
	t      *testing.T
	rack   *testrack.Rack
	server *rpc.Node // its present incarnation
	caller *peer
	next   uint64
	export func(*rpc.Node) error
}

// onBench runs f in virtual time; count calls handler.
func onBench(t *testing.T, handler func(ctx context.Context, n *rpc.Node) error, f func(*bench), opts ...rpc.ExportOption) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		b := &bench{t: t, rack: testrack.New(t, wire.Config{})}
		b.export = func(n *rpc.Node) error {
			h := &testsvc.Handler{Gate: func(ctx context.Context, _ int64) error { return handler(ctx, n) }}
			return n.Export(t.Context(), "Test", testsvc.NewTestProcessor(h), opts...)
		}
		b.caller = newPeer(t, b.rack, "caller", callerAddress)
		b.rack.Play(callerAddress)
		b.start()
		f(b)
		b.rack.Crash("server") // nobody forgets what it knows
	})
}

// received has a node own what a pointer points to, as if another node had handed it over. There is no switch here that would say so.
func received(n *rpc.Node, p *bifrost.GlobalPointer) {
	(*dsmclient.Client)(n.Memory()).Received(dsm.Pointer(p.Address))
}

// callerAddress is where the peer is that calls the server.
var callerAddress = rackaddr.Node(77)

// start starts the server, as its next incarnation.
func (b *bench) start() {
	b.t.Helper()
	b.server = joinNode(b.t, b.rack, "server")
	if err := b.export(b.server); err != nil {
		b.t.Fatal(err)
	}
}

// directCall is an exactly-once call of the service Test, in a slot of the peer that calls.
func directCall(t testing.TB, method string, sequence uint64, payload []byte) rpcpacket.Message {
	t.Helper()
	m := callOf(t, method, sequence, payload)
	plainCall(&m, 31, sequence)
	m.Flags = m.Flags.WithPolicy(rpcpacket.PolicyRecover)
	return m
}

// call is the peer's next call, of count.
func (b *bench) call() rpcpacket.Message {
	b.next++
	return directCall(b.t, "count", b.next, thriftMessage(b.t, "count", thrift.CALL, &testsvc.TestCountArgs{Number: int64(b.next)}))
}

func (b *bench) send(m rpcpacket.Message) {
	b.caller.sendTo(b.server.Address(), rackaddr.PortDirect, m.Append(nil))
}

// answer is that of a call, which has to come.
func (b *bench) answer(m rpcpacket.Message) rpcpacket.Message {
	b.t.Helper()
	a := b.caller.must()
	if a.Call != m.Call {
		b.t.Fatalf("an answer to %s, want one to %s", a.Call, m.Call)
	}
	return a
}

// run makes a call and returns its answer.
func (b *bench) run(m rpcpacket.Message) rpcpacket.Message {
	b.t.Helper()
	b.send(m)
	return b.answer(m)
}

// rerun returns the answer to a call that a former incarnation has begun and was killed at: its
// ledger has these entries of the call's journal.
func (b *bench) rerun(entries []trailer.Section) rpcpacket.Message {
	b.t.Helper()
	m := b.call()
	b.begun(m, entries)
	return b.answer(m)
}

// begun is rerun without the answer.
func (b *bench) begun(m rpcpacket.Message, entries []trailer.Section) {
	b.t.Helper()
	begun := &record.Begun{Execution: m.Call, Caller: callerAddress.As16(), Incarnation: m.CallerIncarnation, Slot: m.Slot, Number: m.Number, Call: m.Append(nil)}
	all := []record.Record{begun}
	if len(entries) > 0 {
		all = append(all, &record.Journal{Execution: m.Call, Entries: trailer.Append(nil, entries)})
	}
	b.write(all...)
	b.start()
}

// write lets an incarnation of the server write to its ledger, and do nothing else.
func (b *bench) write(rs ...record.Record) {
	b.t.Helper()
	s, err := b.rack.Joiner().Join(b.t.Context(), "server")
	if err != nil {
		b.t.Fatal(err)
	}
	id := s.Node()
	c, err := dsmclient.NewClient(dsmclient.Config{Stack: s.Stack(), Address: id.Address, Incarnation: id.Incarnation, Rack: s.Rack, Batches: s.Batches})
	if err != nil {
		b.t.Fatal(err)
	}
	l, err := c.OpenLedger(dsmclient.LedgerConfig{Machine: id.Ledger.Machine, Birth: id.Ledger.Birth, Run: id.Incarnation})
	if err != nil {
		b.t.Fatal(err)
	}
	var last uint64
	for _, r := range rs {
		last = l.Append(record.Append(nil, r))
	}
	if err := l.Wait(b.t.Context(), last); err != nil {
		b.t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		b.t.Error(err)
	}
}

// records are those in a node's ledger.
func records(t *testing.T, r *testrack.Rack, n *rpc.Node) (all []record.Record) {
	t.Helper()
	for _, b := range r.Ledger(n.Address()) {
		k, err := record.Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, k)
	}
	return all
}

// journal is what the server's ledger has of the journal of a call.
func (b *bench) journal(m rpcpacket.Message) (entries []trailer.Section) {
	b.t.Helper()
	for _, r := range records(b.t, b.rack, b.server) {
		if j, ok := r.(*record.Journal); ok && j.Execution == m.Call {
			some, err := trailer.Parse(j.Entries)
			if err != nil {
				b.t.Fatal(err)
			}
			entries = append(entries, some...)
		}
	}
	return entries
}

// noted has the ledger get what an execution has journalled so far: that is settled before an
// effect happens.
func noted(ctx context.Context) error {
	_, err := rpc.Effect(ctx, "noted", func(context.Context) ([]byte, error) { return nil, nil })
	return err
}

// newCallee makes a peer that serves the direct calls of a service.
func newCallee(t testing.TB, r *testrack.Rack, name string, at netip.Addr, service string) *peer {
	t.Helper()
	p := newPeerOn(t, r, name, at, rackaddr.PortDirect)
	r.Play(at, service)
	return p
}
