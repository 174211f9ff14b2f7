// Command stateful is a service that keeps state, and callers of it: bench/compare.sh builds it
// with two revisions of Bifröst and compares them. It uses what both have.
//
//	stateful serve                   # the service Count, until it is ended
//	stateful call CALLERS TIME       # prints the time per call of so many callers together, in µs
//	stateful refs CALLERS TIME SIZE  # of callers of Arrays.increment, with arrays of so many bytes by reference
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/workload"
	"github.com/bifrost-rack/bifrost/rpc"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "stateful:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (err error) {
	n, err := rpc.Join(ctx, rpc.WithName("stateful"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close(context.WithoutCancel(ctx))) }()
	if len(args) >= 3 {
		return calls(ctx, n, args)
	}
	c := new(count)
	if err := n.Export(ctx, "Count", arrays.NewArraysProcessor(c), rpc.WithState(c)); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-n.Done():
	}
	return nil
}

// count is the service: it counts the calls of Echo.
type count struct {
	arrays.Arrays
	calls uint64
}

// Echo implements arrays.Arrays.
func (c *count) Echo(_ context.Context, data []byte) ([]byte, error) {
	c.calls++
	return data, nil
}

// Snapshot implements rpc.State.
func (c *count) Snapshot() ([]byte, error) { return binary.BigEndian.AppendUint64(nil, c.calls), nil }

// Restore implements rpc.State.
func (c *count) Restore(b []byte) error {
	c.calls = binary.BigEndian.Uint64(b)
	return nil
}

// calls makes the calls that the arguments say.
func calls(ctx context.Context, n *rpc.Node, args []string) error {
	callers, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	length, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	switch {
	case args[0] == "call" && len(args) == 3:
		return call(ctx, callers, length, func() func() error {
			c := arrays.NewArraysClient(n.Client("Count", rpc.WithPolicy(rpc.PolicyRecover)))
			return func() error {
				_, err := c.Echo(ctx, []byte("8 bytes."))
				return err
			}
		})
	case args[0] == "refs" && len(args) == 4:
		size, err := strconv.Atoi(args[3])
		if err != nil {
			return err
		}
		return call(ctx, callers, length, func() func() error {
			c := workload.New(n)
			return func() error { return c.Run(ctx, "increment", size, 1, true) }
		})
	}
	return fmt.Errorf("%q: want serve, call or refs", args)
}

// call has callers, each of which caller makes, call for so long, one call after the other each.
func call(ctx context.Context, callers int, length time.Duration, caller func() func() error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var calls atomic.Uint64
	var all sync.WaitGroup
	begin := time.Now()
	for range callers {
		all.Go(func() {
			once := caller()
			for time.Since(begin) < length && ctx.Err() == nil {
				if err := once(); err != nil {
					cancel(err)
					return
				}
				calls.Add(1)
			}
		})
	}
	all.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	fmt.Printf("{\"p50_us\":%.2f,\"calls\":%d}\n", float64(time.Since(begin).Microseconds())/float64(calls.Load()), calls.Load())
	return nil
}
