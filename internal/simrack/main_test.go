package simrack_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc"
)

// clerk is a job on a rack of registers whose durable main counts at R, round by round. Its
// checkpoints are in its node's ledger: the round, and what R has counted so far.
type clerk struct {
	*registers
	t      *testing.T
	rounds int
	// aside is what the main does in a round besides, if set.
	aside func(ctx context.Context, round int) error
	// again is after which error the main is run once more in the same program.
	again error
	// onFrame sees every frame, if set.
	onFrame atomic.Pointer[func(wire.Frame)]

	mu     sync.Mutex
	node   *rpc.Node
	stats  rpc.Stats // of all its nodes, as far as they have ended
	round  int       // the last one that is over
	begun  []int     // the rounds with which its runs have begun
	failed error
	ran    bool // to its end: the main is over, and its node closes
	over   chan struct{}
}

// withClerk runs a test with it.
func withClerk(t *testing.T, rounds int, f func(ctx context.Context, k *clerk)) {
	t.Helper()
	withMemory(t, rounds, [][]string{{"m1", "m2"}}, f)
}

// withMemory is withClerk with other memory machines of two blades.
func withMemory(t *testing.T, rounds int, machines [][]string, f func(ctx context.Context, k *clerk)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		k := &clerk{registers: &registers{nodes: map[string]*rpc.Node{}}, t: t, rounds: rounds, over: make(chan struct{})}
		cfg := k.config("")
		cfg.Programs["clerk"], cfg.Machines = k.program, machines
		cfg.OnFrame = func(f wire.Frame) {
			if see := k.onFrame.Load(); see != nil {
				(*see)(f)
			}
		}
		var err error
		if k.Rack, err = simrack.Start(ctx, cfg); err != nil {
			t.Fatal(err)
		}
		if err := k.Gatekeeper().Deploy(ctx, registerSpec()); err != nil {
			t.Fatal(err)
		}
		if err := k.client(ctx, t).Close(ctx); err != nil { // R is there
			t.Error(err)
		}
		f(ctx, k)
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
}

func (k *clerk) deploy(ctx context.Context) {
	k.t.Helper()
	k.deployTo(ctx, "c1", "s1", "s2")
}

func (k *clerk) deployTo(ctx context.Context, blades ...string) {
	k.t.Helper()
	spec := resources.Spec{Name: "office", Programs: []resources.Program{{Name: "clerk", Args: []string{"clerk"}, Nodes: 1, Job: true, Blades: blades}}}
	if err := k.Gatekeeper().Deploy(ctx, spec); err != nil {
		k.t.Fatal(err)
	}
}

func (k *clerk) program(ctx context.Context, j join.Joiner, s control.Start) error {
	node, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName(s.Name))
	if err != nil {
		return err
	}
	k.mu.Lock()
	k.node = node
	k.mu.Unlock()
	run := func() error {
		return rpc.Main(ctx, node, "clerk", func(ctx context.Context, state []byte) error { return k.main(ctx, node, state) })
	}
	for err = run(); err != nil && errors.Is(err, k.again); {
		err = run()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	st := node.Stats()
	k.stats.MainCalls += st.MainCalls
	k.stats.MainCheckpoints += st.MainCheckpoints
	if err != nil {
		k.failed = err
		return err
	}
	k.ran = true
	k.mu.Unlock()
	err = node.Close(ctx)
	k.mu.Lock()
	if err == nil && k.over != nil {
		close(k.over)
		k.over = nil
	}
	return err
}

func (k *clerk) main(ctx context.Context, node *rpc.Node, state []byte) error {
	var round, count uint64
	if state != nil {
		round, count = binary.BigEndian.Uint64(state), binary.BigEndian.Uint64(state[8:])
	}
	k.mu.Lock()
	k.begun = append(k.begun, int(round)) //nolint:gosec // small
	k.mu.Unlock()
	for ; round < uint64(k.rounds); round++ { //nolint:gosec // small
		dice := make([]byte, 1)
		if err := rpc.Random(ctx, dice); err != nil {
			return err
		}
		for range 1 + dice[0]%3 { // as often in each run
			v, err := echo(ctx, node, "R", "")
			if err != nil {
				return err
			}
			if count++; v != count {
				return fmt.Errorf("round %d: R has counted %d, want %d", round, v, count)
			}
		}
		<-time.After(time.Millisecond) // virtual
		if k.aside != nil {
			if err := k.aside(ctx, int(round)); err != nil { //nolint:gosec // small
				return err
			}
		}
		if err := rpc.Checkpoint(ctx, binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, round+1), count)); err != nil {
			return err
		}
		k.mu.Lock()
		k.round = int(round) + 1 //nolint:gosec // small
		k.mu.Unlock()
	}
	return nil
}

