package simrack_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
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
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// shelf is a rack with a service, Shelf, that is called direct, and whose handler a test chooses.
type shelf struct {
	*testing.T
	*simrack.Rack
	handle func(ctx context.Context, at *dsm.Pointer) error // at is the service's state
	state  bool
	client *rpc.Node
	server *rpc.Node    // of the present incarnation
	tie    join.Session // of the server
	tells  *accountant  // gets the server's accounts, if set
	runs   atomic.Int64
	up     chan struct{}
	begins func(*shelf) error                 // called before an incarnation exports the service, if set
	mtu    int                                // 0 stands for the usual one
	seen   *atomic.Pointer[rpcpacket.Message] // the last call that has gone to the switch
	frame  func(*shelf, wire.Frame)           // sees every frame, if set
	shadow *simrack.Shadow                    // judges every frame
}

// shelfService is the handler, and its state.
type shelfService struct {
	service.Arrays
	r  *shelf
	at dsm.Pointer
}

func (s *shelfService) Echo(ctx context.Context, data []byte) ([]byte, error) {
	s.r.runs.Add(1)
	return data, s.r.handle(context.WithValue(ctx, echoed{}, string(data)), &s.at)
}

// echoed is where the handler's context has what Echo was called with.
type echoed struct{}

// EchoRef returns a region with contents.
func (s *shelfService) EchoRef(ctx context.Context, _ *bifrost.GlobalPointer, _ int64) (*bifrost.GlobalPointer, error) {
	s.r.runs.Add(1)
	p, err := fresh(ctx)
	if err == nil {
		err = s.r.handle(ctx, &s.at)
	}
	return rpc.GlobalPointer(p), err
}

// Increment counts in the state, and does nothing else.
func (s *shelfService) Increment(_ context.Context, data []byte, _ int8) ([]byte, error) {
	s.at[len(s.at)-1]++
	return data, nil
}

func (s *shelfService) Snapshot() ([]byte, error) { return slices.Clone(s.at[:]), nil }

func (s *shelfService) Restore(b []byte) error {
	copy(s.at[:], b)
	return nil
}

// withShelf runs f on a rack with a machine that two blades keep.
func withShelf(t *testing.T, state bool, f func(r *shelf)) {
	t.Helper()
	withShelves(t, &shelf{state: state}, mirroredThesis(), f)
}

// mirroredThesis are the blades of a rack whose one memory machine has two copies.
func mirroredThesis() []simrack.Blade {
	return slices.DeleteFunc(simrack.Thesis(), func(b simrack.Blade) bool { return b.Name == "m3" })
}

