package rpc_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
	"github.com/bifrost-rack/bifrost/rpc/internal/testrack"
	"github.com/bifrost-rack/bifrost/rpc/internal/testsvc"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// service is a peer in the place of the test service, and a client node.
func service(t *testing.T) (*peer, *rpc.Node) {
	t.Helper()
	r := testrack.New(t, wire.Config{})
	return newCallee(t, r, "service", rackaddr.Node(78), "Test"), joinNode(t, r, "client")
}

// answer makes the reply to a call.
func answer(call rpcpacket.Message, payload []byte) []byte {
	h := call.Header
	h.Type, h.Timeout, h.CalleeIncarnation = rpcpacket.Reply, 0, 1
	return (&rpcpacket.Message{Header: h, Payload: payload}).Append(nil)
}

func pong(t testing.TB) []byte {
	return thriftMessage(t, "ping", thrift.REPLY, &testsvc.BasePingResult{})
}

// What a call looks like on the wire.
func TestCallHeader(t *testing.T) {
	s, n := service(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan error)
	go func() { done <- testsvc.NewTestClient(plain(n, "Test")).Ping(ctx) }()
	call, from, _ := s.receive(5 * time.Second)
	want, _ := rpcpacket.MethodOf("ping")
	if call.Type != rpcpacket.Call || call.Flags != 0 || call.Method != want || call.NameLength != 4 {
		t.Errorf("header %+v", call.Header)
	}
	if from != n.Address() || call.CallerIncarnation != 1 || call.CalleeIncarnation != 1 || !call.Parent.IsZero() {
		t.Errorf("from %s: %+v", from, call.Header)
	}
	if !call.Slot.Valid() || call.Number != rpcpacket.NumberOf(1, 2) || call.Call != rpcpacket.PlainID(n.Address(), call.Slot, call.Number) {
		t.Errorf("id %s with slot %d, number %s", call.Call, call.Slot, call.Number)
	}
	if call.Timeout < 59000 || call.Timeout > 60000 || call.Service != callOf(t, "ping", 1, nil).Service {
		t.Errorf("timeout %d, service %x", call.Timeout, call.Service)
	}
	s.send(n.Address(), answer(call, pong(t)))
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestResultOfOnesOwn: a callee answers with a region that was its caller's already, as the switch says. The caller does not take it for a result, which it
// would free.
func TestResultOfOnesOwn(t *testing.T) {
	s, n := service(t)
	region := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(64, 1))
	for had, want := range []rpc.Code{rpc.OK, rpc.PermissionDenied} {
		done := make(chan error)
		go func() { done <- testsvc.NewTestClient(plain(n, "Test")).Ping(t.Context()) }()
		a := s.must()
		a.Type, a.Timeout, a.CalleeIncarnation, a.Had = rpcpacket.Reply, 0, 1, uint16(had) //nolint:gosec // 0 or 1
		a.Lists, a.Trailer, a.Payload = rpcpacket.ListsOf(region), nil, pong(t)
		s.send(n.Address(), a.Append(nil))
		if err := <-done; rpc.CodeOf(err) != want {
			t.Errorf("an answer with a region that the caller had %d times ends the call with %v, want %v", had, err, want)
		}
	}
}

