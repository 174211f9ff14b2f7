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
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
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
	wrap     func(*tally.Counter, *rpc.Node) counter.CounterRefHandler
	runs     atomic.Int64      // Adds that the Counter has begun
	began    map[string]int    // programs, by instance
	ran      map[string]string // the version of each that began last: its second argument
	crashes  int               // of the teller
	fifth    func()            // called once by the teller after its fifth call; then its program leaves
	regions  int               // that must be left in the end
	sessions int               // of callers that are there in the end
	told     atomic.Int64      // what the teller's account has
	over     chan struct{}     // closed when the teller has returned
}

func withBank(t *testing.T, blades []simrack.Blade, f func(b *bank)) {
	t.Helper()
	withBankOn(t, simrack.Config{Blades: blades}, f)
}

// withBankOn is withBank on a rack that the configuration says more about.
func withBankOn(t *testing.T, cfg simrack.Config, f func(b *bank)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		b := &bank{t: t, ctx: ctx, began: map[string]int{}, ran: map[string]string{}, over: make(chan struct{}), regions: 1, sessions: 2}
		cfg.Schedule, cfg.Disk = &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}, new(wal.Disk)
		cfg.Programs = map[string]simrack.Program{"counter": b.program, "front": b.program, "teller": b.program}
		if testing.Verbose() {
			cfg.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
		}
		var err error
		if b.Rack, err = simrack.Start(ctx, cfg); err != nil {
			t.Fatal(err)
		}
		b.events = b.Gatekeeper().Subscribe(ctx)
		f(b)
		b.nothingLeft()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}

// nothingLeft checks that no region, undo, call or log record is left that nobody
// needs: the counter keeps its accounts in one region and in its state.
func (b *bank) nothingLeft() {
	b.t.Helper()
	<-time.After(10 * time.Second) // virtual: what is sent again has been
	o, err := b.Gatekeeper().Overview(b.ctx)
	b.must(err)
	if o.RegionCount != b.regions || o.CallsUnderWay != 0 || len(o.Recoveries) != 0 {
		b.t.Errorf("%d regions, %d calls under way, recoveries %+v", o.RegionCount, o.CallsUnderWay, o.Recoveries)
	}
	for _, m := range []string{"m1", "m2", "m3"} {
		if server := b.MemoryServer(m); server != nil && server.Metrics().Undo.Executions != 0 {
			b.t.Errorf("blade %s keeps undo: %+v", m, server.Metrics().Undo)
		}
	}
	if o.CallCount > b.sessions { // the last one of each: nobody has said that its answer came
		b.t.Errorf("%d calls on record", o.CallCount)
	}
}

