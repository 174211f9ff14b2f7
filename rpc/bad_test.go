package rpc_test

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
	"github.com/bifrost-rack/bifrost/rpc/internal/testrack"
	"github.com/bifrost-rack/bifrost/rpc/internal/testsvc"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// What a client makes of answers that nobody should send.
func TestBadAnswers(t *testing.T) {
	s, n := service(t)
	answered := map[rpcpacket.ID]bool{}
	next := func() rpcpacket.Message { // not a copy that a slow machine has made it send
		for {
			if call := s.must(); !answered[call.Call] {
				answered[call.Call] = true
				return call
			}
		}
	}
	exception := func(call rpcpacket.Message, code rpc.Code, payload []byte) []byte {
		call.Type, call.Code, call.Payload = rpcpacket.Exception, code, payload
		return call.Append(nil)
	}
	for name, c := range map[string]struct {
		answer func(rpcpacket.Message) []byte
		code   rpc.Code
	}{
		"empty":   {func(m rpcpacket.Message) []byte { return answer(m, nil) }, rpc.BadRequest},
		"garbage": {func(m rpcpacket.Message) []byte { return answer(m, []byte("\x80\x01\x00\x02\xff\xff\xff\xff")) }, rpc.BadRequest},
		"another method": {func(m rpcpacket.Message) []byte {
			return answer(m, thriftMessage(t, "pong", thrift.REPLY, &testsvc.BasePingResult{}))
		}, rpc.BadRequest},
		"a call": {func(m rpcpacket.Message) []byte {
			return answer(m, thriftMessage(t, "ping", thrift.CALL, &testsvc.BasePingArgs{}))
		}, rpc.BadRequest},
		"false exception": {func(m rpcpacket.Message) []byte { return exception(m, rpc.OK, pong(t)) }, rpc.BadRequest},
		"garbage in it":   {func(m rpcpacket.Message) []byte { return exception(m, rpc.OK, []byte{1, 2}) }, rpc.BadRequest},
		"system":          {func(m rpcpacket.Message) []byte { return exception(m, rpc.PermissionDenied, []byte("no\xff")) }, rpc.PermissionDenied},
		"unknown code":    {func(m rpcpacket.Message) []byte { return exception(m, 200, []byte("?")) }, 200},
	} {
		done := make(chan error)
		go func() { done <- testsvc.NewTestClient(plain(n, "Test")).Ping(t.Context()) }()
		s.send(n.Address(), c.answer(next()))
		err := <-done
		var coded *rpc.Error
		if !errors.As(err, &coded) || coded.Code != c.code || !coded.Remote || coded.Op != "call Test.ping" {
			t.Errorf("%s: %v", name, err)
		}
	}
	call := func() rpcpacket.Message {
		go func() { _ = testsvc.NewTestClient(plain(n, "Test")).Ping(t.Context()) }()
		return next()
	}()
	before := n.Stats()
	good := answer(call, pong(t))
	s.send(n.Address(), good[:100])
	s.send(n.Address(), append(slices.Clone(good), 0))
	stranger := call
	stranger.Call = rpcpacket.ID{1, 15: 2}
	s.send(n.Address(), answer(stranger, pong(t)))
	s.send(n.Address(), call.Append(nil)) // a call to a node's own address
	s.send(n.Address(), good)
	s.send(n.Address(), good)
	if err := testsvc.NewTestClient(plain(n, "Test")).Ping(cancelled(t)); rpc.CodeOf(err) != rpc.Canceled {
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
	deadline := time.After(time.Minute)
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
	r := testrack.New(t, wire.Config{})
	h := &testsvc.Handler{}
	server := serve(t, r, h)
	caller := newPeer(t, r, "caller", rackaddr.Node(77))
	ping := thriftMessage(t, "ping", thrift.CALL, &testsvc.BasePingArgs{})
	seq := uint64(0)
	for name, c := range map[string]struct {
		method  string
		payload []byte
		change  func(*rpcpacket.Message)
		code    rpc.Code
	}{
		"no Thrift":         {"ping", []byte("hello"), nil, rpc.BadRequest},
		"nothing":           {"ping", nil, nil, rpc.BadRequest},
		"another method":    {"note", ping, nil, rpc.BadRequest},
		"unknown method":    {"nothing", thriftMessage(t, "nothing", thrift.CALL, &testsvc.BasePingArgs{}), nil, rpc.NoSuchMethod},
		"a reply":           {"ping", pong(t), nil, rpc.BadRequest},
		"one-way as a call": {"note", thriftMessage(t, "note", thrift.CALL, &testsvc.TestNoteArgs{Number: 5}), nil, rpc.BadRequest},
		"old incarnation":   {"ping", ping, func(m *rpcpacket.Message) { m.CalleeIncarnation = 9 }, rpc.Unavailable},
		"bad arguments":     {"add", thriftMessage(t, "add", thrift.CALL, &testsvc.BasePingArgs{})[:10], nil, rpc.BadRequest},
	} {
		seq++
		m := callOf(t, c.method, seq, c.payload)
		if c.change != nil {
			c.change(&m)
		}
		caller.call(server, m.Append(nil))
		if a := caller.must(); a.Type != rpcpacket.Exception || a.Code != c.code || a.Call != m.Call || len(a.Payload) == 0 {
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
		nil, {1}, good.Append(nil)[:rpcpacket.HeaderSize-1], good.Append(nil)[:rpcpacket.HeaderSize+3],
		edit(func(b []byte) { b[0] = 0 }), edit(func(b []byte) { b[2]++ }), edit(func(b []byte) { b[3] = 9 }),
		edit(func(b []byte) { b[96] = 0xff }),                     // oversized length
		edit(func(b []byte) { copy(b[68:], make([]byte, 4)) }),    // no incarnation
		edit(func(b []byte) { b[3] = byte(rpcpacket.Ack) }),       // not a call
		edit(func(b []byte) { copy(b[24:40], make([]byte, 16)) }), // id 0
	}
	for _, b := range dropped {
		caller.call(server, b)
	}
	caller.call(server, edit(func(b []byte) { b[104] ^= 1 })) // another service
	caller.call(server, good.Append(nil))
	if a := caller.must(); a.Type != rpcpacket.Reply || a.Call != good.Call {
		t.Errorf("after all that: %+v", a)
	}
	if after := server.Stats(); after.Malformed-before.Malformed != uint64(len(dropped)) || after.Stale-before.Stale != 1 {
		t.Errorf("%d malformed, %d stale", after.Malformed-before.Malformed, after.Stale-before.Stale)
	}
	if len(h.Notes()) != 1 {
		t.Errorf("notes %v", h.Notes())
	}
	blamed := map[string]uint64{}
	server.Refused(func(from netip.Addr, reason string, n uint64) {
		if from != rackaddr.Node(77) {
			t.Errorf("%d packets of %v are refused: %s", n, from, reason)
		}
		blamed[reason] = n
	})
	want := map[string]uint64{"malformed": uint64(len(dropped)), rpc.BadRequest.String(): 6, rpc.NoSuchMethod.String(): 1, rpc.Unavailable.String(): 1}
	if !maps.Equal(blamed, want) {
		t.Errorf("refused to the caller: %v, want %v", blamed, want)
	}
}

// Arguments that are no Thrift are the processor's to refuse, as in plain Thrift.
func TestGarbageArguments(t *testing.T) {
	r := testrack.New(t, wire.Config{})
	server := serve(t, r, &testsvc.Handler{})
	caller := newPeer(t, r, "caller", rackaddr.Node(77))
	whole := thriftMessage(t, "echo", thrift.CALL, &testsvc.TestEchoArgs{Thing: everything()})
	for i, cut := range []int{16, 20, 40, len(whole) / 2, len(whole) - 1} {
		m := callOf(t, "echo", uint64(i+1), whole[:cut])
		caller.call(server, m.Append(nil))
		if a := caller.must(); a.Type != rpcpacket.Exception || a.Code != rpc.OK {
			t.Errorf("cut to %d bytes: %v, code %v", cut, a.Type, a.Code)
		}
	}
}

// What goes on behind the arguments, or the result, is no message.
func TestTrailingGarbage(t *testing.T) {
	r := testrack.New(t, wire.Config{})
	h := &testsvc.Handler{}
	server := serve(t, r, h)
	caller := newPeer(t, r, "caller", rackaddr.Node(77))
	m := callOf(t, "note", 1, append(thriftMessage(t, "note", thrift.ONEWAY, &testsvc.TestNoteArgs{Number: 5}), 0))
	m.Type = rpcpacket.Oneway
	caller.call(server, m.Append(nil))
	if a := caller.must(); a.Flags&rpcpacket.FlagDone == 0 {
		t.Errorf("receipt %+v", a.Header)
	}
	m = callOf(t, "ping", 2, append(thriftMessage(t, "ping", thrift.CALL, &testsvc.BasePingArgs{}), "xyz"...))
	caller.call(server, m.Append(nil))
	if a := caller.must(); a.Type != rpcpacket.Exception || !strings.Contains(string(a.Payload), "3 bytes behind") {
		t.Errorf("%v %q", a.Type, a.Payload)
	}
	if len(h.Notes()) != 0 {
		t.Error("a handler ran")
	}
	s, n := service(t)
	done := make(chan error)
	go func() { done <- testsvc.NewTestClient(plain(n, "Test")).Ping(t.Context()) }()
	s.send(n.Address(), answer(s.must(), append(pong(t), 0)))
	if err := <-done; rpc.CodeOf(err) != rpc.BadRequest {
		t.Error(err)
	}
}

func TestWrongPointers(t *testing.T) {
	s, n := service(t)
	client := testsvc.NewTestClient(plain(n, "Test"))
	for _, b := range [][]byte{{1, 2, 3}, make([]byte, 17), {15: 1}, dsmpacketBytes(dsmpacket.Make(16, 1, dsmpacket.IDOf(1, 1)).With(dsmpacket.OpWrite))} {
		if _, err := client.Swap(t.Context(), &bifrost.GlobalPointer{Address: b}); rpc.CodeOf(err) != rpc.BadRequest {
			t.Errorf("%x: %v", b, err)
		}
		if _, err := rpc.PointerOf(&bifrost.GlobalPointer{Address: b}); rpc.CodeOf(err) != rpc.BadRequest {
			t.Errorf("%x: %v", b, err)
		}
	}
	many := &testsvc.Tree{}
	for i := range uint64(rpcpacket.MaxRegions + 1) {
		many.Below = append(many.Below, &testsvc.Tree{Here: gp(dsmpacket.Make(16, 1, dsmpacket.IDOf(uint32(i), 1)))})
	}
	if _, err := client.Plant(t.Context(), many); rpc.CodeOf(err) != rpc.BadRequest || !strings.Contains(err.Error(), "put the pointers into a region") {
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
