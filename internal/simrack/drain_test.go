package simrack_test

import (
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/examples/counter/tally"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/rpc"
)

// TestExactly_Drain drains blades, and makes a deployment smaller, while calls run:
// none of them fails or happens twice, the nodes have moved, and nothing is left.
func TestExactly_Drain(t *testing.T) {
	for name, f := range map[string]func(f *office){
		"front":   func(f *office) { f.drain(f.newest("fronts")) },
		"counter": func(f *office) { f.drain("counter/p/1") },
		"smaller": func(f *office) {
			for _, nodes := range []int{1, 3, 1, 2} {
				f.fronts(nodes)
				f.until(func(running []string) bool { return len(running) == nodes })
			}
		},
		"the blade dies": func(f *office) {
			at := f.where(f.hold(&f.answered, 5*time.Second))
			f.must(f.Gatekeeper().Drain(f.ctx, at, "a test"))
			<-time.After(2 * time.Second) // its calls still run
			f.must(f.CrashBlade(at))
			f.until(func(running []string) bool { return len(running) == 2 })
			f.must(f.BootBlade(at))
			f.must(f.Gatekeeper().ReturnToService(f.ctx, at))
		},
		"its program dies": func(f *office) {
			instance := f.hold(&f.answered, 5*time.Second)
			f.must(f.Gatekeeper().Drain(f.ctx, f.where(instance), "a test"))
			<-time.After(2 * time.Second)
			f.crash(instance)
			f.until(func(running []string) bool { return len(running) == 2 })
		},
		"a front's patience ends":     func(f *office) { f.drain(f.hold(&f.answered, time.Minute)) },
		"the counter's patience ends": func(f *office) { f.drain(f.hold(&f.entered, time.Minute)) },
		"nowhere to go": func(f *office) {
			for _, blade := range []string{"s1", "s2", "s3", "s4"} {
				f.must(f.Gatekeeper().Drain(f.ctx, blade, "a test"))
			}
			f.pause.Store(int64(time.Second))
			began := f.added.Load()
			<-time.After(5 * time.Second)
			if f.added.Load() == began {
				t.Error("nothing goes on on blades that drain, and have no others")
			}
			for _, blade := range []string{"s1", "s2", "s3", "s4"} {
				f.must(f.Gatekeeper().ReturnToService(f.ctx, blade))
			}
		},
	} {
		t.Run(name, func(t *testing.T) { withOffice(t, tally.FrontName, rpc.PolicyRecover, f) })
	}
}

// TestDrain_None does so while calls of policy none run: they are late at most.
func TestDrain_None(t *testing.T) {
	for service, instance := range map[string]string{tally.FrontName: "fronts/p/2", tally.CounterName: "counter/p/1"} {
		t.Run(service, func(t *testing.T) {
			withOffice(t, service, rpc.PolicyNone, func(f *office) {
				f.pace()
				for range moves() {
					f.flow()
					instance = f.drainOnce(instance)
				}
			})
		})
	}
}

// TestExactly_DrainGatekeeper restarts the Gatekeeper at some moment of a drain.
func TestExactly_DrainGatekeeper(t *testing.T) {
	for _, instance := range []string{"fronts/p/2", "counter/p/1"} {
		moments := []time.Duration{0, 145 * time.Millisecond, 100 * time.Microsecond, time.Millisecond, 10 * time.Millisecond}
		if testing.Short() { // with the race detector
			moments = moments[:2]
		}
		for _, after := range moments {
			t.Run(instance+" "+after.String(), func(t *testing.T) {
				withOffice(t, tally.FrontName, rpc.PolicyRecover, func(f *office) {
					at := f.where(instance)
					f.must(f.Gatekeeper().Drain(f.ctx, at, "a test"))
					<-time.After(after) // virtual: this is when, not whether
					f.CrashGatekeeper()
					<-time.After(20 * time.Millisecond)
					f.must(f.RestartGatekeeper(f.ctx))
					f.empty(at)
				})
			})
		}
	}
}

// office is a bank with a counter and two fronts on four blades, and clients that call
// them all the time.
type office struct {
	*bank
	added atomic.Int64
	pause atomic.Int64  // of each call, in the front, so that there are always some
	rest  time.Duration // of a client after its calls, at most: where calls are short, thousands would do the same
}

func withOffice(t *testing.T, service string, policy rpc.Policy, f func(*office)) {
	t.Helper()
	blades := []simrack.Blade{{Name: "m1", Kind: control.Memory}}
	for _, name := range []string{"c1", "s1", "s2", "s3", "s4"} {
		blades = append(blades, simrack.Blade{Name: name, Kind: control.Compute})
	}
	withBank(t, blades, func(b *bank) {
		const clients = 4
		fl := &office{bank: b}
		_, node := b.client("c1", tally.FrontName)
		client, err := tally.Open(node, service, rpc.WithPolicy(policy))
		b.must(err)
		b.must(b.Gatekeeper().Drain(b.ctx, "c1", "for clients only"))
		b.deploy("counter")
		fl.fronts(2)
		fl.until(func(running []string) bool { return len(running) == 2 })
		b.sessions = clients + 1
		fl.pause.Store(int64(150 * time.Millisecond))
		if policy == rpc.PolicyNone { // no longer than until the call is sent again: the copy may run at another front, as docs/exactly-once.md says
			fl.pause.Store(int64(5 * time.Millisecond))
			fl.rest = 53 * time.Millisecond
		}
		b.mu.Lock()
		b.answered = func(string) { <-time.After(time.Duration(fl.pause.Load())) }
		b.mu.Unlock()
		var wg sync.WaitGroup
		stop := make(chan struct{})
		for i := range clients {
			wg.Go(func() { fl.call(client, time.Duration(i), stop) })
		}
		f(fl)
		close(stop)
		wg.Wait()
		if service == tally.CounterName && policy == rpc.PolicyNone {
			// What its calls make of a state is not kept when its node moves. What a lost state knew goes: the next incarnation has a list of its
			// regions, and nothing that accounts for them.
			if added, runs := fl.added.Load(), b.runs.Load(); runs != added {
				t.Errorf("%d calls have run %d times", added, runs)
			}
		} else {
			b.add(client, fl.added.Load()+1)
		}
		if testing.Verbose() {
			b.t.Logf("%d calls, %d runs of the counter", fl.added.Load(), b.runs.Load())
		}
	})
}

