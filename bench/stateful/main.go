// Command stateful is a service that keeps state, and callers of it and of the example arrays:
// bench/compare.sh builds it with two revisions of Bifröst and compares them. It uses what both have.
//
//	stateful serve                            # the service Count, until it is ended
//	stateful call CALLERS TIME                # calls of Count, exactly once
//	stateful region CALLERS TIME SIZE POLICY  # calls of Arrays.incrementRef with an array of SIZE bytes; POLICY is none or recover
//
// Callers call for a time, one call after the other each. It prints the median of a single caller's
// calls in µs, and of several callers the time per call of all together.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
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
	case args[0] == "region" && len(args) == 5:
		size, err := strconv.Atoi(args[3])
		if err != nil {
			return err
		}
		policy, known := map[string]rpc.Policy{"none": rpc.PolicyNone, "recover": rpc.PolicyRecover}[args[4]]
		if !known || size < 1 {
			return fmt.Errorf("%q: want a size of a byte or more, and none or recover", args)
		}
		return call(ctx, callers, length, func() func() error {
			r := &regions{arrays.NewArraysClient(n.Client("Arrays", rpc.WithPolicy(policy))), n.Memory(), bytes.Repeat([]byte{1}, size), make([]byte, size)}
			return func() error { return r.increment(ctx) }
		})
	}
	return fmt.Errorf("%q: want serve, call or region", args)
}

// regions makes calls by reference as the peer "bifrost-regions" of the experiments does: the argument is allocated
// and written, the call made, the result read, and both regions freed at once.
type regions struct {
	calls     *arrays.ArraysClient
	memory    *dsm.Client
	arg, back []byte
}

// increment makes one call.
func (r *regions) increment(ctx context.Context) (err error) {
	var mine []dsm.Pointer
	defer func() {
		var freed sync.WaitGroup
		failed := make([]error, len(mine))
		for i, p := range mine {
			freed.Go(func() { failed[i] = r.memory.Free(ctx, p) })
		}
		freed.Wait()
		err = errors.Join(append(failed, err)...)
	}()
	p, err := r.memory.Alloc(ctx, uint64(len(r.arg)))
	if err != nil {
		return err
	}
	mine = append(mine, p)
	if _, err := r.memory.Write(ctx, p, r.arg); err != nil {
		return err
	}
	got, err := r.calls.IncrementRef(ctx, rpc.GlobalPointer(p), int64(len(r.arg)), 1)
	if err != nil {
		return err
	}
	result, err := rpc.PointerOf(got)
	if err != nil {
		return err
	}
	mine = append(mine, result)
	if _, err := r.memory.Read(ctx, result, r.back); err != nil {
		return err
	}
	if r.back[0] != r.arg[0]+1 || r.back[len(r.back)-1] != r.arg[0]+1 {
		return fmt.Errorf("the result is %d to %d, want %d", r.back[0], r.back[len(r.back)-1], r.arg[0]+1)
	}
	return nil
}

// call has callers, each of which caller makes, call for so long, one call after the other each.
func call(ctx context.Context, callers int, length time.Duration, caller func() func() error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	took := make([][]time.Duration, callers)
	var all sync.WaitGroup
	begin := time.Now()
	for i := range callers {
		all.Go(func() {
			once := caller()
			for last := begin; last.Sub(begin) < length && ctx.Err() == nil; {
				if err := once(); err != nil {
					cancel(err)
					return
				}
				now := time.Now()
				took[i] = append(took[i], now.Sub(last))
				last = now
			}
		})
	}
	all.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	each := slices.Concat(took...)
	p50 := time.Since(begin) / time.Duration(len(each))
	if callers == 1 {
		slices.Sort(each)
		p50 = each[len(each)/2]
	}
	fmt.Printf("{\"p50_us\":%.2f,\"calls\":%d}\n", float64(p50.Nanoseconds())/1e3, len(each))
	return nil
}