// Policies travel with the call.
func TestPolicyOnTheWire(t *testing.T) {
	r := testrack.New(t, wire.Config{})
	s := newCallee(t, r, "service", rackaddr.Node(78), "Test")
	n := joinNode(t, r, "client")
	c := n.Client("Test", rpc.WithPolicy(rpc.PolicyFateShare), rpc.WithPolicy(rpc.PolicyNone, "ping"), rpc.WithPolicy(rpc.PolicyTainted, "note"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		client := testsvc.NewTestClient(c)
		_ = client.Ping(ctx)
		_ = client.Note(ctx, 1)
		_, _ = client.Add(ctx, 1, 2)
	}()
	ping := s.must()
	s.send(n.Address(), answer(ping, pong(t)))
	note := s.must()
	for note.Call == ping.Call { // a copy
		note = s.must()
	}
	s.send(n.Address(), answer(note, nil))
	add := s.must()
	for add.Call == note.Call { // likewise
		add = s.must()
	}
	if ping.Flags != 0 {
		t.Errorf("ping: flags %x", ping.Flags)
	}
	if note.Type != rpcpacket.Oneway || note.Flags != rpcpacket.Flags(0).WithPolicy(rpcpacket.PolicyTainted) {
		t.Errorf("note: %v with flags %x", note.Type, note.Flags)
	}
	if add.Flags != rpcpacket.Flags(0).WithPolicy(rpcpacket.PolicyFateShare) {
		t.Errorf("add: flags %x", add.Flags)
	}
}

func gp(p dsm.Pointer) *bifrost.GlobalPointer { return rpc.GlobalPointer(p) }

// Every global pointer in a call's arguments stands in its header, once, however
// deep; nil pointers do not.
func TestPointersInTheHeader(t *testing.T) {
	s, n := service(t)
	p := func(i uint32) dsm.Pointer { return dsmpacket.Make(16, 1, dsmpacket.IDOf(i, 1)) }
	tree := &testsvc.Tree{
		Here:  gp(p(1)),
		Below: []*testsvc.Tree{{Here: gp(dsm.Pointer{})}, {}, {Here: &bifrost.GlobalPointer{}, Below: []*testsvc.Tree{{Here: gp(p(2))}}}},
		Named: map[string]*bifrost.GlobalPointer{"a": gp(p(3))},
		Maybe: gp(p(1)),
	}
	done := make(chan *testsvc.Tree)
	go func() {
		got, err := testsvc.NewTestClient(plain(n, "Test")).Plant(t.Context(), tree)
		if err != nil {
			t.Error(err)
		}
		done <- got
	}()
	call := s.must()
	if !slices.Equal(call.Lists, rpcpacket.ListsOf(p(1), p(2), p(3))) {
		t.Errorf("lists %v, flags %x", call.Lists, call.Flags)
	}
	reply, err := rpcpacket.Parse(answer(call, thriftMessage(t, "plant", thrift.REPLY, &testsvc.TestPlantResult{Success: tree})))
	if err != nil {
		t.Fatal(err)
	}
	reply.Lists = call.Lists
	s.send(n.Address(), reply.Append(nil))
	if got, err := rpc.PointerOf((<-done).Named["a"]); got != p(3) || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
}

// A reply carries the result's pointers.
func TestPointersInTheReply(t *testing.T) {
	r := testrack.New(t, wire.Config{})
	server := serve(t, r, &testsvc.Handler{})
	caller := newPeer(t, r, "caller", rackaddr.Node(77))
	p := dsmpacket.Make(16, 1, dsmpacket.IDOf(1, 1))
	call := callOf(t, "swap", 1, thriftMessage(t, "swap", thrift.CALL, &testsvc.TestSwapArgs{Pointer: gp(p)}))
	call.Lists = rpcpacket.ListsOf(p)
	received(server, gp(p))
	caller.call(server, call.Append(nil))
	m, from, _ := caller.receive(5 * time.Second)
	if m.Type != rpcpacket.Reply || !slices.Equal(m.Lists, rpcpacket.ListsOf(p)) || m.Flags != 0 {
		t.Errorf("%v with lists %v, flags %x", m.Type, m.Lists, m.Flags)
	}
	if from != server.Address() || m.CalleeIncarnation != 1 || m.Call != call.Call || m.Slot != call.Slot || m.Number != call.Number {
		t.Errorf("from %s: %+v", from, m.Header)
	}
}

// A pointer waits until the node's own requests on its region are settled: here
// a write that no memory blade answers.
func TestPointerWaitsForMemory(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, n := service(t)
		p := dsmpacket.Make(16, 9, dsmpacket.IDOf(1, 1))
		ctx, cancel := context.WithCancel(t.Context())
		wrote := make(chan error)
		go func() {
			_, err := n.Memory().Write(ctx, p, []byte("x"))
			wrote <- err
		}()
		synctest.Wait()
		short, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		if _, err := testsvc.NewTestClient(plain(n, "Test")).Swap(short, gp(p)); rpc.CodeOf(err) != rpc.Deadline {
			t.Errorf("got %v", err)
		}
		if m, _, ok := s.receive(time.Minute); ok {
			t.Errorf("the pointer has left: %+v", m)
		}
		cancel()
		<-wrote
	})
}

// A call that lends memory and is given up is still asked for, so that its lease
// ends; the callee is told not to begin any more.
func TestGivenUpCallThatLends(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, n := service(t)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		if _, err := testsvc.NewTestClient(plain(n, "Test")).Swap(ctx, gp(dsmpacket.Make(16, 1, dsmpacket.IDOf(1, 1)))); rpc.CodeOf(err) != rpc.Deadline {
			t.Errorf("got %v", err)
		}
		call := s.must()
		again := s.must()
		if again.Call != call.Call || again.Timeout != 1 || len(again.Lists) != 1 {
			t.Errorf("sent again: %+v", again)
		}
		s.send(n.Address(), answer(again, nil))
		if m, _, ok := s.receive(time.Minute); ok {
			t.Errorf("after the answer: %+v", m)
		}
		closeNode(t, n)
	})
}

// A one-way is sent until it is acknowledged: the switch has its call slot open. After half a minute nobody waits for that.
func TestOnewayWithoutCallee(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, n := service(t)
		if err := testsvc.NewTestClient(plain(n, "Test")).Note(t.Context(), 1); err != nil {
			t.Error(err)
		}
		start, copies := time.Now(), 0
		for time.Since(start) < time.Minute {
			m, _, ok := s.receive(5 * time.Second)
			if copies++; !ok || m.Type != rpcpacket.Oneway {
				t.Fatalf("got %v after %v", m.Type, time.Since(start))
			}
		}
		if copies < 40 {
			t.Errorf("%d copies", copies)
		}
		closeNode(t, n)
	})
}