// withShelves is withShelf on a rack of other blades: m1 and m2 are a pair if both are there.
func withShelves(t *testing.T, of *shelf, blades []simrack.Blade, f func(r *shelf)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		seen, onFrame := lastCall()
		r := &shelf{T: t, state: of.state, begins: of.begins, tells: of.tells, mtu: of.mtu, up: make(chan struct{}, 2), seen: seen, shadow: simrack.NewShadow()}
		look := onFrame
		if of.frame != nil {
			look = func(f wire.Frame) { of.frame(r, f) }
		}
		onFrame = func(f wire.Frame) {
			r.shadow.OnFrame(f)
			look(f)
		}
		var pairs [][]string
		if slices.ContainsFunc(blades, func(b simrack.Blade) bool { return b.Name == "m2" }) {
			pairs = [][]string{{"m1", "m2"}}
		}
		var err error
		r.Rack, err = simrack.Start(t.Context(), simrack.Config{
			Blades:   blades,
			MTU:      of.mtu,
			Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}, Disk: new(wal.Disk),
			Machines: pairs, Programs: map[string]simrack.Program{"server": r.serve},
			OnFrame: onFrame,
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Gatekeeper().Deploy(t.Context(), shelfSpec(1, r.state)); err != nil {
			t.Fatal(err)
		}
		<-r.up
		if r.client, err = r.Join(t.Context(), "c1", "client"); err != nil {
			t.Fatal(err)
		}
		f(r)
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

// shelfSpec is the service's deployment.
func shelfSpec(nodes int, state bool) resources.Spec {
	return resources.Spec{Name: "app", Programs: []resources.Program{{
		Name: "p", Args: []string{"server"}, Nodes: nodes, Blades: []string{"s1"}, Services: []resources.ServiceSpec{{Name: "Shelf", Stateful: state}},
	}}}
}

// join joins a program that nobody has deployed.
func (r *shelf) join(blade, name string) *rpc.Node {
	r.Helper()
	n, err := r.Join(r.Context(), blade, name)
	if err != nil {
		r.Fatal(err)
	}
	return n
}

// tied is a joiner that notes the session.
type tied struct {
	join.Joiner
	r *shelf
}

func (k tied) Join(ctx context.Context, name string) (s join.Session, err error) {
	s, err = k.Joiner.Join(ctx, name)
	k.r.tie = s
	return s, err
}

func (r *shelf) serve(ctx context.Context, j join.Joiner, _ control.Start) error {
	j = tied{j, r}
	if r.tells != nil {
		r.tells.Joiner = j
		j = r.tells
	}
	n, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName("server"))
	if err != nil {
		return err
	}
	r.server = n
	if err := n.Export(ctx, "Beside", arrays.NewArraysProcessor(service.Arrays{})); err != nil {
		return err
	}
	h, options := &shelfService{r: r}, []rpc.ExportOption{rpc.WithMethodPolicy(rpc.PolicyFateShare)}
	if r.state {
		options = append(options, rpc.WithState(h))
	}
	if r.begins != nil {
		if err := r.begins(r); err != nil {
			return err
		}
	}
	if err := n.Export(ctx, "Shelf", arrays.NewArraysProcessor(h), options...); err != nil {
		return err
	}
	select {
	case r.up <- struct{}{}:
	default: // nobody waits for it
	}
	<-ctx.Done()
	if errors.Is(context.Cause(ctx), simrack.ErrKilled) {
		return nil // like a process: not another word
	}
	return n.Close(context.WithoutCancel(ctx))
}

// call has the handler run, which must succeed.
func (r *shelf) call(handle func(ctx context.Context, at *dsm.Pointer) error) {
	r.Helper()
	r.handle = handle
	ctx, cancel := context.WithTimeout(r.Context(), time.Minute) // virtual
	defer cancel()
	if _, err := arrays.NewArraysClient(r.client.Client("Shelf", rpc.WithPolicy(rpc.PolicyRecover))).Echo(ctx, []byte("x")); err != nil {
		r.Error(err)
	}
}

// kill ends the service's program, which is started again. The handler that calls it returns after
// that.
func (r *shelf) kill(ctx context.Context) error {
	if err := r.KillSoon("s1", "app/p/1"); err != nil {
		r.Error(err)
	}
	<-ctx.Done()
	return ctx.Err()
}

// regions waits until the rack has so many regions beside those of before.
func (r *shelf) regions(want int) {
	r.Helper()
	var page gatekeeper.RegionPage
	for range 100 {
		var err error
		if page, err = r.Gatekeeper().Regions(r.Context(), gatekeeper.RegionQuery{Limit: 100}); err != nil {
			r.Fatal(err)
		}
		if len(page.Regions) == want {
			return
		}
		<-time.After(10 * time.Millisecond) // virtual
	}
	r.Errorf("%d regions, want %d: %v", len(page.Regions), want, page)
}

// direct checks that no execution was handed over to the Gatekeeper.
func (r *shelf) direct() {
	r.Helper()
	if s := r.server.Stats(); s.Accepted+s.Resumed == 0 {
		r.Errorf("%+v: want direct executions only", s)
	}
}

// TestDirectRegions: an execution allocates and frees while its node decides about it. What it has
// freed is gone for it at once, and indeed at its end; so is what it has allocated and not freed.
func TestDirectRegions(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			m := rpc.Memory(ctx)
			var all [3]dsm.Pointer
			for i := range all {
				var err error
				if all[i], err = m.Alloc(ctx, 64); err != nil {
					return err
				}
				if _, err := m.Write(ctx, all[i], []byte("contents")); err != nil {
					return err
				}
			}
			if err := m.Free(ctx, all[0].Add(8)); fault.CodeOf(err) != fault.BadRequest {
				t.Errorf("free of the middle of a region: %v", err)
			}
			if err := m.Free(ctx, all[0]); err != nil {
				return err
			}
			if err := m.Free(ctx, all[0]); fault.CodeOf(err) != fault.PermissionDenied {
				t.Errorf("freed twice: %v", err)
			}
			if _, err := m.Read(ctx, all[0].Add(4), make([]byte, 4)); fault.CodeOf(err) != fault.PermissionDenied {
				t.Errorf("read after free: %v", err)
			}
			b := make([]byte, 8)
			_, err := m.Read(ctx, all[1], b)
			if err == nil && !bytes.Equal(b, []byte("contents")) {
				t.Errorf("read %q", b)
			}
			return err
		})
		r.direct()
		r.regions(0)
	})
}