// until waits until a round is over.
func (k *clerk) until(ctx context.Context, round int) {
	k.t.Helper()
	for {
		k.mu.Lock()
		now, failed := k.round, k.failed
		k.mu.Unlock()
		if now >= round {
			return
		}
		k.sound(failed)
		select {
		case <-time.After(time.Millisecond): // virtual
		case <-ctx.Done():
			k.t.Fatalf("round %d is not over, but %d: %v", round, now, failed)
		}
	}
}

// kill kills the clerk's program. It reports false if there is none.
func (k *clerk) kill() bool {
	return slices.ContainsFunc([]string{"c1", "s1", "s2"}, func(blade string) bool { return k.Kill(blade, "office/clerk/1") == nil })
}

// isOver reports whether the main has run to its end.
func (k *clerk) isOver() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ran
}

// ended waits until the job is done.
func (k *clerk) ended(ctx context.Context) {
	k.t.Helper()
	k.mu.Lock()
	over := k.over
	k.mu.Unlock()
	if over == nil {
		return
	}
	for {
		k.mu.Lock()
		round, failed := k.round, k.failed
		k.mu.Unlock()
		k.sound(failed)
		select {
		case <-over:
			return
		case <-time.After(time.Second): // virtual
		case <-ctx.Done():
			k.t.Fatalf("the main is not over, but round %d: %v", round, failed)
		}
	}
}

// sound fails the test if no crash explains how a run of the main has ended.
func (k *clerk) sound(failed error) {
	k.t.Helper()
	switch rpc.CodeOf(failed) {
	case rpc.OK, rpc.Unavailable, rpc.Canceled, rpc.Stale, rpc.NotFound:
	default:
		k.t.Fatal(failed)
	}
}

// post sends S two one-ways, which it counts.
func (k *clerk) post(ctx context.Context, _ int) error {
	for range 2 {
		if _, err := k.at().Client("S", rpc.WithPolicy(rpc.PolicyRecover)).Call(ctx, "echo", &arrays.ArraysEchoArgs{}, nil); err != nil {
			return err
		}
	}
	return nil
}

// lends exports a giver and Arrays, and has the main pass regions on in each round: it gets one, lends it, and gets a
// copy. What it does not free stays until it is over.
func (k *clerk) lends(ctx context.Context, frees func(round int) bool) {
	k.t.Helper()
	n, err := k.Join(ctx, "c1", "giver")
	if err == nil {
		err = n.Export(ctx, "Giver", arrays.NewArraysProcessor(giver{handle: fresh}))
	}
	if err == nil {
		err = n.Export(ctx, "Arrays", arrays.NewArraysProcessor(service.Arrays{}))
	}
	if err != nil {
		k.t.Fatal(err)
	}
	k.aside = func(ctx context.Context, round int) error {
		p, err := get(ctx, k.at())
		if err != nil {
			return err
		}
		q, err := k.copied(ctx, p)
		if err == nil {
			err = k.post(ctx, round)
		}
		if err != nil || !frees(round) {
			return err
		}
		return errors.Join(rpc.Memory(ctx).Free(ctx, p), rpc.Memory(ctx).Free(ctx, q))
	}
}

// copied lends Arrays a region, and checks the copy that it gets.
func (k *clerk) copied(ctx context.Context, p dsm.Pointer) (dsm.Pointer, error) {
	g, err := arrays.NewArraysClient(k.at().Client("Arrays", rpc.WithPolicy(rpc.PolicyRecover))).EchoRef(ctx, rpc.GlobalPointer(p), 8)
	if err != nil {
		return dsm.Pointer{}, err
	}
	q, err := rpc.PointerOf(g)
	b := make([]byte, 8)
	if err == nil {
		_, err = rpc.Memory(ctx).Read(ctx, q, b)
	}
	if err == nil && string(b) != "contents" {
		err = fmt.Errorf("the copy has %q", b)
	}
	return q, err
}

