package simrack_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc"
)

// Memory blades without a partner that start anew: what they had is lost.

// startAnew boots a memory blade again after it has failed, and returns when it is in
// service and everybody knows that.
func startAnew(ctx context.Context, r *simrack.Rack, blade string) error {
	events := r.Gatekeeper().Subscribe(ctx)
	if err := r.CrashBlade(blade); err != nil {
		return err
	}
	<-time.After(5 * time.Second) // virtual: it has failed
	if err := r.BootBlade(blade); err != nil {
		return err
	}
	for e := range events {
		if e.Kind == gatekeeper.BladeUp && e.Blade == blade {
			break
		}
	}
	<-time.After(2 * time.Second) // virtual: the other blades have heard of it
	return nil
}

// TestLostRegion: a region of a memory blade that has started anew is unavailable to the
// node that had it, whatever the node does with the pointer, and stays so when the
// Gatekeeper or the blade starts once more. A pointer that never was one is denied.
func TestLostRegion(t *testing.T) {
	for name, blades := range map[string][]simrack.Blade{
		"alone":          oneMemory(),
		"both of a pair": append(oneMemory(), simrack.Blade{Name: "m2", Kind: control.Memory}),
	} {
		t.Run(name, func(t *testing.T) { bubble.Test(t, func(t *testing.T) { lostRegion(t, blades) }) })
	}
}

func lostRegion(t *testing.T, blades []simrack.Blade) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	cfg := simrack.Config{Blades: blades, Disk: new(wal.Disk), Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}}
	if last := blades[len(blades)-1].Name; last == "m2" {
		cfg.Machines, cfg.FillRate = [][]string{{"m1", "m2"}}, 16<<20
	}
	r, err := simrack.Start(ctx, cfg)
	must(err)
	server, err := r.Join(ctx, "s1", "server")
	must(err)
	h := &handler{addRef: func(context.Context, dsm.Pointer, dsm.Pointer) (dsm.Pointer, error) { return dsm.Pointer{}, nil }}
	must(server.Export(ctx, "Arrays", arrays.NewArraysProcessor(h)))
	node, err := r.Join(ctx, "c1", "client")
	must(err)
	m := node.Memory()
	before, err := m.Alloc(ctx, 1<<12)
	must(err)
	freed, err := m.Alloc(ctx, 1<<12)
	must(err)
	check := func(when string) {
		t.Helper()
		all := map[string]func() error{
			"read":  func() error { _, err := m.Read(ctx, before, make([]byte, 8)); return err },
			"write": func() error { _, err := m.Write(ctx, before, make([]byte, 8)); return err },
		}
		for what, do := range all {
			if err := do(); rpc.CodeOf(err) != rpc.Unavailable {
				t.Errorf("%s: %s: %v; want unavailable", when, what, err)
			}
		}
		never := dsmpacket.Make(before.Prefix(), before.Machine(), dsmpacket.IDOf(before.ID().Slot(), dsmpacket.MaxGeneration))
		if _, err := m.Read(ctx, never, make([]byte, 8)); rpc.CodeOf(err) != rpc.PermissionDenied {
			t.Errorf("%s: a pointer that never was one: %v; want permission denied", when, err)
		}
		p, err := m.Alloc(ctx, 1<<12)
		must(err)
		_, err = m.Write(ctx, p, make([]byte, 8))
		must(err)
		must(m.Free(ctx, p))
	}
	if len(cfg.Machines) > 0 {
		must(r.CrashBlade("m2"))
	}
	must(startAnew(ctx, r, "m1"))
	if len(cfg.Machines) > 0 {
		// The other copy may have everything, so nothing is lost yet: the machine waits for it.
		if _, err := m.Read(ctx, before, make([]byte, 8)); rpc.CodeOf(err) != rpc.Unavailable {
			t.Errorf("while the other copy is awaited: read: %v; want unavailable", err)
		}
		must(r.BootBlade("m2"))        // it has nothing either
		<-time.After(20 * time.Second) // virtual: it is filled
	}
	check("after a start")
	if err := m.Free(ctx, freed); rpc.CodeOf(err) != rpc.Unavailable {
		t.Errorf("free: %v; want unavailable", err)
	}
	if len(cfg.Machines) > 0 {
		must(r.CrashBlade("m1"))
		<-time.After(5 * time.Second) // virtual: it has failed
		check("with the second copy alone")
		must(r.Close())
		return
	}
	r.CrashGatekeeper()
	must(r.RestartGatekeeper(ctx))
	<-time.After(5 * time.Second) // virtual: all blades have said hello again
	check("after a start of the Gatekeeper")
	must(startAnew(ctx, r, "m1"))
	check("after another start")
	must(r.Close())
}

// lend calls with a pointer.
func lend(ctx context.Context, node *rpc.Node, p dsm.Pointer, policy rpc.Policy) error {
	to := arrays.NewArraysClient(node.Client("Arrays", rpc.WithPolicy(policy)))
	_, err := to.AddRef(ctx, rpc.GlobalPointer(p), 8, rpc.GlobalPointer(p), 8)
	return err
}

// twoMemories is two memory blades, so that a re-run has another one to allocate on.
func twoMemories() []simrack.Blade {
	return append(oneMemory(), simrack.Blade{Name: "m2", Kind: control.Memory, Capacity: 16 << 20})
}

// TestRerunOfLostRegion: an execution has lent what it had allocated, and is run again when
// the memory blade that had the region has lost it. The next run fails as unavailable,
// though there is another blade to allocate on: it is not given another region, with which
// its call would differ from the first run's. So it is if the Gatekeeper is another one by then.
func TestRerunOfLostRegion(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(map[bool]string{false: "one Gatekeeper", true: "two"}[restart], func(t *testing.T) { rerunOfLostRegion(t, restart) })
	}
}

func rerunOfLostRegion(t *testing.T, restart bool) {
	blades := simrack.Thesis()
	for i := range blades {
		blades[i].Capacity = 1 << 20 // of the pair: too little for the region
		if blades[i].Name == "m3" {
			blades[i].Capacity = 8 << 20
		}
	}
	withShelves(t, new(shelf), blades, func(r *shelf) {
		export(t, r.Context(), r.Rack, "s2")
		r.handle = func(ctx context.Context, _ *dsm.Pointer) error {
			mine, err := rpc.Memory(ctx).Alloc(ctx, 2<<20)
			if err != nil {
				return err
			}
			if err := lend(ctx, r.server, mine, rpc.PolicyRecover); err != nil || r.runs.Load() > 1 {
				return err
			}
			if err := startAnew(r.Context(), r.Rack, "m3"); err != nil {
				t.Error(err)
			}
			if restart {
				r.CrashGatekeeper()
				if err := r.RestartGatekeeper(r.Context()); err != nil {
					t.Error(err)
				}
			}
			return r.kill(ctx)
		}
		client := arrays.NewArraysClient(r.client.Client("Shelf", rpc.WithPolicy(rpc.PolicyRecover)))
		if _, err := client.Echo(r.Context(), []byte("x")); rpc.CodeOf(err) != rpc.Unavailable || r.runs.Load() != 2 {
			t.Errorf("%v after %d runs; want unavailable after 2", err, r.runs.Load())
		}
		r.regions(0)
	})
}
