package rpc_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/internal/testrack"
	"github.com/bifrost-rack/bifrost/rpc/internal/testsvc"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// outside does each thing that is journalled, and notes what it gets.
func outside(effects *atomic.Int64, saw *[]string) func(context.Context, *rpc.Node) error {
	return func(ctx context.Context, _ *rpc.Node) error {
		now, random := rpc.Now(ctx), make([]byte, 4)
		if err := rpc.Random(ctx, random); err != nil {
			return err
		}
		effect, err := rpc.Effect(ctx, "pay", func(ctx context.Context) ([]byte, error) {
			return fmt.Append(nil, effects.Add(1)), nil
		})
		if err != nil {
			return err
		}
		_, failed := rpc.Effect(ctx, "fail", func(context.Context) ([]byte, error) {
			return nil, fmt.Errorf("attempt %d", effects.Add(1))
		})
		*saw = append(*saw, fmt.Sprintf("%d %x %s %v", now.UnixNano(), random, effect, failed))
		return noted(ctx)
	}
}

// What an execution got from outside it gets again when it is run again; what the ledger does
// not have is got now.
func TestReplay(t *testing.T) {
	var effects atomic.Int64
	var saw []string
	onBench(t, outside(&effects, &saw), func(b *bench) {
		first := b.call()
		b.run(first)
		journal := b.journal(first)
		if len(journal) != 4 {
			t.Fatalf("journal %v", journal)
		}
		pass(time.Second)
		if a := b.rerun(journal); a.Type != rpcpacket.Reply || effects.Load() != 2 || saw[0] != saw[1] {
			t.Errorf("%v, %d effects, saw %q", a.Type, effects.Load(), saw)
		}
		if a := b.rerun(journal[:2]); a.Type != rpcpacket.Reply || effects.Load() != 4 || saw[0] == saw[2] {
			t.Errorf("cut off: %v, %d effects, saw %q", a.Type, effects.Load(), saw)
		}
	})
}

// A re-run that does something else is abandoned, and says so.
func TestDivergence(t *testing.T) {
	var effects atomic.Int64
	var saw []string
	onBench(t, outside(&effects, &saw), func(b *bench) {
		first := b.call()
		b.run(first)
		journal := b.journal(first)
		edit := func(f func(ss []trailer.Section) []trailer.Section) []trailer.Section {
			return f(slices.Clone(journal))
		}
		late := trailer.Section{Type: trailer.Time, Index: 99, Data: make([]byte, 8)}
		for name, bad := range map[string][]trailer.Section{
			"a random was a time": edit(func(ss []trailer.Section) []trailer.Section { ss[1].Type = trailer.Time; return ss }),
			"something is left":   append(slices.Clone(journal), late),
			"one is missing":      slices.Delete(slices.Clone(journal), 1, 2),
			"fewer random bytes":  edit(func(ss []trailer.Section) []trailer.Section { ss[1].Data = ss[1].Data[:3]; return ss }),
			"an odd time":         edit(func(ss []trailer.Section) []trailer.Section { ss[0].Data = nil; return ss }),
			"another key": edit(func(ss []trailer.Section) []trailer.Section {
				ss[2].Data = bytes.Replace(ss[2].Data, []byte("pay"), []byte("PAY"), 1)
				return ss
			}),
			"no key": edit(func(ss []trailer.Section) []trailer.Section { ss[2].Data = []byte{0}; return ss }),
		} {
			a := b.rerun(bad)
			if a.Type != rpcpacket.Exception || a.Code != rpc.Nondeterminism {
				t.Errorf("%s: %v, %v: %s", name, a.Type, a.Code, a.Payload)
			}
		}
	})
}

// A re-run that fails because memory is away, before it has done all that the run before
// did, has not diverged: its caller is told what is away. Any other failure is a divergence.
func TestRerunWithoutMemory(t *testing.T) {
	for code, want := range map[rpc.Code]rpc.Code{rpc.Unavailable: rpc.Unavailable, rpc.NoSpace: rpc.NoSpace, rpc.Application: rpc.Nondeterminism} {
		var fails atomic.Bool
		onBench(t, func(ctx context.Context, _ *rpc.Node) error {
			if fails.Load() {
				return &rpc.Error{Code: code, Op: "read", Msg: "of a test"}
			}
			_ = rpc.Now(ctx)
			return noted(ctx)
		}, func(b *bench) {
			first := b.call()
			b.run(first)
			fails.Store(true)
			if a := b.rerun(b.journal(first)); a.Type != rpcpacket.Exception || a.Code != want {
				t.Errorf("%v: %v, %v: %s; want %v", code, a.Type, a.Code, a.Payload, want)
			}
		})
	}
}