// call adds 1 again and again, as client i. Its rests have all lengths, so that calls begin at all moments.
func (f *office) call(client tally.Adder, i time.Duration, stop <-chan struct{}) {
	for n := i; ; n++ {
		select {
		case <-stop:
			return
		default:
		}
		ref := rpc.RefOf(one())
		if _, err := client.Add(f.ctx, 3, ref); err != nil {
			f.t.Errorf("while a blade drains: %v", err)
			return
		}
		f.added.Add(1)
		f.must(ref.Free(f.ctx))
		if f.rest > 0 {
			<-time.After(n * 17 * time.Millisecond % f.rest) // virtual
		}
	}
}

// fronts deploys so many fronts.
func (f *office) fronts(nodes int) {
	f.must(f.Gatekeeper().Deploy(f.ctx, resources.Spec{Name: "fronts", Programs: []resources.Program{{
		Name: "p", Args: []string{"front"}, Nodes: nodes, Services: []resources.ServiceSpec{{Name: tally.FrontName}},
	}}}))
}

// until waits until the instances of the fronts are as they should be, and nobody is
// to end any more.
func (f *office) until(done func(running []string) bool) {
	for {
		running, all := f.running("fronts")
		s, err := f.Gatekeeper().Snapshot(f.ctx)
		f.must(err)
		serving := map[netip.Addr]bool{}
		for _, service := range s.Services {
			for _, m := range service.Methods {
				for _, r := range m.Routes {
					serving[r.Node] = serving[r.Node] || service.Name == tally.FrontName
				}
			}
		}
		delete(serving, netip.Addr{})
		maps.DeleteFunc(serving, func(_ netip.Addr, front bool) bool { return !front })
		if len(running) == all && done(running) && len(serving) == all {
			return
		}
		<-time.After(10 * time.Millisecond)
	}
}

// running are the instances of an app that run, oldest first; all is how many it has.
func (f *office) running(app string) (running []string, all int) {
	deployments, err := f.Gatekeeper().Deployments(f.ctx)
	f.must(err)
	for _, d := range deployments {
		for _, i := range d.Instances {
			if i.App != app {
				continue
			}
			if all++; i.Status == resources.Running && i.Draining.IsZero() && !i.Stopped {
				running = append(running, i.Name)
			}
		}
	}
	return running, all
}

// pace makes calls of the counter take their time.
func (f *office) pace() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.entered = func(string) { <-time.After(time.Millisecond) }
}

// newest is an app's newest instance that runs.
func (f *office) newest(app string) string {
	running, _ := f.running(app)
	return running[len(running)-1]
}

// hold makes one call wait at a hook; whoever runs it again does not. The others take
// their time, too, so that there are not too many. It returns who waits.
func (f *office) hold(hook *func(string), d time.Duration) string {
	f.pause.Store(int64(time.Second))
	held := make(chan string, 1)
	f.mu.Lock()
	then := *hook
	*hook = func(instance string) {
		f.mu.Lock()
		*hook = then
		f.mu.Unlock()
		held <- instance
		<-time.After(d)
	}
	f.mu.Unlock()
	return <-held
}

// drain drains an instance's blade until it is empty, some times in a row.
func (f *office) drain(instance string) {
	for range moves() {
		instance = f.drainOnce(instance)
	}
}

// moves is how often a test drains what serves.
func moves() int {
	if testing.Short() { // with the race detector
		return 1
	}
	return 3
}

// drainOnce drains an instance's blade, and returns the instance to drain next.
func (f *office) drainOnce(instance string) string {
	at := f.where(instance)
	f.must(f.Gatekeeper().Drain(f.ctx, at, "a test"))
	f.empty(at)
	if instance == "counter/p/1" {
		return instance
	}
	return f.newest("fronts")
}

// flow waits until calls are answered, so that a drain meets callers that know whom to call.
func (f *office) flow() {
	for until, deadline := f.added.Load()+8, time.Now().Add(time.Minute); f.added.Load() < until; <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			f.t.Fatal("calls are not answered any more")
		}
	}
}

// empty waits until a blade is empty, and puts it back.
func (f *office) empty(blade string) {
	for hosts := -1; hosts != 0; {
		s, err := f.Gatekeeper().Snapshot(f.ctx)
		f.must(err)
		hosts = 0
		for _, n := range s.Nodes {
			if n.Blade == blade {
				hosts++
			}
		}
		for _, v := range s.Blades {
			if v.Name == blade && v.Status != gatekeeper.StatusDraining {
				f.t.Errorf("blade %s is %s", blade, v.Status)
				return
			}
		}
		<-time.After(10 * time.Millisecond)
	}
	f.must(f.Gatekeeper().ReturnToService(f.ctx, blade))
}
