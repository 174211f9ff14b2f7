package simrack_test

import (
	"context"
	"errors"
	"strings"
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

// crowded is a main in whose node's ledger the answers to a client that is away take the room.
type crowded struct {
	*testing.T
	ctx    context.Context
	rack   *simrack.Rack
	office *rpc.Node
	pings  atomic.Int64 // that have run
}

// withCrowded runs a test in which the ledger has room for so many bytes beside such answers.
func withCrowded(t *testing.T, f func(c *crowded)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour) // virtual
		defer cancel()
		c := &crowded{T: t, ctx: ctx}
		var err error
		if c.rack, err = simrack.Start(ctx, simrack.Config{
			Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}, Disk: new(wal.Disk), LedgerSpace: 1 << 20,
		}); err != nil {
			t.Fatal(err)
		}
		nodes := joinAll(t, ctx, c.rack, "c1", "s1", "s2")
		client, office, other := nodes[0], nodes[1], nodes[2]
		c.office = office
		err = errors.Join(
			office.Export(ctx, "Sized", arrays.NewArraysProcessor(sized{})),
			other.Export(ctx, "Ping", arrays.NewPingProcessor(pinger(func(context.Context) error { c.pings.Add(1); return nil }))),
		)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := arrays.NewArraysClient(client.Client("Sized", rpc.WithPolicy(rpc.PolicyRecover))).Echo(ctx, []byte("204800")); err != nil {
			t.Fatal(err)
		}
		c.rack.Host("c1").SetLink(false) // it has nothing forgotten
		f(c)
		if err := c.rack.Close(); err != nil {
			t.Error(err)
		}
	})
}

// run runs the main, which makes so many calls between two checkpoints, and journals 16 KiB before each; swallow says that
// its function does not return the errors of its calls. It returns how many calls have succeeded.
func (c *crowded) run(calls int, swallow bool) (made int, err error) {
	err = rpc.Main(c.ctx, c.office, "main", func(ctx context.Context, state []byte) error {
		if state == nil {
			if err := rpc.Checkpoint(ctx, []byte("begun")); err != nil {
				return err
			}
		}
		for range calls {
			err := rpc.Random(ctx, make([]byte, 16<<10))
			if err == nil {
				err = ping(ctx, c.office, "Ping")
			}
			if err == nil {
				made++
				continue
			}
			if rpc.CodeOf(err) != rpc.NoSpace {
				c.Errorf("after %d calls: %v", made, err)
			}
			if !swallow {
				return err
			}
		}
		return nil
	})
	return made, err
}

// TestMainRoom: the ledger of a main's node has no room for what the main does next. It waits, and then its run ends as no
// space; nothing is handed over. When there is room again the next run goes on from the last checkpoint, and all calls have
// run once.
func TestMainRoom(t *testing.T) {
	for _, swallow := range []bool{false, true} {
		withCrowded(t, func(c *crowded) {
			const calls = 20
			from := time.Now()
			made, err := c.run(calls, swallow)
			took := time.Since(from)
			if rpc.CodeOf(err) != rpc.NoSpace || made == 0 || made == calls || took < 2*time.Second || took > 4*time.Second ||
				!strings.Contains(err.Error(), "checkpoints more often") || !strings.Contains(err.Error(), "bifrost memory --ledger-space") {
				t.Errorf("after %d calls and %s: %v", made, took, err)
			}
			if n := c.pings.Load(); n != int64(made) {
				t.Errorf("%d calls ran, %d have succeeded", n, made)
			}
			again, err := c.run(calls, swallow) // it repeats what is in the ledger
			if rpc.CodeOf(err) != rpc.NoSpace || again != made {
				t.Errorf("again, after %d calls: %v", again, err)
			}
			<-time.After(20 * time.Second) // virtual: the client has failed, and its answer goes
			if made, err := c.run(calls, swallow); err != nil || made != calls || c.pings.Load() != calls {
				t.Errorf("with room: %d calls, %d have run, %v", made, c.pings.Load(), err)
			}
		})
	}
}

// TestMainRoom_InTime: room is there in time, so the main only waits.
func TestMainRoom_InTime(t *testing.T) {
	withCrowded(t, func(c *crowded) {
		c.rack.Host("c1").SetLink(true) // its client is idle, and has the answer forgotten within a second
		if made, err := c.run(20, false); err != nil || made != 20 {
			t.Errorf("after %d calls: %v", made, err)
		}
	})
}

// TestMainRoom_Checkpoint: a checkpoint's state may take half of the ledger, like a service's, at the first time and at each later
// one, whatever calls take. A larger one is refused each time at once, and the run goes on.
func TestMainRoom_Checkpoint(t *testing.T) {
	withCrowded(t, func(c *crowded) {
		const most = 1 << 19
		big := func(ctx context.Context, state []byte) error {
			if state != nil && len(state) != most {
				t.Errorf("it goes on from %d bytes", len(state))
			}
			for n := range 5 {
				began := time.Now()
				if err := rpc.Checkpoint(ctx, make([]byte, most+1)); rpc.CodeOf(err) != rpc.NoSpace || !strings.Contains(err.Error(), "half of its ledger") {
					t.Errorf("round %d: %v", n, err)
				}
				if err := rpc.Checkpoint(ctx, make([]byte, most)); err != nil || time.Since(began) > time.Second {
					t.Errorf("round %d: %v after %s", n, err, time.Since(began))
					return err
				}
				if err := ping(ctx, c.office, "Ping"); err != nil {
					t.Errorf("round %d: %v", n, err)
				}
			}
			if state == nil {
				return errors.New("once more")
			}
			return nil
		}
		if err := rpc.Main(c.ctx, c.office, "big", big); err == nil {
			t.Error("the first run has succeeded")
		}
		if err := rpc.Main(c.ctx, c.office, "big", big); err != nil {
			t.Error(err)
		}
	})
}
