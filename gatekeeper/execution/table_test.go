package execution

import (
	"bytes"
	"fmt"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// The scripts and the model of package recovery test the Table together with the
// recovery of nodes. Here is what they do not reach.

const arrays = 7

var (
	client = wal.Node{Address: rackaddr.Node(1), Incarnation: 1}
	server = wal.Node{Address: rackaddr.Node(2), Incarnation: 1}
	now    = time.Unix(1, 0).UTC()
)

// bench is a Table with its log.
type bench struct {
	*Table
	t    *testing.T
	disk map[wal.Key]wal.Record
	seq  uint64
}

func newBench(t *testing.T) *bench {
	b := &bench{Table: New(0), t: t, disk: map[wal.Key]wal.Record{}}
	b.keep(b.Up(server, arrays))
	return b
}

func (b *bench) keep(o Output) []Action {
	for _, r := range o.Put {
		b.seq++
		r.Sequence = b.seq
		b.disk[r.Key()] = r
	}
	for _, k := range o.Delete {
		delete(b.disk, k)
	}
	return o.Actions
}

func (b *bench) reload() {
	b.t.Helper()
	var err error
	if b.Table, err = Load(0, sequence(b.disk)); err != nil {
		b.t.Fatal(err)
	}
}

func sequence(disk map[wal.Key]wal.Record) iter.Seq2[wal.Record, error] {
	all := make([]wal.Record, 0, len(disk))
	for _, r := range disk {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b wal.Record) int { return int(a.Sequence) - int(b.Sequence) })
	return func(yield func(wal.Record, error) bool) {
		for _, r := range all {
			if !yield(r, nil) {
				return
			}
		}
	}
}

// message is the client's n-th call.
func message(n uint64) rpcpacket.Message {
	return rpcpacket.Message{Header: rpcpacket.Header{
		Type: rpcpacket.Call, Flags: (rpcpacket.FlagHeld | rpcpacket.FlagSession).WithPolicy(rpcpacket.PolicyRecover),
		Call: rpcpacket.SessionID(3, n), Floor: n, CallerIncarnation: 1, Service: arrays,
	}}
}

func (b *bench) send(m rpcpacket.Message, serial bool) (Verdict, []Action) {
	v, o := b.Call(Request{Message: &m, Datagram: m.Append(nil), Caller: client, Callee: server, Serial: serial, Now: now})
	return v, b.keep(o)
}

// serve has a serial call done, with sections in its answer.
func (b *bench) serve(n uint64, sections ...trailer.Section) {
	b.t.Helper()
	m := message(n)
	if v, _ := b.send(m, true); v != Fresh {
		b.t.Fatalf("call %d is %s", n, v)
	}
	b.keep(b.Admitted(m.Call, nil))
	m.Type, m.CalleeIncarnation, m.Trailer = rpcpacket.Reply, 1, trailer.Append(nil, sections)
	v, o := b.Reply(Response{Message: &m, Datagram: m.Append(nil), Callee: server, Now: now})
	if v != Fresh {
		b.t.Fatalf("reply %d is %s", n, v)
	}
	b.keep(o)
	b.keep(b.Committed(m.Call))
	b.keep(b.Returned(m.Call, nil, now))
}

func TestRefusalIsLogged(t *testing.T) {
	b := newBench(t)
	m := message(1)
	b.send(m, true)
	why := fault.New(fault.PermissionDenied, "call", "not yours")
	if got := b.keep(b.Admitted(m.Call, why)); !slices.Equal(got, []Action{Answer{Call: m.Call, To: client.Address}}) {
		t.Errorf("refused: %v", got)
	}
	for range 2 { // the same again, also after a restart
		if v, got := b.send(m, true); v != Done || !slices.Equal(got, []Action{Answer{Call: m.Call, To: client.Address}}) {
			t.Errorf("sent again: %s, %v", v, got)
		}
		p, err := rpcpacket.Parse(b.disk[wal.Key{Kind: wal.KindReply, ID: wal.ID(m.Call)}].Packet)
		if err != nil || p.Type != rpcpacket.Exception || p.Code != fault.PermissionDenied || string(p.Payload) != "not yours" {
			t.Errorf("logged is %+v, %v", p, err)
		}
		b.reload()
	}
	if _, next := b.State(arrays); next != 1 {
		t.Errorf("the refused call has taken a number: the next is %d", next)
	}
}

