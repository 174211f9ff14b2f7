package rpc_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/internal/testrack"
	"github.com/bifrost-rack/bifrost/rpc/internal/testsvc"
)

// ledger is a service whose state is a list, which tells its changes.
type ledger struct {
	*testsvc.Handler
	entries, fresh []int64
}

func (l *ledger) write(n int64) { l.entries, l.fresh = append(l.entries, n), append(l.fresh, n) }

// Add writes a down and returns its place, and b.
func (l *ledger) Add(_ context.Context, a, b int64) (int64, error) {
	l.write(a)
	return int64(len(l.entries))*1000 + b%1000, nil
}

func (l *ledger) Note(_ context.Context, n int64) error {
	l.write(-n)
	return nil
}

func (l *ledger) Snapshot() ([]byte, error) {
	l.fresh = nil
	return json.Marshal(l.entries)
}
func (l *ledger) Restore(b []byte) error { return json.Unmarshal(b, &l.entries) }
func (l *ledger) Delta() ([]byte, error) {
	defer func() { l.fresh = nil }()
	if len(l.fresh) == 0 {
		return nil, nil
	}
	return json.Marshal(l.fresh)
}

func (l *ledger) Apply(b []byte) error {
	var more []int64
	err := json.Unmarshal(b, &more)
	l.entries = append(l.entries, more...)
	return err
}

// clerk is a service that has state, and does in a call all that an execution may
// do. What it gets from outside goes into its calls, so their callees would see
// a re-run that gets something else.
type clerk struct {
	*testsvc.Handler
	world   *world
	node    *rpc.Node
	Results map[int64]int64
}

func (c *clerk) Snapshot() ([]byte, error) {
	b, err := json.Marshal(c.Results)
	return append(b, bytes.Repeat([]byte(" "), c.world.weight)...), err
}
func (c *clerk) Restore(b []byte) error { return json.Unmarshal(b, &c.Results) }

func (c *clerk) Add(ctx context.Context, a, _ int64) (int64, error) {
	result, err := c.world.work(ctx, c.node, a)
	if err == nil {
		c.Results[a] = result
	}
	return result, err
}

// work is the program of an execution, named a.
func (w *world) work(ctx context.Context, n *rpc.Node, a int64) (int64, error) {
	down := func() *testsvc.TestClient {
		return testsvc.NewTestClient(n.Client("Ledger", rpc.WithPolicy(rpc.PolicyRecover)))
	}
	random := make([]byte, 8)
	if err := rpc.Random(ctx, random); err != nil {
		return 0, err
	}
	chance, err := testsvc.NewTestClient(plain(n, "Chance")).Count(ctx, 0)
	if err != nil {
		return 0, err
	}
	effect, err := rpc.Effect(ctx, fmt.Sprint("effect ", a), func(context.Context) ([]byte, error) {
		return fmt.Appendf(nil, "%*d", w.weight, w.effects.Add(1)), nil
	})
	if err != nil {
		return 0, err
	}
	h := fnv.New32a()
	fmt.Fprintf(h, "%d %x %d %s", rpc.Now(ctx).UnixNano(), random, chance, effect)
	seen := int64(h.Sum32())
	place, err := down().Add(ctx, 100*a, seen)
	if err != nil {
		return 0, err
	}
	if err := down().Note(ctx, 100*a+9); err != nil {
		return 0, err
	}
	first, err := w.race(ctx, down, a, place)
	if err != nil {
		return 0, err
	}
	return down().Add(ctx, 100*a+3, place*10+int64(first))
}

// race does two calls at a time and tells which was seen first.
func (w *world) race(ctx context.Context, down func() *testsvc.TestClient, a, place int64) (int, error) {
	var branches []*rpc.Branch
	for i := range int64(2) {
		branches = append(branches, rpc.Go(ctx, func(ctx context.Context) error {
			_, err := down().Add(ctx, 100*a+1+i, place)
			return err
		}))
	}
	first, err := rpc.WaitAny(ctx, branches...)
	if err != nil {
		return 0, err
	}
	return first, branches[1-first].Wait()
}

// lot is how a world is set up.
type lot struct {
	seed   uint64
	mtu    int // 0 is the default
	weight int // bytes of ballast in effects, states and checkpoints
}

// world is a rack with nodes that are started again when they crash, and a client.
type world struct {
	t       *testing.T
	weight  int
	rack    *testrack.Rack
	effects atomic.Int64
	ended   chan struct{}
	group   sync.WaitGroup

	armed atomic.Bool // crashes may come

	mu      sync.Mutex
	ledger  *ledger
	clerk   *clerk
	crashes int
}

