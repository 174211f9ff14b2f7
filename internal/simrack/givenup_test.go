package simrack_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc"
)

// slowPing is a handler that takes a second, or as long as its context.
type slowPing struct {
	begun        chan struct{}
	cut, through atomic.Int32
}

func (s *slowPing) Ping(ctx context.Context) error {
	s.begun <- struct{}{}
	select {
	case <-time.After(time.Second):
		s.through.Add(1)
		return nil
	case <-ctx.Done():
		s.cut.Add(1)
		return ctx.Err()
	}
}

// TestGivenUp: whose context ends without a deadline, that caller returns at once. A call
// of policy none ends where it runs; an exactly-once call is given up: it runs to its end,
// once, and the rack forgets what came of it.
func TestGivenUp(t *testing.T) {
	for _, policy := range []rpc.Policy{rpc.PolicyNone, rpc.PolicyRecover} {
		t.Run(policy.String(), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				r, err := simrack.Start(t.Context(), simrack.Config{Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}, Disk: new(wal.Disk)})
				if err != nil {
					t.Fatal(err)
				}
				defer func() {
					if err := r.Close(); err != nil {
						t.Error(err)
					}
				}()
				handler := &slowPing{begun: make(chan struct{})}
				server, err := r.Join(t.Context(), "s1", "server")
				if err == nil {
					err = server.Export(t.Context(), "Ping", arrays.NewPingProcessor(handler))
				}
				client, joined := r.Join(t.Context(), "c1", "client")
				if err != nil || joined != nil {
					t.Error(err, joined)
					return
				}
				ctx, cancel := context.WithCancel(t.Context())
				go func() {
					<-handler.begun
					cancel()
				}()
				began := time.Now()
				err = arrays.NewPingClient(client.Client("Ping", rpc.WithPolicy(policy))).Ping(ctx)
				if took := time.Since(began); rpc.CodeOf(err) != rpc.Canceled || rpc.NeverBegan(err) || took > 100*time.Millisecond {
					t.Errorf("after %v: %v", took, err)
				}
				<-time.After(time.Minute) // all that is to happen later has happened
				if cut, through := handler.cut.Load(), handler.through.Load(); (cut == 1) != (policy == rpc.PolicyNone) || cut+through != 1 {
					t.Errorf("%d handlers were cut off, %d came to their end", cut, through)
				}
				o, err := r.Gatekeeper().Overview(t.Context())
				if err != nil || len(o.Calls) != 0 {
					t.Errorf("%v: the rack still has calls %+v", err, o.Calls)
				}
			})
		})
	}
}
