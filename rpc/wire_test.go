package rpc_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/dsm"
	dsmpacket "github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
	"github.com/bifrost-rack/bifrost/rpc/internal/testrack"
	"github.com/bifrost-rack/bifrost/rpc/internal/testsvc"
	"github.com/bifrost-rack/bifrost/rpc/packet"
)

// service is a peer in the place of the test service, and a client node.
func service(t *testing.T) (*peer, *rpc.Node) {
	t.Helper()
	r := testrack.New(wire.Config{})
	return newPeer(t, r, "service", rackaddr.Service("Test")), joinNode(t, r, "client")
}

// answer makes the reply to a call.
func answer(call packet.Message, payload []byte) []byte {
	h := call.Header
	h.Type, h.Timeout = packet.Reply, 0
	return (&packet.Message{Header: h, Payload: payload}).Append(nil)
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
	go func() { done <- testsvc.NewTestClient(n.Client("Test")).Ping(ctx) }()
	call, from, _ := s.receive(5 * time.Second)
	want, _ := packet.MethodOf("ping")
	if call.Type != packet.Call || call.Flags != packet.FlagSession || call.Method != want || call.NameLength != 4 {
		t.Errorf("header %+v", call.Header)
	}
	if from != n.Address() || call.CallerIncarnation != 1 || call.CalleeIncarnation != 0 || !call.Parent.IsZero() {
		t.Errorf("from %s: %+v", from, call.Header)
	}
	if call.Floor != call.Call.Sequence() || call.Call.Session() == 0 {
		t.Errorf("id %s with floor %d", call.Call, call.Floor)
	}
	if call.Timeout < 59000 || call.Timeout > 60000 || call.Service != callOf(t, "ping", 1, nil).Service {
		t.Errorf("timeout %d, service %x", call.Timeout, call.Service)
	}
	s.send(n.Address(), answer(call, pong(t)))
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Policies travel with the call, and ask for it to be held.
func TestPolicyOnTheWire(t *testing.T) {
	s, n := service(t)
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
	s.send(n.Address(), answer(note, nil))
	add := s.must()
	if ping.Flags != packet.FlagSession {
		t.Errorf("ping: flags %x", ping.Flags)
	}
	if note.Type != packet.Oneway || note.Flags != (packet.FlagSession|packet.FlagHeld).WithPolicy(packet.PolicyTainted) {
		t.Errorf("note: %v with flags %x", note.Type, note.Flags)
	}
	if add.Flags != (packet.FlagSession | packet.FlagHeld).WithPolicy(packet.PolicyFateShare) {
		t.Errorf("add: flags %x", add.Flags)
	}
}

func gp(p dsm.Pointer) *bifrost.GlobalPointer { return rpc.GlobalPointer(p) }

// Every global pointer in a call's arguments stands in its header, once, however
// deep; nil pointers do not.
func TestPointersInTheHeader(t *testing.T) {
	s, n := service(t)
	p := func(i uint64) dsm.Pointer { return dsmpacket.Make(16, 1, 64*i) }
	tree := &testsvc.Tree{
		Here:  gp(p(1)),
		Below: []*testsvc.Tree{{Here: gp(dsm.Pointer{})}, {}, {Here: &bifrost.GlobalPointer{}, Below: []*testsvc.Tree{{Here: gp(p(2))}}}},
		Named: map[string]*bifrost.GlobalPointer{"a": gp(p(3))},
		Maybe: gp(p(1)),
	}
	done := make(chan *testsvc.Tree)
	go func() {
		got, err := testsvc.NewTestClient(n.Client("Test")).Plant(t.Context(), tree)
		if err != nil {
			t.Error(err)
		}
		done <- got
	}()
	call := s.must()
	if !slices.Equal(call.Pointers, []dsm.Pointer{p(1), p(2), p(3)}) || call.Flags&packet.FlagHeld != 0 {
		t.Errorf("pointers %v, flags %x", call.Pointers, call.Flags)
	}
	s.send(n.Address(), answer(call, thriftMessage(t, "plant", thrift.REPLY, &testsvc.TestPlantResult{Success: tree})))
	if got, err := rpc.PointerOf((<-done).Named["a"]); got != p(3) || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
}

// A reply carries the result's pointers, and is held if the call was.
func TestPointersInTheReply(t *testing.T) {
	r := testrack.New(wire.Config{})
	server := serve(t, r, &testsvc.Handler{})
	caller := newPeer(t, r, "caller", rackaddr.Node(77))
	p := dsmpacket.Make(16, 1, 64)
	call := callOf(t, "swap", 1, thriftMessage(t, "swap", thrift.CALL, &testsvc.TestSwapArgs{Pointer: gp(p)}))
	call.Pointers = []dsm.Pointer{p}
	caller.send(rackaddr.Service("Test"), call.Append(nil))
	m, from, _ := caller.receive(5 * time.Second)
	if m.Type != packet.Reply || !slices.Equal(m.Pointers, []dsm.Pointer{p}) || m.Flags != packet.FlagSession|packet.FlagHeld {
		t.Errorf("%v with pointers %v, flags %x", m.Type, m.Pointers, m.Flags)
	}
	if from != server.Address() || m.CalleeIncarnation != 1 || m.Call != call.Call || m.Floor != 1 {
		t.Errorf("from %s: %+v", from, m.Header)
	}
	plain := callOf(t, "ping", 2, thriftMessage(t, "ping", thrift.CALL, &testsvc.BasePingArgs{}))
	plain.Flags |= packet.FlagHeld
	caller.send(rackaddr.Service("Test"), plain.Append(nil))
	if m := caller.must(); m.Flags != packet.FlagSession|packet.FlagHeld {
		t.Errorf("reply to a held call: flags %x", m.Flags)
	}
}

func TestWrongPointers(t *testing.T) {
	s, n := service(t)
	client := testsvc.NewTestClient(n.Client("Test"))
	for _, b := range [][]byte{{1, 2, 3}, make([]byte, 17), {15: 1}, dsmpacketBytes(dsmpacket.Make(16, 1, 64).With(dsmpacket.OpWrite, 0))} {
		if _, err := client.Swap(t.Context(), &bifrost.GlobalPointer{Address: b}); rpc.CodeOf(err) != rpc.BadRequest {
			t.Errorf("%x: %v", b, err)
		}
		if _, err := rpc.PointerOf(&bifrost.GlobalPointer{Address: b}); rpc.CodeOf(err) != rpc.BadRequest {
			t.Errorf("%x: %v", b, err)
		}
	}
	many := &testsvc.Tree{}
	for i := range uint64(packet.MaxPointers + 1) {
		many.Below = append(many.Below, &testsvc.Tree{Here: gp(dsmpacket.Make(16, 1, 64*i+64))})
	}
	if _, err := client.Plant(t.Context(), many); rpc.CodeOf(err) != rpc.BadRequest || !strings.Contains(err.Error(), "1024") {
		t.Errorf("%d pointers: %v", len(many.Below), err)
	}
	if _, _, ok := s.receive(50 * time.Millisecond); ok {
		t.Error("a wrong call was sent")
	}
	for _, g := range []*bifrost.GlobalPointer{nil, {}, gp(dsm.Pointer{})} {
		if p, err := rpc.PointerOf(g); !p.IsNil() || err != nil {
			t.Errorf("%v: %v, %v", g, p, err)
		}
	}
}

func dsmpacketBytes(p dsm.Pointer) []byte { return p[:] }

// A pointer waits until the node's own requests on its region are settled: here
// a write that no memory blade answers.
func TestPointerWaitsForMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, n := service(t)
		p := dsmpacket.Make(16, 9, 64)
		ctx, cancel := context.WithCancel(t.Context())
		wrote := make(chan error)
		go func() {
			_, err := n.Memory().Write(ctx, p, []byte("x"))
			wrote <- err
		}()
		synctest.Wait()
		short, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		if _, err := testsvc.NewTestClient(n.Client("Test")).Swap(short, gp(p)); rpc.CodeOf(err) != rpc.Deadline {
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
	synctest.Test(t, func(t *testing.T) {
		s, n := service(t)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		if _, err := testsvc.NewTestClient(n.Client("Test")).Swap(ctx, gp(dsmpacket.Make(16, 1, 64))); rpc.CodeOf(err) != rpc.Deadline {
			t.Errorf("got %v", err)
		}
		call := s.must()
		again := s.must()
		if again.Call != call.Call || again.Timeout != 1 || len(again.Pointers) != 1 {
			t.Errorf("sent again: %+v", again)
		}
		s.send(n.Address(), answer(again, nil))
		if m, _, ok := s.receive(time.Minute); ok {
			t.Errorf("after the answer: %+v", m)
		}
		closeNode(t, n)
	})
}

// A one-way is sent until it is acknowledged, or for half a minute.
func TestOnewayWithoutCallee(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, n := service(t)
		if err := testsvc.NewTestClient(n.Client("Test")).Note(t.Context(), 1); err != nil {
			t.Error(err)
		}
		start, copies := time.Now(), 0
		for {
			m, _, ok := s.receive(5 * time.Second)
			if !ok {
				break
			}
			if copies++; m.Type != packet.Oneway {
				t.Errorf("got %v", m.Type)
			}
		}
		if d := time.Since(start); copies < 20 || d < 30*time.Second || d > 36*time.Second {
			t.Errorf("%d copies in %v", copies, d)
		}
	})
}

