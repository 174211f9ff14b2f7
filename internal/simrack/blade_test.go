package simrack_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
)

// TestCrashBlade cuts a blade's power: its program is gone without a word, silence
// tells the Gatekeeper, and after its boot the blade can be used again.
func TestCrashBlade(t *testing.T) {
	inVirtualTime(t, 1, wire.Impairment{}, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		ended := make(chan error, 1)
		joined := make(chan struct{})
		if _, err := r.Run("s1", "by hand", func(ctx context.Context, j join.Joiner, _ control.Start) error {
			if _, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName("n")); err != nil {
				return err
			}
			close(joined)
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		<-joined
		for range 2 { // the second changes nothing
			if err := r.CrashBlade("s1"); err != nil {
				t.Fatal(err)
			}
		}
		if err := <-ended; !errors.Is(err, simrack.ErrKilled) {
			t.Errorf("the program ended for %v", err)
		}
		until := func(what string, good func(*gatekeeper.Snapshot) bool) {
			t.Helper()
			for range 100 {
				s, err := r.Gatekeeper().Snapshot(ctx)
				if err != nil {
					t.Fatal(err)
				}
				if good(&s) {
					return
				}
				<-time.After(time.Second) // virtual
			}
			t.Fatalf("%s: not within 100 s", what)
		}
		status := func(s *gatekeeper.Snapshot) string {
			for _, b := range s.Blades {
				if b.Name == "s1" {
					return b.Status
				}
			}
			return ""
		}
		until("the blade has failed", func(s *gatekeeper.Snapshot) bool { return status(s) == gatekeeper.StatusFailed && len(s.Nodes) == 0 })
		for range 2 {
			if err := r.BootBlade("s1"); err != nil {
				t.Fatal(err)
			}
		}
		until("the blade is back", func(s *gatekeeper.Snapshot) bool { return status(s) == gatekeeper.StatusFree })
		if _, err := r.Join(ctx, "s1", "again"); err != nil {
			t.Error(err)
		}
	})
}

func TestCrashBlade_Wrong(t *testing.T) {
	inVirtualTime(t, 1, wire.Impairment{}, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		for what, err := range map[string]error{
			"crash of nobody": r.CrashBlade("x"), "boot of nobody": r.BootBlade("x"),
			"kill of what does not run": r.Kill("s1", "x"), "kill on no blade": r.KillSoon("x", "y"),
		} {
			if err == nil {
				t.Errorf("%s: no error", what)
			}
		}
		if _, err := r.Run("m1", "x", nil); err == nil {
			t.Error("a program runs on a memory blade")
		}
	})
}
