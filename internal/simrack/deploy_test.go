package simrack_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc"
)

// fleet is a rack that can start two programs: one that serves Arrays, and one that
// ends before it has joined.
type fleet struct {
	*simrack.Rack
	t      *testing.T
	ctx    context.Context
	events <-chan gatekeeper.Event

	mu     sync.Mutex
	served map[string]int // calls by instance
}

func withFleet(t *testing.T, f func(r *fleet)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		r := &fleet{t: t, ctx: ctx, served: map[string]int{}}
		var err error
		r.Rack, err = simrack.Start(ctx, simrack.Config{
			Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}, Disk: new(wal.Disk),
			Programs: map[string]simrack.Program{
				"server": r.server,
				"broken": func(context.Context, join.Joiner, control.Start) error { return errors.New("broken") },
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		r.events = r.Gatekeeper().Subscribe(ctx)
		f(r)
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

// server is a program that serves Arrays until it is told to end.
func (r *fleet) server(ctx context.Context, j join.Joiner, s control.Start) error {
	n, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName("server"))
	if err != nil {
		return err
	}
	if err := n.Export(ctx, "Arrays", arrays.NewArraysProcessor(&counting{r: r, instance: s.Name})); err != nil {
		return err
	}
	<-ctx.Done()
	if errors.Is(context.Cause(ctx), simrack.ErrKilled) {
		return nil // like a process: not another word
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return n.Close(closing)
}

// counting counts the calls that an instance serves.
type counting struct {
	service.Arrays
	r        *fleet
	instance string
}

func (c *counting) Increment(ctx context.Context, numbers []byte, by int8) ([]byte, error) {
	c.r.mu.Lock()
	c.r.served[c.instance]++
	c.r.mu.Unlock()
	return c.Arrays.Increment(ctx, numbers, by)
}

// until waits for a state of the deployment, looking whenever something happens.
func (r *fleet) until(what string, good func(d *resources.Deployment) bool) {
	r.t.Helper()
	timeout := time.After(5 * time.Minute)
	for {
		all, err := r.Gatekeeper().Deployments(r.ctx)
		if err != nil {
			r.t.Fatal(err)
		}
		d := &resources.Deployment{}
		if len(all) > 0 {
			d = &all[0]
		}
		if good(d) {
			return
		}
		select {
		case <-r.events:
		case <-time.After(time.Second): // virtual; not everything is an event
		case <-timeout:
			r.t.Fatalf("%s: still %+v", what, d)
		}
	}
}

// running waits until the deployment runs so many nodes, all of which export.
func (r *fleet) running(what string, nodes int) (at []string) {
	r.t.Helper()
	r.until(what, func(d *resources.Deployment) bool {
		s, err := r.Gatekeeper().Snapshot(r.ctx)
		serving := map[string]bool{}
		for _, v := range s.Services {
			for _, m := range v.Methods {
				for _, route := range m.Routes {
					serving[route.Node.String()] = true
				}
			}
		}
		at = nil
		for _, i := range d.Instances {
			if i.Status == resources.Running && !i.Leaving && serving[i.Node.String()] {
				at = append(at, i.Blade)
			}
		}
		return err == nil && len(at) == nodes && len(serving) == nodes
	})
	slices.Sort(at)
	return at
}

// calls makes so many calls, all of which must succeed, and returns how many
// instances have served them.
func (r *fleet) calls(client *arrays.ArraysClient, count int) (instances int) {
	r.t.Helper()
	r.mu.Lock()
	clear(r.served)
	r.mu.Unlock()
	for range count {
		got, err := client.Increment(r.ctx, []byte{1, 2}, 1)
		if err != nil || !slices.Equal(got, []byte{2, 3}) {
			r.t.Fatalf("increment: %v, %v", got, err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.served)
}

func arraysApp(nodes, spares int) resources.Spec {
	return resources.Spec{Name: "arrays", Programs: []resources.Program{{
		Name: "server", Args: []string{"server"}, Nodes: nodes, Spares: spares, Services: []resources.ServiceSpec{{Name: "Arrays"}},
	}}}
}

// TestDeploy follows a deployment of two nodes on three blades: calls are spread
// over them, killed programs and failed blades are replaced, drained blades left.
func TestDeploy(t *testing.T) {
	withFleet(t, func(r *fleet) {
		gk := r.Gatekeeper()
		do := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		node, err := r.Join(r.ctx, "c1", "client")
		do(err)
		client := arrays.NewArraysClient(node.Client("Arrays"))
		do(gk.Deploy(r.ctx, arraysApp(2, 0)))
		at := r.running("two nodes", 2)
		if at[0] == at[1] {
			t.Errorf("two nodes of a service on %v", at)
		}
		if n := r.calls(client, 200); n != 2 {
			t.Errorf("%d instances have served 200 calls", n)
		}

		d, err := gk.Deployments(r.ctx)
		do(err)
		victim := d[0].Instances[0]
		do(r.Kill(victim.Blade, victim.Name))
		r.until("a killed program is started again", func(d *resources.Deployment) bool {
			i := d.Instances[0]
			return i.Status == resources.Running && i.Node == victim.Node && i.Since.After(victim.Since) && i.Failures == 1 // its next incarnation
		})
		r.running("two nodes again", 2)
		r.calls(client, 50)

		at = r.running("before a blade fails", 2)
		do(gk.MarkFailed(r.ctx, at[1], "pulled by hand"))
		moved := r.running("without the blade", 2)
		if slices.Contains(moved, at[1]) {
			t.Errorf("nodes on %v, where %s has failed", moved, at[1])
		}
		r.calls(client, 50)
		do(gk.ReturnToService(r.ctx, at[1]))
		r.until("the blade is back", func(*resources.Deployment) bool { return r.status(at[1]) == gatekeeper.StatusFree })

		drained := moved[1]
		do(gk.Drain(r.ctx, drained, "maintenance"))
		left := r.running("without the drained blade", 2)
		if slices.Contains(left, drained) || r.status(drained) != gatekeeper.StatusDraining {
			t.Errorf("nodes on %v, where %s drains", left, drained)
		}
		r.calls(client, 50)
		do(gk.ReturnToService(r.ctx, drained))

		do(gk.Undeploy(r.ctx, "arrays"))
		r.until("the end", func(d *resources.Deployment) bool { return d.Spec.Name == "" })
		s, err := gk.Snapshot(r.ctx)
		if err != nil || len(s.Nodes) != 1 || len(s.Services) != 0 {
			t.Errorf("left behind: nodes %+v, services %+v, %v", s.Nodes, s.Services, err)
		}
	})
}

func (r *fleet) status(blade string) string {
	r.t.Helper()
	s, err := r.Gatekeeper().Snapshot(r.ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, b := range s.Blades {
		if b.Name == blade {
			return b.Status
		}
	}
	return ""
}

// TestDeploy_Refused asks for what cannot be had.
func TestDeploy_Refused(t *testing.T) {
	withFleet(t, func(r *fleet) {
		gk := r.Gatekeeper()
		bad := arraysApp(2, 0)
		bad.Programs[0].Args = nil
		for what, q := range map[string]struct {
			err  error
			want fault.Code
		}{
			"too many nodes":         {gk.Deploy(r.ctx, arraysApp(4, 0)), fault.Overloaded},
			"too many spares":        {gk.Deploy(r.ctx, arraysApp(2, 2)), fault.Overloaded},
			"nothing to run":         {gk.Deploy(r.ctx, bad), fault.BadRequest},
			"no such deployment":     {gk.Undeploy(r.ctx, "nothing"), fault.NotFound},
			"no such blade":          {gk.Drain(r.ctx, "x9", ""), fault.NotFound},
			"no such blade to fail":  {gk.MarkFailed(r.ctx, "x9", ""), fault.NotFound},
			"no such blade to bring": {gk.ReturnToService(r.ctx, "x9"), fault.NotFound},
		} {
			if fault.CodeOf(q.err) != q.want {
				t.Errorf("%s: %v", what, q.err)
			}
		}
		if all, err := gk.Deployments(r.ctx); err != nil || len(all) != 0 {
			t.Errorf("deployments %+v, %v", all, err)
		}
	})
}

// TestDeploy_BrokenProgram deploys a program that ends at once: it is started
// again, after longer and longer pauses, and not in vain for ever.
func TestDeploy_BrokenProgram(t *testing.T) {
	withFleet(t, func(r *fleet) {
		app := arraysApp(1, 0)
		app.Programs[0].Args = []string{"broken"}
		if err := r.Gatekeeper().Deploy(r.ctx, app); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		var last resources.Instance
		r.until("six failures", func(d *resources.Deployment) bool {
			last = d.Instances[0]
			return last.Failures >= 6
		})
		if took := time.Since(began); took > 2*time.Minute || last.NotBefore.Sub(last.Since) < 1500*time.Millisecond {
			t.Errorf("six failures took %s, then came a pause of %s", took, last.NotBefore.Sub(last.Since))
		}
		if err := r.Gatekeeper().Undeploy(r.ctx, "arrays"); err != nil {
			t.Fatal(err)
		}
		r.until("the end", func(d *resources.Deployment) bool { return d.Spec.Name == "" })
	})
}

// TestDeploy_OutlivesTheGatekeeper restarts the Gatekeeper: the deployment is there,
// its nodes have not been touched, and one that is killed then is replaced.
func TestDeploy_OutlivesTheGatekeeper(t *testing.T) {
	withFleet(t, func(r *fleet) {
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(r.Gatekeeper().Deploy(r.ctx, arraysApp(2, 0)))
		r.running("two nodes", 2)
		must(r.Gatekeeper().Drain(r.ctx, "m1", "a test"))
		before, err := r.Gatekeeper().Deployments(r.ctx)
		must(err)
		r.CrashGatekeeper()
		must(r.RestartGatekeeper(r.ctx))
		r.events = r.Gatekeeper().Subscribe(r.ctx)
		r.running("after the restart", 2)
		after, err := r.Gatekeeper().Deployments(r.ctx)
		must(err)
		for i := range after[0].Instances {
			if a, b := after[0].Instances[i], before[0].Instances[i]; a.Node != b.Node || a.Blade != b.Blade {
				t.Errorf("was %+v, is %+v", b, a)
			}
		}
		if s := r.status("m1"); s != gatekeeper.StatusDraining {
			t.Errorf("the drained blade is %s", s)
		}
		victim := after[0].Instances[1]
		must(r.Kill(victim.Blade, victim.Name))
		r.until("it is replaced", func(d *resources.Deployment) bool {
			i := d.Instances[1]
			return i.Status == resources.Running && i.Node == victim.Node && i.Since.After(victim.Since)
		})
		r.running("in the end", 2)
	})
}
