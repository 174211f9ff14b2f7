package simrack_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/examples/counter/gen-go/counter"
	"github.com/bifrost-rack/bifrost/examples/counter/tally"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/log"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
)

// bank is a rack that runs the counter example's programs, and lets a test look into
// them at the moments that matter.
type bank struct {
	*simrack.Rack
	t      *testing.T
	ctx    context.Context
	events <-chan gatekeeper.Event

	mu       sync.Mutex
	entered  func(instance string) // in the middle of an Add of the Counter
	answered func(instance string) // when the Front's call has been answered
	runs     atomic.Int64          // Adds that the Counter has begun
	began    map[string]int        // programs, by instance
}

func withBank(t *testing.T, blades []simrack.Blade, f func(b *bank)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		b := &bank{t: t, ctx: ctx, began: map[string]int{}}
		cfg := simrack.Config{
			Blades: blades, Schedule: &wire.Schedule{Seed: 1, Settle: synctest.Wait}, Disk: new(log.Disk),
			Programs: map[string]simrack.Program{"counter": b.program, "front": b.program},
		}
		if testing.Verbose() {
			cfg.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
		}
		var err error
		if b.Rack, err = simrack.Start(ctx, cfg); err != nil {
			t.Fatal(err)
		}
		b.events = b.Gatekeeper().Subscribe(ctx)
		f(b)
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}

// program is what the rack runs: one of the example's services.
func (b *bank) program(ctx context.Context, j join.Joiner, s control.Start) error {
	b.mu.Lock()
	b.began[s.Name]++
	b.mu.Unlock()
	node, err := rpc.Join(ctx, rpc.WithName(s.Name), rpc.WithJoiner(j), rpc.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	hook := func(f *func(string)) func(context.Context) {
		return func(context.Context) {
			b.mu.Lock()
			call := *f
			b.mu.Unlock()
			if call != nil {
				call(s.Name)
			}
		}
	}
	if s.Args[0] == "counter" {
		count := hook(&b.entered)
		c := &tally.Counter{Entered: func(ctx context.Context) { b.runs.Add(1); count(ctx) }}
		err = counter.ExportCounter(ctx, node, tally.CounterName, c)
	} else {
		front := tally.NewFront(node)
		front.Answered = hook(&b.answered)
		err = counter.ExportFront(ctx, node, tally.FrontName, front)
	}
	if err != nil {
		return err
	}
	<-ctx.Done()
	if errors.Is(context.Cause(ctx), simrack.ErrKilled) {
		return nil // like a process: not another word
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return node.Close(closing)
}

func (b *bank) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// on sets a hook, which is called once.
func (b *bank) on(f *func(string), call func(instance string)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	*f = func(instance string) {
		b.on(f, nil)
		if call != nil {
			call(instance)
		}
	}
	if call == nil {
		*f = nil
	}
}

// where is the blade that runs an instance.
func (b *bank) where(instance string) string {
	b.t.Helper()
	all, err := b.Gatekeeper().Deployments(b.ctx)
	b.must(err)
	for _, d := range all {
		for _, i := range d.Instances {
			if i.Name == instance {
				return i.Blade
			}
		}
	}
	b.t.Fatalf("no instance %s", instance)
	return ""
}

// crash kills an instance's program in its tracks; whoever calls is part of it.
func (b *bank) crash(instance string) {
	at := b.where(instance)
	go func() { _ = b.Kill(at, instance) }()
	synctest.Wait()
}

// deploy runs the counter, and a front if asked for.
func (b *bank) deploy(programs ...string) {
	b.t.Helper()
	for _, name := range programs {
		service := tally.CounterName
		if name == "front" {
			service = tally.FrontName
		}
		b.must(b.Gatekeeper().Deploy(b.ctx, resources.Spec{Name: name, Programs: []resources.Program{{
			Name: "p", Args: []string{name}, Nodes: 1, Services: []resources.ServiceSpec{{Name: service, Stateful: name == "counter"}},
		}}}))
		for e := range b.events {
			if e.Kind == gatekeeper.ServiceExported && e.Service == service {
				break
			}
		}
	}
}

// client is a plain client on a blade.
func (b *bank) client(blade, service string) (tally.Adder, *rpc.Node) {
	b.t.Helper()
	node, err := b.Join(b.ctx, blade, "client")
	b.must(err)
	to, err := tally.Open(node, service, rpc.WithPolicy(rpc.PolicyRecover))
	b.must(err)
	return to, node
}

// add adds 1 and checks what the account has then.
func (b *bank) add(to tally.Adder, want int64) {
	b.t.Helper()
	ref := rpc.RefOf([]byte{1})
	got, err := to.Add(b.ctx, 3, ref)
	if err != nil || got != want {
		b.t.Errorf("added: %d, %v; want %d", got, err, want)
	}
	if err := ref.Free(b.ctx); err != nil {
		b.t.Errorf("free the argument: %v", err)
	}
}

// TestExactly_CalleeCrashes kills the counter in the middle of an Add: memory is
// written, the state is not. The call is done once, for a caller that sees nothing.
func TestExactly_CalleeCrashes(t *testing.T) {
	withBank(t, nil, func(b *bank) {
		b.deploy("counter")
		to, _ := b.client("c1", tally.CounterName)
		for n := int64(1); n <= 3; n++ {
			b.add(to, n)
		}
		b.on(&b.entered, b.crash)
		b.add(to, 4)
		b.add(to, 5)
		if n := b.runs.Load(); n != 6 {
			t.Errorf("%d runs, want 6", n)
		}
	})
}
