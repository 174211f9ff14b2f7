package rpc_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc"
)

// TestCallsByReferenceWaitForLittle: a program that allocates, writes, calls, reads and
// frees again and again waits for none of the allocations and frees: a call takes five
// round trips, those of its data and its own.
func TestCallsByReferenceWaitForLittle(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const hop = time.Millisecond
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		rack, err := simrack.Start(ctx, simrack.Config{
			Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}, Impair: wire.Impairment{Delay: hop},
		})
		must(err)
		server, err := rack.Join(ctx, "s1", "server")
		must(err)
		must(server.Export(ctx, "Reverser", arrays.NewArraysProcessor(reverser{})))
		caller, err := rack.Join(ctx, "c1", "caller")
		must(err)
		memory := caller.Memory()
		client := arrays.NewArraysClient(caller.Client("Reverser", rpc.WithPolicy(rpc.PolicyNone)))
		once := func() {
			p, err := memory.Alloc(ctx, 64)
			must(err)
			_, err = memory.Write(ctx, p, []byte("abc"))
			must(err)
			got, err := client.EchoRef(ctx, rpc.GlobalPointer(p), 3)
			must(err)
			q, b := dsm.Pointer(got.Address), make([]byte, 3)
			_, err = memory.Read(ctx, q, b)
			must(err)
			if string(b) != "cba" {
				t.Fatalf("got %q", b)
			}
			must(memory.Free(ctx, p))
			must(memory.Free(ctx, q))
		}
		const calls, hops = 100, 5 * 4
		for range calls {
			once()
		}
		begun := time.Now()
		for range calls {
			once()
		}
		// A free or an allocation that somebody waits for would be four hops more.
		if took := time.Since(begun) / calls; took > (hops+1)*hop {
			t.Errorf("a call takes %v, want %v", took, hops*hop)
		}
		<-time.After(time.Minute)
		s, err := rack.Gatekeeper().Snapshot(ctx)
		must(err)
		if len(s.Regions) != 0 {
			t.Errorf("%d regions are left", len(s.Regions))
		}
		must(caller.Close(ctx))
		must(server.Close(ctx))
		must(rack.Close())
	})
}
