package simrack_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc"
)

// roomFor and roomCallers make TestRoom_Crowd what issues ask for: -room.for=10m -room.callers=1000.
var (
	roomFor     = flag.Duration("room.for", 5*time.Second, "virtual time of TestRoom_Crowd")
	roomCallers = flag.Int("room.callers", 100, "callers of TestRoom_Crowd")
)

// crowd is a rack whose node s1 has services that fill its ledger.
type crowd struct {
	*testing.T
	*simrack.Rack
	ctx                   context.Context //nolint:containedctx // of the test
	client, server, other *rpc.Node
}

func withCrowd(t *testing.T, space uint64, mtu int, f func(c *crowd)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour) // virtual
		defer cancel()
		c := &crowd{T: t, ctx: ctx}
		var err error
		if c.Rack, err = simrack.Start(ctx, simrack.Config{
			Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}, Disk: new(wal.Disk), MTU: mtu, LedgerSpace: space,
		}); err != nil {
			t.Fatal(err)
		}
		nodes := joinAll(t, ctx, c.Rack, "c1", "s1", "s2")
		c.client, c.server, c.other = nodes[0], nodes[1], nodes[2]
		for name, h := range map[string]arrays.Arrays{"Large": service.Arrays{}, "Effects": effective{}, "Sized": sized{}, "Late": sized{pause: time.Second}} {
			if err := c.server.Export(ctx, name, arrays.NewArraysProcessor(h)); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.server.Export(ctx, "Ping", arrays.NewPingProcessor(service.Ping{})); err != nil {
			t.Fatal(err)
		}
		if err := c.ping(); err != nil { // so s2 is a caller that s1 knows
			t.Fatal(err)
		}
		f(c)
		select {
		case <-c.server.Done():
			t.Error("the node with the full ledger has ended")
		default:
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

func (c *crowd) ping() error { return ping(c.ctx, c.other, "Ping") }

// call calls with as many bytes of data as say what is to be done.
func (c *crowd) call(service string, n int) error {
	got, err := arrays.NewArraysClient(c.client.Client(service, rpc.WithPolicy(rpc.PolicyRecover))).Echo(c.ctx, fmt.Append(nil, n))
	if err == nil && (service == "Sized" || service == "Late") && len(got) != n {
		return fmt.Errorf("an answer of %d bytes, want %d", len(got), n)
	}
	return err
}

// effective gets something from outside that has as many bytes as its argument says.
type effective struct{ service.Arrays }

// Echo implements arrays.Arrays.
func (effective) Echo(ctx context.Context, data []byte) ([]byte, error) {
	var n int
	if _, err := fmt.Sscan(string(data), &n); err != nil {
		return nil, err
	}
	b, err := rpc.Effect(ctx, "outside", func(context.Context) ([]byte, error) { return make([]byte, n), nil })
	if err != nil {
		return nil, err
	}
	if _, err := rpc.Effect(ctx, "second", func(context.Context) ([]byte, error) { return nil, nil }); err != nil {
		return nil, err
	}
	return fmt.Append(nil, len(b)), nil
}

// sized answers with as many bytes as its argument says, after a pause.
type sized struct {
	service.Arrays
	pause time.Duration
}

// Echo implements arrays.Arrays.
func (s sized) Echo(_ context.Context, data []byte) ([]byte, error) {
	var n int
	if _, err := fmt.Sscan(string(data), &n); err != nil {
		return nil, err
	}
	if s.pause > 0 {
		<-time.After(s.pause) // virtual
	}
	return make([]byte, n), nil
}

// TestRoom_AfterEffects: what effects bring is written as far as there is room, and a call for whose effect there is none fails as no
// space. A ledger that was short of room goes on to take the calls of callers that it knows.
func TestRoom_AfterEffects(t *testing.T) {
	for _, k := range []struct {
		calls, size int
		fits        bool
	}{{1, 1 << 20, true}, {1, 16 << 20, true}, {1, 30 << 20, false}, {1, 50 << 20, false}, {20, 4 << 20, true}} {
		if testing.Short() && k.calls*k.size > 16<<20 {
			continue
		}
		withCrowd(t, 0, 9000, func(c *crowd) {
			var all sync.WaitGroup
			for range k.calls {
				all.Go(func() {
					if err := c.call("Effects", k.size); k.fits && err != nil || !k.fits && rpc.CodeOf(err) != rpc.NoSpace {
						c.Errorf("%d effects of %d bytes: %v", k.calls, k.size, err)
					}
				})
			}
			all.Wait()
			began := time.Now()
			if err := c.ping(); err != nil || time.Since(began) > time.Second {
				c.Errorf("after %d effects of %d bytes: a known caller's call: %v after %s", k.calls, k.size, err, time.Since(began))
			}
		})
	}
}

// TestRoom_Answers: more calls at once than the ledger has room for answers: all are answered, one after the other.
func TestRoom_Answers(t *testing.T) {
	calls, space := 1500, uint64(0)
	if testing.Short() {
		calls, space = 150, 6<<20
	}
	withCrowd(t, space, 65535, func(c *crowd) {
		var all sync.WaitGroup
		for range calls {
			all.Go(func() {
				if err := c.call("Sized", 48<<10); err != nil {
					c.Error(err)
				}
			})
		}
		all.Wait()
		if err := c.ping(); err != nil {
			c.Error(err)
		}
	})
}

// TestRoom_Crowd: a small ledger under many callers, each of which makes one call after the other: every call is answered.
func TestRoom_Crowd(t *testing.T) {
	for _, mtu := range []int{65535, 9000} {
		withCrowd(t, 1<<20, mtu, func(c *crowd) {
			var all sync.WaitGroup
			var answered atomic.Int64
			end := time.Now().Add(*roomFor)
			for range *roomCallers {
				all.Go(func() {
					for time.Now().Before(end) {
						if err := c.call("Sized", 48<<10); err != nil {
							c.Error(err)
							return
						}
						answered.Add(1)
						<-time.After(time.Second) // virtual
					}
				})
			}
			all.Wait()
			s := c.server.Stats()
			c.Logf("MTU %d: %d calls answered, %d copies dropped for want of room", mtu, answered.Load(), s.NoRoom)
			if answered.Load() < int64(*roomCallers) || s.NoRoom == 0 {
				c.Errorf("MTU %d: %d calls answered, %d dropped", mtu, answered.Load(), s.NoRoom)
			}
		})
	}
}

// TestRoom_LateAnswers: calls that run at the same time have answers for which the ledger has no room together. One after the other gets
// room, and all are answered.
func TestRoom_LateAnswers(t *testing.T) {
	withCrowd(t, 1<<20, 65535, func(c *crowd) {
		var all sync.WaitGroup
		for range 60 {
			all.Go(func() {
				if err := c.call("Late", 48<<10); err != nil {
					c.Error(err)
				}
			})
		}
		all.Wait()
	})
}

// TestRoom_TakenByItsCaller: what an execution has called is kept until it is done. If that takes all the room, its next call would
// wait for its own end: it ends as no space. So do calls of others that wait for the execution.
func TestRoom_TakenByItsCaller(t *testing.T) {
	withCrowd(t, 1<<20, 65535, func(c *crowd) {
		made := 0
		front := pinger(func(ctx context.Context) error {
			for made = 0; made < 100; made++ {
				if _, err := arrays.NewArraysClient(c.other.Client("Sized", rpc.WithPolicy(rpc.PolicyRecover))).Echo(ctx, fmt.Append(nil, 48<<10)); err != nil {
					return err
				}
			}
			return nil
		})
		if err := c.other.Export(c.ctx, "Front", arrays.NewPingProcessor(front)); err != nil {
			c.Fatal(err)
		}
		began := time.Now()
		if err := ping(c.ctx, c.client, "Front"); rpc.CodeOf(err) != rpc.NoSpace || made < 4 || time.Since(began) > time.Minute {
			c.Errorf("after %d calls and %s: %v", made, time.Since(began), err)
		}
		if err := c.call("Sized", 48<<10); err != nil {
			c.Errorf("when it is forgotten: %v", err)
		}
	})
}

// TestRoom_TakenByCalls: executions of one owner, or of several, make small calls until the ledger has no room for another one. What they have
// called is kept until they are done, so they would wait for their own end: the call for which there never is room ends as no space.
func TestRoom_TakenByCalls(t *testing.T) {
	for name, owners := range map[string]int{"one owner": 1, "two owners": 2} {
		t.Run(name, func(t *testing.T) {
			withCrowd(t, 512<<10, 9000, func(c *crowd) {
				fronts := append(joinAll(c.T, c.ctx, c.Rack, "c1"), c.other)[:owners]
				var all sync.WaitGroup
				for i, n := range fronts {
					front := pinger(func(ctx context.Context) error {
						for {
							if _, err := arrays.NewArraysClient(n.Client("Sized", rpc.WithPolicy(rpc.PolicyRecover))).Echo(ctx, []byte("600")); err != nil {
								return err
							}
						}
					})
					if err := n.Export(c.ctx, fmt.Sprint("Front", i), arrays.NewPingProcessor(front)); err != nil {
						c.Fatal(err)
					}
				}
				for i := range fronts {
					all.Go(func() {
						within, cancel := context.WithTimeout(c.ctx, time.Minute) // virtual
						defer cancel()
						if err := ping(within, c.client, fmt.Sprint("Front", i)); rpc.CodeOf(err) != rpc.NoSpace {
							c.Errorf("front %d: %v", i, err)
						}
					})
				}
				all.Wait()
				if s := c.server.Stats(); s.NoRoom == 0 {
					c.Errorf("of %d calls none was dropped", s.Accepted)
				}
				if err := c.call("Sized", 600); err != nil {
					c.Errorf("when it is forgotten: %v", err)
				}
			})
		})
	}
}

// TestRoom_TakenByWhatRuns: executions take all the room that there is for calls that run, and wait for calls that come back to their node
// and find none. Such a call ends as no space, and all are answered. If nobody waits for those that take the room, some is left for the
// calls that come back, and none ends.
func TestRoom_TakenByWhatRuns(t *testing.T) {
	for _, inner := range []bool{true, false} {
		takenByWhatRuns(t, inner)
	}
}

func takenByWhatRuns(t *testing.T, inner bool) {
	withCrowd(t, 512<<10, 9000, func(c *crowd) {
		const calls = 60
		outer := pinger(func(ctx context.Context) error {
			return arrays.NewPingClient(c.server.Client("Back", rpc.WithPolicy(rpc.PolicyRecover))).Ping(ctx)
		})
		back := pinger(func(ctx context.Context) error {
			<-time.After(time.Second) // virtual: all have begun for which there is room
			return arrays.NewPingClient(c.other.Client("Ping", rpc.WithPolicy(rpc.PolicyRecover))).Ping(ctx)
		})
		for _, err := range []error{
			c.server.Export(c.ctx, "Outer", arrays.NewPingProcessor(outer), rpc.WithWorkers(1000)), c.other.Export(c.ctx, "Back", arrays.NewPingProcessor(back), rpc.WithWorkers(1000)),
		} {
			if err != nil {
				c.Fatal(err)
			}
		}
		var all sync.WaitGroup
		var full atomic.Int64
		for i, n := range joinAll(c.T, c.ctx, c.Rack, "c1", "s2") {
			caller, called := n, "Outer"
			if inner { // executions of its own call
				caller, called = c.client, fmt.Sprint("Front", i)
				front := pinger(func(ctx context.Context) error {
					return arrays.NewPingClient(n.Client("Outer", rpc.WithPolicy(rpc.PolicyRecover))).Ping(ctx)
				})
				if err := n.Export(c.ctx, called, arrays.NewPingProcessor(front), rpc.WithWorkers(1000)); err != nil {
					c.Fatal(err)
				}
			}
			for range calls / 2 {
				all.Go(func() {
					within, cancel := context.WithTimeout(c.ctx, 10*time.Minute) // virtual
					defer cancel()
					if err := ping(within, caller, called); rpc.CodeOf(err) == rpc.NoSpace {
						full.Add(1)
					} else if err != nil {
						c.Error(err)
					}
				})
			}
		}
		all.Wait()
		if n := full.Load(); (n > 0) != inner || n == calls {
			c.Errorf("inner calls %t: %d of %d calls have ended as no space", inner, n, calls)
		}
	})
}

// TestRoom_StartsFull: a node's program is killed when its ledger is full of answers, and of what is about to be written. Those who
// asked for them are gone. The next incarnation serves, and empties the ledger.
func TestRoom_StartsFull(t *testing.T) {
	const space = 1 << 20
	for after := range 10 {
		bubble.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour) // virtual
			defer cancel()
			ups := make(chan *rpc.Node, 100)
			serve := func(ctx context.Context, j join.Joiner, _ control.Start) error {
				n, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName("server"))
				if err != nil {
					return err
				}
				if err := errors.Join(n.Export(ctx, "Sized", arrays.NewArraysProcessor(sized{})), n.Export(ctx, "Ping", arrays.NewPingProcessor(service.Ping{}))); err != nil {
					return err
				}
				ups <- n
				<-ctx.Done()
				return nil // it is killed
			}
			r, err := simrack.Start(ctx, simrack.Config{
				Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}, Disk: new(wal.Disk), LedgerSpace: space, MTU: 9000,
				Programs: map[string]simrack.Program{"server": serve},
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Gatekeeper().Deploy(ctx, resources.Spec{Name: "app", Programs: []resources.Program{{
				Name: "p", Args: []string{"server"}, Nodes: 1, Blades: []string{"s1"}, Services: []resources.ServiceSpec{{Name: "Sized"}, {Name: "Ping"}},
			}}}); err != nil {
				t.Fatal(err)
			}
			server, nodes := <-ups, joinAll(t, ctx, r, "c1", "s2")
			if err := ping(ctx, nodes[1], "Ping"); err != nil {
				t.Fatal(err)
			}
			for range 40 {
				go func() {
					_, _ = arrays.NewArraysClient(nodes[0].Client("Sized", rpc.WithPolicy(rpc.PolicyRecover))).Echo(ctx, fmt.Append(nil, 48<<10))
				}()
			}
			for i := 0; server.Stats().NoRoom == 0 && i < 10000; i++ {
				<-time.After(100 * time.Microsecond) // virtual
			}
			<-time.After(time.Duration(after) * 300 * time.Microsecond) // virtual
			if err := r.KillSoon("s1", "app/p/1"); err != nil {
				t.Fatal(err)
			}
			r.Host("c1").SetLink(false)
			if server = <-ups; server.Stats().LedgerRoom > space/4 {
				t.Errorf("killed after step %d: it starts with room for %d bytes", after, server.Stats().LedgerRoom)
			}
			began := time.Now()
			if err := ping(ctx, nodes[1], "Ping"); err != nil || time.Since(began) > 5*time.Second {
				t.Errorf("killed after step %d: a call: %v after %s", after, err, time.Since(began))
			}
			<-time.After(20 * time.Second) // virtual: the client counts as dead
			if room := server.Stats().LedgerRoom; room < space*3/8 || len(ups) > 0 {
				t.Errorf("killed after step %d: room for %d bytes, %d incarnations more", after, room, len(ups))
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestRoom_InTurn: one owner's calls have taken its share of a small ledger, and all of them need more at the same time. One after the other gets
// it, and no call ends for want of room. Calls that never have enough end, and another owner's find room all the time.
func TestRoom_InTurn(t *testing.T) {
	for name, effects := range map[string]int{"enough": 16, "never enough": 400} {
		t.Run(name, func(t *testing.T) {
			withCrowd(t, 96<<10, 9000, func(c *crowd) {
				handler := pinger(func(ctx context.Context) error {
					if _, err := rpc.Effect(ctx, "first", func(context.Context) ([]byte, error) { return nil, nil }); err != nil {
						return err
					}
					<-time.After(time.Second) // virtual: all have begun for which there is room
					for range effects {
						if _, err := rpc.Effect(ctx, "more", func(context.Context) ([]byte, error) { return make([]byte, 300), nil }); err != nil {
							return err
						}
					}
					return nil
				})
				if err := c.server.Export(c.ctx, "Turns", arrays.NewPingProcessor(handler), rpc.WithWorkers(1000)); err != nil {
					c.Fatal(err)
				}
				var all sync.WaitGroup
				for range 40 {
					all.Go(func() {
						err := arrays.NewPingClient(c.client.Client("Turns", rpc.WithPolicy(rpc.PolicyRecover))).Ping(c.ctx)
						if (rpc.CodeOf(err) == rpc.NoSpace) != (name == "never enough") || err != nil && rpc.CodeOf(err) != rpc.NoSpace {
							c.Error(err)
						}
					})
				}
				over := make(chan struct{})
				go func() { all.Wait(); close(over) }()
				for waiting := true; waiting; {
					within, cancel := context.WithTimeout(c.ctx, 12*time.Second) // virtual
					if err := ping(within, c.other, "Ping"); err != nil {
						c.Errorf("another owner: %v", err)
					}
					cancel()
					select {
					case <-over:
						waiting = false
					case <-time.After(100 * time.Millisecond): // virtual
					}
				}
			})
		})
	}
}

// TestRoom_ShortAnew: calls that run have taken all the room. A call that is dropped waits for up to ten seconds, though one of its owner was
// dropped a minute ago, and one of another owner goes on being dropped.
func TestRoom_ShortAnew(t *testing.T) {
	withCrowd(t, 512<<10, 9000, func(c *crowd) {
		release := make(chan struct{})
		held := pinger(func(context.Context) error { <-release; return nil })
		if err := c.server.Export(c.ctx, "Held", arrays.NewPingProcessor(held), rpc.WithWorkers(1000)); err != nil {
			c.Fatal(err)
		}
		var all sync.WaitGroup
		var refused atomic.Int64
		// fill makes calls until one is dropped.
		fill := func(n *rpc.Node) {
			for full := c.server.Stats().NoRoom; c.server.Stats().NoRoom == full; <-time.After(10 * time.Millisecond) { // virtual
				all.Go(func() {
					if rpc.CodeOf(ping(c.ctx, n, "Held")) == rpc.NoSpace {
						refused.Add(1)
					}
				})
			}
		}
		for i, n := range []*rpc.Node{c.client, c.other, c.client, c.other} { // the second time it is known whose they are
			fill(n)
			<-time.After(12 * time.Second) // virtual
			if got := refused.Load(); got != int64(i+1) {
				c.Errorf("%d calls have ended for want of room, want %d", got, i+1)
			}
		}
		filled := make(chan struct{})
		if _, err := c.Rack.Run("c1", "doomed", func(ctx context.Context, j join.Joiner, _ control.Start) error {
			n, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName("doomed"))
			if err != nil {
				return err
			}
			fill(n)
			close(filled)
			<-ctx.Done()
			return nil // it is killed
		}); err != nil {
			c.Fatal(err)
		}
		<-filled
		if err := c.Kill("c1", "doomed"); err != nil {
			c.Fatal(err)
		}
		<-time.After(time.Minute) // virtual
		began := time.Now()
		all.Go(func() {
			if err := ping(c.ctx, c.other, "Held"); rpc.CodeOf(err) != rpc.NoSpace || time.Since(began) < 10*time.Second {
				c.Errorf("the other owner's call, after %s: %v", time.Since(began), err)
			}
		})
		for <-time.After(5 * time.Second); time.Since(began) < 9*time.Second; <-time.After(100 * time.Millisecond) { // virtual
			all.Go(func() {
				if err := ping(c.ctx, c.client, "Held"); err != nil {
					c.Errorf("a call for which there is room after 11 s: %v after %s", err, time.Since(began))
				}
			})
		}
		<-time.After(time.Until(began.Add(11 * time.Second))) // virtual
		close(release)
		all.Wait()
	})
}
