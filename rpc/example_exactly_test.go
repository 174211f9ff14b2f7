package rpc_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/bifrost-rack/bifrost/bifrosttest"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/rpc"
)

// Everything that a handler gets from outside goes through its context, so that
// it can be run again after a crash.
func Example_handler() {
	pay := func(ctx context.Context, key string) ([]byte, error) { return []byte("receipt for " + key), nil }
	handler := func(ctx context.Context) error {
		due := rpc.Now(ctx).Add(time.Hour)
		nonce := make([]byte, 16)
		if err := rpc.Random(ctx, nonce); err != nil {
			return err
		}
		receipt, err := rpc.Effect(ctx, "order 7", func(ctx context.Context) ([]byte, error) {
			return pay(ctx, "order 7") // at least once; the key tells a repetition
		})
		fmt.Println(string(receipt), err, due.After(rpc.Now(ctx)))
		return err
	}
	fmt.Println(handler(context.Background()))
	// Output:
	// receipt for order 7 <nil> true
	// <nil>
}

func ExampleNow() {
	fmt.Println(rpc.Now(context.Background()).Before(time.Now().Add(time.Second)))
	// Output: true
}

func ExampleRandom() {
	token := make([]byte, 8)
	fmt.Println(rpc.Random(context.Background(), token))
	// Output: <nil>
}

func ExampleEffect() {
	sent := 0
	receipt, err := rpc.Effect(context.Background(), "mail 12", func(context.Context) ([]byte, error) {
		sent++
		return []byte("accepted"), nil
	})
	fmt.Println(string(receipt), err, sent)
	// Output: accepted <nil> 1
}

func ExampleGo() {
	ctx := context.Background() // a handler's, as a rule
	var left, right int
	a := rpc.Go(ctx, func(ctx context.Context) error { left = 20; return nil })
	b := rpc.Go(ctx, func(ctx context.Context) error { right = 22; return nil })
	if err := a.Wait(); err != nil {
		fmt.Println(err)
	}
	if err := b.Wait(); err != nil {
		fmt.Println(err)
	}
	fmt.Println(left + right)
	// Output: 42
}

func ExampleWaitAny() {
	ctx := context.Background()
	slow := make(chan struct{})
	branches := []*rpc.Branch{
		rpc.Go(ctx, func(context.Context) error { <-slow; return nil }),
		rpc.Go(ctx, func(context.Context) error { return nil }),
	}
	first, err := rpc.WaitAny(ctx, branches...)
	fmt.Println(first, err)
	close(slow)
	fmt.Println(branches[0].Wait())
	// Output:
	// 1 <nil>
	// <nil>
}

// The state of a service outlives its node.
func ExampleWithState() {
	ctx := context.Background()
	rack, err := bifrosttest.Start(ctx, bifrosttest.Config{}) // on a real rack: nothing
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rack.Close()
	var tally Tally
	server, err := rpc.Join(rack.On(ctx, "s1"), rpc.WithName("tally"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close(ctx)
	if err := server.Export(ctx, "Tally", arrays.NewPingProcessor(&tally), rpc.WithState(&tally)); err != nil {
		fmt.Println(err)
		return
	}
	caller, err := rpc.Join(rack.On(ctx, "c1"), rpc.WithName("caller"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer caller.Close(ctx)
	client := arrays.NewPingClient(caller.Client("Tally", rpc.WithPolicy(rpc.PolicyRecover)))
	err = client.Ping(ctx) // in the ledger, with the new state, before it returns
	fmt.Println(tally.n, err)
	// Output: 1 <nil>
}

// A durable main goes on from its last checkpoint when its program is started
// again.
func ExampleMain() {
	ctx := context.Background()
	rack, err := bifrosttest.Start(ctx, bifrosttest.Config{}) // on a real rack: nothing
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rack.Close()
	node, err := rpc.Join(rack.On(ctx, "s1"), rpc.WithName("batch"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer node.Close(ctx)
	err = rpc.Main(ctx, node, "nightly", func(ctx context.Context, state []byte) error {
		done, _ := binary.Uvarint(state) // 0 at first
		for done < 3 {
			done++ // exactly-once calls for a part of the work
			if err := rpc.Checkpoint(ctx, binary.AppendUvarint(nil, done)); err != nil {
				return err
			}
		}
		fmt.Println("parts done:", done)
		return nil
	})
	fmt.Println(err)
	// Output:
	// parts done: 3
	// <nil>
}

func ExampleCheckpoint() {
	// Only a durable main has checkpoints.
	fmt.Println(rpc.Checkpoint(context.Background(), []byte("state")))
	// Output: checkpoint: bad request: the context is not a durable main's
}
