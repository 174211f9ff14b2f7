package rpc_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/bifrosttest"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	byvalue "github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/examples/kv/gen-go/kv"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/form"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
)

// A program joins, has an identity, and is told when it loses its place.
func ExampleJoin() {
	ctx := context.Background()
	rack, err := bifrosttest.Start(ctx, bifrosttest.Config{}) // on a real rack: nothing
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rack.Close()
	node, err := rpc.Join(rack.On(ctx, "s1"), rpc.WithName("sentinel"), rpc.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(node.Name(), node.Address().Is6(), node.Stats().Resent)
	node.Refused(func(from netip.Addr, reason string, packets uint64) { // nobody has sent it anything wrong
		fmt.Println(from, reason, packets)
	})
	fmt.Println(node.Close(ctx)) // lets what runs finish
	<-node.Done()
	err = arrays.NewPingClient(node.Client("Ping")).Ping(ctx)
	fmt.Println(rpc.CodeOf(err))
	// Output:
	// sentinel true 0
	// <nil>
	// unavailable
}

// How many handlers run at once, and which of the methods are exactly-once, is said
// when the service is exported; "bifrost gen" takes the policies from the IDL.
func ExampleWithMethodPolicy() {
	ctx := context.Background()
	rack, err := bifrosttest.Start(ctx, bifrosttest.Config{}) // on a real rack: nothing
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rack.Close()
	node, err := rpc.Join(rack.On(ctx, "s1"), rpc.WithName("clerk"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer node.Close(ctx)
	err = node.Export(ctx, "Clerk", arrays.NewPingProcessor(byvalue.Ping{}), rpc.WithWorkers(8), rpc.WithQueue(64), rpc.WithMaxFailures(4),
		rpc.WithMethodPolicy(rpc.PolicyRecover), rpc.WithMethodPolicy(rpc.PolicyNone, "ping"))
	fmt.Println(err)

	client := arrays.NewPingClient(node.Client("Clerk", rpc.WithPolicy(rpc.PolicyNone)))
	fmt.Println(client.Ping(ctx))
	// Output:
	// <nil>
	// <nil>
}

// Values may be larger than a packet, up to the limit of the node that takes them.
func ExampleWithMaxMessage() {
	ctx := context.Background()
	rack, err := bifrosttest.Start(ctx, bifrosttest.Config{}) // on a real rack: nothing
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rack.Close()
	node, err := rpc.Join(rack.On(ctx, "s1"), rpc.WithName("archive"), rpc.WithMaxMessage(1<<20))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer node.Close(ctx)
	if err := node.Export(ctx, "Archive", arrays.NewArraysProcessor(byvalue.Arrays{}), rpc.WithMethodPolicy(rpc.PolicyNone)); err != nil {
		fmt.Println(err)
		return
	}
	client := arrays.NewArraysClient(node.Client("Archive", rpc.WithPolicy(rpc.PolicyNone)))
	got, err := client.Echo(ctx, make([]byte, 500_000))
	fmt.Println(len(got), err)
	_, err = client.Echo(ctx, make([]byte, 2<<20))
	fmt.Println(rpc.CodeOf(err))
	// Output:
	// 500000 <nil>
	// bad request
}

// reverser is a handler that does by hand what the stubs of "bifrost gen" do: it reads
// what it was lent, and hands over memory of its own.
type reverser struct{ byvalue.Arrays }

func (reverser) EchoRef(ctx context.Context, lent *bifrost.GlobalPointer, length int64) (*bifrost.GlobalPointer, error) {
	p, err := rpc.PointerOf(lent)
	if err != nil || length > 1<<20 {
		return nil, rpc.Errorf(rpc.BadRequest, "%d bytes at %v", length, p) // the caller gets the code
	}
	memory, b := rpc.Memory(ctx), make([]byte, length) // on behalf of this call: taken back with it after a crash
	if _, err := memory.Read(ctx, p, b); err != nil {
		return nil, err
	}
	slices.Reverse(b)
	if p, err = memory.Alloc(ctx, uint64(length)); err != nil {
		return nil, err
	}
	_, err = memory.Write(ctx, p, b)
	return rpc.GlobalPointer(p), err
}

// Global pointers in arguments and results, by hand.
func ExampleMemory() {
	ctx := context.Background()
	rack, err := bifrosttest.Start(ctx, bifrosttest.Config{}) // on a real rack: nothing
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rack.Close()
	server, err := rpc.Join(rack.On(ctx, "s1"), rpc.WithName("server"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close(ctx)
	caller, err := rpc.Join(rack.On(ctx, "c1"), rpc.WithName("caller"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer caller.Close(ctx)
	if err := server.Export(ctx, "Reverser", arrays.NewArraysProcessor(reverser{})); err != nil {
		fmt.Println(err)
		return
	}
	memory := caller.Memory()
	p, err := memory.Alloc(ctx, 64)
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := memory.Write(ctx, p, []byte("abc")); err != nil {
		fmt.Println(err)
		return
	}
	client := arrays.NewArraysClient(caller.Client("Reverser"))
	result, err := client.EchoRef(ctx, rpc.GlobalPointer(p), 3) // lends p until the call returns
	if err != nil {
		fmt.Println(err)
		return
	}
	q, err := rpc.PointerOf(result)
	if err != nil {
		fmt.Println(err)
		return
	}
	b := make([]byte, 3)
	_, err = memory.Read(ctx, q, b)
	fmt.Println(string(b), err)
	fmt.Println(memory.Free(ctx, p), memory.Free(ctx, q)) // both are the caller's
	_, err = client.EchoRef(ctx, rpc.GlobalPointer(p), 1<<21)
	fmt.Println(err != nil) // so it is lent no more
	// Output:
	// cba <nil>
	// <nil> <nil>
	// true
}

// A service tells its IDL, and that it should not be called for a while; whoever watches
// its health is told.
func ExampleNode_WatchHealth() {
	ctx := context.Background()
	rack, err := bifrosttest.Start(ctx, bifrosttest.Config{}) // on a real rack: nothing
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rack.Close()
	server, err := rpc.Join(rack.On(ctx, "s1"), rpc.WithName("server"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close(ctx)
	caller, err := rpc.Join(rack.On(ctx, "c1"), rpc.WithName("caller"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer caller.Close(ctx)
	const idl = "service Ping { void ping() }" // embed the file, as a rule
	if err := server.Export(ctx, "Ping", arrays.NewPingProcessor(byvalue.Ping{}), rpc.WithIDL(idl)); err != nil {
		fmt.Println(err)
		return
	}
	names, err := caller.Services(ctx)
	fmt.Println(len(names), err)
	info, err := caller.Service(ctx, "Ping")
	fmt.Println(info.Methods, info.IDL, err)
	for health, err := range caller.WatchHealth(ctx, "Ping") { // each change, until ctx ends
		fmt.Println(health, err)
		if health != rpc.Serving {
			break
		}
		fmt.Println(server.SetServing(ctx, "Ping", false)) // such as while a cache is filled
	}
	// Output:
	// 1 <nil>
	// [ping] service Ping { void ping() } <nil>
	// SERVING <nil>
	// <nil>
	// NOT_SERVING <nil>
}

// An error of a handler that keeps its code on the way to the caller.
func ExampleErrorf() {
	err := rpc.Errorf(rpc.NoSpace, "the wall is full after %d pictures", 7)
	fmt.Println(rpc.CodeOf(err))
	fmt.Println(err)
	// Output:
	// no space
	// no space: the wall is full after 7 pictures
}

// A struct goes by reference as well.
func ExampleNewRef() {
	ref := rpc.NewRef(form.Struct(kv.NewEntry), &kv.Entry{Version: 1, Value: []byte("by reference")})
	entry, err := ref.Load(context.Background()) // it has not been passed yet, so nothing is read
	fmt.Println(string(entry.Value), err)
	// Output: by reference <nil>
}
