package execution

import (
	"reflect"
	"slices"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// nested is a held call or one-way that m's execution makes.
func nested(m rpcpacket.Message, kind rpcpacket.Type, service uint64) rpcpacket.Message {
	return rpcpacket.Message{Header: rpcpacket.Header{
		Type: kind, Flags: rpcpacket.FlagHeld.WithPolicy(rpcpacket.PolicyRecover), Call: rpcpacket.ID{5}, Parent: m.Call,
		CallerIncarnation: 1, Service: service,
	}}
}

// TestGivenUpFirst: a call that its caller has given up, and whose delivery was lost, does
// not stop its service for ever: it is delivered again while others wait behind it.
func TestGivenUpFirst(t *testing.T) {
	b := newBench(t)
	for n := range uint64(2) {
		m := message(1 + n)
		m.Floor = 1
		b.send(m, true)
		b.keep(b.Admitted(m.Call, nil))
	}
	if got := b.keep(b.Again()); len(got) > 0 {
		t.Errorf("nobody waits for long yet, and %v", got)
	}
	second := message(2)
	second.Floor = 1
	b.send(second, true) // again; nobody sends the first one again
	if got := b.keep(b.Again()); len(got) != 1 || got[0].(Deliver).Call != message(1).Call {
		t.Errorf("delivered again: %v", got)
	}
	first := message(1)
	first.Type, first.CalleeIncarnation = rpcpacket.Reply, 1
	_, o := b.Reply(Response{Message: &first, Datagram: first.Append(nil), Callee: server, Now: now})
	b.keep(o)
	b.keep(b.Committed(first.Call))
	b.keep(b.Returned(first.Call, nil, now))
	if got := b.keep(b.Again()); len(got) > 0 {
		t.Errorf("when the first one is answered: %v", got)
	}
}

// TestCallerFailed: a session's call whose delivery was lost, and whose caller has failed, is
// delivered again, also if the caller's node begins anew, and by the next Gatekeeper, too.
// When it is answered, nothing of it is kept.
func TestCallerFailed(t *testing.T) {
	for name, gone := range map[string]bool{"begins anew": false, "gone": true} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			m := message(1)
			b.send(m, false)
			b.keep(b.Admitted(m.Call, nil))
			b.keep(b.Fail(client, gone, now))
			again := func(when string) {
				t.Helper()
				if got := b.keep(b.Again()); len(got) != 1 || got[0].(Deliver).Call != m.Call {
					t.Errorf("delivered again %s: %v", when, got)
				}
			}
			again("after its caller failed")
			b.reload()
			b.keep(b.Up(server, arrays))
			again("by the next Gatekeeper")
			m.Type, m.CalleeIncarnation = rpcpacket.Reply, 1
			_, o := b.Reply(Response{Message: &m, Datagram: m.Append(nil), Callee: server, Now: now})
			b.keep(o)
			b.keep(b.Committed(m.Call))
			b.keep(b.Returned(m.Call, nil, now))
			if len(b.calls) != 0 || len(b.sessions) != 0 {
				t.Errorf("left: calls %v, sessions %v", b.calls, b.sessions)
			}
			for k := range b.disk {
				if k.Kind != wal.KindCut {
					t.Errorf("left on the log: %v", k)
				}
			}
		})
	}
}

// TestMovedOnce: results that were handed over are not handed over again by a later
// Gatekeeper, for they may have gone on since; one-ways of the execution leave.
func TestMovedOnce(t *testing.T) {
	for name, moved := range map[string]bool{"moved": true, "not moved": false} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			m := message(1)
			b.send(m, false)
			b.keep(b.Admitted(m.Call, nil))
			post := nested(m, rpcpacket.Oneway, arrays)
			_, o := b.Call(Request{Message: &post, Datagram: post.Append(nil), Caller: server, Callee: client, Now: now})
			b.keep(o)
			b.keep(b.Admitted(post.Call, nil))
			m.Type, m.CalleeIncarnation = rpcpacket.Reply, 1
			_, o = b.Reply(Response{Message: &m, Datagram: m.Append(nil), Callee: server, Now: now})
			b.keep(o)
			b.keep(b.Committed(m.Call))
			if moved {
				b.keep(b.Moved(m.Call, m.Append(nil), now))
				b.keep(b.Returned(m.Call, nil, now))
			}
			b.reload()
			repeated := b.keep(b.Resume(now))
			left := b.keep(b.Up(client, arrays))
			if want := []Action{Commit{Run{Execution: m.Call, At: server}}}; moved && len(repeated) > 0 || !moved && !slices.Equal(repeated, want) {
				t.Errorf("the next Gatekeeper repeats %v", repeated)
			}
			leaves := slices.ContainsFunc(left, func(a Action) bool { return reflect.TypeOf(a) == reflect.TypeFor[Deliver]() })
			if leaves != moved {
				t.Errorf("the one-way has left: %v, want %v: %v", leaves, moved, left)
			}
		})
	}
}

