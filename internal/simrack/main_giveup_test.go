package simrack_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/rpc"
)

// TestMainGivesUp: a durable main gives a call up, and stays direct. Its program dies, and the call is answered meanwhile with a
// region. The next run has given the call up, too, which ran once. The region goes when the main is over; so does that of a call
// which is answered after that.
func TestMainGivesUp(t *testing.T) {
	withClerk(t, 3, func(ctx context.Context, k *clerk) {
		var ran atomic.Int64
		n, err := k.Join(ctx, "c1", "giver")
		if err == nil {
			err = n.Export(ctx, "Giver", arrays.NewArraysProcessor(giver{handle: func(ctx context.Context) (dsm.Pointer, error) {
				takes := time.Second
				if ran.Add(1) == int64(k.rounds) {
					takes = time.Minute
				}
				<-time.After(takes) // virtual
				return fresh(context.WithoutCancel(ctx))
			}}))
		}
		if err != nil {
			t.Fatal(err)
		}
		killed := false
		k.aside = func(ctx context.Context, round int) error {
			short, cancel := context.WithTimeout(ctx, 50*time.Millisecond) // virtual
			defer cancel()
			if _, err := get(short, k.at()); ctx.Err() == nil && rpc.CodeOf(err) != rpc.Deadline {
				t.Errorf("round %d: the call that was given up: %v", round, err)
			}
			if _, err := echo(ctx, k.at(), "S", ""); err != nil {
				return err
			}
			if round == 1 && !killed {
				killed = true
				<-time.After(2 * time.Second) // virtual: the call is answered
				for _, blade := range []string{"c1", "s1", "s2"} {
					_ = k.KillSoon(blade, "office/clerk/1") // it runs at one of them
				}
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		k.deploy(ctx)
		k.ended(ctx)
		if ran.Load() != int64(k.rounds) || len(k.begun) != 2 {
			t.Errorf("%d calls ran, runs begun with rounds %v", ran.Load(), k.begun)
		}
		<-time.After(2 * time.Minute) // virtual: the last call has ended
		k.regions(ctx, 0)
	})
}