// program is what the rack runs: one of the example's services.
func (b *bank) program(ctx context.Context, j join.Joiner, s control.Start) error {
	b.mu.Lock()
	b.began[s.Name]++
	b.ran[s.Name] = version(s)
	b.mu.Unlock()
	if version(s) == "broken" {
		return errors.New("it does not work")
	}
	node, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName(s.Name), rpc.WithLogger(slog.New(slog.DiscardHandler)))
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
	switch s.Args[0] {
	case "counter":
		count := hook(&b.entered)
		c := &tally.Counter{Entered: func(ctx context.Context) { b.runs.Add(1); count(ctx) }}
		var h counter.CounterRefHandler = c
		if b.wrap != nil {
			h = b.wrap(c, node)
		}
		err = counter.ExportCounter(ctx, node, tally.CounterName, h)
	case "front":
		front := tally.NewFront(node)
		front.Answered = hook(&b.answered)
		err = counter.ExportFront(ctx, node, tally.FrontName, front)
	}
	if err == nil && s.Args[0] == "teller" {
		err = b.tell(ctx, node, s.Name)
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

// version is the second argument of a program, "" for none.
func version(s control.Start) string {
	if len(s.Args) < 2 {
		return ""
	}
	return s.Args[1]
}

// tell is a durable main that makes twelve calls, with a checkpoint after each third.
func (b *bank) tell(ctx context.Context, node *rpc.Node, instance string) error {
	to, err := tally.Open(node, tally.FrontName, rpc.WithPolicy(rpc.PolicyRecover))
	if err != nil {
		return err
	}
	ctx, quit := context.WithCancel(ctx)
	defer quit()
	left := false
	t := tally.Teller{Name: "teller", Account: 7, Calls: 12, Every: 3, To: to, Answered: func(ctx context.Context, calls, total int64) {
		b.told.Store(total)
		b.mu.Lock()
		if f := b.fifth; calls == 5 && f != nil {
			b.fifth, left = nil, true
			b.mu.Unlock()
			f()
			quit()
			return
		}
		crash := calls == 5 && b.crashes < 3
		if crash {
			b.crashes++
		}
		b.mu.Unlock()
		if crash {
			go b.crash(instance) // which waits for the end of this
			<-ctx.Done()
		}
	}}
	err = t.Run(ctx, node)
	if left {
		return node.Close(context.WithoutCancel(ctx))
	}
	if err == nil {
		close(b.over)
	}
	return err
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

// crash kills an instance's program in its tracks; a handler of it may call.
func (b *bank) crash(instance string) { b.must(b.Kill(b.where(instance), instance)) }

// deploy runs programs, and waits until they serve.
func (b *bank) deploy(programs ...string) {
	b.t.Helper()
	services := map[string]resources.ServiceSpec{"counter": {Name: tally.CounterName, Stateful: true}, "front": {Name: tally.FrontName}}
	for _, name := range programs {
		p := resources.Program{Name: "p", Args: []string{name}, Nodes: 1}
		if s, serves := services[name]; serves {
			p.Services = []resources.ServiceSpec{s}
		} else {
			p.Job = true
		}
		b.must(b.Gatekeeper().Deploy(b.ctx, resources.Spec{Name: name, Programs: []resources.Program{p}}))
		for len(p.Services) > 0 {
			if e := <-b.events; e.Kind == gatekeeper.ServiceExported && e.Service == p.Services[0].Name {
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

// one is an amount of 1 that stands in memory: it is too long to travel inside a call.
func one() []byte { return append([]byte{1}, make([]byte, 64<<10)...) }

// add adds 1 and checks what the account has then.
func (b *bank) add(to tally.Adder, want int64) {
	b.t.Helper()
	ref := rpc.RefOf(one())
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

// TestExactly_Nested kills the front when the call that it had out has been answered,
// the counter in the middle of that call, and both: the caller of the front sees
// nothing, and the counter's Add has one effect.
func TestExactly_Nested(t *testing.T) {
	for name, set := range map[string]func(b *bank){
		"caller":       func(b *bank) { b.on(&b.answered, b.crash) },
		"callee":       func(b *bank) { b.on(&b.entered, b.crash) },
		"both":         func(b *bank) { b.on(&b.entered, func(i string) { b.crash("front/p/1"); b.crash(i) }) },
		"one by one":   func(b *bank) { b.on(&b.entered, b.crash); b.on(&b.answered, b.crash) },
		"caller first": func(b *bank) { b.on(&b.entered, func(string) { b.crash("front/p/1") }) },
	} {
		t.Run(name, func(t *testing.T) {
			withBank(t, nil, func(b *bank) {
				b.deploy("counter", "front")
				to, _ := b.client("c1", tally.FrontName)
				b.add(to, 1)
				for n := int64(2); n <= 6; n++ {
					if n%2 == 0 {
						set(b)
					}
					b.add(to, n)
				}
			})
		})
	}
}

// TestExactly_Main kills a durable main between two checkpoints: it goes on from the
// last one, and its calls since then find their answers in their callees' ledgers.
func TestExactly_Main(t *testing.T) {
	withBank(t, nil, func(b *bank) {
		b.deploy("counter", "front")
		b.deploy("teller")
		<-b.over
		var want int64
		for n := range int64(12) {
			want += 1 + 7 + n
		}
		if b.crashes != 3 || b.told.Load() != want || b.runs.Load() != 12 {
			t.Errorf("%d crashes; the account has %d, want %d; %d runs of the counter, want 12", b.crashes, b.told.Load(), want, b.runs.Load())
		}
	})
}

// TestExactly_JobLeaves: a job whose program takes leave before its durable main is over
// is not done. It is started again, and the main goes on.
func TestExactly_JobLeaves(t *testing.T) {
	withBank(t, nil, func(b *bank) {
		b.deploy("counter")
		b.deploy("front")
		b.crashes, b.fifth = 3, func() {}
		b.deploy("teller")
		<-b.over
		var want int64
		for n := range int64(12) {
			want += 1 + 7 + n
		}
		if n := b.began["teller/p/1"]; n != 2 || b.told.Load() != want || b.runs.Load() != 12 {
			t.Errorf("begun %d times; the account has %d, want %d; %d runs of the counter, want 12", n, b.told.Load(), want, b.runs.Load())
		}
	})
}

// TestExactly_JobTakenBack: of a job that is taken back before its durable main is over,
// nothing is left.
func TestExactly_JobTakenBack(t *testing.T) {
	withBank(t, nil, func(b *bank) {
		b.deploy("counter", "front")
		gone := make(chan struct{})
		b.crashes, b.sessions, b.fifth = 3, 0, func() {
			defer close(gone)
			b.must(b.Gatekeeper().Undeploy(b.ctx, "teller"))
		}
		b.deploy("teller")
		<-gone
		<-time.After(20 * time.Second) // virtual: it has left by then
		o, err := b.Gatekeeper().Overview(b.ctx)
		b.must(err)
		ledgers := uint64(0)
		for _, m := range o.Blades {
			if m.Ledgers != nil {
				ledgers += uint64(m.Ledgers.Count)
			}
		}
		if ledgers != 2 { // the counter's, and the front's
			t.Errorf("%d ledgers are left, want 2", ledgers)
		}
	})
}

// TestExactly_Gatekeeper kills the counter, and the Gatekeeper some time later: the
// next one sees the recovery through.
func TestExactly_Gatekeeper(t *testing.T) {
	for _, after := range []time.Duration{0, 10 * time.Microsecond, 50 * time.Microsecond, 200 * time.Microsecond, time.Millisecond, 10 * time.Millisecond} {
		t.Run(after.String(), func(t *testing.T) {
			withBank(t, nil, func(b *bank) {
				b.deploy("counter", "front")
				to, _ := b.client("c1", tally.FrontName)
				b.add(to, 1)
				for n := int64(2); n <= 4; n++ {
					done := make(chan struct{})
					b.on(&b.entered, func(instance string) {
						at := b.where(instance)
						go func() {
							defer close(done)
							_ = b.Kill(at, instance)
							<-time.After(after) // virtual: this is when, not whether
							b.CrashGatekeeper()
							<-time.After(20 * time.Millisecond)
							if err := b.RestartGatekeeper(b.ctx); err != nil {
								t.Error(err)
							}
						}()
					})
					b.add(to, n)
					<-done
				}
			})
		})
	}
}

// TestExactly_NoSpare fails the only blade that can run the counter: calls wait until
// it is back.
func TestExactly_NoSpare(t *testing.T) {
	blades := []simrack.Blade{{Name: "c1", Kind: control.Compute}, {Name: "s1", Kind: control.Compute}, {Name: "m1", Kind: control.Memory}}
	withBank(t, blades, func(b *bank) {
		to, _ := b.client("c1", tally.CounterName)
		b.must(b.Gatekeeper().Drain(b.ctx, "c1", "for clients only"))
		b.deploy("counter")
		b.add(to, 1)
		b.on(&b.entered, func(string) {
			go func() {
				b.must(b.Gatekeeper().MarkFailed(b.ctx, "s1", "pulled"))
				<-time.After(time.Minute)
				b.must(b.Gatekeeper().ReturnToService(b.ctx, "s1"))
			}()
		})
		began := time.Now()
		b.add(to, 2)
		if waited := time.Since(began); waited < time.Minute {
			t.Errorf("it took %v; there was no blade for a minute", waited)
		}
		b.add(to, 3)
	})
}

// TestExactly_SpareCrashes crashes the blade of the counter, and then the one to
// which it has moved, as it joins.
func TestExactly_SpareCrashes(t *testing.T) {
	withBank(t, nil, func(b *bank) {
		to, _ := b.client("c1", tally.CounterName)
		b.must(b.Gatekeeper().Drain(b.ctx, "c1", "for clients only"))
		b.deploy("counter")
		b.add(to, 1)
		b.on(&b.entered, func(instance string) {
			go func() {
				first := b.where(instance)
				b.must(b.CrashBlade(first))
				for e := range b.events {
					if e.Kind == gatekeeper.NodeJoined && e.Blade != first {
						b.must(b.CrashBlade(e.Blade))
						b.must(b.BootBlade(first))
						return
					}
				}
			}()
		})
		b.add(to, 2)
		b.add(to, 3)
	})
}

// TestExactly_FateShare kills the counter in a call that shares its caller's fate: the
// front is started anew, too, and the call still happens once.
func TestExactly_FateShare(t *testing.T) {
	for policy, fronts := range map[string]int{"recover": 1, "fate-share": 2, "tainted": 2} {
		t.Run(policy, func(t *testing.T) {
			withBank(t, nil, func(b *bank) {
				b.deploy("counter", "front")
				b.must(b.Gatekeeper().SetPolicy(b.ctx, tally.CounterName, "", resources.Word{Policy: policy}))
				<-time.After(3 * time.Second) // virtual: the blades are told with a heartbeat
				to, _ := b.client("c1", tally.FrontName)
				b.add(to, 1)
				b.on(&b.entered, b.crash)
				b.add(to, 2)
				b.add(to, 3)
				b.mu.Lock()
				defer b.mu.Unlock()
				if b.began["counter/p/1"] != 2 || b.began["front/p/1"] != fronts {
					t.Errorf("programs were started %v times", b.began)
				}
			})
		})
	}
}

// TestExactly_Undeploy takes a deployment back while its node is being recovered, and
// there is no blade for it. Its heir runs when there is one, and then nothing of it is left.
func TestExactly_Undeploy(t *testing.T) {
	withBank(t, nil, func(b *bank) {
		to, _ := b.client("c1", tally.CounterName)
		b.must(b.Gatekeeper().Drain(b.ctx, "c1", "for clients only"))
		b.deploy("counter")
		b.add(to, 1)
		b.on(&b.entered, func(string) {
			go func() {
				for _, blade := range []string{"s1", "s2"} {
					b.must(b.Gatekeeper().MarkFailed(b.ctx, blade, "pulled"))
				}
				<-time.After(time.Second)
				b.must(b.Gatekeeper().Undeploy(b.ctx, "counter"))
				<-time.After(time.Minute)
				b.must(b.Gatekeeper().ReturnToService(b.ctx, "s1"))
			}()
		})
		ref := rpc.RefOf(one())
		if _, err := to.Add(b.ctx, 3, ref); rpc.CodeOf(err) != rpc.Unavailable {
			t.Errorf("the call of a counter that is gone: %v", err)
		}
		b.must(ref.Free(b.ctx))
		b.regions = 0
		<-time.After(10 * time.Second)
		s, err := b.Gatekeeper().Snapshot(b.ctx)
		b.must(err)
		if len(s.Nodes) != 1 || len(s.Services) != 0 {
			t.Errorf("left: nodes %+v, services %+v", s.Nodes, s.Services)
		}
	})
}

// TestExactly_KillsItsNodes makes a call that kills every node that runs it: it fails
// after some attempts, leaves nothing behind, and the service goes on.
func TestExactly_KillsItsNodes(t *testing.T) {
	withBank(t, nil, func(b *bank) {
		b.deploy("counter")
		to, _ := b.client("c1", tally.CounterName)
		b.add(to, 1)
		b.mu.Lock()
		b.entered = b.crash
		b.mu.Unlock()
		ref := rpc.RefOf(one())
		if _, err := to.Add(b.ctx, 3, ref); rpc.CodeOf(err) != rpc.Unavailable {
			t.Errorf("a call that kills its nodes: %v", err)
		}
		b.must(ref.Free(b.ctx))
		b.on(&b.entered, nil)
		if n := b.runs.Load() - 1; n != rpc.DefaultFailures {
			t.Errorf("it ran %d times", n)
		}
		b.add(to, 2)
		b.add(to, 3)
	})
}

// TestExactly_Client kills a plain client while its call runs: the call ends for
// nobody, and what it had lent is freed.
func TestExactly_Client(t *testing.T) {
	withBank(t, nil, func(b *bank) {
		b.deploy("counter", "front")
		_, node := b.client("c1", tally.FrontName)
		to, err := tally.Open(node, tally.FrontName, rpc.WithPolicy(rpc.PolicyRecover))
		b.must(err)
		b.on(&b.entered, func(string) {
			go func() {
				closing, cancel := context.WithCancel(b.ctx)
				cancel() // at once: what is out is cut off
				_ = node.Close(closing)
			}()
		})
		if _, err := to.Add(b.ctx, 3, rpc.RefOf(one())); err == nil {
			t.Error("a node that has been closed has got an answer")
		}
		<-time.After(10 * time.Second)
		other, _ := b.client("c1", tally.FrontName)
		b.add(other, 2) // the first one has happened
	})
}
