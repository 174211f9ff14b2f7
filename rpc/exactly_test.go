package rpc_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/internal/testrack"
	"github.com/bifrost-rack/bifrost/rpc/internal/testsvc"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// bench is a server whose handler a test fills in, and a peer that plays the
// Gatekeeper and all others.
type bench struct {
	t      *testing.T
	rack   *testrack.Rack
	server *rpc.Node
	gk     *peer
	next   uint64
}

// onBench runs f in virtual time; count calls handler.
func onBench(t *testing.T, handler func(ctx context.Context, n *rpc.Node) error, f func(*bench), opts ...rpc.ExportOption) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, rack: testrack.New(wire.Config{})}
		h := &testsvc.Handler{Gate: func(ctx context.Context, _ int64) error { return handler(ctx, b.server) }}
		b.server = joinNode(t, b.rack, "server")
		if err := b.server.Export(t.Context(), "Test", testsvc.NewTestProcessor(h), opts...); err != nil {
			t.Fatal(err)
		}
		b.gk = newPeer(t, b.rack, "gk", rackaddr.Node(77))
		f(b)
	})
}

// call is a released exactly-once call of count.
func (b *bench) call() rpcpacket.Message {
	b.next++
	m := callOf(b.t, "count", b.next, thriftMessage(b.t, "count", thrift.CALL, &testsvc.TestCountArgs{Number: int64(b.next)}))
	m.Flags = (m.Flags | rpcpacket.FlagHeld | rpcpacket.FlagReleased).WithPolicy(rpcpacket.PolicyRecover)
	m.CalleeIncarnation = 1
	return m
}

func (b *bench) send(m rpcpacket.Message) { b.gk.send(rackaddr.Service("Test"), m.Append(nil)) }

// run delivers a call and returns its answer, acknowledged, and the journal in it.
func (b *bench) run(m rpcpacket.Message) (rpcpacket.Message, []trailer.Section) {
	b.t.Helper()
	b.send(m)
	a := b.gk.must()
	for a.Call != m.Call { // a copy of an earlier answer, which has crossed its acknowledgement
		a = b.gk.must()
	}
	ack(b.gk, b.server, a)
	ss, err := trailer.Parse(a.Trailer)
	if err != nil {
		b.t.Fatal(err)
	}
	return a, ss
}

// rerun delivers a call as if it had been cut off after these entries.
func (b *bench) rerun(ss []trailer.Section) (rpcpacket.Message, []trailer.Section) {
	b.t.Helper()
	m := b.call()
	m.Flags |= rpcpacket.FlagReplay
	m.Attempt, m.Trailer = 1, trailer.Append(nil, ss)
	return b.run(m)
}

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
		return nil
	}
}

// What an execution got from outside it gets again when it is run again; what it
// had not got yet is got now.
func TestReplay(t *testing.T) {
	var effects atomic.Int64
	var saw []string
	onBench(t, outside(&effects, &saw), func(b *bench) {
		_, journal := b.run(b.call())
		if len(journal) != 4 {
			t.Fatalf("journal %v", journal)
		}
		pass(time.Second)
		a, more := b.rerun(journal)
		if a.Type != rpcpacket.Reply || len(more) != 0 || effects.Load() != 2 || saw[0] != saw[1] {
			t.Errorf("%v, %d new entries, %d effects, saw %q", a.Type, len(more), effects.Load(), saw)
		}
		a, more = b.rerun(append(slices.Clone(journal[:2]), journal[0])) // some entries travel twice
		if a.Type != rpcpacket.Reply || len(more) != 2 || effects.Load() != 4 || saw[0] == saw[2] {
			t.Errorf("cut off: %v, %d new entries, %d effects, saw %q", a.Type, len(more), effects.Load(), saw)
		}
	})
}

