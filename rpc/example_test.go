package rpc_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/internal/model"
	"github.com/bifrost-rack/bifrost/rpc/internal/testrack"
	"github.com/bifrost-rack/bifrost/rpc/internal/testsvc"
)

// The examples run on a rack in memory; on a real one rpc.Join needs no joiner.
var exampleRack = model.New(testrack.New(wire.Config{}))

func Example() {
	ctx := context.Background()

	// One program serves.
	server, err := rpc.Join(join.NewContext(ctx, exampleRack.Joiner()), rpc.WithName("greeter"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close(ctx)
	if err := server.Export(ctx, "Test", testsvc.NewTestProcessor(&testsvc.Handler{})); err != nil {
		fmt.Println(err)
		return
	}

	// Another one calls.
	node, err := rpc.Join(join.NewContext(ctx, exampleRack.Joiner()), rpc.WithName("caller"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer node.Close(ctx)
	client := testsvc.NewTestClient(node.Client("Test"))
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	greeting, err := client.Greet(ctx, "Heimdall", []string{"watchman"})
	fmt.Println(greeting, err)

	// An exception that the IDL declares has its own type.
	_, err = client.Greet(ctx, "", nil)
	var refused *testsvc.Refused
	fmt.Println(errors.As(err, &refused), refused.Why)
	// Output:
	// hello watchman Heimdall <nil>
	// true no name
}

func ExampleCodeOf() {
	ctx := context.Background()
	node, err := rpc.Join(join.NewContext(ctx, exampleRack.Joiner()), rpc.WithName("impatient"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer node.Close(ctx)
	ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	err = testsvc.NewTestClient(node.Client("Nobody")).Ping(ctx)
	fmt.Println(rpc.CodeOf(err))
	fmt.Println(err)
	// Output:
	// deadline exceeded
	// call Nobody.ping: deadline exceeded: context deadline exceeded; the call may have run
}

func ExampleNode_Export() {
	ctx := context.Background()
	node, err := rpc.Join(join.NewContext(ctx, exampleRack.Joiner()), rpc.WithName("counter"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer node.Close(ctx)
	// A stateful service runs one call at a time, and its state outlives the node.
	var tally Tally
	err = node.Export(ctx, "Counter", testsvc.NewTestProcessor(&testsvc.Handler{}), rpc.WithState(&tally), rpc.WithQueue(16))
	fmt.Println(err)

	caller, err := rpc.Join(join.NewContext(ctx, exampleRack.Joiner()))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer caller.Close(ctx)
	count, err := testsvc.NewTestClient(caller.Client("Counter")).Count(ctx, 7)
	fmt.Println(count, err)
	// Output:
	// <nil>
	// 1 <nil>
}

// Tally is a counter that a service keeps between calls.
type Tally struct{ n uint64 }

// Snapshot implements rpc.State.
func (t *Tally) Snapshot() ([]byte, error) { return binary.AppendUvarint(nil, t.n), nil }

// Restore implements rpc.State.
func (t *Tally) Restore(b []byte) error {
	t.n, _ = binary.Uvarint(b)
	return nil
}

func ExampleGlobalPointer() {
	p, err := rpc.PointerOf(rpc.GlobalPointer([16]byte{4: 0x10, 5: 1, 15: 64}))
	fmt.Println(p, err)
	// Output:
	// 0:0:1001::40 <nil>
}