// Two goroutines that use one context of an exactly-once execution at a time would
// have their operations numbered by chance.
func TestUndeclaredConcurrency(t *testing.T) {
	onBench(t, func(ctx context.Context, n *rpc.Node) error {
		c := testsvc.NewTestClient(plain(n, "Nobody"))
		done := make(chan struct{})
		go func() { defer close(done); _ = c.Ping(ctx) }()
		pass(time.Millisecond) // it waits
		_ = rpc.Now(ctx)
		<-done
		return nil
	}, func(b *bench) {
		newCallee(b.t, b.rack, "nobody", rackaddr.Node(79), "Nobody") // it does not answer
		if a := b.run(b.call()); a.Code != rpc.Nondeterminism || !strings.Contains(string(a.Payload), "rpc.Go") {
			t.Errorf("%v: %s", a.Code, a.Payload)
		}
	})
}

// A copy of a call that runs is not run, and not answered early. When the call is done each copy gets
// the answer, until the session has gone on: nobody waits for it then.
func TestCopies(t *testing.T) {
	runs := 0
	onBench(t, func(context.Context, *rpc.Node) error { runs++; pass(time.Second); return nil }, func(b *bench) {
		m := b.call()
		b.send(m)
		pass(time.Millisecond)
		for range 5 {
			b.send(m)
		}
		if a, _, ok := b.caller.receive(900 * time.Millisecond); ok {
			t.Errorf("answered early: %+v", a.Header)
		}
		first := b.answer(m)
		if again := b.run(m); !bytes.Equal(again.Append(nil), first.Append(nil)) {
			t.Errorf("answered again: %+v", again.Header)
		}
		b.run(b.call())
		if late := b.run(m); !late.Refuses() {
			t.Errorf("when the session has gone on: %+v", late.Header)
		}
		if runs != 2 {
			t.Errorf("two calls have run %d times", runs)
		}
	})
}

// list is a state that tells its changes.
type list struct{ items, fresh []byte }

func (l *list) add(b byte)                { l.items, l.fresh = append(l.items, b), append(l.fresh, b) }
func (l *list) Snapshot() ([]byte, error) { l.fresh = nil; return bytes.Clone(l.items), nil }
func (l *list) Restore(b []byte) error    { l.items = bytes.Clone(b); return nil }
func (l *list) Apply(b []byte) error      { l.items = append(l.items, b...); return nil }
func (l *list) Delta() ([]byte, error) {
	d := l.fresh
	l.fresh = nil
	return d, nil
}

// whole is a state without deltas.
type whole struct{ l *list }

func (w whole) Snapshot() ([]byte, error) { return w.l.Snapshot() }
func (w whole) Restore(b []byte) error    { return w.l.Restore(b) }

// change is what the ledger says that a call has made of the service's state.
func (b *bench) change(m rpcpacket.Message) (sections []trailer.Section) {
	b.t.Helper()
	for _, r := range records(b.t, b.rack, b.server) {
		if d, ok := r.(*record.Done); ok && d.Execution == m.Call {
			sections, err := trailer.Parse(d.State)
			if err != nil {
				b.t.Fatal(err)
			}
			return sections
		}
	}
	b.t.Errorf("call %s is not done", m.Call)
	return nil
}