// What a client makes of answers that nobody should send.
func TestBadAnswers(t *testing.T) {
	s, n := service(t)
	exception := func(call packet.Message, code rpc.Code, payload []byte) []byte {
		call.Type, call.Code, call.Payload = packet.Exception, code, payload
		return call.Append(nil)
	}
	for name, c := range map[string]struct {
		answer func(packet.Message) []byte
		code   rpc.Code
	}{
		"empty":   {func(m packet.Message) []byte { return answer(m, nil) }, rpc.BadRequest},
		"garbage": {func(m packet.Message) []byte { return answer(m, []byte("\x80\x01\x00\x02\xff\xff\xff\xff")) }, rpc.BadRequest},
		"another method": {func(m packet.Message) []byte {
			return answer(m, thriftMessage(t, "pong", thrift.REPLY, &testsvc.BasePingResult{}))
		}, rpc.BadRequest},
		"a call": {func(m packet.Message) []byte {
			return answer(m, thriftMessage(t, "ping", thrift.CALL, &testsvc.BasePingArgs{}))
		}, rpc.BadRequest},
		"false exception": {func(m packet.Message) []byte { return exception(m, rpc.OK, pong(t)) }, rpc.BadRequest},
		"garbage in it":   {func(m packet.Message) []byte { return exception(m, rpc.OK, []byte{1, 2}) }, rpc.BadRequest},
		"system":          {func(m packet.Message) []byte { return exception(m, rpc.PermissionDenied, []byte("no\xff")) }, rpc.PermissionDenied},
		"unknown code":    {func(m packet.Message) []byte { return exception(m, 200, []byte("?")) }, 200},
	} {
		done := make(chan error)
		go func() { done <- testsvc.NewTestClient(n.Client("Test")).Ping(t.Context()) }()
		s.send(n.Address(), c.answer(s.must()))
		err := <-done
		var coded *rpc.Error
		if !errors.As(err, &coded) || coded.Code != c.code || !coded.Remote || coded.Op != "call Test.ping" {
			t.Errorf("%s: %v", name, err)
		}
	}
	call := func() packet.Message {
		go func() { _ = testsvc.NewTestClient(n.Client("Test")).Ping(t.Context()) }()
		return s.must()
	}()
	before := n.Stats()
	good := answer(call, pong(t))
	s.send(n.Address(), good[:100])
	s.send(n.Address(), append(slices.Clone(good), 0))
	stranger := call
	stranger.Call = packet.SessionID(1, 2)
	s.send(n.Address(), answer(stranger, pong(t)))
	s.send(n.Address(), call.Append(nil)) // a call to a node's own address
	s.send(n.Address(), good)
	s.send(n.Address(), good)
	if err := testsvc.NewTestClient(n.Client("Test")).Ping(cancelled(t)); rpc.CodeOf(err) != rpc.Canceled {
		t.Error(err)
	}
	waitFor(t, func() bool {
		after := n.Stats()
		return after.Malformed-before.Malformed == 3 && after.Duplicates-before.Duplicates == 2
	})
}