// TestDirectRegions_Crash: a run that is killed has allocated two regions. The next one gets the
// same, empty, and at its end they are gone.
func TestDirectRegions_Crash(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		var runs [2][]dsm.Pointer
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			run := r.runs.Load() - 1
			for range 2 {
				p, err := rpc.Memory(ctx).Alloc(ctx, 1<<10)
				if err != nil {
					return err
				}
				b := make([]byte, 8)
				if _, err := rpc.Memory(ctx).Read(ctx, p, b); err != nil || !bytes.Equal(b, make([]byte, 8)) {
					t.Errorf("a new region has %q, %v", b, err)
				}
				if _, err := rpc.Memory(ctx).Write(ctx, p, []byte("contents")); err != nil {
					return err
				}
				runs[run] = append(runs[run], p)
			}
			if run == 0 {
				return r.kill(ctx)
			}
			return nil
		})
		if !slices.Equal(runs[0], runs[1]) {
			t.Errorf("regions %v, then %v", runs[0], runs[1])
		}
		r.direct()
		r.regions(0)
	})
}

// TestDirectRegions_NotAskedAgain: a run of a service with state has allocated regions, and is killed. The next one does not ask for one of them, which goes: the
// state cannot know it.
func TestDirectRegions_NotAskedAgain(t *testing.T) {
	withShelf(t, true, func(r *shelf) {
		r.call(func(ctx context.Context, at *dsm.Pointer) (err error) {
			if *at, err = fresh(ctx); err != nil || r.runs.Load() > 1 {
				return err
			}
			if _, err := fresh(ctx); err != nil {
				return err
			}
			return r.kill(ctx)
		})
		r.direct()
		r.regions(1)
		r.call(func(ctx context.Context, at *dsm.Pointer) error {
			r.own(ctx, rpc.Memory(ctx), *at)
			return rpc.Memory(ctx).Free(ctx, *at)
		})
		r.regions(0)
	})
}

// TestDirectRegions_State: a service with state keeps a region, and replaces it. The run that does
// so is killed after it has freed the old one, which is there again then.
func TestDirectRegions_State(t *testing.T) {
	withShelf(t, true, func(r *shelf) {
		put := func(value string, killed bool) {
			first := r.runs.Load() + 1
			r.call(func(ctx context.Context, at *dsm.Pointer) error {
				m := rpc.Memory(ctx)
				p, err := m.Alloc(ctx, 64)
				if err != nil {
					return err
				}
				if _, err := m.Write(ctx, p, []byte(value)); err != nil {
					return err
				}
				if !at.IsNil() {
					if err := m.Free(ctx, *at); err != nil {
						return err
					}
				}
				*at = p
				if killed && r.runs.Load() == first {
					return r.kill(ctx)
				}
				return nil
			})
		}
		put("one", false)
		r.regions(1)
		put("two", false)
		r.regions(1)
		put("3rd", true)
		r.call(func(ctx context.Context, at *dsm.Pointer) error {
			b := make([]byte, 3)
			_, err := rpc.Memory(ctx).Read(ctx, *at, b)
			if err == nil && string(b) != "3rd" {
				t.Errorf("read %q", b)
			}
			return err
		})
		if n := r.runs.Load(); n != 5 {
			t.Errorf("%d runs, want 5", n)
		}
		r.direct()
		r.regions(1)
	})
}

// TestDirectRegions_NotOurs: an execution frees a region that its node does not control.
func TestDirectRegions_NotOurs(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		p, err := r.client.Memory().Alloc(r.Context(), 64)
		if err != nil {
			t.Fatal(err)
		}
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			if _, err := rpc.Memory(ctx).Alloc(ctx, 64); err != nil { // so that the node knows the machine
				return err
			}
			if err := rpc.Memory(ctx).Free(ctx, p); fault.CodeOf(err) != fault.PermissionDenied {
				t.Errorf("free: %v", err)
			}
			return nil
		})
		r.direct()
		r.regions(1)
	})
}