// What a call has made of the service's state is in the ledger together with its answer.
func TestStateInLedger(t *testing.T) {
	for _, incremental := range []bool{false, true} {
		t.Run(fmt.Sprint("incremental=", incremental), func(t *testing.T) {
			l := &list{}
			var state rpc.State = whole{l}
			want := []trailer.Section{{Type: trailer.Snapshot, Data: []byte{1}}, {Type: trailer.Snapshot, Data: []byte{1, 2}}}
			if incremental {
				state, want = l, []trailer.Section{{Type: trailer.Delta, Data: []byte{1}}, {Type: trailer.Delta, Data: []byte{2}}}
			}
			runs := byte(0)
			onBench(t, func(context.Context, *rpc.Node) error {
				if runs++; runs < 3 {
					l.add(runs)
				}
				return nil
			}, func(b *bench) {
				for i := range 3 {
					m := b.call()
					b.run(m)
					ss := b.change(m)
					if i < 2 && (len(ss) != 1 || ss[0].Type != want[i].Type || !bytes.Equal(ss[0].Data, want[i].Data)) || i == 2 && len(ss) != 0 {
						t.Errorf("call %d: %v", i, ss)
					}
				}
			}, rpc.WithState(state))
		})
	}
}

// A service is brought to the state that the ledger has before it takes calls, and goes on from there.
func TestRestoredState(t *testing.T) {
	l := &list{}
	onBench(t, func(context.Context, *rpc.Node) error { l.add('e'); return nil }, func(b *bench) {
		change := func(sequence uint64, ss ...trailer.Section) record.Record {
			m := directCall(b.t, "count", sequence, nil)
			d := &record.Done{Execution: m.Call, Caller: callerAddress.As16(), Incarnation: 1, Service: m.Service, State: trailer.Append(nil, ss), Over: true}
			d.Slot, d.Number = m.Slot, m.Number
			return d
		}
		b.write(
			change(100, trailer.Section{Type: trailer.Snapshot, Data: []byte("ab")}),
			change(101, trailer.Section{Type: trailer.Delta, Data: []byte("c")}, trailer.Section{Type: trailer.Delta, Data: []byte("d")}),
		)
		b.next = 101
		b.server = joinNode(b.t, b.rack, "server")
		processor := testsvc.NewTestProcessor(&testsvc.Handler{})
		if err := b.server.Export(b.t.Context(), "Test", processor, rpc.WithState(whole{&list{}})); rpc.CodeOf(err) != rpc.Internal {
			t.Errorf("deltas for a state without Apply: %v", err)
		}
		b.start()
		if string(l.items) != "abcd" {
			t.Errorf("state %q", l.items)
		}
		if b.run(b.call()); string(l.items) != "abcde" {
			t.Errorf("after a call: state %q", l.items)
		}
		l.items = nil
		if b.start(); string(l.items) != "abcde" {
			t.Errorf("the next incarnation: state %q", l.items)
		}
	}, rpc.WithState(l))
}

// A call that makes the state too large for the ledger fails, and takes no effect: neither
// with its answer nor with the next one. The service serves on.
func TestStateTooLarge(t *testing.T) {
	for _, incremental := range []bool{false, true} {
		t.Run(fmt.Sprint("incremental=", incremental), func(t *testing.T) {
			l := &list{items: []byte("a")}
			var state rpc.State = whole{l}
			if incremental {
				state = l
			}
			calls := 0
			handler := func(context.Context, *rpc.Node) error {
				if calls++; calls == 2 {
					l.items = append(l.items, make([]byte, testrack.LedgerSpace)...)
					l.fresh = make([]byte, testrack.LedgerSpace)
				} else {
					l.add('b')
				}
				return nil
			}
			onBench(t, handler, func(b *bench) {
				b.run(b.call())
				m := b.call()
				a, ss := b.run(m), b.change(m)
				if a.Type != rpcpacket.Exception || a.Code != rpc.NoSpace || len(ss) != 0 || string(l.items) != "ab" {
					t.Errorf("%v, %v: %s; %d sections, a state of %d bytes", a.Type, a.Code, a.Payload, len(ss), len(l.items))
				}
				want := "abb"
				if incremental {
					want = "b"
				}
				m = b.call()
				a, ss = b.run(m), b.change(m)
				if a.Type != rpcpacket.Reply || len(ss) != 1 || string(ss[0].Data) != want || string(l.items) != "abb" {
					t.Errorf("%v, %v: %s; %d sections, a state of %d bytes", a.Type, a.Code, a.Payload, len(ss), len(l.items))
				}
			}, rpc.WithState(state))
		})
	}
}