// TestHandedBack: a one-way that waits for its parent's commit is repeated by the parent's
// re-run, and acknowledged when what it hands over has moved once more.
func TestHandedBack(t *testing.T) {
	b := newBench(t)
	m := message(1)
	b.send(m, false)
	b.keep(b.Admitted(m.Call, nil))
	post := nested(m, rpcpacket.Oneway, arrays)
	post.Pointers = []dsmpacket.Pointer{{1}}
	send := func(incarnation uint32) []Action {
		post.CallerIncarnation = incarnation
		at := wal.Node{Address: server.Address, Incarnation: incarnation}
		_, o := b.Call(Request{Message: &post, Datagram: post.Append(nil), Caller: at, Callee: client, Now: now})
		return b.keep(o)
	}
	send(1)
	b.keep(b.Admitted(post.Call, nil))
	b.keep(b.Fail(server, false, now))
	b.keep(b.Fenced(server.Address))
	if got := b.Withheld(m.Call); !slices.Equal(got, []rpcpacket.ID{post.Call}) {
		t.Fatalf("withheld: %v", got)
	}
	next := wal.Node{Address: server.Address, Incarnation: 2}
	b.keep(b.Up(next, arrays))
	if got := send(2); len(got) > 0 {
		t.Errorf("before the rollback: %v", got)
	}
	b.keep(b.RolledBack(m.Call))
	if got := send(2); !slices.Equal(got, []Action{Hand{post.Call}}) {
		t.Errorf("repeated: %v", got)
	}
	if got := b.keep(b.Handed(post.Call)); len(got) != 1 || reflect.TypeOf(got[0]) != reflect.TypeFor[Ack]() {
		t.Errorf("handed: %v", got)
	}
}

// TestLeftOneway: a one-way has left with its parent's commit, and its node fails while a
// later Gatekeeper repeats that commit. What it has done is rolled back before it runs again.
func TestLeftOneway(t *testing.T) {
	for name, serial := range map[string]bool{"of a service with state": true, "of one without": false} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			m := message(1)
			b.send(m, false)
			b.keep(b.Admitted(m.Call, nil))
			post := nested(m, rpcpacket.Oneway, arrays+1)
			other := wal.Node{Address: rackaddr.Node(3), Incarnation: 1}
			b.keep(b.Up(other, arrays+1))
			_, o := b.Call(Request{Message: &post, Datagram: post.Append(nil), Caller: server, Callee: other, Serial: serial, Now: now})
			b.keep(o)
			b.keep(b.Admitted(post.Call, nil))
			b.reload() // it has not left
			b.keep(b.Resume(now))
			b.keep(b.Up(server, arrays))
			if got := b.keep(b.Up(other, arrays+1)); len(got) > 0 {
				t.Errorf("before its parent's commit: %v", got)
			}
			m.Type, m.CalleeIncarnation = rpcpacket.Reply, 1
			_, o = b.Reply(Response{Message: &m, Datagram: m.Append(nil), Callee: server, Now: now})
			b.keep(o)
			b.keep(b.Committed(m.Call))
			b.keep(b.Returned(m.Call, nil, now))
			b.reload()
			b.keep(b.Resume(now))
			b.keep(b.Fail(other, false, now))
			if got := b.keep(b.Fenced(other.Address)); !slices.Equal(got, []Action{Rollback{Run{Execution: post.Call, At: other}}}) {
				t.Errorf("when its node has failed: %v", got)
			}
		})
	}
}