func TestWhoMayCall(t *testing.T) {
	b := newBench(t)
	late := message(4)
	b.send(message(5), false)
	if v, got := b.send(late, false); v != Stale || got != nil {
		t.Errorf("below the floor: %s, %v", v, got)
	}
	orphan := message(6)
	orphan.Flags &^= rpcpacket.FlagSession
	orphan.Parent = rpcpacket.ID{9}
	if v, got := b.send(orphan, false); v != Refused || len(got) != 1 || got[0].(Except).Why.Code != fault.Stale {
		t.Errorf("of an unknown execution: %s, %v", v, got)
	}
	old := message(7)
	old.CallerIncarnation = 0
	if v, got := b.send(old, false); v != Stale || got != nil {
		t.Errorf("of another incarnation: %s, %v", v, got)
	}
	m := message(5)
	v, o := b.Call(Request{Message: &m, Datagram: m.Append(nil), Caller: wal.Node{Address: rackaddr.Node(9), Incarnation: 1}, Now: now})
	if v != Refused || len(o.Actions) != 1 || o.Actions[0].(Except).Why.Code != fault.BadRequest {
		t.Errorf("of another node: %s, %v", v, o.Actions)
	}
	if len(b.disk) != 0 {
		t.Errorf("%d records of calls that were not admitted", len(b.disk))
	}
}

// TestFold runs calls with small changes: their answers stay until the state's
// record has them, and the records stay few.
func TestFold(t *testing.T) {
	b := newBench(t)
	var want []byte
	most := 0
	for n := range uint64(500) {
		data := fmt.Appendf(nil, "%03d,", n)
		want = append(want, data...)
		b.serve(n+1, trailer.Section{Type: trailer.Delta, Data: data})
		most = max(most, len(b.disk))
		if n%50 == 7 {
			b.reload()
			b.keep(b.Up(server, arrays))
			for id := range b.calls {
				b.keep(b.Committed(id))
				b.keep(b.Returned(id, nil, now))
			}
		}
	}
	// Each answer has a header and 17 bytes of sections, of which the state has all.
	if limit := max(leastFold, len(want)/4*17)/(rpcpacket.HeaderSize+17) + 5; most > limit {
		t.Errorf("up to %d records, want at most %d", most, limit)
	}
	b.reload()
	sections, next := b.State(arrays)
	ss, err := trailer.Parse(sections)
	var got []byte
	for _, s := range ss {
		got = append(got, s.Data...)
	}
	if err != nil || !bytes.Equal(got, want) || next != 501 {
		t.Errorf("state %q, next %d, %v", got, next, err)
	}
	b.keep(b.Up(server, arrays))
	b.serve(501, trailer.Section{Type: trailer.Snapshot, Data: []byte("new")})
	if sections, _ := b.State(arrays); !bytes.HasSuffix(sections, []byte("new")) || len(sections) > 20 {
		t.Errorf("after a snapshot: %q", sections)
	}
}

// TestResultRefused: what the callee hands over is not its own.
func TestResultRefused(t *testing.T) {
	b := newBench(t)
	m := message(1)
	b.send(m, false)
	b.keep(b.Admitted(m.Call, nil))
	m.Type, m.CalleeIncarnation = rpcpacket.Reply, 1
	_, o := b.Reply(Response{Message: &m, Datagram: m.Append(nil), Callee: server, Now: now})
	b.keep(o)
	b.keep(b.Committed(m.Call))
	b.keep(b.Returned(m.Call, fault.New(fault.PermissionDenied, "reply", "no"), now))
	p, err := rpcpacket.Parse(b.disk[wal.Key{Kind: wal.KindReply, ID: wal.ID(m.Call)}].Packet)
	if err != nil || p.Code != fault.PermissionDenied {
		t.Errorf("the outcome is %+v, %v", p.Header, err)
	}
}