// TestDirectRegions_Told: the Gatekeeper is away when an execution has ended, or the node dies
// before it has told it what becomes of the regions. It learns of that later.
func TestDirectRegions_Told(t *testing.T) {
	for _, kill := range []bool{false, true} {
		withShelf(t, false, func(r *shelf) {
			r.call(func(ctx context.Context, _ *dsm.Pointer) error {
				if _, err := rpc.Memory(ctx).Alloc(ctx, 64); err != nil {
					return err
				}
				r.CrashGatekeeper()
				return nil
			})
			if kill {
				if err := r.Kill("s1", "app/p/1"); err != nil {
					t.Fatal(err)
				}
			}
			if err := r.RestartGatekeeper(r.Context()); err != nil {
				t.Fatal(err)
			}
			if kill {
				<-r.up
			}
			r.regions(0)
		})
	}
}

// TestDirectRegions_Lost: both blades that have an execution's region and its node's ledger begin
// anew. The Gatekeeper keeps nothing of the region.
func TestDirectRegions_Lost(t *testing.T) {
	withShelf(t, true, func(r *shelf) {
		ctx := r.Context()
		allocated := make(chan struct{})
		r.handle = func(ctx context.Context, _ *dsm.Pointer) error {
			if _, err := rpc.Memory(ctx).Alloc(ctx, 64); err != nil {
				return err
			}
			close(allocated)
			<-ctx.Done()
			return ctx.Err()
		}
		go func() {
			_, _ = arrays.NewArraysClient(r.client.Client("Shelf", rpc.WithPolicy(rpc.PolicyRecover))).Echo(ctx, nil) // it fails
		}()
		<-allocated
		for _, b := range []string{"m1", "m2"} {
			if err := r.CrashBlade(b); err != nil {
				t.Fatal(err)
			}
		}
		for _, b := range []string{"m1", "m2"} {
			if err := r.BootBlade(b); err != nil {
				t.Fatal(err)
			}
		}
		r.regions(0)
		records := func() (n int) {
			for rec, err := range r.Log().Records() {
				if err != nil {
					t.Fatal(err)
				}
				if rec.Kind == wal.KindRegion {
					n++
				}
			}
			return n
		}
		if n := records(); n != 0 {
			t.Errorf("%d records of regions while the execution may be run again", n)
		}
		if err := r.Gatekeeper().Undeploy(ctx, "app"); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Minute) // virtual
		if n := records(); n != 0 {
			t.Errorf("%d records of regions are left", n)
		}
	})
}

// TestDirectRegions_Handed: an execution has allocated and freed, and lends a region to a call
// then, which the Gatekeeper sees. What it has freed is freed by its commit.
func TestDirectRegions_Handed(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		echo, err := r.Join(r.Context(), "c1", "echo")
		if err == nil {
			err = echo.Export(r.Context(), "Arrays", arrays.NewArraysProcessor(service.Arrays{}))
		}
		if err != nil {
			t.Fatal(err)
		}
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			var all [2]dsm.Pointer
			for i := range all {
				var err error
				if all[i], err = rpc.Memory(ctx).Alloc(ctx, 64); err != nil {
					return err
				}
			}
			if err := rpc.Memory(ctx).Free(ctx, all[0]); err != nil {
				return err
			}
			if _, err := arrays.NewArraysClient(r.server.Client("Arrays", rpc.WithPolicy(rpc.PolicyRecover))).EchoRef(ctx, rpc.GlobalPointer(all[1]), 64); err != nil {
				return err
			}
			if _, err := rpc.Memory(ctx).Read(ctx, all[0], make([]byte, 4)); fault.CodeOf(err) != fault.PermissionDenied {
				t.Errorf("read after free: %v", err)
			}
			if r.runs.Load() == 1 {
				return r.kill(ctx)
			}
			return nil
		})
		r.regions(0)
	})
}

// TestHostile_Frees: a node cannot free what another one's execution has allocated.
func TestHostile_Frees(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		hostile, err := r.Join(r.Context(), "c1", "hostile")
		if err != nil {
			t.Fatal(err)
		}
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			m := rpc.Memory(ctx)
			p, err := m.Alloc(ctx, 64)
			if err != nil {
				return err
			}
			if err := hostile.Memory().Free(r.Context(), p); fault.CodeOf(err) != fault.PermissionDenied {
				t.Errorf("frees what it does not have: %v", err)
			}
			_, err = m.Write(ctx, p, []byte("there"))
			return err
		})
		r.direct()
		r.regions(0)
	})
}
