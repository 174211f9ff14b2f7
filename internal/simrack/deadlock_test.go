package simrack_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/rpc"
)

// TestDeadlockOfDirectCalls: services with state that are called direct, and wait for each
// other, are told so: one that comes back to itself, and two that call each other.
func TestDeadlockOfDirectCalls(t *testing.T) {
	withRegisters(t, "", func(ctx context.Context, r *registers) {
		n := r.client(ctx, t)
		if _, err := echo(ctx, n, "R", "S R "); rpc.CodeOf(err) != rpc.Deadlock {
			t.Errorf("R calls S, which calls R: %v", err)
		}
		for round := range 8 {
			var all sync.WaitGroup
			failed := make(chan error, 2)
			for _, way := range [][2]string{{"R", "S "}, {"S", "R "}} {
				all.Go(func() {
					_, err := echo(ctx, n, way[0], way[1])
					failed <- err
				})
			}
			all.Wait()
			for range 2 {
				if err := <-failed; err != nil && rpc.CodeOf(err) != rpc.Deadlock {
					t.Errorf("round %d: %v", round, err)
				}
			}
		}
		if v, err := echo(ctx, n, "R", ""); err != nil {
			t.Errorf("in the end: %d, %v", v, err)
		}
		if err := n.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}

// TestDeadlocksAtRandom: six clients call services with state that call each other, one way and the
// other. Each call ends, within a second of when nothing
// but a deadlock holds it up, and counts once if it succeeds; and in calls of one way only nothing
// is taken for a deadlock, however long they wait.
func TestDeadlocksAtRandom(t *testing.T) {
	seeds, rounds := uint64(6), 20
	if testing.Short() { // with the race detector, under which they took a third of the package's time
		seeds, rounds = 2, 5
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			withRegisters(t, "", func(ctx context.Context, r *registers) {
				n := r.client(ctx, t)
				cyclic := seed%2 == 0
				var counted, deadlocks atomic.Int64
				before := r.held(ctx, t)
				var all sync.WaitGroup
				for k := range uint64(6) {
					all.Go(func() {
						random := rand.New(rand.NewPCG(seed, k))
						for range rounds {
							way := wayOf(random, cyclic)
							bounded, cancel := context.WithTimeout(ctx, 10*time.Second)
							_, err := echo(bounded, n, way[0], strings.Join(way[1:], " "))
							cancel()
							switch rpc.CodeOf(err) {
							case rpc.OK:
								counted.Add(1)
							case rpc.Deadlock:
								deadlocks.Add(1)
							default:
								t.Errorf("%q: %v", way, err)
							}
						}
					})
				}
				all.Wait()
				t.Logf("%d calls, %d deadlocks", counted.Load(), deadlocks.Load())
				if n := r.held(ctx, t) - before; n > 0 {
					t.Errorf("%d calls were held", n)
				}
				if cyclic != (deadlocks.Load() > 0) {
					t.Errorf("%d deadlocks", deadlocks.Load())
				}
				sum := uint64(0)
				for _, service := range []string{"R", "S"} {
					v, err := echo(ctx, n, service, "")
					if err != nil {
						t.Fatal(err)
					}
					sum += v - 1
				}
				if got := uint64(counted.Load()); sum != got { //nolint:gosec // not negative
					t.Errorf("%d calls counted, want %d", sum, got)
				}
				if err := n.Close(ctx); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// wayOf is a way through services with state: the last one counts.
func wayOf(random *rand.Rand, cyclic bool) []string {
	way := []string{"R"}
	if cyclic && random.IntN(2) == 0 {
		way[0] = "S"
	}
	if random.IntN(2) == 0 {
		way = append(way, map[string]string{"R": "S", "S": "R"}[way[0]])
	}
	if cyclic && len(way) == 2 && random.IntN(6) == 0 { // this one waits for itself in any case
		way = append(way, way[0])
	}
	if last := len(way) - 1; last > 0 && random.IntN(4) == 0 { // a call of policy none
		way = slices.Insert(way, last, "?")
	}
	return append(way, "")
}
