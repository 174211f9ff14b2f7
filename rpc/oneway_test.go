package rpc_test

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/p4switch/shared/loglimit"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/internal/testrack"
	"github.com/bifrost-rack/bifrost/rpc/internal/testsvc"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

func noteCall(t *testing.T, sequence uint64, flags rpcpacket.Flags) rpcpacket.Message {
	m := callOf(t, "note", sequence, thriftMessage(t, "note", thrift.ONEWAY, &testsvc.TestNoteArgs{Number: 5}))
	m.Type, m.Flags = rpcpacket.Oneway, m.Flags|flags
	return m
}

// The receipt of a one-way comes when it is accepted; of a direct one, when the ledger has it.
func TestOnewayReceipts(t *testing.T) {
	r := testrack.New(t, wire.Config{})
	h := &testsvc.Handler{}
	server := serve(t, r, h)
	caller := newPeer(t, r, "caller", callerAddress)
	once := noteCall(t, 1, 0)
	for range 2 {
		caller.call(server, once.Append(nil))
		if a := caller.must(); a.Type != rpcpacket.Reply || a.Flags != rpcpacket.FlagDone || len(a.Payload) != 0 {
			t.Errorf("receipt %+v", a.Header)
		}
	}
	exactly := directCall(t, "note", 2, noteCall(t, 2, 0).Payload)
	exactly.Type = rpcpacket.Oneway
	want := rpcpacket.Flags(0).WithPolicy(rpcpacket.PolicyRecover)
	for range 2 {
		var a rpcpacket.Message
		waitFor(t, func() (ok bool) { // a copy that comes while its end is being written is dropped
			caller.sendTo(server.Address(), rackaddr.PortDirect, exactly.Append(nil))
			a, _, ok = caller.receive(10 * time.Millisecond)
			return ok
		})
		if a.Type != rpcpacket.Reply || a.Flags&^rpcpacket.FlagDone != want || len(a.Payload) != 0 { // it may be done
			t.Errorf("receipt %+v, want flags %x", a.Header, want)
		}
		if b, ok := records(t, r, server)[0].(*record.Begun); !ok || b.Execution != exactly.Call {
			t.Errorf("the ledger begins with %+v", b)
		}
	}
	closeNode(t, server) // they are acknowledged when accepted: they may run still
	if n := h.Notes()[5]; n != 2 {
		t.Errorf("two one-ways were run %d times", n)
	}
}

// Calls and one-ways that have been accepted are run, also when the node closes.
func TestCloseRunsAcceptedOneways(t *testing.T) {
	calm(t, []rpc.ExportOption{rpc.WithWorkers(1)}, func(t *testing.T, p *pair) {
		p.handler.Gate = func(context.Context, int64) error { pass(time.Second); return nil }
		done := make(chan error, 2)
		for n := range int64(2) {
			go func() {
				_, err := p.newClient().Count(t.Context(), n)
				done <- err
			}()
			synctest.Wait()
		}
		for n := range int64(3) {
			if err := p.client.Note(t.Context(), n); err != nil {
				t.Error(err)
			}
		}
		synctest.Wait()
		closeNode(t, p.server)
		if n := p.handler.Notes(); len(n) != 3 {
			t.Errorf("notes %v", n)
		}
		codes := map[rpc.Code]int{}
		for range 2 {
			codes[rpc.CodeOf(<-done)]++
		}
		if codes[rpc.OK] != 2 { // running, and waiting
			t.Errorf("the calls: %v", codes)
		}
	})
}

// There is a bound to one-ways that nobody has acknowledged, since each has a call slot; the next one waits.
func TestManyOneways(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		receiver, n := service(t)
		client := testsvc.NewTestClient(plain(n, "Test"))
		note := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return client.Note(ctx, 1)
		}
		var err error
		out := 0
		for ; err == nil && out <= 1024; out++ {
			err = note()
		}
		if rpc.CodeOf(err) != rpc.Deadline {
			t.Errorf("%d one-ways, then %v", out, err)
		}
		// The switch has their slots open until they are answered: then there is room again.
		m := receiver.must()
		receiver.send(n.Address(), answer(m, nil))
		synctest.Wait()
		if err := note(); err != nil {
			t.Error(err)
		}
	})
}

// A one-way that fails is nobody's to hear of; the service goes on.
func TestOnewayFails(t *testing.T) {
	p := newPair(t)
	c := plain(p.caller, "Test")
	if _, err := c.Call(t.Context(), "nothing", &testsvc.TestNoteArgs{}, nil); err != nil {
		t.Error(err)
	}
	if _, err := c.Call(t.Context(), "fail", &testsvc.TestFailArgs{How: "panic"}, nil); err != nil {
		t.Error(err)
	}
	if err := p.client.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	closeNode(t, p.caller)
}

// Of what becomes of many calls that nobody waits for, the log has some, and how many others there were.
func TestManyOneways_Log(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := testrack.New(t, wire.Config{})
		newCallee(t, r, "silent", rackaddr.Node(78), "Test")
		var lines, alike atomic.Int64
		n, err := rpc.Join(join.NewContext(t.Context(), r.Joiner()), rpc.WithName("caller"), rpc.WithLogger(slog.New(logged(func(r slog.Record) {
			lines.Add(1)
			r.Attrs(func(a slog.Attr) bool {
				if a.Key == "alike" {
					alike.Add(a.Value.Int64())
				}
				return true
			})
		}))))
		if err != nil {
			t.Fatal(err)
		}
		client := testsvc.NewTestClient(plain(n, "Test"))
		const all = 200
		for range all {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			if err := client.Note(ctx, 1); err != nil {
				t.Error(err)
			}
			cancel()
		}
		<-time.After(loglimit.Interval / 2)
		if got := lines.Load(); got != loglimit.Lines {
			t.Errorf("%d lines about %d one-ways that nobody has acknowledged", got, all)
		}
		_ = n.Close(cancelled(t))
		if got := alike.Load(); got != all-loglimit.Lines {
			t.Errorf("%d alike, want %d", got, all-loglimit.Lines)
		}
	})
}

// logged is a log that calls a function with each warning.
type logged func(slog.Record)

func (l logged) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }
func (l logged) Handle(_ context.Context, r slog.Record) error    { l(r); return nil }
func (l logged) WithAttrs([]slog.Attr) slog.Handler               { return l }
func (l logged) WithGroup(string) slog.Handler                    { return l }
