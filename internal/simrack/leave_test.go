package simrack_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
)

// TestDirectCallsOfDrained: a blade is drained whose node callers call straight. None of their
// calls fails: not one that has just left, nor one of a caller that has not called for long.
func TestDirectCallsOfDrained(t *testing.T) {
	for _, idle := range []time.Duration{0, 10 * time.Second} {
		withRegisters(t, "", func(ctx context.Context, r *registers) {
			if err := r.Gatekeeper().Deploy(ctx, resources.Spec{Name: "front", Programs: []resources.Program{
				{Name: "F", Args: []string{"F"}, Nodes: 1, Blades: []string{"c1", "s1"}, Services: []resources.ServiceSpec{{Name: "F"}}},
			}}); err != nil {
				t.Fatal(err)
			}
			n := r.client(ctx, t)
			want := uint64(1)
			call := func(when string) {
				t.Helper()
				if v, err := echo(ctx, n, "F", ""); v != want || err != nil {
					t.Fatalf("idle for %v, %s: %d, %v, want %d", idle, when, v, err, want)
				}
				want++
			}
			call("before")
			if err := r.Gatekeeper().Drain(ctx, "c1", "test"); err != nil {
				t.Fatal(err)
			}
			r.Host("c1").Impair(wire.Impairment{Delay: 30 * time.Millisecond}, wire.Impairment{Delay: 30 * time.Millisecond})
			for end := time.Now().Add(max(idle, 6*time.Second)); time.Now().Before(end); {
				if idle == 0 {
					call("while it drains")
				} else {
					<-time.After(time.Second) // virtual
				}
			}
			call("after")
		})
	}
}

// TestAtMostOnceCallsOfRestarted: two nodes are restarted, one after the other, whose incarnations calls of policy none are bound to.
// None of these calls fails.
func TestAtMostOnceCallsOfRestarted(t *testing.T) {
	withRack(t, "", &registers{nodes: map[string]*rpc.Node{}, size: 8}, func(ctx context.Context, r *registers) { // 2,400 calls write a state each
		if err := r.Gatekeeper().Deploy(ctx, resources.Spec{Name: "front", Programs: []resources.Program{
			{Name: "F", Args: []string{"F"}, Nodes: 2, Blades: []string{"c1", "s1"}, Services: []resources.ServiceSpec{{Name: "F"}}},
		}}); err != nil {
			t.Fatal(err)
		}
		n := r.client(ctx, t)
		if _, err := echo(ctx, n, "F", ""); err != nil {
			t.Fatal(err)
		}
		client := arrays.NewArraysClient(n.Client("F", rpc.WithPolicy(rpc.PolicyNone)))
		if _, err := client.Echo(ctx, nil); err != nil {
			t.Fatal(err)
		}
		if err := r.Gatekeeper().Restart(ctx, "front"); err != nil {
			t.Fatal(err)
		}
		for began := time.Now(); time.Since(began) < 12*time.Second; <-time.After(5 * time.Millisecond) { // virtual
			if _, err := client.Echo(ctx, nil); err != nil {
				t.Errorf("%v after the restart began: %v", time.Since(began), err)
			}
		}
	})
}

