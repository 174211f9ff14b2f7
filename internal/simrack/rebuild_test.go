package simrack_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
)

// loss has the switch's machine lose its registers at a frame.
type loss struct {
	at, seen atomic.Int64 // at 0: never
	down     int64        // so many frames before that the server's program dies; 0: never
}

func (l *loss) onFrame(r *shelf, _ wire.Frame) {
	at := l.at.Load()
	if at == 0 {
		return
	}
	seen := l.seen.Add(1)
	if l.down > 0 && seen == at-l.down {
		if err := r.KillSoon("s1", "app/p/1"); err != nil {
			r.Error(err)
		}
	}
	if seen == at {
		if err := r.LoseSwitch(); err != nil {
			r.Error(err)
		}
		if err := r.BootSwitch(); err != nil {
			r.Error(err)
		}
	}
}

// passes passes regions in each way that there is: it lends one to a call, gets one by an answer, and hands one over.
func (r *shelf) passes(ctx context.Context, m *dsm.Client, n *rpc.Node) error {
	if err := lentOut(ctx, m, func(p dsm.Pointer) error { return lendTo(ctx, n, p) }); err != nil {
		return fmt.Errorf("lend: %w", err)
	}
	p, err := get(ctx, n)
	if err != nil {
		return fmt.Errorf("get: %w", err)
	}
	b := make([]byte, 8)
	if _, err := m.Read(ctx, p, b); err != nil || !bytes.Equal(b, []byte("contents")) {
		return fmt.Errorf("the answer's region has %q: %w", b, err)
	}
	if err := m.Free(ctx, p); err != nil {
		return fmt.Errorf("free: %w", err)
	}
	if p, err = filled(ctx, m); err != nil {
		return fmt.Errorf("fill: %w", err)
	}
	return hand(ctx, n, "Borrower", p)
}

// passAll has the client pass regions twice, and the server in two executions meanwhile.
func (r *shelf) passAll() {
	var client sync.WaitGroup
	client.Go(func() {
		for range 2 {
			if err := r.passes(r.Context(), r.client.Memory(), r.client); err != nil {
				r.Errorf("the client: %v", err)
			}
		}
	})
	for range 2 {
		r.call(func(ctx context.Context, _ *dsm.Pointer) error { return r.passes(ctx, rpc.Memory(ctx), r.server) })
	}
	client.Wait()
}

// lossStep is how many frames lie between two moments at which the switch loses its registers.
var lossStep = 9

// TestRegistersLost: the switch's machine comes back with empty registers while a plain client and an execution pass regions, at each frame of
// many. The nodes say what rights they have. Nobody loses one: each call is answered, each one-way arrives once, and no region is left.
func TestRegistersLost(t *testing.T) {
	for at := int64(1); at < 200; at += int64(lossStep) {
		if testing.Short() && at%4 != 1 {
			continue
		}
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			l := new(loss)
			withShelves(t, &shelf{frame: l.onFrame}, mirroredThesis(), func(r *shelf) {
				var taken atomic.Int64
				r.borrows(func(ctx context.Context, p dsm.Pointer) error {
					b := make([]byte, 8)
					if _, err := rpc.Memory(ctx).Read(ctx, p, b); err != nil || !bytes.Equal(b, []byte("contents")) {
						r.Errorf("the callee reads %q, %v", b, err)
					}
					taken.Add(1)
					return nil
				})
				r.gives(fresh)
				l.at.Store(at)
				began := time.Now()
				r.passAll()
				if took := time.Since(began); took < time.Second && l.seen.Load() >= at {
					t.Errorf("all is done within %v: the switch has not lost anything", took)
				}
				<-time.After(20 * time.Second) // virtual
				if seen := l.seen.Load(); seen < at {
					t.Fatalf("there were %d frames: the switch has not lost anything", seen)
				}
				if n := taken.Load(); n != 8 {
					t.Errorf("%d calls and one-ways have come, want 8", n)
				}
				if s := r.server.Stats(); s.Resumed > 0 {
					t.Errorf("%d executions have begun anew: the server has not given its account", s.Resumed)
				}
				r.regions(0)
			})
		})
	}
}

