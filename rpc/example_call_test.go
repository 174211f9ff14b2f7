package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bifrost-rack/bifrost/bifrosttest"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/rpc"
)

// pinged is a Ping service made of a function.
type pinged func(context.Context) error

// Ping implements arrays.Ping.
func (f pinged) Ping(ctx context.Context) error { return f(ctx) }

// A call carries headers beside its arguments, and its answer may have some, too.
func ExampleWithHeader() {
	ctx := context.Background()
	rack, err := bifrosttest.Start(ctx, bifrosttest.Config{}) // on a real rack: nothing
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rack.Close()
	handler := pinged(func(ctx context.Context) error {
		tenant, ok := rpc.Header(ctx, "tenant")
		fmt.Println(tenant, ok)
		return rpc.SetAnswerHeader(ctx, "quota", "9 left")
	})
	server, err := rpc.Join(rack.On(ctx, "s1"), rpc.WithName("server"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close(ctx)
	if err := server.Export(ctx, "Ping", arrays.NewPingProcessor(handler)); err != nil {
		fmt.Println(err)
		return
	}
	node, err := rpc.Join(rack.On(ctx, "c1"), rpc.WithName("client"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer node.Close(ctx)
	client := arrays.NewPingClient(node.Client("Ping", rpc.WithPolicy(rpc.PolicyNone)))
	err = client.Ping(rpc.WithHeader(ctx, "tenant", "blue"))
	fmt.Println(client.LastResponseMeta_().Headers["quota"], err)
	seen := node.Methods()[0] // package rpc/prom gives it to Prometheus
	fmt.Println(seen.Service, seen.Method, len(seen.Times))
	// Output:
	// blue true
	// 9 left <nil>
	// Ping ping 1
}

// A handler learns who calls it: the switch vouches for the address, the Gatekeeper tells
// the rest.
func ExampleCallerOf() {
	ctx := context.Background()
	rack, err := bifrosttest.Start(ctx, bifrosttest.Config{}) // on a real rack: nothing
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rack.Close()
	handler := pinged(func(ctx context.Context) error {
		if caller, err := rpc.CallerOf(ctx); err != nil || caller.Deployment != "billing" {
			return rpc.Errorf(rpc.PermissionDenied, "%s may not ping", rpc.CallerAddress(ctx))
		}
		return nil
	})
	node, err := rpc.Join(rack.On(ctx, "c1"), rpc.WithName("both"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer node.Close(ctx)
	if err := node.Export(ctx, "Ping", arrays.NewPingProcessor(handler)); err != nil {
		fmt.Println(err)
		return
	}
	err = arrays.NewPingClient(node.Client("Ping", rpc.WithPolicy(rpc.PolicyNone))).Ping(ctx)
	fmt.Println(err)
	// Output:
	// call Ping.ping: permission denied: fd00:b1f0:0:2::1 may not ping (remote)
}

// A bank in another system takes a payment once for each key. The call's name is such a key: if the call runs again, since a
// machine has failed, the bank knows the payment.
func ExampleCallID() {
	ctx := context.Background()
	rack, err := bifrosttest.Start(ctx, bifrosttest.Config{}) // on a real rack: nothing
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rack.Close()
	paid := map[string]bool{} // the bank's
	handler := pinged(func(ctx context.Context) error {
		paid[rpc.CallID(ctx)] = true
		return nil
	})
	node, err := rpc.Join(rack.On(ctx, "s1"), rpc.WithName("shop"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer node.Close(ctx)
	if err := node.Export(ctx, "Ping", arrays.NewPingProcessor(handler)); err != nil {
		fmt.Println(err)
		return
	}
	caller, err := rpc.Join(rack.On(ctx, "c1"), rpc.WithName("caller"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer caller.Close(ctx)
	client := arrays.NewPingClient(caller.Client("Ping", rpc.WithPolicy(rpc.PolicyRecover)))
	err = errors.Join(client.Ping(ctx), client.Ping(ctx))
	fmt.Println(len(paid), "payments,", err)
	// Output:
	// 2 payments, <nil>
}

// Calls of policy none are made again where that is safe, and a second one is sent when
// the first takes long.
func ExampleWithRetry() {
	ctx := context.Background()
	rack, err := bifrosttest.Start(ctx, bifrosttest.Config{}) // on a real rack: nothing
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rack.Close()
	node, err := rpc.Join(rack.On(ctx, "c1"), rpc.WithName("patient"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer node.Close(ctx)
	client := arrays.NewPingClient(node.Client("Nobody", rpc.WithPolicy(rpc.PolicyNone), rpc.WithProtocol(rpc.Compact),
		rpc.WithRetry(rpc.Retry{Attempts: 4}),
		rpc.WithRetry(rpc.Retry{Attempts: 4, Idempotent: true}, "ping", "echo")))
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	err = client.Ping(ctx)
	fmt.Println(rpc.CodeOf(err), rpc.NeverBegan(err))
	cancel()
	fmt.Println(rpc.NeverBegan(client.Ping(ctx)))
	// Output:
	// unavailable true
	// true
}

// A program that serves, and makes calls for what comes to it from outside of the rack, such as by HTTP: no handler's context is there.
func ExampleWithPlainCalls() {
	ctx := context.Background()
	rack, err := bifrosttest.Start(ctx, bifrosttest.Config{}) // on a real rack: nothing
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rack.Close()
	node, err := rpc.Join(rack.On(ctx, "c1"), rpc.WithName("both"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer node.Close(ctx)
	handler := pinged(func(context.Context) error { return nil })
	if err := node.Export(ctx, "Ping", arrays.NewPingProcessor(handler)); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(rpc.CodeOf(arrays.NewPingClient(node.Client("Ping")).Ping(ctx)))
	fmt.Println(arrays.NewPingClient(node.Client("Ping", rpc.WithPlainCalls())).Ping(ctx))
	// Output:
	// bad request
	// <nil>
}