func cancelled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// waitFor polls until cond holds.
func waitFor(t *testing.T, cond func() bool) {
	t.Helper()
	deadline := time.After(5 * time.Second)
	for !cond() {
		select {
		case <-deadline:
			t.Fatal("it does not come about")
		case <-time.After(time.Millisecond):
		}
	}
}

// What a server makes of calls that nobody should send.
func TestBadCalls(t *testing.T) {
	r := testrack.New(wire.Config{})
	h := &testsvc.Handler{}
	server := serve(t, r, h)
	caller := newPeer(t, r, "caller", rackaddr.Node(77))
	to := rackaddr.Service("Test")
	ping := thriftMessage(t, "ping", thrift.CALL, &testsvc.BasePingArgs{})
	seq := uint64(0)
	for name, c := range map[string]struct {
		method  string
		payload []byte
		change  func(*packet.Message)
		code    rpc.Code
	}{
		"no Thrift":         {"ping", []byte("hello"), nil, rpc.BadRequest},
		"nothing":           {"ping", nil, nil, rpc.BadRequest},
		"another method":    {"note", ping, nil, rpc.BadRequest},
		"unknown method":    {"nothing", thriftMessage(t, "nothing", thrift.CALL, &testsvc.BasePingArgs{}), nil, rpc.NoSuchMethod},
		"a reply":           {"ping", pong(t), nil, rpc.BadRequest},
		"one-way as a call": {"note", thriftMessage(t, "note", thrift.CALL, &testsvc.TestNoteArgs{Number: 5}), nil, rpc.BadRequest},
		"old incarnation":   {"ping", ping, func(m *packet.Message) { m.CalleeIncarnation = 9 }, rpc.Unavailable},
		"bad arguments":     {"add", thriftMessage(t, "add", thrift.CALL, &testsvc.BasePingArgs{})[:10], nil, rpc.BadRequest},
	} {
		seq++
		m := callOf(t, c.method, seq, c.payload)
		if c.change != nil {
			c.change(&m)
		}
		caller.send(to, m.Append(nil))
		if a := caller.must(); a.Type != packet.Exception || a.Code != c.code || a.Call != m.Call || len(a.Payload) == 0 {
			t.Errorf("%s: %v, code %v, %q", name, a.Type, a.Code, a.Payload)
		}
	}
	good := callOf(t, "ping", 1000, ping)
	edit := func(f func(b []byte)) []byte {
		b := good.Append(nil)
		f(b)
		return b
	}
	before := server.Stats()
	dropped := [][]byte{
		nil, {1}, good.Append(nil)[:packet.HeaderSize-1], good.Append(nil)[:packet.HeaderSize+3],
		edit(func(b []byte) { b[0] = 0 }), edit(func(b []byte) { b[2] = 2 }), edit(func(b []byte) { b[3] = 9 }),
		edit(func(b []byte) { b[96] = 0xff }),                                                        // oversized length
		edit(func(b []byte) { b[104] ^= 1 }),                                                         // another service
		edit(func(b []byte) { copy(b[56:], make([]byte, 8)) }),                                       // no floor
		edit(func(b []byte) { b[3] = byte(packet.Ack) }),                                             // not a call
		edit(func(b []byte) { b[5] &^= byte(packet.FlagSession); copy(b[24:40], make([]byte, 16)) }), // id 0
	}
	for _, b := range dropped {
		caller.send(to, b)
	}
	caller.send(to, edit(func(b []byte) { b[5] |= byte(packet.FlagReleased); b[71] = 9 })) // released for another incarnation
	caller.send(to, good.Append(nil))
	if a := caller.must(); a.Type != packet.Reply || a.Call != good.Call {
		t.Errorf("after all that: %+v", a)
	}
	if after := server.Stats(); after.Malformed-before.Malformed != uint64(len(dropped)) || after.Dropped-before.Dropped != 1 {
		t.Errorf("%d malformed, %d dropped", after.Malformed-before.Malformed, after.Dropped-before.Dropped)
	}
	if len(h.Notes()) != 1 {
		t.Errorf("notes %v", h.Notes())
	}
}