// The answer to a duplicate is the first answer, byte by byte, and the handler
// does not run again.
func TestDuplicateCall(t *testing.T) {
	r := testrack.New(t, wire.Config{})
	h := &testsvc.Handler{}
	server := serve(t, r, h)
	caller := newPeer(t, r, "caller", rackaddr.Node(77))
	m := callOf(t, "count", 1, thriftMessage(t, "count", thrift.CALL, &testsvc.TestCountArgs{Number: 5}))
	caller.call(server, m.Append(nil))
	first := caller.must()
	waitFor(t, func() bool { // until the answer is kept, a duplicate is dropped
		caller.call(server, m.Append(nil))
		again, _, ok := caller.receive(10 * time.Millisecond)
		return ok && string(again.Payload) == string(first.Payload) && again.Header == first.Header
	})
	if h.Counts()[5] != 1 {
		t.Errorf("run %d times", h.Counts()[5])
	}
}

// A nested call names its parent; if both are exactly-once, its id follows from the
// parent's.
func TestNestedCallOnTheWire(t *testing.T) {
	onBench(t, func(ctx context.Context, n *rpc.Node) error {
		if err := testsvc.NewTestClient(plain(n, "Down")).Ping(ctx); err != nil {
			return err
		}
		return testsvc.NewTestClient(n.Client("Down", rpc.WithPolicy(rpc.PolicyRecover))).Ping(ctx)
	}, func(b *bench) {
		t := b.t
		down := newCallee(t, b.rack, "down", rackaddr.Node(78), "Down")
		call := b.call()
		b.send(call)
		first := down.must()
		down.send(b.server.Address(), answer(first, pong(t)))
		second := down.must()
		for second.Call == first.Call { // a copy
			second = down.must()
		}
		down.send(b.server.Address(), answer(second, pong(t)))
		if first.Parent != call.Call || first.Index != 1 || first.Call != rpcpacket.PlainID(b.server.Address(), first.Slot, first.Number) {
			t.Errorf("first: %+v", first.Header)
		}
		if second.Parent != call.Call || second.Index != 2 || second.Flags != rpcpacket.Flags(0).WithPolicy(rpcpacket.PolicyRecover) {
			t.Errorf("second: %+v", second.Header)
		}
		if second.Call != endpoint.ChildID(nil, call.Call, 0, 2) || second.Slot != first.Slot || second.Number != first.Number+2 {
			t.Errorf("second: id %s, slot %d, number %s", second.Call, second.Slot, second.Number)
		}
		if a := b.answer(call); a.Type != rpcpacket.Reply {
			t.Errorf("answer: %+v", a)
		}
	})
}

// An execution that nobody runs again cannot answer for exactly-once calls: they are of its
// node's plain ones, and tell on whose behalf they are made.
func TestExactCallOfPlainHandler(t *testing.T) {
	r := testrack.New(t, wire.Config{})
	h := &testsvc.Handler{}
	server := serve(t, r, h)
	downstream := newCallee(t, r, "downstream", rackaddr.Node(78), "Down")
	exact := testsvc.NewTestClient(server.Client("Down", rpc.WithPolicy(rpc.PolicyRecover)))
	h.Gate = func(ctx context.Context, _ int64) error { return exact.Ping(ctx) }
	caller := newPeer(t, r, "caller", rackaddr.Node(77))
	call := callOf(t, "count", 1, thriftMessage(t, "count", thrift.CALL, &testsvc.TestCountArgs{Number: 5}))
	caller.call(server, call.Append(nil))
	m := downstream.must()
	downstream.send(server.Address(), answer(m, pong(t)))
	if m.Parent != call.Call || m.Index != 1 || m.Flags != rpcpacket.Flags(0).WithPolicy(rpcpacket.PolicyRecover) {
		t.Errorf("%+v", m.Header)
	}
	caller.must()
}

// A call that is sent again tells how much time is left.
func TestTimeoutShrinks(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, n := service(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		done := make(chan error)
		go func() { done <- testsvc.NewTestClient(plain(n, "Test")).Ping(ctx) }()
		start, last := time.Now(), uint32(1001)
		for {
			m, _, ok := s.receive(time.Second)
			if !ok {
				break
			}
			left := time.Second - time.Since(start)
			if m.Timeout == 1 {
				break // it is given up, and sent until it is answered
			}
			if m.Timeout >= last || time.Duration(m.Timeout)*time.Millisecond-left > time.Millisecond {
				t.Errorf("timeout %d ms with %v left", m.Timeout, left)
			}
			last = m.Timeout
		}
		if err := <-done; rpc.CodeOf(err) != rpc.Deadline || last > 700 {
			t.Errorf("%v, last timeout %d", err, last)
		}
	})
}

func dsmpacketBytes(p dsm.Pointer) []byte { return p[:] }
