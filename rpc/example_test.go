package rpc_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/bifrost-rack/bifrost/bifrosttest"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	byvalue "github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/rpc"
)

// One program serves, another one calls.
func Example() {
	ctx := context.Background()
	rack, err := bifrosttest.Start(ctx, bifrosttest.Config{}) // on a real rack: nothing
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rack.Close()

	// One program serves.
	server, err := rpc.Join(rack.On(ctx, "s1"), rpc.WithName("greeter"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close(ctx)
	if err := server.Export(ctx, "Arrays", arrays.NewArraysProcessor(byvalue.Arrays{})); err != nil {
		fmt.Println(err)
		return
	}

	// Another one calls.
	node, err := rpc.Join(rack.On(ctx, "c1"), rpc.WithName("caller"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer node.Close(ctx)
	client := arrays.NewArraysClient(node.Client("Arrays"))
	within, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	sum, err := client.Add(within, []byte{1, 2}, []byte{3, 4})
	fmt.Printf("%d %v\n", sum, err)

	// An exception that the IDL declares has its own type.
	_, err = client.Add(within, []byte{1, 2}, nil)
	var mismatch *arrays.LengthMismatch
	fmt.Println(errors.As(err, &mismatch))
	// Output:
	// [4 6] <nil>
	// true
}

func ExampleCodeOf() {
	ctx := context.Background()
	rack, err := bifrosttest.Start(ctx, bifrosttest.Config{}) // on a real rack: nothing
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rack.Close()
	node, err := rpc.Join(rack.On(ctx, "s1"), rpc.WithName("impatient"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer node.Close(ctx)
	within, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	err = arrays.NewPingClient(node.Client("Nobody")).Ping(within)
	fmt.Println(rpc.CodeOf(err))
	fmt.Println(err)
	// Output:
	// unavailable
	// call Nobody.ping: unavailable: no node serves Nobody.ping: no node exports the service: deploy it (bifrost deploy), or check its name; the call never began
}

func ExampleNode_Export() {
	ctx := context.Background()
	rack, err := bifrosttest.Start(ctx, bifrosttest.Config{}) // on a real rack: nothing
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rack.Close()
	node, err := rpc.Join(rack.On(ctx, "s1"), rpc.WithName("counter"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer node.Close(ctx)
	// A stateful service runs one call at a time, and its state outlives the node.
	var tally Tally
	err = node.Export(ctx, "Counter", arrays.NewPingProcessor(&tally), rpc.WithState(&tally), rpc.WithQueue(16))
	fmt.Println(err)

	caller, err := rpc.Join(rack.On(ctx, "c1"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer caller.Close(ctx)
	err = arrays.NewPingClient(caller.Client("Counter")).Ping(ctx)
	fmt.Println(tally.n, err)
	// Output:
	// <nil>
	// 1 <nil>
}

// Tally is a Ping service that counts its calls, and keeps the count between them.
type Tally struct{ n uint64 }

// Ping implements arrays.Ping.
func (t *Tally) Ping(context.Context) error {
	t.n++
	return nil
}

// Snapshot implements rpc.State.
func (t *Tally) Snapshot() ([]byte, error) { return binary.AppendUvarint(nil, t.n), nil }

// Restore implements rpc.State.
func (t *Tally) Restore(b []byte) error {
	t.n, _ = binary.Uvarint(b)
	return nil
}

func ExampleGlobalPointer() {
	p, err := rpc.PointerOf(rpc.GlobalPointer([16]byte{4: 0x10, 5: 1, 12: 64}))
	fmt.Println(p, err)
	// Output:
	// 0:0:1001::4000:0 <nil>
}
