package simrack_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
)

// TestSlowLog: the Gatekeeper's log takes longer for a commit than a memory blade may leave a command unanswered. The blades have not heard of the command
// before, so none of them fails, and the machine keeps both copies.
func TestSlowLog(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		var slow atomic.Bool
		disk := &wal.Disk{Pause: func() time.Duration {
			if slow.CompareAndSwap(true, false) {
				return 8 * time.Second
			}
			return 0
		}}
		r, err := simrack.Start(ctx, simrack.Config{
			Blades: mirroredThesis(), Machines: [][]string{{"m1", "m2"}}, Disk: disk, Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait},
		})
		must(err)
		node, err := r.Join(ctx, "c1", "client")
		must(err)
		_, err = node.Memory().Alloc(ctx, 100)
		must(err)
		events := r.Gatekeeper().Subscribe(ctx)
		slow.Store(true)
		must(node.Close(ctx))
		<-time.After(20 * time.Second) // virtual
		if slow.Load() {
			t.Error("the log was not slow")
		}
		for {
			select {
			case e := <-events:
				if e.Kind == gatekeeper.BladeFailed || e.Kind == gatekeeper.MachineUnmirrored {
					t.Errorf("%s %s: %s", e.Kind, e.Blade, e.Message)
				}
				continue
			default:
			}
			break
		}
		must(r.Close())
	})
}