// A re-run that does something else is abandoned, and says so.
func TestDivergence(t *testing.T) {
	var effects atomic.Int64
	var saw []string
	onBench(t, outside(&effects, &saw), func(b *bench) {
		_, journal := b.run(b.call())
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
			a, _ := b.rerun(bad)
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
			return nil
		}, func(b *bench) {
			_, journal := b.run(b.call())
			fails.Store(true)
			if a, _ := b.rerun(journal); a.Type != rpcpacket.Exception || a.Code != want {
				t.Errorf("%v: %v, %v: %s; want %v", code, a.Type, a.Code, a.Payload, want)
			}
		})
	}
}

// The first attempt's trailer is its caller's journal, and nothing to go by.
func TestTrailerOfFirstAttempt(t *testing.T) {
	var effects atomic.Int64
	var saw []string
	onBench(t, outside(&effects, &saw), func(b *bench) {
		m := b.call()
		m.Flags |= rpcpacket.FlagReplay // released twice
		m.Trailer = trailer.Section{Type: trailer.Random, Index: 1, Data: []byte("x")}.Append(nil)
		if a, journal := b.run(m); a.Type != rpcpacket.Reply || len(journal) != 4 {
			t.Errorf("%v, journal %v", a.Type, journal)
		}
	})
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
		if a, _ := b.run(b.call()); a.Code != rpc.Nondeterminism || !strings.Contains(string(a.Payload), "rpc.Go") {
			t.Errorf("%v: %s", a.Code, a.Payload)
		}
	})
}

// An answer is sent until it is acknowledged, and then forgotten.
func TestAnswerUntilAcknowledged(t *testing.T) {
	onBench(t, func(context.Context, *rpc.Node) error { return nil }, func(b *bench) {
		m := b.call()
		b.send(m)
		first := b.gk.must()
		start := time.Now()
		for range 10 {
			if again := b.gk.must(); !bytes.Equal(again.Append(nil), first.Append(nil)) {
				t.Errorf("sent again: %+v", again.Header)
			}
		}
		if d := time.Since(start); d < 3*time.Second || d > 8*time.Second {
			t.Errorf("ten times in %v", d)
		}
		m.Flags |= rpcpacket.FlagReplay
		b.send(m)
		if again := b.gk.must(); again.Call != m.Call {
			t.Errorf("to a call that is delivered again: %+v", again.Header)
		}
		ack(b.gk, b.server, first)
		for ok := true; ok; { // what was under way
			_, _, ok = b.gk.receive(time.Millisecond)
		}
		b.send(m)
		if again, _, ok := b.gk.receive(time.Minute); ok {
			t.Errorf("after the ACK: %+v", again.Header)
		}
	})
}

// A call that is released again while it runs is not run again, and not answered
// early.
func TestReleasedAgainWhileRunning(t *testing.T) {
	runs := 0
	onBench(t, func(context.Context, *rpc.Node) error { runs++; pass(time.Second); return nil }, func(b *bench) {
		m := b.call()
		b.send(m)
		pass(time.Millisecond)
		m.Flags |= rpcpacket.FlagReplay
		for range 5 {
			b.send(m)
		}
		if a, _, ok := b.gk.receive(900 * time.Millisecond); ok {
			t.Errorf("answered early: %+v", a.Header)
		}
		ack(b.gk, b.server, b.gk.must())
		if runs != 1 {
			t.Errorf("run %d times", runs)
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

// A stateful service begins a call when the answer to the one before is logged,
// and the answer has what the call made of the state.
func TestStateInAnswers(t *testing.T) {
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
				calls := []rpcpacket.Message{b.call(), b.call(), b.call()}
				for i := range calls {
					calls[i].Order = uint64(i + 1)
					b.send(calls[i])
				}
				for i, call := range calls {
					pass(time.Minute)
					var a rpcpacket.Message
					for a = b.gk.must(); a.Call != call.Call; a = b.gk.must() {
						if i == 0 || a.Call != calls[i-1].Call {
							t.Fatalf("call %d is answered too early: %s", i, a.Call)
						}
					}
					ss, err := trailer.Parse(a.Trailer)
					if err != nil || i < 2 && (len(ss) != 1 || ss[0].Type != want[i].Type || !bytes.Equal(ss[0].Data, want[i].Data)) || i == 2 && len(ss) != 0 {
						t.Errorf("answer %d: %v, %v", i, ss, err)
					}
					ack(b.gk, b.server, a)
				}
			}, rpc.WithState(state))
		})
	}
}

