package simrack_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc"
)

// TestSmallMTU: at the smallest MTU of IPv6 a blade has 64 nodes, one
// of them exports a thousand methods, and what another one leaves behind, more regions than a
// packet names, is reclaimed. No blade fails meanwhile.
func TestSmallMTU(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		rack, err := simrack.Start(ctx, simrack.Config{
			MTU: 1280, Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait},
			Blades: []simrack.Blade{{Name: "c1", Kind: control.Compute}, {Name: "m1", Kind: control.Memory}},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := rack.Close(); err != nil {
				t.Error(err)
			}
		}()
		events := rack.Gatekeeper().Subscribe(ctx)
		left, err := rack.Join(ctx, "c1", "left")
		if err != nil {
			t.Fatal(err)
		}
		const regions = 300
		for range regions {
			if _, err := left.Memory().Alloc(ctx, 64); err != nil {
				t.Fatal(err)
			}
		}
		var n *rpc.Node
		for i := 1; i < 64; i++ {
			if n, err = rack.Join(ctx, "c1", fmt.Sprintf("node-%060d", i)); err != nil {
				t.Fatal(err)
			}
		}
		processor := arrays.NewPingProcessor(service.Ping{})
		for i := range 1000 {
			processor.AddToProcessorMap(fmt.Sprintf("method-%04d", i), processor.ProcessorMap()["ping"])
		}
		if err := n.Export(ctx, "Ping", processor); err != nil {
			t.Error(err)
		}
		if err := left.Close(ctx); err != nil {
			t.Fatal(err)
		}
		<-time.After(10 * time.Second) // ten heartbeats
		if used := rack.MemoryServer("m1").Used(); used != 0 {
			t.Errorf("%d bytes are left of a node that is gone", used)
		}
		snap, err := rack.Gatekeeper().Snapshot(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if len(snap.Nodes) != 63 {
			t.Errorf("%d nodes, want 63", len(snap.Nodes))
		}
		for {
			select {
			case e := <-events:
				if e.Kind == gatekeeper.BladeFailed {
					t.Errorf("blade %s failed: %s", e.Blade, e.Message)
				}
				continue
			default:
			}
			return
		}
	})
}
