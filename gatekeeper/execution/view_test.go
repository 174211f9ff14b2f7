package execution

import (
	"slices"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// An answer is a receipt for a copy's trailer only if that is what was logged, also
// after a restart.
func TestReceipt(t *testing.T) {
	for _, oneway := range []bool{false, true} {
		b := newBench(t)
		m := message(1)
		if oneway {
			m.Type = rpcpacket.Oneway
		}
		m.Trailer = trailer.Section{Type: trailer.Order, Data: []byte{0, 0, 0, 1}}.Append(nil)
		b.send(m, false)
		b.keep(b.Admitted(m.Call, nil))
		if !oneway {
			answer := m
			answer.Type, answer.CalleeIncarnation, answer.Trailer = rpcpacket.Reply, 1, nil
			_, o := b.Reply(Response{Message: &answer, Datagram: answer.Append(nil), Callee: server, Now: now})
			b.keep(o)
			b.keep(b.Committed(m.Call))
			b.keep(b.Returned(m.Call, nil, now))
		}
		want := func(replay bool) Action {
			if oneway {
				return Ack{Call: m.Call, To: client.Address, Replay: replay}
			}
			return Answer{Call: m.Call, To: client.Address, Replay: replay}
		}
		if _, got := b.send(m, false); !slices.Equal(got, []Action{want(false)}) {
			t.Errorf("the same again: %v", got)
		}
		b.reload()
		b.keep(b.Up(server, arrays))
		b.keep(b.Resume(now))
		if !oneway {
			b.keep(b.Committed(m.Call))
			b.keep(b.Returned(m.Call, nil, now))
		}
		other := m
		other.Trailer = append(other.Trailer, trailer.Section{Type: trailer.Order, Index: 7, Data: []byte{0, 0, 0, 2}}.Append(nil)...)
		if _, got := b.send(other, false); !slices.Equal(got, []Action{want(true)}) {
			t.Errorf("with more in the trailer: %v", got)
		}
	}
}

// A main that is over is on record until its node says goodbye; and a node that is
// gone leaves nothing.
func TestLeave(t *testing.T) {
	b := newBench(t)
	id := endpoint.MainID("m")
	if o, err := b.Begin(id, "m", server, 1, 0); err != nil || len(b.keep(o)) != 1 {
		t.Fatalf("begin: %v, %v", o, err)
	}
	if at, ok := b.Where(id); !ok || at != server.Address || !b.Open(id) {
		t.Errorf("the main is at %v, %v, open %v", at, ok, b.Open(id))
	}
	if journal, ok := b.Journal(id, server); !ok || len(journal) != 0 {
		t.Errorf("its journal: %q, %v", journal, ok)
	}
	if _, ok := b.Journal(id, wal.Node{Address: server.Address, Incarnation: 2}); ok {
		t.Error("the journal for another incarnation")
	}
	b.keep(b.Leave(server))
	if b.mains[id] == nil {
		t.Fatal("a main that is not over is forgotten")
	}
	end := rpcpacket.Message{Header: rpcpacket.Header{
		Type: rpcpacket.Call, Flags: (rpcpacket.FlagHeld | rpcpacket.FlagCheckpoint | rpcpacket.FlagDone).WithPolicy(rpcpacket.PolicyRecover),
		Call: endpoint.ChildID(nil, id, 0, 1), Parent: id, Index: 1, CallerIncarnation: 1,
	}}
	_, o := b.Checkpoint(Request{Message: &end, Datagram: end.Append(nil), Caller: server, Now: now})
	b.keep(o)
	b.keep(b.Leave(server))
	if _, over := b.Over(id); over || b.mains[id] == nil {
		t.Error("its end is not committed, and it counts as over")
	}
	b.keep(b.Committed(id))
	if at, over := b.Over(id); !over || at != server.Address {
		t.Errorf("over: %v at %v", over, at)
	}
	b.keep(b.Leave(server))
	b.keep(b.Fail(server, true, now))
	b.keep(b.Fenced(server.Address))
	b.Forget(server.Address)
	if len(b.nodes) != 0 || len(b.mains) != 0 || len(b.disk) != 0 {
		t.Errorf("left: nodes %v, mains %v, log %v", b.nodes, b.mains, b.disk)
	}
}

// The state of a service goes with its deployment; its numbers go on.
func TestReset(t *testing.T) {
	b := newBench(t)
	for n := range uint64(3) {
		b.serve(n+1, trailer.Section{Type: trailer.Delta, Data: []byte("x")})
	}
	b.keep(b.Reset(arrays))
	b.keep(b.Reset(arrays + 1)) // of which nobody knows
	for range 2 {
		if sections, next := b.State(arrays); len(sections) != 0 || next != 4 {
			t.Errorf("state %q, next %d", sections, next)
		}
		b.reload()
	}
}

// TestMainOverElsewhere: a main whose program may not know yet that it is over does not
// begin anew on another node; its last checkpoint is acknowledged again. When that
// program's node has left, or is gone for good, it begins.
func TestMainOverElsewhere(t *testing.T) {
	for name, end := range map[string]func(b *bench){
		"left": func(b *bench) { b.keep(b.Leave(server)) },
		"gone": func(b *bench) { b.keep(b.Fail(server, true, now)); b.keep(b.Fenced(server.Address)) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			id := rpcpacket.ID{9}
			if o, err := b.Begin(id, "main", server, 1, 0); err != nil {
				t.Fatal(err)
			} else {
				b.keep(o)
			}
			last := rpcpacket.Message{Header: rpcpacket.Header{
				Type: rpcpacket.Call, Flags: (rpcpacket.FlagHeld | rpcpacket.FlagCheckpoint | rpcpacket.FlagDone).WithPolicy(rpcpacket.PolicyRecover),
				Call: rpcpacket.ID{1}, Parent: id, Index: 3, CallerIncarnation: 1,
			}}
			send := func(want Verdict) {
				t.Helper()
				v, o := b.Checkpoint(Request{Message: &last, Datagram: last.Append(nil), Caller: server, Now: now})
				acks := b.keep(o)
				if v != want || want == Done && !slices.Equal(acks, []Action{Ack{Call: last.Call, To: server.Address}}) {
					t.Errorf("the last checkpoint: %s, %v; want %s", v, acks, want)
				}
			}
			send(Fresh)
			b.keep(b.Committed(id))
			for range 2 {
				if _, err := b.Begin(id, "main", client, 2, 0); fault.CodeOf(err) != fault.BadRequest {
					t.Errorf("begins elsewhere: %v", err)
				}
				send(Done)
				b.reload()
			}
			end(b)
			o, err := b.Begin(id, "main", client, 2, 0)
			if got := b.keep(o); err != nil || !slices.Equal(got, []Action{Begun{id, client, 2, false}}) {
				t.Errorf("begins when it is over: %v, %v", got, err)
			}
		})
	}
}