// TestRefusedAndSentAgain: a node that closes refuses a direct call, and the caller sends it to the node's next incarnation. The
// caller's program dies when it has the answer. Its next run gets that answer, and the call has run once.
func TestRefusedAndSentAgain(t *testing.T) {
	does := func(ctx context.Context, k *chain, name string, n int) error {
		if name == "bottom" {
			return nil
		}
		k.mu.Lock()
		self := k.nodes[name]
		k.mu.Unlock()
		err := k.call(ctx, self, "bottom")
		if name == "middle" {
			<-time.After(time.Second) // virtual: the node called cannot leave meanwhile
		}
		if err != nil || name == "middle" || n != 2 {
			return err
		}
		if err := k.KillSoon("s1", "top/p/1"); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	}
	policies := map[string]rpc.Policy{"top": rpc.PolicyRecover, "middle": rpc.PolicyRecover, "bottom": rpc.PolicyRecover}
	withChain(t, links{policies: policies, state: true, spare: true, does: does}, func(k *chain) {
		client, err := k.Join(k.Context(), "s2", "client")
		if err != nil {
			k.Fatal(err)
		}
		calls := func(what string) {
			if err := k.call(k.Context(), client, what); err != nil {
				k.Error(err)
			}
		}
		calls("top") // which knows then who is called
		var last sync.WaitGroup
		last.Go(func() { calls("middle") })
		<-time.After(50 * time.Millisecond) // virtual
		if err := k.Gatekeeper().Drain(k.Context(), "s3", "test"); err != nil {
			k.Fatal(err)
		}
		<-time.After(100 * time.Millisecond) // virtual
		calls("top")
		last.Wait()
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.ran["top"] != 3 || k.ran["bottom"] != 3 {
			k.Errorf("handlers have run %v times, want each three times", k.ran)
		}
	})
}

// TestCloseAfterCallers: a node whose callers have gone closes at once. Nobody asks for the answers
// that it keeps for them. An operator's commands call and leave, and a rollout waits for the close.
func TestCloseAfterCallers(t *testing.T) {
	withDirect(t, func(context.Context) error { return nil }, func(d *direct) {
		if err := d.ping(); err != nil {
			d.Fatal(err)
		}
		if err := d.client.Close(d.Context()); err != nil {
			d.Fatal(err)
		}
		for _, n := range []*rpc.Node{d.front, d.back} {
			began := time.Now()
			if err := n.Close(d.Context()); err != nil {
				d.Fatal(err)
			}
			if took := time.Since(began); took > time.Second {
				d.Errorf("the node on %s took %v to close", n.Name(), took)
			}
		}
	})
}

// joiner calls a function when a program has its node's identity.
type joiner struct {
	join.Joiner
	joined func()
}

// Join implements join.Joiner.
func (j joiner) Join(ctx context.Context, name string) (join.Session, error) {
	s, err := j.Joiner.Join(ctx, name)
	if err == nil && j.joined != nil {
		j.joined()
	}
	return s, err
}

// TestDrainedWhileItJoins: a node has died while it served a call, and its blade is drained while the next
// incarnation still reads the ledger. The program ends, and the call is not lost with it.
func TestDrainedWhileItJoins(t *testing.T) {
	withRegisters(t, "", func(ctx context.Context, r *registers) {
		var runs, joins atomic.Int64
		r.after = func() {
			if runs.Add(1) > 1 {
				return
			}
			if err := r.Kill("c1", "front/F/1"); err != nil {
				t.Error(err)
			}
		}
		r.joined = func() {
			if joins.Add(1) == 2 {
				r.impair(wire.Impairment{}, wire.Impairment{Loss: 1})
				time.AfterFunc(time.Second, func() { r.impair(wire.Impairment{}, wire.Impairment{}) }) // virtual
			}
		}
		if err := r.Gatekeeper().Deploy(ctx, resources.Spec{Name: "front", Programs: []resources.Program{
			{Name: "F", Args: []string{"F"}, Nodes: 1, Blades: []string{"c1", "s1", "s2"}, Services: []resources.ServiceSpec{{Name: "F"}}},
		}}); err != nil {
			t.Fatal(err)
		}
		n := r.client(ctx, t)
		answered := make(chan error, 1)
		go func() {
			_, err := echo(ctx, n, "F", "")
			answered <- err
		}()
		<-time.After(500 * time.Millisecond) // virtual: it has been killed, and joins
		if err := r.Gatekeeper().Drain(ctx, "c1", "test"); err != nil {
			t.Fatal(err)
		}
		if err := <-answered; err != nil {
			t.Error(err)
		}
		if runs.Load() != 2 || joins.Load() != 4 {
			t.Errorf("%d runs, %d incarnations: want 2, and 3 and that of the other node", runs.Load(), joins.Load())
		}
	})
}