// TestMainKeepsRegions: the program of a durable main dies. The regions that the main has got by answers, before its last
// checkpoint and after, are there for its next run. They go when it is over.
func TestMainKeepsRegions(t *testing.T) {
	withClerk(t, 2, func(ctx context.Context, k *clerk) {
		k.lends(ctx, nil)
		var before dsm.Pointer
		runs := 0
		k.aside = func(ctx context.Context, round int) error {
			p, err := get(ctx, k.at())
			if err != nil || round == 0 {
				before = p
				return err
			}
			if runs++; runs == 1 {
				for _, blade := range []string{"c1", "s1", "s2"} {
					_ = k.KillSoon(blade, "office/clerk/1") // it runs at one of them
				}
				<-ctx.Done()
				return ctx.Err()
			}
			for _, p := range []dsm.Pointer{before, p} {
				if _, err := k.copied(ctx, p); err != nil {
					t.Error(err)
				}
			}
			return nil
		}
		k.deploy(ctx)
		k.ended(ctx)
		if !slices.Equal(k.begun, []int{0, 1}) {
			t.Errorf("the main began with rounds %v", k.begun)
		}
		k.regions(ctx, 0)
	})
}

// TestMainLendsAtMostOnce: a durable main lends memory to a call of policy none, and stays direct. Its program dies while the
// callee reads. What it has written is taken back, and its next run begins, when that call has ended.
func TestMainLendsAtMostOnce(t *testing.T) {
	withClerk(t, 1, func(ctx context.Context, k *clerk) {
		k.lends(ctx, nil)
		n, err := k.Join(ctx, "c1", "borrower")
		if err != nil {
			t.Fatal(err)
		}
		var lent atomic.Int64
		if err := n.Export(ctx, "Borrower", arrays.NewArraysProcessor(borrower{handle: func(ctx context.Context, p dsm.Pointer) error {
			if lent.Add(1) == 1 {
				k.kill()
				<-time.After(10 * time.Second) // virtual: the next run could have begun
				if lent.Load() > 1 {
					t.Error("the next run has begun")
				}
			}
			b := make([]byte, 6)
			if _, err := rpc.Memory(ctx).Read(ctx, p, b); err != nil || string(b) != "before" {
				t.Errorf("the callee reads %q, %v", b, err)
			}
			return nil
		}})); err != nil {
			t.Fatal(err)
		}
		k.aside = func(ctx context.Context, _ int) error {
			p, err := get(ctx, k.at())
			if err == nil {
				_, err = rpc.Memory(ctx).Write(ctx, p, []byte("before"))
			}
			if err == nil {
				_, err = lendAtMostOnce(ctx, k.at(), p)
			}
			if err == nil {
				_, err = rpc.Memory(ctx).Write(ctx, p, []byte("after"))
			}
			return err
		}
		k.deploy(ctx)
		k.ended(ctx)
		if lent.Load() != 2 {
			t.Errorf("%d calls, want 2", lent.Load())
		}
		k.regions(ctx, 0)
	})
}

// regions checks how many regions there are in a while.
func (k *clerk) regions(ctx context.Context, want int) {
	k.t.Helper()
	var page gatekeeper.RegionPage
	for range 100 {
		var err error
		if page, err = k.Gatekeeper().Regions(ctx, gatekeeper.RegionQuery{Limit: 1000}); err != nil {
			k.t.Fatal(err)
		}
		if len(page.Regions) == want {
			return
		}
		<-time.After(100 * time.Millisecond) // virtual
	}
	k.t.Errorf("%d regions, want %d", len(page.Regions), want)
}

// counted checks how many calls and one-ways S has counted.
func (k *clerk) counted(ctx context.Context, want int) {
	k.t.Helper()
	<-time.After(10 * time.Second) // virtual
	n := k.client(ctx, k.t)
	v, err := echo(ctx, n, "S", "")
	if v != uint64(want)+1 || err != nil { //nolint:gosec // not negative
		k.t.Errorf("S has counted to %d, want %d: %v", v, want+1, err)
	}
	if err := n.Close(ctx); err != nil {
		k.t.Error(err)
	}
}

// TestMainWithoutGatekeeper: a durable main that calls, sends one-ways and computes goes on through its checkpoints
// without a Gatekeeper, and comes to its end when there is one. Its callees keep nothing of it then. It
// does so with memory of two copies, and of one.
func TestMainWithoutGatekeeper(t *testing.T) {
	rounds := 100
	if testing.Short() { // with the race detector
		rounds = 30
	}
	withClerk(t, rounds, func(ctx context.Context, k *clerk) { k.alone(ctx, t) })
	withMemory(t, rounds, nil, func(ctx context.Context, k *clerk) { k.alone(ctx, t) })
}