// FuzzLoad loads records of any content.
func FuzzLoad(f *testing.F) {
	m := message(1)
	b := m.Append(nil)
	for kind := wal.KindCall; kind <= wal.KindCut; kind++ {
		f.Add(uint8(kind), m.Call[:], uint64(1), uint32(1), b, make([]byte, cutSize))
	}
	f.Fuzz(func(t *testing.T, kind uint8, id []byte, order uint64, attempt uint32, datagram, data []byte) {
		r := wal.Record{Kind: wal.Kind(kind), Sequence: 2, Caller: client, Callee: server, Order: order, Attempt: attempt, Packet: datagram, Data: data}
		copy(r.ID[:], id)
		call := wal.Record{Kind: wal.KindCall, ID: wal.ID(m.Call), Sequence: 1, Caller: client, Callee: server, Packet: b}
		table, err := Load(0, sequence(map[wal.Key]wal.Record{call.Key(): call, r.Key(): r}))
		if err != nil {
			return
		}
		table.Resume(now)
		table.Fail(server, false, now)
		table.Fenced(server.Address)
		table.Again()
	})
}

// TestWhoMayAnswer: only the node and incarnation that the call was delivered to.
func TestWhoMayAnswer(t *testing.T) {
	b := newBench(t)
	m := message(1)
	b.send(m, false)
	b.keep(b.Admitted(m.Call, nil))
	answer := func(from wal.Node) Verdict {
		r := m
		r.Type, r.CalleeIncarnation = rpcpacket.Reply, from.Incarnation
		v, o := b.Reply(Response{Message: &r, Datagram: r.Append(nil), Callee: from, Now: now})
		b.keep(o)
		return v
	}
	other := wal.Node{Address: rackaddr.Node(9), Incarnation: 1}
	next := wal.Node{Address: server.Address, Incarnation: 2}
	if v := answer(other); v != Stale {
		t.Errorf("another node's answer is %s", v)
	}
	if v := answer(next); v != Stale {
		t.Errorf("the answer of an incarnation that was not given the call is %s", v)
	}
	b.keep(b.Fail(server, false, now))
	if v := answer(server); v != Stale {
		t.Errorf("the failed incarnation's answer is %s", v)
	}
	b.keep(b.Fenced(server.Address))
	b.keep(b.RolledBack(m.Call))
	if v := answer(next); v != Stale {
		t.Errorf("the answer before the call is delivered again is %s", v)
	}
	b.keep(b.Up(next, arrays))
	if v := answer(server); v != Stale {
		t.Errorf("the failed incarnation's late answer is %s", v)
	}
	if v := answer(next); v != Fresh {
		t.Errorf("the next incarnation's answer is %s", v)
	}
}

// TestFoldOnce: an answer that is still asked for has its change in the folded
// state, and brings it in no second time.
func TestFoldOnce(t *testing.T) {
	b := newBench(t)
	delta := trailer.Section{Type: trailer.Delta, Data: make([]byte, 100)}
	first := message(1)
	first.Call = rpcpacket.SessionID(4, 1) // its session's floor stays
	done := func(m rpcpacket.Message) {
		b.send(m, true)
		b.keep(b.Admitted(m.Call, nil))
		m.Type, m.CalleeIncarnation, m.Trailer = rpcpacket.Reply, 1, delta.Append(nil)
		_, o := b.Reply(Response{Message: &m, Datagram: m.Append(nil), Callee: server, Now: now})
		b.keep(o)
		b.keep(b.Committed(m.Call))
		b.keep(b.Returned(m.Call, nil, now))
	}
	done(first)
	for n := range uint64(60) {
		done(message(n + 1))
	}
	if _, ok := b.disk[wal.Key{Kind: wal.KindState, ID: serviceID(arrays)}]; !ok {
		t.Fatal("nothing was folded")
	}
	before, _ := b.State(arrays)
	b.reload()
	if after, next := b.State(arrays); !bytes.Equal(before, after) || next != 62 {
		t.Errorf("the state has %d bytes, was %d; next %d", len(after), len(before), next)
	}
}

// TestDiscarded: a call that was not logged when its caller failed is nobody's; the
// re-run may ask something else.
func TestDiscarded(t *testing.T) {
	b := newBench(t)
	m := message(1)
	b.send(m, false)
	b.keep(b.Admitted(m.Call, nil))
	child := nested(m, rpcpacket.Call, arrays)
	ask := func(from wal.Node, arg string) Verdict {
		c := child
		c.CallerIncarnation, c.Payload = from.Incarnation, []byte(arg)
		v, o := b.Call(Request{Message: &c, Datagram: c.Append(nil), Caller: from, Callee: server, Now: now})
		b.keep(o)
		return v
	}
	if v := ask(server, "a"); v != Fresh {
		t.Fatalf("the call is %s", v)
	}
	b.keep(b.Fail(server, false, now))
	b.keep(b.Fenced(server.Address))
	b.keep(b.RolledBack(m.Call))
	next := wal.Node{Address: server.Address, Incarnation: 2}
	b.keep(b.Up(next, arrays))
	if v := ask(next, "b"); v != Waiting {
		t.Errorf("while the former is being admitted: %s", v)
	}
	if got := b.keep(b.Admitted(child.Call, nil)); !slices.Equal(got, []Action{Drop{child.Call}}) {
		t.Errorf("the former is admitted: %v", got)
	}
	if v := ask(next, "b"); v != Fresh {
		t.Errorf("after that: %s", v)
	}
}

