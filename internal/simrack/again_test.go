package simrack_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc"
)

// TestMain_Again runs a durable main again and again. A program that is killed when a run
// has come to its end, but does not know it, is told so when it is started again; every
// other Main is a new run, which begins without a state.
func TestMain_Again(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		var lives, runs int // the program's own: one life at a time
		var ended []int     // runs, when a Main has returned
		over := make(chan struct{})
		program := func(ctx context.Context, j join.Joiner, s control.Start) error {
			node, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName(s.Name), rpc.WithLogger(slog.New(slog.DiscardHandler)))
			if err != nil {
				return err
			}
			lives++
			for range []int{0: 1, 1: 3}[lives-1] {
				err := rpc.Main(ctx, node, "again", func(ctx context.Context, state []byte) error {
					if state != nil {
						t.Errorf("run %d begins with %q", runs, state)
					}
					runs++
					return rpc.Checkpoint(ctx, []byte("begun"))
				})
				if err != nil {
					t.Errorf("life %d: %v", lives, err)
				}
				ended = append(ended, runs)
			}
			if lives == 1 {
				return errors.New("killed before it could note that the run was over")
			}
			close(over)
			return node.Close(ctx)
		}
		rack, err := simrack.Start(ctx, simrack.Config{
			Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}, Disk: new(wal.Disk), Programs: map[string]simrack.Program{"job": program},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := rack.Gatekeeper().Deploy(ctx, resources.Spec{Name: "job", Programs: []resources.Program{{Name: "p", Args: []string{"job"}, Nodes: 1, Job: true}}}); err != nil {
			t.Fatal(err)
		}
		<-over
		if want := []int{1, 1, 2, 3}; !slices.Equal(ended, want) {
			t.Errorf("when each Main had returned, there had been %v runs, want %v", ended, want)
		}
		if err := rack.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestMain_TakenBack takes back a job whose durable main has allocated a region, which is then
// lost with its memory blade: nothing of the region is left on the log.
func TestMain_TakenBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		allocated, once := make(chan struct{}), new(sync.Once)
		program := func(ctx context.Context, j join.Joiner, s control.Start) error {
			node, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName(s.Name), rpc.WithLogger(slog.New(slog.DiscardHandler)))
			if err != nil {
				return err
			}
			return rpc.Main(ctx, node, "job", func(ctx context.Context, _ []byte) error {
				if _, err := rpc.Memory(ctx).Alloc(ctx, 64); err != nil {
					return err
				}
				once.Do(func() { close(allocated) })
				<-ctx.Done()
				return ctx.Err()
			})
		}
		rack, err := simrack.Start(ctx, simrack.Config{
			Blades: []simrack.Blade{{Name: "c1", Kind: control.Compute}, {Name: "m1", Kind: control.Memory}}, Disk: new(wal.Disk),
			Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}, Programs: map[string]simrack.Program{"job": program},
		})
		must(err)
		regions := func() (n int) {
			for r, err := range rack.Log().Records() {
				if must(err); r.Kind == wal.KindRegion {
					n++
				}
			}
			return n
		}
		must(rack.Gatekeeper().Deploy(ctx, resources.Spec{Name: "job", Programs: []resources.Program{{Name: "p", Args: []string{"job"}, Nodes: 1, Job: true}}}))
		select {
		case <-allocated:
		case <-ctx.Done():
			t.Fatal("the main has not allocated")
		}
		must(rack.CrashBlade("m1"))
		must(rack.BootBlade("m1"))
		<-time.After(10 * time.Second) // virtual
		if n := regions(); n != 0 {
			t.Errorf("the log has %d regions that the blade has lost", n)
		}
		must(rack.Gatekeeper().Undeploy(ctx, "job"))
		<-time.After(20 * time.Second) // virtual: the node has left by then
		if n := regions(); n != 0 {
			t.Errorf("the log has %d regions when the main is no more", n)
		}
		must(rack.Close())
	})
}