// TestRegistersLost_NodeDown: the server's program has died before the switch loses its registers, or dies while it does. Calls end all the same.
// If the Gatekeeper has seen what the server's row had, nobody loses a right.
func TestRegistersLost_NodeDown(t *testing.T) {
	for at := int64(20); at < 150; at += 3*int64(lossStep) + 1 {
		for _, down := range []int64{1, 8, 60} {
			if testing.Short() && down != 8 {
				continue
			}
			t.Run(fmt.Sprint(at, " ", down), func(t *testing.T) {
				l := &loss{down: down}
				withShelves(t, &shelf{frame: l.onFrame}, mirroredThesis(), func(r *shelf) {
					r.borrows(func(ctx context.Context, p dsm.Pointer) error {
						_, err := rpc.Memory(ctx).Read(ctx, p, make([]byte, 8))
						return err
					})
					r.gives(fresh)
					l.at.Store(at + down)
					r.passAll()
					<-time.After(3 * time.Minute) // virtual
					r.regions(0)
				})
			})
		}
	}
}

// TestRegistersLost_GivenBack: a region that a one-way was to hand over is its sender's again, since the receiver is gone for good. The sender keeps it when the
// switch loses its registers, also while a call of the receiver goes on: what was read of the receiver's row at its end is older.
func TestRegistersLost_GivenBack(t *testing.T) {
	givenBack(t, func(r *shelf) {
		if err := errors.Join(r.LoseSwitch(), r.BootSwitch()); err != nil {
			r.Fatal(err)
		}
	})
}

// TestRegistersLost_Unheard: the Gatekeeper and the switch do not hear each other for a while, just when the Gatekeeper asks the nodes what rights they have. None of them
// counts as silent for that, and none ends.
func TestRegistersLost_Unheard(t *testing.T) {
	for name, unheard := range map[string]func(r *shelf){
		"stalled": func(r *shelf) {
			resume := r.StallLine()
			<-time.After(6 * time.Second) // virtual
			resume()
		},
		"stalled, and then the switch is away": func(r *shelf) {
			resume := r.StallLine()
			<-time.After(time.Second) // virtual
			if err := r.LoseSwitch(); err != nil {
				r.Error(err)
			}
			resume()
			<-time.After(6 * time.Second) // virtual
			if err := r.BootSwitch(); err != nil {
				r.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			withShelf(t, false, func(r *shelf) {
				ctx := r.Context()
				own, err := filled(ctx, r.client.Memory())
				if err != nil {
					r.Fatal(err)
				}
				if err := errors.Join(r.LoseSwitch(), r.BootSwitch()); err != nil {
					r.Fatal(err)
				}
				<-time.After(rebuildAsks) // virtual
				unheard(r)
				select {
				case <-r.client.Done():
					r.Error("the client has ended")
				case <-time.After(30 * time.Second): // virtual
					r.own(ctx, r.client.Memory(), own)
				}
			})
		})
	}
}

// rebuildAsks is shortly before the Gatekeeper asks, after the loss.
const rebuildAsks = 990 * time.Millisecond

// TestRegistersLost_Silent: a node does not say what its rights are when the switch has lost them. It ends, and nobody has what it may have had: an operator frees that. Others
// lose nothing.
func TestRegistersLost_Silent(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		ctx := r.Context()
		j, err := r.Joiner("s2")
		if err != nil {
			r.Fatal(err)
		}
		silent, err := rpc.Join(join.NewContext(ctx, simrack.Silent{Joiner: j}), rpc.WithName("silent"), rpc.WithLogger(slog.New(slog.DiscardHandler)))
		if err != nil {
			r.Fatal(err)
		}
		theirs, err := filled(ctx, silent.Memory())
		if err != nil {
			r.Fatal(err)
		}
		own, err := filled(ctx, r.client.Memory())
		if err != nil {
			r.Fatal(err)
		}
		if err := errors.Join(r.LoseSwitch(), r.BootSwitch()); err != nil {
			r.Fatal(err)
		}
		select {
		case <-silent.Done():
		case <-time.After(time.Minute): // virtual
			r.Fatal("a node that has not said what its rights are goes on")
		}
		r.own(ctx, r.client.Memory(), own)

		gk := r.Gatekeeper()
		switch got, err := gk.Holders(ctx, theirs); {
		case err != nil:
			r.Fatal(err)
		case !got.Region.Frozen:
			r.Errorf("whose region it was nobody can say, and it is %+v", got.Region)
		}
		if _, err := gk.FreeRegion(ctx, own); fault.CodeOf(err) != fault.BadRequest {
			r.Errorf("the client's region is freed: %v", err)
		}
		if _, err := gk.FreeRegion(ctx, theirs); err != nil {
			r.Errorf("free what is frozen: %v", err)
		}
		r.regions(1)
		if _, err := gk.FreeRegion(ctx, theirs); fault.CodeOf(err) != fault.NotFound {
			r.Errorf("free what is free: %v", err)
		}
	})
}