// alone kills the Gatekeeper for a while.
func (k *clerk) alone(ctx context.Context, t *testing.T) {
	t.Helper()
	k.aside = k.post
	k.deploy(ctx)
	k.until(ctx, 3)
	k.CrashGatekeeper()
	patience, stop := context.WithTimeout(ctx, time.Minute) // virtual
	defer stop()
	k.until(patience, k.rounds)
	if err := k.RestartGatekeeper(ctx); err != nil {
		t.Fatal(err)
	}
	k.ended(ctx)
	if s := k.stats; s.MainCheckpoints != uint64(k.rounds)+1 || s.MainCalls < uint64(k.rounds) {
		t.Errorf("%d calls, %d checkpoints", s.MainCalls, s.MainCheckpoints)
	}
	if len(k.begun) != 1 {
		t.Errorf("runs begun with rounds %v", k.begun)
	}
	k.counted(ctx, 2*k.rounds)
}

// TestMainInLedger: a durable main whose program, or Gatekeeper, or both are killed at any moment
// goes on from its last checkpoint, and each of its calls and one-ways runs once, also if it changes memory. The
// Gatekeeper decides about nothing that it does. What it does not free goes when it is over.
func TestMainInLedger(t *testing.T) {
	rounds := 60
	if testing.Short() { // with the race detector
		rounds = 30
	}
	for _, aside := range []string{"calls", "one-ways", "regions", "memory", "regions and frees"} {
		if testing.Short() && (aside == "calls" || aside == "regions") { // which the others have, too
			continue
		}
		t.Run(aside, func(t *testing.T) {
			withClerk(t, rounds, func(ctx context.Context, k *clerk) {
				counted := 0
				hands := func(round int) bool { return round%3 == 0 }
				switch aside {
				case "regions":
					counted, hands = 2*k.rounds, func(int) bool { return false }
					k.lends(ctx, hands)
				case "regions and frees":
					counted = 2 * k.rounds
					k.lends(ctx, hands)
				case "one-ways":
					k.aside, counted = k.post, 2*k.rounds
				case "memory":
					counted = 2*k.rounds + k.rounds/3
					k.aside = func(ctx context.Context, round int) error {
						if err := k.post(ctx, round); err != nil || !hands(round) {
							return err
						}
						m := rpc.Memory(ctx)
						p, err := m.Alloc(ctx, 64)
						if err == nil {
							_, err = m.Write(ctx, p, []byte{1})
						}
						if err == nil {
							_, err = echo(ctx, k.at(), "S", "")
						}
						return errors.Join(err, m.Free(ctx, p))
					}
				}
				k.deploy(ctx)
				rng, kills := rand.New(rand.NewPCG(1, 2)), 0
				for round := 2; round < k.rounds; round += 5 {
					k.until(ctx, round)
					<-time.After(time.Duration(rng.IntN(3000)) * time.Microsecond) // virtual
					if k.kill() {
						kills++
					}
					if rng.IntN(3) == 0 {
						<-time.After(time.Duration(rng.IntN(2000)) * time.Microsecond) // virtual
						k.CrashGatekeeper()
						<-time.After(time.Second) // virtual
						if err := k.RestartGatekeeper(ctx); err != nil {
							t.Fatal(err)
						}
					}
				}
				k.ended(ctx)
				s := k.stats
				t.Logf("%d kills, runs begun with rounds %v, %d direct calls, %d checkpoints in the ledger", kills, k.begun, s.MainCalls, s.MainCheckpoints)
				if kills < 5 || len(k.begun) < kills || s.MainCheckpoints == 0 || s.MainCalls == 0 {
					t.Error("that is not what was to happen")
				}
				k.regions(ctx, 0)
				k.counted(ctx, counted)
			})
		})
	}
}

// TestMainStopped: the program of a durable main is stopped while the main waits for a branch. That the
// wait ended is no part of the main: the next run waits for the branch, and goes on.
func TestMainStopped(t *testing.T) {
	withClerk(t, 3, func(ctx context.Context, k *clerk) {
		runs := 0
		k.aside = func(main context.Context, round int) error {
			if round != 1 {
				return nil
			}
			release := make(chan struct{})
			b := rpc.Go(main, func(context.Context) error { <-release; return nil })
			if runs++; runs == 1 {
				if err := k.Gatekeeper().Drain(ctx, k.blade(ctx), "to stop what runs there"); err != nil {
					t.Error(err)
				}
			} else {
				close(release)
			}
			_, err := rpc.WaitAny(main, b)
			if runs == 1 {
				close(release)
				if _, after := echo(context.WithoutCancel(main), k.at(), "R", ""); rpc.CodeOf(err) != rpc.Canceled || rpc.CodeOf(after) != rpc.Canceled {
					t.Errorf("stopped: %v, and then %v", err, after)
				}
			}
			return errors.Join(err, b.Wait())
		}
		k.deploy(ctx)
		k.ended(ctx)
		if !slices.Equal(k.begun, []int{0, 1}) {
			t.Errorf("the main began with rounds %v", k.begun)
		}
	})
}