// A service is brought to its logged state before it takes calls, and goes on with
// the next number.
func TestRestoredState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := testrack.New(wire.Config{})
		s := testrack.NewSession(r.Host("server"), join.Identity{Name: "server", Address: rackaddr.Node(50), Incarnation: 1})
		s.MTU = 9000
		logged := join.State{Base: []byte("ab"), Deltas: [][]byte{[]byte("c"), []byte("d")}}
		s.OnState = func(ask control.State) (control.StatePart, error) {
			return control.PartOf(logged.Append(nil), ask.Offset, 7), nil
		}
		if err := s.Stack().AddAddress(rackaddr.Node(50)); err != nil {
			t.Fatal(err)
		}
		n, err := rpc.Join(join.NewContext(t.Context(), testrack.Fixed(s)))
		if err != nil {
			t.Fatal(err)
		}
		defer closeNode(t, n)
		l := &list{}
		processor := testsvc.NewTestProcessor(&testsvc.Handler{Gate: func(context.Context, int64) error { l.add('e'); return nil }})
		if err := n.Export(t.Context(), "Whole", processor, rpc.WithState(whole{&list{}})); rpc.CodeOf(err) != rpc.Internal && rpc.CodeOf(err) != rpc.BadRequest {
			t.Errorf("deltas for a state without Apply: %v", err)
		}
		if err := n.Export(t.Context(), "Test", processor, rpc.WithState(l)); err != nil || string(l.items) != "abcd" {
			t.Fatalf("%v, state %q", err, l.items)
		}
		b := &bench{t: t, rack: r, server: n, gk: newPeer(t, r, "gk", rackaddr.Node(77))}
		late, due := b.call(), b.call()
		late.Order, due.Order = 6, 7
		b.send(late)
		if a, _ := b.run(due); a.Call != due.Call || string(l.items) != "abcde" {
			t.Errorf("answer to %s, state %q", a.Call, l.items)
		}
	})
}

// A call that makes the state too large for the log fails, and takes no effect: neither
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
					l.items = append(l.items, make([]byte, rpcpacket.MaxWhole)...)
					l.fresh = make([]byte, rpcpacket.MaxWhole)
				} else {
					l.add('b')
				}
				return nil
			}
			onBench(t, handler, func(b *bench) {
				b.run(b.call())
				a, ss := b.run(b.call())
				if a.Type != rpcpacket.Exception || a.Code != rpc.NoSpace || len(ss) != 0 || string(l.items) != "ab" {
					t.Errorf("%v, %v: %s; %d sections, a state of %d bytes", a.Type, a.Code, a.Payload, len(ss), len(l.items))
				}
				want := "abb"
				if incremental {
					want = "b"
				}
				a, ss = b.run(b.call())
				if a.Type != rpcpacket.Reply || len(ss) != 1 || string(ss[0].Data) != want || string(l.items) != "abb" {
					t.Errorf("%v, %v: %s; %d sections, a state of %d bytes", a.Type, a.Code, a.Payload, len(ss), len(l.items))
				}
			}, rpc.WithState(state))
		})
	}
}