// What a diverged execution did to the state is undone, and not in the ledger.
func TestDivergedState(t *testing.T) {
	for _, incremental := range []bool{false, true} {
		l := &list{items: []byte("a")}
		var state rpc.State = whole{l}
		if incremental {
			state = l
		}
		onBench(t, func(context.Context, *rpc.Node) error { l.add('x'); return nil }, func(b *bench) {
			m := b.call()
			b.begun(m, []trailer.Section{{Type: trailer.Time, Index: 1, Data: make([]byte, 8)}})
			a, ss := b.answer(m), b.change(m)
			if a.Code != rpc.Nondeterminism || len(ss) != 0 || string(l.items) != "a" {
				t.Errorf("%v, %v, state %q", a.Code, ss, l.items)
			}
		}, rpc.WithState(state))
	}
}

// How a call ended that was decided here is journalled: a re-run does not try again.
func TestLocalOutcomes(t *testing.T) {
	var got []error
	handler := func(ctx context.Context, n *rpc.Node) error {
		c := testsvc.NewTestClient(n.Client("Down", rpc.WithPolicy(rpc.PolicyNone), rpc.WithPolicy(rpc.PolicyRecover, "ping")))
		short, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
		defer cancel()
		err := c.Ping(short)
		sum, failed := c.Add(ctx, 1, 2)
		got = append(got, err, failed, fmt.Errorf("%d", sum))
		return noted(ctx)
	}
	onBench(t, handler, func(b *bench) {
		down := newCallee(b.t, b.rack, "down", rackaddr.Node(78), "Down")
		first := b.call()
		b.send(first)
		given := down.must() // and no answer
		for given.Flags&rpcpacket.FlagGivenUp == 0 {
			given = down.must()
		}
		down.sendTo(b.server.Address(), rackaddr.PortDirect, (&rpcpacket.Message{Header: rpcpacket.Header{
			Type: rpcpacket.Ack, Flags: rpcpacket.FlagGivenUp.WithPolicy(rpc.PolicyRecover), Call: given.Call,
		}}).Append(nil))
		add := down.must()
		for add.Call == given.Call { // a copy
			add = down.must()
		}
		three := int64(3)
		down.send(b.server.Address(), answer(add, thriftMessage(b.t, "add", thrift.REPLY, &testsvc.TestAddResult{Success: &three})))
		b.answer(first)
		journal := b.journal(first)
		if len(journal) != 2 {
			t.Fatal(journal)
		}
		b.rerun(journal)
		for m, _, ok := down.receive(time.Second); ok; m, _, ok = down.receive(time.Second) {
			if m.Parent != first.Call { // a copy
				t.Errorf("the re-run calls: %+v", m.Header)
			}
		}
		if rpc.CodeOf(got[0]) != rpc.Deadline || !errors.Is(got[3], context.DeadlineExceeded) || fmt.Sprint(got[:3]) != fmt.Sprint(got[3:]) {
			t.Errorf("got %v", got)
		}
		binary.BigEndian.PutUint64(journal[1].Data[1:], 1)
		if a := b.rerun(journal); a.Code != rpc.Nondeterminism {
			t.Errorf("another call: %v", a.Code)
		}
	})
}

// That a call found no slot is journalled, too: a re-run does not make the call, though there are slots then.
func TestOverloadedOutcome(t *testing.T) {
	var got []error
	onBench(t, func(ctx context.Context, n *rpc.Node) error {
		got = append(got, testsvc.NewTestClient(n.Client("Down", rpc.WithPolicy(rpc.PolicyRecover))).Ping(ctx))
		return noted(ctx)
	}, func(b *bench) {
		newCallee(b.t, b.rack, "down", rackaddr.Node(78), "Down") // which does not answer
		ctx, cancel := context.WithCancel(b.t.Context())
		var all sync.WaitGroup
		for range rpcpacket.MaxBlocks * rpcpacket.BlockSlots / 2 { // as many as a node may have out to another one
			client := testsvc.NewTestClient(b.server.Client("Down", rpc.WithPolicy(rpc.PolicyNone)))
			all.Go(func() { _ = client.Ping(ctx) })
		}
		synctest.Wait()
		first := b.call()
		b.run(first)
		cancel()
		all.Wait()
		journal := b.journal(first)
		if len(journal) != 1 || rpc.CodeOf(got[0]) != rpc.Overloaded || !rpc.NeverBegan(got[0]) {
			t.Fatal(journal, got)
		}
		b.rerun(journal)
		if fmt.Sprint(got[0]) != fmt.Sprint(got[1]) || !rpc.NeverBegan(got[1]) {
			t.Errorf("got %v", got)
		}
	})
}