// TestNextWaitsForEffects: a stateful service's node fails when a call's outcome is
// logged, but not yet in effect. Its next incarnation gets the next call only when it is,
// for that works on the same memory.
func TestNextWaitsForEffects(t *testing.T) {
	for name, restart := range map[string]bool{"the Gatekeeper stays": false, "the Gatekeeper restarts": true} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			first, second := message(1), message(2)
			second.Floor = 1
			for _, m := range []rpcpacket.Message{first, second} {
				b.send(m, true)
				b.keep(b.Admitted(m.Call, nil))
			}
			first.Type, first.CalleeIncarnation = rpcpacket.Reply, 1
			_, o := b.Reply(Response{Message: &first, Datagram: first.Append(nil), Callee: server, Now: now})
			b.keep(o)
			b.keep(b.Fail(server, false, now))
			b.keep(b.Fenced(server.Address))
			b.keep(b.RolledBack(second.Call))
			next := wal.Node{Address: server.Address, Incarnation: 2}
			if restart {
				b.reload()
				b.keep(b.Resume(now))
			}
			delivered := func(actions []Action) bool {
				return slices.ContainsFunc(actions, func(a Action) bool { d, is := a.(Deliver); return is && d.Call == second.Call && d.To == next })
			}
			early := b.keep(b.Up(next, arrays))
			_, again := b.send(second, true)
			early = append(early, again...)
			early = append(early, b.keep(b.Committed(first.Call))...)
			if delivered(early) {
				t.Errorf("delivered before the first is in effect: %v", early)
			}
			if late := b.keep(b.Returned(first.Call, nil, now)); !delivered(late) {
				t.Errorf("not delivered when the first is in effect: %v", late)
			}
		})
	}
}