// inWorld runs f in a world in which onFrame sees every frame.
func inWorld(t *testing.T, l lot, onFrame func(*world, wire.Frame), f func(*world)) {
	bubble.Test(t, func(t *testing.T) {
		w := &world{t: t, weight: l.weight, ended: make(chan struct{})}
		w.rack = testrack.New(t, wire.Config{
			MTU:      l.mtu,
			Schedule: &wire.Schedule{Seed: l.seed, Quiesce: synctest.Wait},
			OnFrame:  func(f wire.Frame) { onFrame(w, f) },
		})
		w.keep("chance", func(ctx context.Context, n *rpc.Node) error {
			return n.Export(ctx, "Chance", testsvc.NewTestProcessor(&testsvc.Handler{}))
		})
		w.keep("ledger", func(ctx context.Context, n *rpc.Node) error {
			l := &ledger{Handler: &testsvc.Handler{}}
			w.mu.Lock()
			w.ledger = nil
			w.mu.Unlock()
			err := n.Export(ctx, "Ledger", testsvc.NewTestProcessor(l), rpc.WithState(l))
			if err == nil {
				w.mu.Lock()
				w.ledger = l
				w.mu.Unlock()
			}
			return err
		})
		w.keep("clerk", func(ctx context.Context, n *rpc.Node) error {
			c := &clerk{Handler: &testsvc.Handler{}, world: w, node: n, Results: map[int64]int64{}}
			w.mu.Lock()
			w.clerk = nil
			w.mu.Unlock()
			err := n.Export(ctx, "Clerk", testsvc.NewTestProcessor(c), rpc.WithState(c))
			if err == nil {
				w.mu.Lock()
				w.clerk = c
				w.mu.Unlock()
			}
			return err
		})
		pass(10 * time.Millisecond) // all are there
		f(w)
		close(w.ended)
		w.group.Wait()
	})
}

// crash ends a node's blade.
func (w *world) crash(name string) {
	if w.rack.Crash(name) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.crashes++
	}
}

// join makes the next incarnation of a node.
func (w *world) join(name string) (*rpc.Node, error) {
	ctx := join.NewContext(context.Background(), w.rack.Joiner())
	return rpc.Join(ctx, rpc.WithName(name), rpc.WithLogger(slog.New(slog.DiscardHandler)))
}

// keep runs a node until the world ends, starting it again when it crashes.
func (w *world) keep(name string, start func(context.Context, *rpc.Node) error) {
	w.group.Go(func() {
		for {
			n, err := w.join(name)
			if err != nil { // it has crashed meanwhile
				pass(time.Millisecond)
				continue
			}
			err = start(context.Background(), n)
			select {
			case <-n.Done():
			case <-w.ended:
				if err != nil && !w.rack.Failed(name) {
					w.t.Error(name, err)
				}
			}
			if w.leave(n) {
				return
			}
			pass(time.Millisecond) // to find the spare
		}
	})
}

// leave closes a node, which waits until nobody will ask it for anything. It reports false if the
// node has crashed: its next incarnation is to go on.
func (w *world) leave(n *rpc.Node) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := n.Close(ctx)
	if w.rack.Failed(n.Name()) {
		return false
	}
	if err != nil {
		w.t.Error(n.Name(), err)
	}
	return true
}

// services waits until both services have the states of their former incarnations.
func (w *world) services() (*ledger, *clerk) {
	for {
		w.mu.Lock()
		l, c := w.ledger, w.clerk
		w.mu.Unlock()
		if l != nil && c != nil {
			return l, c
		}
		pass(time.Millisecond)
	}
}

// check compares the ledger with what should be in it, when the one-ways have come.
func (w *world) check(works ...int64) {
	for range 100 {
		pass(time.Second)
		if l, _ := w.services(); len(l.entries) >= 5*len(works) {
			break
		}
	}
	pass(10 * time.Second) // with copies that are late
	l, _ := w.services()
	w.mu.Lock()
	defer w.mu.Unlock()
	var want []int64
	for _, a := range works {
		want = append(want, 100*a, 100*a+1, 100*a+2, 100*a+3, -(100*a + 9))
	}
	got := slices.Sorted(slices.Values(l.entries))
	if slices.Sort(want); !slices.Equal(got, want) {
		w.t.Errorf("ledger: %v, want %v", got, want)
	}
	if n := w.effects.Load(); n < int64(len(works)) || n > int64(len(works)+w.crashes) {
		w.t.Errorf("%d effects for %d works and %d crashes", n, len(works), w.crashes)
	}
}

