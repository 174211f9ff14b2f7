package simrack_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/gatekeeper/log"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
)

// echoes is a service that answers with what it was given.
type echoes struct{ arrays.Arrays }

func (echoes) Echo(_ context.Context, data []byte) ([]byte, error) { return data, nil }

// Answers that the log has no room for wait until callers have settled others: all
// calls are answered in the end, whether their callers make further calls or not.
func TestFullLog(t *testing.T) {
	for name, rounds := range map[string]int{"callers go on": 3, "callers are done": 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
				defer cancel()
				r, err := simrack.Start(ctx, simrack.Config{
					Schedule: &wire.Schedule{Seed: 1, Settle: synctest.Wait}, Disk: new(log.Disk), MTU: 65535,
					LogOptions: log.Options{Limit: 1 << 20},
				})
				if err != nil {
					t.Fatal(err)
				}
				server, err := r.Join(ctx, "s1", "server")
				if err != nil {
					t.Fatal(err)
				}
				if err := server.Export(ctx, "Arrays", arrays.NewArraysProcessor(echoes{})); err != nil {
					t.Fatal(err)
				}
				client, err := r.Join(ctx, "c1", "client")
				if err != nil {
					t.Fatal(err)
				}
				callAll(ctx, t, client, 50, rounds)
				if err := errors.Join(client.Close(ctx), server.Close(ctx), r.Close()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// callAll has callers make calls of 40 kB at the same time.
func callAll(ctx context.Context, t *testing.T, client *rpc.Node, callers, rounds int) {
	var all sync.WaitGroup
	data := make([]byte, 40_000)
	for range callers {
		all.Go(func() {
			for range rounds {
				if _, err := arrays.NewArraysClient(client.Client("Arrays")).Echo(ctx, data); err != nil {
					t.Errorf("not answered: %v", err)
					return
				}
			}
		})
	}
	all.Wait()
}