// TestEnlistedFirst: a direct call of a service with state that its node hands over has begun
// there. So it runs again before the calls with numbers, whatever came first, and is what a
// new node runs first of all. What its answer says of the state is kept by later Gatekeepers.
func TestEnlistedFirst(t *testing.T) {
	b := newBench(t)
	mark := func(id byte) trailer.Section { return trailer.Section{Type: trailer.Snapshot, Data: []byte{id}} }
	b.serve(1, mark(1))
	numbered, direct := message(2), message(1)
	numbered.Floor = 1
	direct.Call, direct.Flags = rpcpacket.ID{7}, direct.Flags&^rpcpacket.FlagSession|rpcpacket.FlagEnlist
	b.send(numbered, true)
	b.keep(b.Admitted(numbered.Call, nil))
	enlist := func(at wal.Node, runs bool) []Action {
		_, o := b.Enlist(Request{Message: &direct, Datagram: direct.Append(nil), Caller: client, Callee: at, Serial: true, Now: now},
			Enlistment{Runs: runs, Receipt: rpcpacket.ID{9}, Number: 1, Floor: 1})
		return b.keep(o)
	}
	enlist(server, true)
	again := wal.Node{Address: server.Address, Incarnation: 2}
	delivered := func(when string, as []Action, want ...rpcpacket.ID) {
		t.Helper()
		var got []rpcpacket.ID
		for _, a := range as {
			if d, ok := a.(Deliver); ok {
				got = append(got, d.Call)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("delivered %s: %v, want %v", when, got, want)
		}
	}
	first := func(when string, want rpcpacket.ID, wait bool) {
		t.Helper()
		if got, unsettled := b.First(arrays); got != want || unsettled != wait {
			t.Errorf("%s the first call is %v, unsettled %t; want %v, %t", when, got, unsettled, want, wait)
		}
	}
	b.keep(b.Fail(server, false, now))
	delivered("before the rollback", b.keep(b.Up(again, arrays)))
	b.keep(b.Fenced(server.Address))
	delivered("then", b.keep(b.RolledBack(direct.Call)), direct.Call)
	b.keep(b.RolledBack(numbered.Call))
	b.reload()
	first("after a restart", direct.Call, true) // the first answer takes effect once more
	b.keep(b.Resume(now))
	b.keep(b.Committed(message(1).Call))
	b.keep(b.Returned(message(1).Call, nil, now))
	first("and then", direct.Call, false)
	delivered("by the next Gatekeeper", b.keep(b.Up(again, arrays)), direct.Call)
	delivered("when that is lost, and its node has passed on a copy", enlist(again, false), direct.Call)
	delivered("when its node passes none on, since it waits for the call", b.keep(b.Again()), direct.Call)
	answer := direct
	answer.Type, answer.CalleeIncarnation, answer.Trailer = rpcpacket.Reply, 2, mark(7).Append(nil)
	_, o := b.Reply(Response{Message: &answer, Datagram: answer.Append(nil), Callee: again, Now: now})
	b.keep(o)
	first("while it commits", numbered.Call, true)
	b.keep(b.Committed(direct.Call))
	delivered("when that is in effect", b.keep(b.Returned(direct.Call, nil, now)), numbered.Call)
	first("then", numbered.Call, false)
	b.reload()
	if s, next := b.State(arrays); !slices.Equal(s, mark(7).Append(nil)) || next != 2 {
		t.Errorf("the state is %v, and %d is next", s, next)
	}
	_, o = b.ForgetDirect(server.Address, []rpcpacket.ID{direct.Call}, 2)
	b.keep(o)
	b.reload()
	if enlist(again, true); b.Runs(direct.Call) {
		t.Error("a late copy of the enlistment has brought a forgotten call back")
	}
	b.keep(b.Reset(arrays))
	b.reload()
	if s, _ := b.State(arrays); len(s) > 0 {
		t.Errorf("after its deployment the state is %v", s)
	}
}

// A node keeps what it knows of a call that it has handed over until the call has its answer: it may be told to run
// the call again. So its word to forget the call is acknowledged only then.
func TestForgetDirect_Unanswered(t *testing.T) {
	b := newBench(t)
	b.serve(1)
	direct := message(1)
	direct.Call, direct.Flags = rpcpacket.ID{7}, direct.Flags&^rpcpacket.FlagSession|rpcpacket.FlagEnlist
	_, o := b.Enlist(Request{Message: &direct, Datagram: direct.Append(nil), Caller: client, Callee: server, Now: now},
		Enlistment{Runs: true, Receipt: rpcpacket.ID{9}, Number: 1, Floor: 1})
	b.keep(o)
	forgotten := func(when string, ids []rpcpacket.ID, want ...rpcpacket.ID) {
		t.Helper()
		got, o := b.ForgetDirect(server.Address, ids, 1)
		if b.keep(o); !slices.Equal(got, want) {
			t.Errorf("forgotten %s: %v, want %v", when, got, want)
		}
	}
	unknown := rpcpacket.ID{8}
	forgotten("while it runs", []rpcpacket.ID{direct.Call, unknown}, unknown)
	answer := direct
	answer.Type, answer.CalleeIncarnation = rpcpacket.Reply, 1
	_, o = b.Reply(Response{Message: &answer, Datagram: answer.Append(nil), Callee: server, Now: now})
	b.keep(o)
	b.keep(b.Committed(direct.Call))
	b.keep(b.Returned(direct.Call, nil, now))
	forgotten("when it is answered", []rpcpacket.ID{direct.Call}, direct.Call)
	if _, known := b.View(direct.Call); known {
		t.Error("it is kept")
	}
}

// A node that waits for the first call of its service gets it again, though the call's caller may have given it up
// and nobody waits behind it here.
func TestFirstIsDeliveredAgain(t *testing.T) {
	b := newBench(t)
	b.serve(1)
	numbered := message(2)
	numbered.Floor = 1
	b.send(numbered, true)
	b.keep(b.Admitted(numbered.Call, nil))
	b.keep(b.Fail(server, false, now))
	b.keep(b.Fenced(server.Address))
	b.keep(b.RolledBack(numbered.Call))
	b.keep(b.Committed(message(1).Call))
	b.keep(b.Returned(message(1).Call, nil, now))
	b.keep(b.Up(wal.Node{Address: server.Address, Incarnation: 2}, arrays))
	if as := b.keep(b.Again()); len(as) != 0 {
		t.Fatalf("its caller sends it again: %v", as)
	}
	if first, _ := b.First(arrays); first != numbered.Call {
		t.Fatalf("the first call is %v", first)
	}
	if as := b.keep(b.Again()); len(as) != 1 {
		t.Errorf("delivered again: %v", as)
	}
}