// clientWorks calls the clerk.
func (w *world) clientWorks(total int64) {
	n, err := w.join("client")
	if err != nil {
		w.t.Fatal(err)
	}
	c := testsvc.NewTestClient(n.Client("Clerk", rpc.WithPolicy(rpc.PolicyRecover)))
	results := map[int64]int64{}
	var works []int64
	for a := int64(1); a <= total; a++ {
		got, err := c.Add(w.t.Context(), a, 0)
		if err != nil {
			w.t.Errorf("call %d: %v", a, err)
		}
		results[a] = got
		works = append(works, a)
	}
	w.check(works...)
	if _, c := w.services(); !maps.Equal(results, c.Results) {
		w.t.Errorf("the client has got %v, the clerk's state is %v", results, c.Results)
	}
	closeNode(w.t, n)
}

// A callee, or a caller in the middle, that dies before or after any packet: each
// call is run exactly once as far as anybody can tell.
func TestCrashAtEveryPacket(t *testing.T) { crashAtEveryPacket(t, lot{seed: 1}, 2, 60) }

func crashAtEveryPacket(t *testing.T, l lot, works int64, least uint64) {
	var frames uint64
	count := func(_ *world, f wire.Frame) { frames = max(frames, f.Seq) }
	inWorld(t, l, count, func(w *world) { w.clientWorks(works) })
	if frames < least {
		t.Fatalf("only %d packets", frames)
	}
	for _, victim := range []string{"clerk", "ledger"} {
		for _, stage := range []wire.Stage{wire.Arriving, wire.Arrived} {
			t.Run(fmt.Sprint(victim, " ", stage), func(t *testing.T) {
				for at := uint64(1); at <= frames; at++ {
					inWorld(t, l, func(w *world, f wire.Frame) {
						if f.Seq == at && f.Stage == stage {
							w.crash(victim)
						}
					}, func(w *world) { w.clientWorks(works) })
					if t.Failed() {
						t.Fatalf("crash of %s at packet %d, %s", victim, at, stage)
					}
				}
			})
		}
	}
}

// Crashes at random, several in a run and of both at a time, on a bad network.
func TestCrashAtRandom(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 7))
			l, crashes := lot{seed: seed}, 0
			if seed%4 == 3 {
				l.mtu, l.weight = 1280, 2000
			}
			inWorld(t, l, func(w *world, f wire.Frame) {
				if w.armed.Load() && f.Stage != wire.Lost && crashes < 4 && rng.IntN(200) == 0 { // a call may kill four nodes
					crashes++
					for _, victim := range [][]string{{"clerk"}, {"ledger"}, {"clerk", "ledger"}}[rng.IntN(3)] {
						w.crash(victim)
					}
				}
			}, func(w *world) {
				w.rack.Impair(bad)
				w.armed.Store(true)
				defer w.armed.Store(false)
				w.clientWorks(5)
			})
		})
	}
}

// A durable main that dies before or after any packet goes on from its last
// checkpoint, and the rest is repeated without effect.
func TestMainCrashesAtEveryPacket(t *testing.T) {
	var frames uint64
	inWorld(t, lot{seed: 1}, func(_ *world, f wire.Frame) { frames = max(frames, f.Seq) }, func(w *world) { w.mainWorks(2) })
	for _, stage := range []wire.Stage{wire.Arriving, wire.Arrived} {
		for at := uint64(1); at <= frames; at++ {
			inWorld(t, lot{seed: 1}, func(w *world, f wire.Frame) {
				if f.Seq == at && f.Stage == stage {
					w.crash("main")
				}
			}, func(w *world) { w.mainWorks(2) })
			if t.Failed() {
				t.Fatalf("crash at packet %d, %s", at, stage)
			}
		}
	}
}

// mainWorks runs a main to its end, on as many nodes as it takes.
func (w *world) mainWorks(total byte) {
	var want []int64
	for a := byte(1); a <= total; a++ {
		want = append(want, int64(a))
	}
	over := false
	for left := false; !left; {
		n, err := w.join("main")
		if err != nil { // it has crashed meanwhile
			pass(time.Millisecond)
			continue
		}
		err = rpc.Main(context.Background(), n, "accounts", func(ctx context.Context, state []byte) error {
			if over {
				w.t.Error("the main runs though it is over")
			}
			done := byte(0)
			if len(state) > 0 {
				done = state[0]
			}
			for a := done + 1; a <= total; a++ {
				if _, err := w.work(ctx, n, int64(a)); err != nil {
					return err
				}
				if err := rpc.Checkpoint(ctx, append([]byte{a}, make([]byte, w.weight)...)); err != nil {
					return err
				}
			}
			return nil
		})
		over = over || err == nil
		left = w.leave(n)
		if code := rpc.CodeOf(err); left && err != nil || code != rpc.OK && code != rpc.Unavailable && code != rpc.Canceled {
			w.t.Error(err)
			left = true
		}
	}
	w.check(want...)
}