// A call that was answered when the execution ran before is waited for, however
// short its deadline: its callee keeps the answer.
func TestAnsweredBefore(t *testing.T) {
	var got error
	onBench(t, func(ctx context.Context, n *rpc.Node) error {
		short, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		if got = testsvc.NewTestClient(n.Client("Down", rpc.WithPolicy(rpc.PolicyRecover))).Ping(short); got != nil {
			return got
		}
		return noted(ctx)
	}, func(b *bench) {
		down := newCallee(b.t, b.rack, "down", rackaddr.Node(78), "Down")
		m := b.call()
		b.send(m)
		down.send(b.server.Address(), answer(down.must(), pong(b.t)))
		b.answer(m)
		journal := b.journal(m)
		if len(journal) != 1 || got != nil {
			t.Fatal(journal, got)
		}
		m = b.call()
		b.begun(m, journal)
		first := down.must()
		pass(time.Second)
		down.send(b.server.Address(), answer(first, pong(b.t)))
		if a := b.answer(m); a.Type != rpcpacket.Reply || got != nil {
			t.Errorf("%v, %v", a.Type, got)
		}
	})
}

// What an execution has journalled is in the ledger before a call of it leaves, and so is where the
// call goes.
func TestJournalBeforeCalls(t *testing.T) {
	onBench(t, func(ctx context.Context, n *rpc.Node) error {
		c := testsvc.NewTestClient(n.Client("Down", rpc.WithPolicy(rpc.PolicyRecover)))
		_ = rpc.Now(ctx)
		return errors.Join(c.Ping(ctx), c.Ping(ctx))
	}, func(b *bench) {
		down := newCallee(b.t, b.rack, "down", rackaddr.Node(78), "Down")
		call := b.call()
		b.send(call)
		for want := range 2 { // the time, and the first one's outcome
			m := down.must()
			called := func(k record.Call) bool {
				return k.ID == m.Call && k.Node == rackaddr.Node(78).As16() && k.Slot == m.Slot && k.Number == m.Number && k.Slots == 1
			}
			if got := b.journal(call); len(got) != want+1 {
				t.Errorf("call %d: %v", want, got)
			}
			if !slices.ContainsFunc(records(b.t, b.rack, b.server), func(r record.Record) bool {
				j, ok := r.(*record.Journal)
				return ok && slices.ContainsFunc(j.Called, called)
			}) {
				t.Errorf("call %d: the ledger does not say where it goes", want)
			}
			down.send(b.server.Address(), answer(m, pong(b.t)))
		}
		b.answer(call)
	})
}

// TestCutOffSaysNothing: a node that ends while a handler runs does not answer for it, so
// that the call can run again elsewhere.
func TestCutOffSaysNothing(t *testing.T) {
	for name, end := range map[string]func(b *bench){
		"session": func(b *bench) {
			for _, s := range b.rack.Sessions() {
				s.Cut()
			}
			<-b.server.Done()
		},
		"close": func(b *bench) {
			ctx, cancel := context.WithCancel(b.t.Context())
			cancel()
			if err := b.server.Close(ctx); err == nil {
				b.t.Error("it was not cut off")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			for range 20 {
				cutOff := false
				onBench(t, func(ctx context.Context, _ *rpc.Node) error {
					<-ctx.Done()
					cutOff = true
					return ctx.Err()
				}, func(b *bench) {
					for range 1000 { // so that it takes the node a while to end
						go func() { _ = testsvc.NewTestClient(plain(b.server, "Nobody")).Ping(b.t.Context()) }()
					}
					b.send(b.call())
					synctest.Wait()
					end(b)
					synctest.Wait()
					if m, _, ok := b.caller.receive(time.Second); ok || !cutOff {
						b.t.Fatalf("cut off: %v; answered: %v %s", cutOff, m.Type, m.Payload)
					}
				})
			}
		})
	}
}