// blade is where the clerk runs.
func (k *clerk) blade(ctx context.Context) string {
	all, err := k.Gatekeeper().Deployments(ctx)
	i := slices.IndexFunc(all, func(d resources.Deployment) bool { return d.Spec.Name == "office" })
	if err != nil || i < 0 || len(all[i].Instances) != 1 {
		k.t.Fatalf("deployments %+v, %v", all, err)
	}
	return all[i].Instances[0].Blade
}

// at is the node of the main's present run.
func (k *clerk) at() *rpc.Node {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.node
}

// TestMainAway: the machine that has the ledger of a main, or of a service with state, has one copy, and
// cannot be heard for so long that it counts as failed. The programs crash meanwhile. They wait for
// the machine, though there is another one, and go on where they were.
func TestMainAway(t *testing.T) {
	for _, away := range []string{"m1", "m2"} {
		withMemory(t, 10, nil, func(ctx context.Context, k *clerk) {
			k.deploy(ctx)
			k.until(ctx, 3)
			k.Host(away).SetLink(false)
			for _, blade := range []string{"c1", "s1", "s2"} {
				_, _ = k.Kill(blade, "office/clerk/1"), k.Kill(blade, "app/R/1") // each is on one of them
			}
			<-time.After(20 * time.Second) // virtual
			k.Host(away).SetLink(true)
			k.ended(ctx)
			if len(k.begun) != 2 || k.begun[1] < 3 {
				t.Errorf("%s: runs begun with rounds %v", away, k.begun)
			}
		})
	}
}

// TestMainAway_Oneways: a main is over, its node has one-ways in its ledger that S has not taken, and dies while the
// machine with the ledger is away. The node waits for the machine, and S gets each one-way once.
func TestMainAway_Oneways(t *testing.T) {
	for _, away := range []string{"m1", "m2"} {
		withMemory(t, 1, nil, func(ctx context.Context, k *clerk) {
			links := func(up bool, names ...string) {
				for _, name := range names {
					k.Host(name).SetLink(up)
				}
			}
			k.aside = func(ctx context.Context, round int) error {
				links(false, "s1", "s2")
				return k.post(ctx, round)
			}
			k.deployTo(ctx, "c1")
			for over := false; !over; <-time.After(time.Millisecond) { // virtual
				k.mu.Lock()
				over = k.stats.MainCheckpoints > 0
				k.mu.Unlock()
			}
			links(false, away)
			if !k.kill() {
				t.Fatal("the clerk's program has ended before its one-ways have arrived")
			}
			<-time.After(20 * time.Second) // virtual
			links(true, away, "s1", "s2")
			k.ended(ctx)
			k.counted(ctx, 2)
		})
	}
}

// TestMainLost: when all copies of the machine are lost that had the ledger, two or one, the main does
// not begin anew: its Main fails until its deployment is made anew.
func TestMainLost(t *testing.T) {
	withClerk(t, 1<<30, func(ctx context.Context, k *clerk) { k.lose(ctx, t) })
	withMemory(t, 1<<30, nil, func(ctx context.Context, k *clerk) { k.lose(ctx, t) })
}

// lose loses the memory, and so the main's checkpoints.
func (k *clerk) lose(ctx context.Context, t *testing.T) {
	t.Helper()
	k.deploy(ctx)
	k.until(ctx, 3)
	for _, b := range []string{"m1", "m2"} {
		if err := k.CrashBlade(b); err != nil {
			t.Fatal(err)
		}
	}
	for _, b := range []string{"m1", "m2"} {
		if err := k.BootBlade(b); err != nil {
			t.Fatal(err)
		}
	}
	<-time.After(time.Minute) // virtual
	k.mu.Lock()
	if k.failed == nil || rpc.CodeOf(k.failed) != rpc.Unavailable || len(k.begun) != 1 {
		t.Errorf("runs begun with rounds %v: %v", k.begun, k.failed)
	}
	k.rounds = 0
	k.mu.Unlock()
	if err := k.Gatekeeper().Undeploy(ctx, "office"); err != nil {
		t.Fatal(err)
	}
	<-time.After(time.Minute) // virtual
	k.deploy(ctx)
	k.ended(ctx)
	if want := []int{0, 0}; !slices.Equal(k.begun, want) {
		t.Errorf("runs begun with rounds %v, want %v", k.begun, want)
	}
}