// TestDirectMain: a main of a node that has a ledger for checkpoints is direct, until it is handed
// over, and again from its next checkpoint on. It begins nowhere else, and not with another ledger. An
// answer with pointers waits until it is handed over. When it is over, it may begin as another one.
func TestDirectMain(t *testing.T) {
	b := newBench(t)
	const birth = 77
	id, run := rpcpacket.ID{9}, uint64(0)
	begin := func(at wal.Node, birth uint64) error {
		t.Helper()
		run++
		o, err := b.Begin(id, "main", at, run, birth)
		for _, a := range b.keep(o) {
			if _, back := a.(Rollback); back {
				b.keep(b.RolledBack(id))
			}
		}
		return err
	}
	is := func(wantDirect, wantHanded bool) {
		t.Helper()
		for range 2 {
			if direct, handed := b.Direct(id); direct != wantDirect || handed != wantHanded {
				t.Errorf("direct %t, handed over %t; want %t, %t", direct, handed, wantDirect, wantHanded)
			}
			b.reload()
		}
	}
	tell := func(flags rpcpacket.Flags, index uint32, want Verdict) {
		t.Helper()
		m := rpcpacket.Message{Header: rpcpacket.Header{
			Type: rpcpacket.Call, Flags: (rpcpacket.FlagHeld | rpcpacket.FlagCheckpoint | flags).WithPolicy(rpcpacket.PolicyRecover),
			Call: rpcpacket.ID{1, byte(index)}, Parent: id, Index: index, CallerIncarnation: 1, //nolint:gosec // small
		}}
		take := b.Checkpoint
		if flags&rpcpacket.FlagEnlist != 0 {
			take = b.HandOver
		}
		v, o := take(Request{Message: &m, Datagram: m.Append(nil), Caller: server, Now: now})
		acked := slices.Contains(b.keep(o), Action(Ack{Call: m.Call, To: server.Address}))
		if flags&rpcpacket.FlagEnlist == 0 {
			b.keep(b.Committed(id))
			acked = true
		}
		if v != want || acked == (want == Stale) {
			t.Errorf("message %d: %s, acknowledged %t; want %s", index, v, acked, want)
		}
	}
	answer := rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Reply, Call: rpcpacket.ID{5}}, Pointers: make([]dsmpacket.Pointer, 1)}
	waits := func() { // what the answer hands over is the main's: it does not wait
		t.Helper()
		if e, at, unborn := b.Unborn(&answer); unborn {
			t.Errorf("an answer waits for %s at %s", e, at)
		}
	}
	if err := begin(server, birth); err != nil {
		t.Fatal(err)
	}
	is(true, false)
	child := rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Call, Flags: rpcpacket.FlagEnlist.WithPolicy(rpcpacket.PolicyRecover), Call: answer.Call, Parent: id, Service: arrays}}
	_, o := b.Enlist(Request{Message: &child, Datagram: child.Append(nil), Caller: server, Callee: client, Now: now}, Enlistment{Runs: true, Number: 1, Floor: 1})
	b.keep(o)
	waits()
	tell(rpcpacket.FlagEnlist, 4, Fresh)
	tell(rpcpacket.FlagEnlist, 4, Done) // a copy
	is(true, true)
	waits()
	tell(0, 7, Fresh)
	tell(rpcpacket.FlagEnlist, 4, Done) // a late one
	is(true, false)
	waits()
	if err := begin(client, birth); fault.CodeOf(err) != fault.BadRequest {
		t.Errorf("begins elsewhere: %v", err)
	}
	b.keep(b.Fail(server, false, now))
	b.keep(b.Fenced(server.Address))
	tell(rpcpacket.FlagEnlist, 9, Stale)
	if err := begin(client, birth); fault.CodeOf(err) != fault.BadRequest {
		t.Errorf("begins elsewhere when its node has failed: %v", err)
	}
	b.keep(b.RolledBack(id))
	server := wal.Node{Address: server.Address, Incarnation: 2}
	for _, other := range []uint64{0, birth + 1} {
		if err := begin(server, other); fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("begins with the ledger of birth %d: %v", other, err)
		}
	}
	if err := begin(server, birth); err != nil {
		t.Error(err)
	}
	is(true, false)
}