// What a diverged execution did to the state is not logged, and undone.
func TestDivergedState(t *testing.T) {
	for _, incremental := range []bool{false, true} {
		l := &list{items: []byte("a")}
		var state rpc.State = whole{l}
		if incremental {
			state = l
		}
		onBench(t, func(context.Context, *rpc.Node) error { l.add('x'); return nil }, func(b *bench) {
			a, ss := b.rerun([]trailer.Section{{Type: trailer.Time, Index: 1, Data: make([]byte, 8)}})
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
		return nil
	}
	onBench(t, handler, func(b *bench) {
		down := newPeer(b.t, b.rack, "down", rackaddr.Service("Down"))
		b.send(b.call())
		down.must() // and no answer
		add := down.must()
		three := int64(3)
		down.send(b.server.Address(), answer(add, thriftMessage(b.t, "add", thrift.REPLY, &testsvc.TestAddResult{Success: &three})))
		a := b.gk.must()
		ack(b.gk, b.server, a)
		journal, err := trailer.Parse(a.Trailer)
		if err != nil || len(journal) != 2 {
			t.Fatal(journal, err)
		}
		b.rerun(journal)
		if m, _, ok := down.receive(time.Minute); ok {
			t.Errorf("the re-run calls: %+v", m.Header)
		}
		if rpc.CodeOf(got[0]) != rpc.Deadline || !errors.Is(got[3], context.DeadlineExceeded) || fmt.Sprint(got[:3]) != fmt.Sprint(got[3:]) {
			t.Errorf("got %v", got)
		}
		binary.BigEndian.PutUint64(journal[1].Data[1:], 1)
		if a, _ := b.rerun(journal); a.Code != rpc.Application && a.Code != rpc.Nondeterminism || fmt.Sprint(a.Code) != "nondeterminism" {
			t.Errorf("another call: %v", a.Code)
		}
	})
}

// A call that was answered when the execution ran before is waited for, however
// short its deadline: the answer is in the log.
func TestAnsweredBefore(t *testing.T) {
	var got error
	onBench(t, func(ctx context.Context, n *rpc.Node) error {
		short, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		got = testsvc.NewTestClient(n.Client("Down", rpc.WithPolicy(rpc.PolicyRecover))).Ping(short)
		return got
	}, func(b *bench) {
		down := newPeer(b.t, b.rack, "down", rackaddr.Service("Down"))
		b.send(b.call())
		down.send(b.server.Address(), answer(down.must(), pong(b.t)))
		a := b.gk.must()
		ack(b.gk, b.server, a)
		journal, err := trailer.Parse(a.Trailer)
		if err != nil || len(journal) != 1 || got != nil {
			t.Fatal(journal, err, got)
		}
		m := b.call()
		m.Flags |= rpcpacket.FlagReplay
		m.Attempt, m.Trailer = 1, a.Trailer
		b.send(m)
		first := down.must()
		pass(time.Second)
		down.send(b.server.Address(), answer(first, pong(b.t)))
		a = b.gk.must()
		ack(b.gk, b.server, a)
		if a.Type != rpcpacket.Reply || got != nil {
			t.Errorf("%v, %v", a.Type, got)
		}
	})
}

// What an execution has journalled travels with each message until one of them is
// known to be logged.
func TestJournalTravels(t *testing.T) {
	onBench(t, func(ctx context.Context, n *rpc.Node) error {
		c := testsvc.NewTestClient(n.Client("Down", rpc.WithPolicy(rpc.PolicyRecover)))
		_ = rpc.Now(ctx)
		short, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		_ = c.Ping(short)
		_ = c.Ping(ctx)
		_ = c.Ping(ctx)
		return nil
	}, func(b *bench) {
		down := newPeer(b.t, b.rack, "down", rackaddr.Service("Down"))
		b.send(b.call())
		for i, want := range []int{1, 2, 1} { // the time; and the deadline; the second's outcome
			m := down.must()
			ss, err := trailer.Parse(m.Trailer)
			if err != nil || len(ss) != want {
				t.Errorf("call %d: %v, %v", i, ss, err)
			}
			if i > 0 {
				down.send(b.server.Address(), answer(m, pong(b.t)))
			}
		}
		ack(b.gk, b.server, b.gk.must())
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
						go func() { _ = testsvc.NewTestClient(b.server.Client("Nobody")).Ping(b.t.Context()) }()
					}
					b.send(b.call())
					synctest.Wait()
					end(b)
					synctest.Wait()
					if m, _, ok := b.gk.receive(time.Second); ok || !cutOff {
						b.t.Fatalf("cut off: %v; answered: %v %s", cutOff, m.Type, m.Payload)
					}
				})
			}
		})
	}
}
