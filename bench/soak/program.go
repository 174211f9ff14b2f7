package main

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/examples/arrays/workload"
	"github.com/bifrost-rack/bifrost/examples/counter/tally"
	"github.com/bifrost-rack/bifrost/p4switch/shared/metrics"
	"github.com/bifrost-rack/bifrost/rpc"
)

// callsMetric counts the calls that a process of callers has made.
const callsMetric = "soak_calls_total"

// newServeCmd makes the command that serves one of the examples' services. The
// Gatekeeper starts it.
func newServeCmd() *cobra.Command {
	var address string
	cmd := &cobra.Command{
		Use: "serve SERVICE", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return asNode(cmd.Context(), address, func(ctx context.Context, node *rpc.Node) error {
				if err := export(ctx, node, args[0]); err != nil {
					return err
				}
				select {
				case <-ctx.Done():
					return nil
				case <-node.Done():
					return fmt.Errorf("node %s has lost its place in the rack", node.Address())
				}
			})
		},
	}
	cmd.Flags().StringVar(&address, "metrics-addr", "", "where to serve metrics")
	return cmd
}

// The services that are called.
const (
	pingService   = "Ping"
	arraysService = "Arrays"
)

func export(ctx context.Context, node *rpc.Node, name string) error {
	switch name {
	case pingService:
		return node.Export(ctx, name, arrays.NewPingProcessor(service.Ping{}))
	case arraysService:
		return node.Export(ctx, name, arrays.NewArraysProcessor(service.Arrays{}))
	}
	return tally.Serve(ctx, node, name)
}

// newCallCmd makes the command that calls until it is interrupted. It ends with an
// error as soon as a call fails, or has a wrong result.
func newCallCmd() *cobra.Command {
	var address string
	var first, count int
	cmd := &cobra.Command{
		Use: "call", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var calls atomic.Int64
			counter := prometheus.NewCounterFunc(prometheus.CounterOpts{Name: callsMetric, Help: "Calls made."}, func() float64 { return float64(calls.Load()) })
			return asNode(cmd.Context(), address, func(ctx context.Context, node *rpc.Node) error {
				g, until := errgroup.WithContext(ctx)
				for n := first; n < first+count; n++ {
					c, err := newCaller(node, n, &calls)
					if err != nil {
						return err
					}
					g.Go(func() error { return c.work(until) })
				}
				return g.Wait()
			}, counter)
		},
	}
	cmd.Flags().StringVar(&address, "metrics-addr", "", "where to serve metrics")
	cmd.Flags().IntVar(&first, "first", 0, "number of the first caller")
	cmd.Flags().IntVar(&count, "count", 1, "how many callers")
	return cmd
}

// asNode runs f as a node of the rack, with metrics, and leaves in order.
func asNode(ctx context.Context, address string, f func(context.Context, *rpc.Node) error, more ...prometheus.Collector) error {
	stop, err := metrics.Serve(ctx, address, more...)
	if err != nil {
		return err
	}
	defer stop()
	node, err := rpc.Join(ctx)
	if err != nil {
		return err
	}
	err = f(ctx, node)
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	if e := node.Close(leaving); err == nil {
		err = e
	}
	return err
}

// caller makes one call after the other, and checks each result.
type caller struct {
	number int
	calls  *atomic.Int64 // of its process
	arrays *workload.Client
	tally  tally.Adder
	total  int64 // what its account has
}

func newCaller(node *rpc.Node, number int, calls *atomic.Int64) (*caller, error) {
	to, err := tally.Open(node, tally.CounterName)
	if err != nil {
		return nil, err
	}
	return &caller{number: number, calls: calls, arrays: workload.New(node), tally: to}, nil
}

// Sizes of what travels, in bytes.
const (
	smallArray = 256
	lentArray  = 4 << 10
)

// turns is after how many calls a caller begins its round of calls anew.
const turns = 32

// work makes calls until ctx ends. The call that is under way then is finished.
func (c *caller) work(ctx context.Context) error {
	for n := c.number; ctx.Err() == nil; n++ { // callers are not all in the same turn
		if err := c.call(context.WithoutCancel(ctx), n); err != nil {
			return fmt.Errorf("caller %d: %w", c.number, err)
		}
		c.calls.Add(1)
	}
	return nil
}

// call makes the n-th call: most are pings and small arrays by value; two of 32 use
// memory: an array that is lent, and one for the caller's account.
func (c *caller) call(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	switch n % turns {
	case 0:
		return c.add(ctx, byte(n/turns))
	case turns / 2:
		return c.arrays.Run(ctx, "increment", lentArray, byte(n), true)
	}
	if n%2 == 0 {
		return c.arrays.Run(ctx, "increment", smallArray, byte(n), false)
	}
	return c.arrays.Run(ctx, "ping", 0, 0, false)
}

// add adds to the caller's account, which nobody else uses: a call that was made
// twice, or not at all, shows in what the account has.
func (c *caller) add(ctx context.Context, amount byte) error {
	got, err := c.tally.Add(ctx, int32(c.number), rpc.RefOf([]byte{amount}))
	if err != nil {
		return err
	}
	if c.total += int64(amount); got != c.total {
		return fmt.Errorf("account has %d, must have %d: a call was counted twice or not at all", got, c.total)
	}
	return nil
}