// Arguments that are no Thrift are the processor's to refuse, as in plain Thrift.
func TestGarbageArguments(t *testing.T) {
	r := testrack.New(wire.Config{})
	serve(t, r, &testsvc.Handler{})
	caller := newPeer(t, r, "caller", rackaddr.Node(77))
	whole := thriftMessage(t, "echo", thrift.CALL, &testsvc.TestEchoArgs{Thing: everything()})
	for i, cut := range []int{16, 20, 40, len(whole) / 2, len(whole) - 1} {
		m := callOf(t, "echo", uint64(i+1), whole[:cut])
		caller.send(rackaddr.Service("Test"), m.Append(nil))
		if a := caller.must(); a.Type != packet.Exception || a.Code != rpc.OK {
			t.Errorf("cut to %d bytes: %v, code %v", cut, a.Type, a.Code)
		}
	}
}

// The answer to a duplicate is the first answer, byte by byte, and the handler
// does not run again.
func TestDuplicateCall(t *testing.T) {
	r := testrack.New(wire.Config{})
	h := &testsvc.Handler{}
	serve(t, r, h)
	caller := newPeer(t, r, "caller", rackaddr.Node(77))
	m := callOf(t, "count", 1, thriftMessage(t, "count", thrift.CALL, &testsvc.TestCountArgs{Number: 5}))
	caller.send(rackaddr.Service("Test"), m.Append(nil))
	first := caller.must()
	waitFor(t, func() bool { // until the answer is kept, a duplicate is dropped
		caller.send(rackaddr.Service("Test"), m.Append(nil))
		again, _, ok := caller.receive(10 * time.Millisecond)
		return ok && string(again.Payload) == string(first.Payload) && again.Header == first.Header
	})
	if h.Counts()[5] != 1 {
		t.Errorf("run %d times", h.Counts()[5])
	}
}

