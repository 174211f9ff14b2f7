package simrack_test

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
)

// Whatever becomes of the switch, of its line to the Gatekeeper, or of the Gatekeeper and
// its log: calls go on when it is over, and none before that.
func TestSwitchFails(t *testing.T) {
	const away = time.Second
	for name, fail := range map[string]func(r *simrack.Rack, d *wal.Disk) (repair func(context.Context) error){
		"restart": func(r *simrack.Rack, _ *wal.Disk) func(context.Context) error {
			if err := r.CrashSwitch(); err != nil {
				return func(context.Context) error { return err }
			}
			return func(context.Context) error { return r.BootSwitch() }
		},
		"stall": func(r *simrack.Rack, _ *wal.Disk) func(context.Context) error {
			resume := r.StallLine()
			return func(context.Context) error { resume(); return nil }
		},
		"hang up": func(r *simrack.Rack, _ *wal.Disk) func(context.Context) error {
			resume := r.StallLine()
			r.CutLine()
			return func(context.Context) error { resume(); return nil }
		},
		"refuse": func(r *simrack.Rack, _ *wal.Disk) func(context.Context) error {
			r.RefuseWrites(true)
			r.CutLine()
			return func(context.Context) error { r.RefuseWrites(false); return nil }
		},
		"oust": func(r *simrack.Rack, _ *wal.Disk) func(context.Context) error {
			r.OustGatekeeper()
			return r.RestartGatekeeper
		},
		"full disk": func(r *simrack.Rack, d *wal.Disk) func(context.Context) error {
			d.Fill(true)
			return func(ctx context.Context) error {
				r.CrashGatekeeper()
				d.Fill(false)
				return r.RestartGatekeeper(ctx)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				disk := new(wal.Disk)
				r, err := simrack.Start(ctx, simrack.Config{Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}, Disk: disk})
				if err != nil {
					t.Fatal(err)
				}
				export(t, ctx, r, "s1")
				n, err := r.Join(ctx, "c1", "client")
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				repair := fail(r, disk)
				done := make(chan error, 1)
				go func() { done <- arrays.NewPingClient(n.Client("Ping")).Ping(ctx) }()
				<-time.After(away)
				if err := repair(ctx); err != nil {
					t.Error(err)
				}
				if err := <-done; err != nil {
					t.Errorf("a call: %v", err)
				}
				if took := time.Since(began); took < away {
					t.Errorf("a call came through after %s", took)
				}
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Registers are in the memory of the switch's machine: they outlive its process, and the power cut they do not.
func TestRegistersOfSwitch(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // virtual
		defer cancel()
		r, err := simrack.Start(ctx, simrack.Config{Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}})
		if err != nil {
			t.Fatal(err)
		}
		const words, cell = "BifrostIngress.rights.words", 123_456
		has := func(when string, want byte) {
			t.Helper()
			if err := r.BootSwitch(); err != nil {
				t.Fatal(err)
			}
			<-time.After(10 * time.Second) // the Gatekeeper finds it, and gives it its program
			if b, err := r.Switch().Register(words, cell); err != nil || b[len(b)-1] != want {
				t.Errorf("%s: the register has %x, want %d; %v", when, b, want, err)
			}
		}
		has("at first", 0)
		if err := r.Switch().SetRegister(words, cell, []byte{6: 9}); err != nil {
			t.Fatal(err)
		}
		for _, when := range []string{"after a crash", "after another one"} {
			if err := r.CrashSwitch(); err != nil {
				t.Fatal(err)
			}
			has(when, 9)
		}
		if err := r.LoseSwitch(); err != nil {
			t.Fatal(err)
		}
		has("after a power cut", 0)
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A Gatekeeper is killed while it begins: whoever has started it does not wait for it.
func TestGatekeeperKilledAtItsStart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // virtual
		defer cancel()
		r, err := simrack.Start(ctx, simrack.Config{Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}, Disk: new(wal.Disk)})
		if err != nil {
			t.Fatal(err)
		}
		for range 100 { // one in several is killed between a look at it and the wait for its next event
			r.CrashGatekeeper()
			begun := make(chan error, 1)
			go func() { begun <- r.RestartGatekeeper(ctx) }()
			for r.Gatekeeper() == nil {
				runtime.Gosched()
			}
			r.CrashGatekeeper()
			if err := <-begun; err != nil {
				t.Fatal(err)
			}
		}
		if err := r.RestartGatekeeper(ctx); err != nil {
			t.Error(err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}
