package rpc_test

import (
	"context"
	"fmt"
	"time"

	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/internal/testrack"
	"github.com/bifrost-rack/bifrost/rpc/internal/testsvc"
)

// A call carries headers beside its arguments, and its answer may have some, too.
func ExampleWithHeader() {
	ctx := context.Background()
	rack := testrack.New(wire.Config{}) // on a real rack: no joiner
	handler := &testsvc.Handler{Gate: func(ctx context.Context, _ int64) error {
		tenant, ok := rpc.Header(ctx, "tenant")
		fmt.Println(tenant, ok)
		return rpc.SetAnswerHeader(ctx, "quota", "9 left")
	}}
	server, err := rpc.Join(join.NewContext(ctx, rack.Joiner()), rpc.WithName("server"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close(ctx)
	if err := server.Export(ctx, "Test", testsvc.NewTestProcessor(handler)); err != nil {
		fmt.Println(err)
		return
	}
	node, err := rpc.Join(join.NewContext(ctx, rack.Joiner()), rpc.WithName("client"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer node.Close(ctx)
	client := testsvc.NewTestClient(node.Client("Test", rpc.WithPolicy(rpc.PolicyNone)))
	_, err = client.Count(rpc.WithHeader(ctx, "tenant", "blue"), 1)
	fmt.Println(client.LastResponseMeta_().Headers["quota"], err)
	seen := node.Methods()[0] // package rpc/prom gives it to Prometheus
	fmt.Println(seen.Service, seen.Method, len(seen.Times))
	// Output:
	// blue true
	// 9 left <nil>
	// Test count 1
}

// A handler learns who calls it: the switch vouches for the address, the Gatekeeper tells
// the rest.
func ExampleCallerOf() {
	ctx := context.Background()
	rack := testrack.New(wire.Config{}) // on a real rack: no joiner
	handler := &testsvc.Handler{Gate: func(ctx context.Context, _ int64) error {
		if caller, err := rpc.CallerOf(ctx); err != nil || caller.Deployment != "billing" {
			return rpc.Errorf(rpc.PermissionDenied, "%s may not count", rpc.CallerAddress(ctx))
		}
		return nil
	}}
	node, err := rpc.Join(join.NewContext(ctx, rack.Joiner()), rpc.WithName("both"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer node.Close(ctx)
	if err := node.Export(ctx, "Test", testsvc.NewTestProcessor(handler)); err != nil {
		fmt.Println(err)
		return
	}
	_, err = testsvc.NewTestClient(node.Client("Test", rpc.WithPolicy(rpc.PolicyNone))).Count(ctx, 1)
	fmt.Println(err)
	// Output:
	// call Test.count: permission denied: fd00:b1f0:0:2::1 may not count (remote)
}

// Calls of policy none are made again where that is safe, and a second one is sent when
// the first takes long.
func ExampleWithRetry() {
	ctx := context.Background()
	node, err := rpc.Join(join.NewContext(ctx, exampleRack.Joiner()), rpc.WithName("patient"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer node.Close(ctx)
	client := testsvc.NewTestClient(node.Client("Nobody", rpc.WithPolicy(rpc.PolicyNone), rpc.WithProtocol(rpc.Compact),
		rpc.WithRetry(rpc.Retry{Attempts: 4}),
		rpc.WithRetry(rpc.Retry{Attempts: 4, Idempotent: true}, "ping", "echo"),
		rpc.WithHedging(20*time.Millisecond, "echo")))
	ctx, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
	defer cancel()
	err = client.Ping(ctx)
	fmt.Println(rpc.CodeOf(err), rpc.NeverBegan(err))
	<-ctx.Done()
	fmt.Println(rpc.NeverBegan(client.Ping(ctx)))
	// Output:
	// deadline exceeded false
	// true
}