// A node that is to be stopped finishes the calls that it has got, and they can be
// sent to it again; the next ones wait for its next incarnation, in their order.
func TestEmpty(t *testing.T) {
	for _, restart := range []bool{false, true} {
		b := newBench(t)
		first, second := message(1), message(2)
		b.send(first, true)
		b.keep(b.Admitted(first.Call, nil))
		b.Empty(server)
		b.send(second, true)
		if got := b.keep(b.Admitted(second.Call, nil)); len(got) != 0 {
			t.Errorf("a call to a node that empties: %v", got)
		}
		if v, got := b.send(first, true); v != Running || len(got) != 1 {
			t.Errorf("sent again: %s, %v", v, got)
		}
		if v, got := b.send(second, true); v != Waiting || len(got) != 0 {
			t.Errorf("sent again: %s, %v", v, got)
		}
		if !b.Busy(server.Address) {
			t.Error("it has a call, and is not busy")
		}
		answer := first
		answer.Type, answer.CalleeIncarnation = rpcpacket.Reply, 1
		_, o := b.Reply(Response{Message: &answer, Datagram: answer.Append(nil), Callee: server, Now: now})
		b.keep(o)
		b.keep(b.Committed(first.Call))
		if !b.Busy(server.Address) {
			t.Error("its last answer is on its way, and it is not busy")
		}
		b.keep(b.Returned(first.Call, nil, now))
		if b.Busy(server.Address) {
			t.Error("it has finished its calls, and is busy")
		}
		b.keep(b.Leave(server))
		b.keep(b.Fail(server, false, now))
		if restart {
			b.reload()
			b.keep(b.Resume(now))
			b.keep(b.Fail(server, false, now))
		}
		b.keep(b.Fenced(server.Address))
		next := wal.Node{Address: server.Address, Incarnation: 2}
		got := b.keep(b.Up(next, arrays))
		if len(got) != 1 || got[0].(Deliver).Call != second.Call || got[0].(Deliver).Attempt != 0 || got[0].(Deliver).Order != 2 {
			t.Errorf("restart %v: its next incarnation gets %v", restart, got)
		}
		if !b.Busy(server.Address) {
			t.Error("it has a call to finish, and is not busy")
		}
	}
}

// An answer that stays on record, since its caller has not settled it, does not keep a
// copy of the service's state: the log has one, however many answers there are.
func TestSnapshotIsLoggedOnce(t *testing.T) {
	b := newBench(t)
	state := make([]byte, 10_000)
	for n := uint64(1); n <= 50; n++ {
		m := message(n)
		m.Floor = 1
		b.send(m, true)
		b.keep(b.Admitted(m.Call, nil))
		state = append(state, byte(n))
		m.Type, m.CalleeIncarnation = rpcpacket.Reply, 1
		m.Trailer = trailer.Section{Type: trailer.Snapshot, Data: state}.Append(nil)
		if v, o := b.Reply(Response{Message: &m, Datagram: m.Append(nil), Callee: server, Now: now}); v != Fresh {
			t.Fatalf("answer %d is %s", n, v)
		} else {
			b.keep(o)
		}
		b.keep(b.Committed(m.Call))
		b.keep(b.Returned(m.Call, nil, now))
	}
	bytes := 0
	for _, r := range b.disk {
		bytes += len(r.Packet) + len(r.Data)
	}
	if most := 2*len(state) + 50*1000; bytes > most {
		t.Errorf("the log holds %d bytes, want %d at most", bytes, most)
	}
	before, next := b.State(arrays)
	b.reload()
	if after, n := b.State(arrays); !slices.Equal(before, after) || n != next {
		t.Errorf("a state of %d bytes, next call %d, is %d bytes, %d after a restart", len(before), next, len(after), n)
	}
}
