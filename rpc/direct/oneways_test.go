package direct

import (
	"slices"
	"testing"

	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// owing is a done that owes one-ways to a node.
func (b *bench) owing(h rpcpacket.Header, node [16]byte, ids ...byte) *record.Done {
	d := done(client, h)
	d.Over = false
	d.Owed.Oneways = b.oneways(node, ids...)
	return d
}

// oneways are those of a commit.
func (b *bench) oneways(node [16]byte, ids ...byte) (all []record.Oneway) {
	for _, id := range ids {
		all = append(all, record.Oneway{ID: rpcpacket.ID{id}, Place: b.Place(), Node: node, Message: []byte{id}})
	}
	return all
}

// next checks which one-ways leave.
func (b *bench) next(want ...byte) {
	b.t.Helper()
	var got []byte
	for _, w := range b.Next() {
		got = append(got, w.ID[0])
	}
	if !slices.Equal(got, want) {
		b.t.Fatalf("%v leave, want %v", got, want)
	}
}

func (b *bench) delivered(node [16]byte, id byte) {
	b.t.Helper()
	b.write(b.Delivered(node, Item{ID: rpcpacket.ID{id}, Slot: 32, Number: rpcpacket.Number(id)})...)
}

// One-ways to a node leave one after the other, in the order of the commits, before and after a
// crash. None leaves before its execution is settled.
func TestOnewaysLeaveInOrder(t *testing.T) {
	b := newBench(t)
	late, early := plain(9, 1), plain(7, 1) // their ids are in the other order
	b.write(b.owing(late, other, 3, 4))
	b.write(b.owing(early, other, 1, 2))
	b.Leave(early.Call)
	b.next()
	b.Leave(late.Call)
	b.next(3)
	b.next()
	b.delivered(other, 3)
	b.next(4)
	b.crash()
	r := b.Resume()
	if len(r.Oneways) != 2 {
		t.Fatalf("%+v", r)
	}
	for _, e := range r.Oneways {
		b.Leave(e.ID)
	}
	for _, id := range []byte{4, 1, 2} {
		b.next(id)
		b.delivered(other, id)
	}
	b.next()
	if place := b.Place(); place != 3 {
		t.Errorf("the next place is %d", place)
	}
}

// A receiver is told to forget a one-way when the ledger has that it is acknowledged: then it is not sent
// again.
func TestOnewaysForgotten(t *testing.T) {
	b := newBench(t)
	one := plain(9, 1)
	b.write(b.owing(one, other, 1, 2))
	b.Leave(one.Call)
	b.next(1)
	if b.Owes() {
		t.Fatalf("to be forgotten: %+v", b.Forgets())
	}
	b.delivered(other, 1)
	if got := b.Forgets()[other]; !slices.Equal(got, []Item{{ID: rpcpacket.ID{1}, Slot: 32, Number: 1}}) {
		t.Fatalf("to be forgotten: %+v", got)
	}
	b.crash()
	if r := b.Resume(); len(r.Oneways) != 1 || len(b.Forgets()[other]) != 1 {
		t.Fatalf("%+v, %+v", r, b.Forgets())
	}
	b.Leave(one.Call)
	b.next(2)
	b.write(b.Acknowledged(other, []rpcpacket.ID{{1}})...)
	b.delivered(other, 2)
	if e := b.State().Execution(one.Call); e.Over || b.Idle() {
		t.Fatal("it is over")
	}
	b.write(b.Acknowledged(other, []rpcpacket.ID{{2}})...)
	if e := b.State().Execution(one.Call); !e.Over {
		t.Fatal("it is not over")
	}
}

// The one-ways of a durable main leave when the checkpoint is settled that has them, while those of checkpoints before
// it are under way. The node is not idle before all are acknowledged.
func TestOnewaysOfCheckpoints(t *testing.T) {
	b := newBench(t)
	main := rpcpacket.ID{99}
	checkpoint := func(index uint32, ids ...byte) {
		b.write(&record.Checkpoint{Main: main, Index: index, Owed: record.Owed{Called: b.Owing(main), Oneways: b.oneways(other, ids...)}})
	}
	checkpoint(1, 4, 3)
	b.Leave(main)
	b.next(4)
	checkpoint(2, 2)
	b.delivered(other, 4)
	b.next(3)
	b.delivered(other, 3)
	b.next() // the second checkpoint is not settled
	b.Leave(main)
	b.next(2)
	b.crash()
	if r := b.Resume(); len(r.Oneways) != 1 || len(b.Forgets()[other]) != 2 {
		t.Fatalf("%+v, to be forgotten: %+v", r, b.Forgets())
	}
	checkpoint(3, 1)
	b.Leave(main)
	b.next(2)
	b.write(b.Acknowledged(other, []rpcpacket.ID{{3}, {4}})...)
	b.write(b.Moves(other, rpcpacket.ID{2}, server)...)
	b.next(1, 2)
	b.delivered(other, 1)
	b.write(b.Acknowledged(other, []rpcpacket.ID{{1}})...)
	if b.Idle() || b.State().Execution(main).Over {
		t.Fatal("one is not acknowledged yet")
	}
	b.delivered(server, 2)
	b.write(b.Acknowledged(server, []rpcpacket.ID{{2}})...)
	if !b.Idle() || !b.State().Execution(main).Over {
		t.Fatalf("still owed: %+v", b.Forgets())
	}
}

// A one-way that its node has refused for good goes to another one, also after a crash.
func TestOnewayMoves(t *testing.T) {
	b := newBench(t)
	one := plain(9, 1)
	b.write(b.owing(one, other, 1, 2))
	b.Leave(one.Call)
	b.next(1)
	b.write(b.Moves(other, rpcpacket.ID{1}, server)...)
	b.next(1, 2)
	if b.Delivered(other, Item{ID: rpcpacket.ID{1}}) != nil {
		t.Fatal("the former node acknowledges it")
	}
	b.crash()
	b.Resume()
	b.Leave(one.Call)
	b.next(1, 2)
	if !b.Again(other, rpcpacket.ID{2}) {
		t.Fatal("it is not owed")
	}
	b.next(2)
	b.delivered(server, 1)
	b.delivered(other, 2)
	if got := b.Forgets(); len(got[server]) != 1 || len(got[other]) != 1 {
		t.Fatalf("to be forgotten: %+v", got)
	}
}