// Numbered calls of a stateful service run in their order.
func TestNumberedCalls(t *testing.T) {
	r := testrack.New(wire.Config{})
	var order []int64
	h := &testsvc.Handler{Gate: func(_ context.Context, n int64) error { order = append(order, n); return nil }}
	serve(t, r, h, rpc.WithState())
	caller := newPeer(t, r, "caller", rackaddr.Node(77))
	for _, n := range []int64{3, 1, 4, 2, 5} {
		m := callOf(t, "count", uint64(n), thriftMessage(t, "count", thrift.CALL, &testsvc.TestCountArgs{Number: n}))
		m.Order, m.Floor = uint64(n), 1
		caller.send(rackaddr.Service("Test"), m.Append(nil))
	}
	for range 5 {
		caller.must()
	}
	if !slices.Equal(order, []int64{1, 2, 3, 4, 5}) {
		t.Errorf("ran in order %v", order)
	}
}

// A nested call names its parent; with a policy its id follows from the parent's.
func TestNestedCallOnTheWire(t *testing.T) {
	r := testrack.New(wire.Config{})
	h := &testsvc.Handler{}
	server := serve(t, r, h)
	downstream := newPeer(t, r, "downstream", rackaddr.Service("Down"))
	plain := testsvc.NewTestClient(server.Client("Down"))
	exact := testsvc.NewTestClient(server.Client("Down", rpc.WithPolicy(rpc.PolicyRecover)))
	h.Gate = func(ctx context.Context, _ int64) error {
		if err := plain.Ping(ctx); err != nil {
			return err
		}
		return exact.Ping(ctx)
	}
	caller := newPeer(t, r, "caller", rackaddr.Node(77))
	call := callOf(t, "count", 1, thriftMessage(t, "count", thrift.CALL, &testsvc.TestCountArgs{Number: 5}))
	caller.send(rackaddr.Service("Test"), call.Append(nil))
	first := downstream.must()
	downstream.send(server.Address(), answer(first, pong(t)))
	second := downstream.must()
	downstream.send(server.Address(), answer(second, pong(t)))
	if first.Parent != call.Call || first.Index != 1 || first.Flags&packet.FlagSession == 0 {
		t.Errorf("first: %+v", first.Header)
	}
	if second.Parent != call.Call || second.Index != 2 || second.Flags&packet.FlagSession != 0 || second.Floor != 0 {
		t.Errorf("second: %+v", second.Header)
	}
	if a := caller.must(); a.Type != packet.Reply {
		t.Errorf("answer: %+v", a)
	}
}

// A call that is sent again tells how much time is left.
func TestTimeoutShrinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, n := service(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		done := make(chan error)
		go func() { done <- testsvc.NewTestClient(n.Client("Test")).Ping(ctx) }()
		start, last := time.Now(), uint32(1001)
		for {
			m, _, ok := s.receive(time.Second)
			if !ok {
				break
			}
			left := time.Second - time.Since(start)
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

// What goes on behind the arguments, or the result, is no message.
func TestTrailingGarbage(t *testing.T) {
	r := testrack.New(wire.Config{})
	h := &testsvc.Handler{}
	serve(t, r, h)
	caller := newPeer(t, r, "caller", rackaddr.Node(77))
	m := callOf(t, "note", 1, append(thriftMessage(t, "note", thrift.ONEWAY, &testsvc.TestNoteArgs{Number: 5}), 0))
	m.Type = packet.Oneway
	caller.send(rackaddr.Service("Test"), m.Append(nil))
	if a := caller.must(); a.Flags&packet.FlagDone == 0 {
		t.Errorf("receipt %+v", a.Header)
	}
	m = callOf(t, "ping", 2, append(thriftMessage(t, "ping", thrift.CALL, &testsvc.BasePingArgs{}), "xyz"...))
	caller.send(rackaddr.Service("Test"), m.Append(nil))
	if a := caller.must(); a.Type != packet.Exception || !strings.Contains(string(a.Payload), "3 bytes behind") {
		t.Errorf("%v %q", a.Type, a.Payload)
	}
	if len(h.Notes()) != 0 {
		t.Error("a handler ran")
	}
	s, n := service(t)
	done := make(chan error)
	go func() { done <- testsvc.NewTestClient(n.Client("Test")).Ping(t.Context()) }()
	s.send(n.Address(), answer(s.must(), append(pong(t), 0)))
	if err := <-done; rpc.CodeOf(err) != rpc.BadRequest {
		t.Error(err)
	}
}
