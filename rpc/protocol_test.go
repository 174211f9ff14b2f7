package rpc_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/internal/testrack"
	"github.com/bifrost-rack/bifrost/rpc/internal/testsvc"
)

// A service takes calls in both protocols from one call to the next, pointers, exceptions
// and large messages included; what is in neither is refused by name.
func TestProtocols(t *testing.T) {
	r := testrack.New(t, wire.Config{})
	server := serve(t, r, &testsvc.Handler{})
	node := joinNode(t, r, "client")
	ctx := t.Context()
	for _, p := range []rpc.Protocol{rpc.Compact, rpc.Binary, rpc.Compact} {
		client := testsvc.NewTestClient(node.Client("Test", rpc.WithPolicy(rpc.PolicyNone), rpc.WithProtocol(p)))
		if n, err := client.Add(ctx, 1<<40, -3); err != nil || n != 1<<40-3 {
			t.Errorf("add: %d, %v", n, err)
		}
		var refused *testsvc.Refused
		if _, err := client.Greet(ctx, "", nil); !errors.As(err, &refused) || refused.Number != 7 {
			t.Errorf("declared exception: %v", err)
		}
		if err := client.Fail(ctx, "x"); rpc.CodeOf(err) != rpc.Application {
			t.Errorf("undeclared error: %v", err)
		}
		pointer := testsvc.Evidence()
		received(server, pointer)
		if got, err := client.Swap(ctx, pointer); err != nil || !got.Equals(pointer) {
			t.Errorf("pointer: %v, %v", got, err)
		}
		if b, err := client.Blob(ctx, make([]byte, 200_000)); err != nil || len(b) != 200_000 {
			t.Errorf("large: %d, %v", len(b), err)
		}
	}
	gk := newPeer(t, r, "gk", rackaddr.Node(77))
	for i, payload := range []string{"[1,\"ping\",1,0,{}]", "\x82\x21", "\x82", "\x80\x01\x00\x01", ""} {
		m := callOf(t, "ping", uint64(i+1), []byte(payload))
		gk.call(server, m.Append(nil))
		if a := gk.must(); a.Code != rpc.BadRequest || i == 0 && !strings.Contains(string(a.Payload), "protocol unknown: it begins with 0x5b") {
			t.Errorf("%q: %v %q", payload, a.Code, a.Payload)
		}
	}
}

// multiplexed serves Test as a part of the service All. It returns the server and its
// processor, a call of a method that this has, and a call of one of the service Small.
func multiplexed(t *testing.T) (session *testrack.Session, server *rpc.Node, first *thrift.TMultiplexedProcessor, ping, two func() error) {
	t.Helper()
	r := testrack.New(t, wire.Config{})
	server = joinNode(t, r, "server")
	ctx := t.Context()
	first = thrift.NewTMultiplexedProcessor()
	first.RegisterProcessor("Test", testsvc.NewTestProcessor(&testsvc.Handler{}))
	if err := server.Export(ctx, "All", first, rpc.WithWorkers(3)); err != nil {
		t.Fatal(err)
	}
	client := plain(joinNode(t, r, "client"), "All")
	call := func(method string, args, result thrift.TStruct) error {
		_, err := client.Call(ctx, method, args, result)
		return err
	}
	two = func() error {
		return call("Small:twice", &testsvc.SmallTwiceArgs{Number: 4}, &testsvc.SmallTwiceResult{})
	}
	ping = func() error { return call("Test:ping", &testsvc.BasePingArgs{}, &testsvc.BasePingResult{}) }
	if err := two(); rpc.CodeOf(err) != rpc.NoSuchMethod || !rpc.NeverBegan(err) {
		t.Errorf("before: %v", err)
	}
	return r.Sessions()[0], server, first, ping, two
}

// What is registered with a multiplexed processor after the export is served from the
// first call on, and the rack is told.
func TestLateRegistration(t *testing.T) {
	session, _, first, ping, two := multiplexed(t)
	first.RegisterProcessor("Small", testsvc.NewSmallProcessor(twice{}))
	told := make(chan control.Export, 1)
	session.OnExport = func(e control.Export) error {
		told <- e
		return nil
	}
	for name, f := range map[string]func() error{"new": two, "old": ping} {
		if err := f(); err != nil {
			t.Errorf("%s method: %v", name, err)
		}
	}
	if e := <-told; !slices.ContainsFunc(e.Methods, func(m control.Method) bool { return m.Name == "Small:twice" }) || len(e.Methods) < 3 {
		t.Errorf("the rack was told of %v", e.Methods)
	}
}

// A service that is exported again has the new processor's methods; what was served
// before is served all the time.
func TestExportAgain(t *testing.T) {
	_, server, _, ping, two := multiplexed(t)
	ctx := t.Context()
	second := thrift.NewTMultiplexedProcessor()
	second.RegisterProcessor("Test", testsvc.NewTestProcessor(&testsvc.Handler{}))
	second.RegisterProcessor("Small", testsvc.NewSmallProcessor(twice{}))
	if err := server.Export(ctx, "All", second, rpc.WithWorkers(4)); rpc.CodeOf(err) != rpc.BadRequest {
		t.Errorf("with other options: %v", err)
	}
	if err := server.Export(ctx, "All", second); err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func() error{"new": two, "old": ping} {
		if err := f(); err != nil {
			t.Errorf("%s method: %v", name, err)
		}
	}
}
