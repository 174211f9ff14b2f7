package simrack_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// A policy that an operator sets is on the next calls, also on those of a node that
// joins later, and after the Gatekeeper was killed; undone, the caller's own counts.
func TestSetPolicy(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		var sent atomic.Int64 // flags of the last call on the wire
		disk := new(wal.Disk)
		r, err := simrack.Start(ctx, simrack.Config{
			Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}, Disk: disk,
			OnFrame: func(f wire.Frame) {
				u, err := frame.ParseUDP6(f.Data)
				if err != nil || !f.ToSwitch || !rackaddr.OfCalls(u.Dst.Port()) {
					return
				}
				if m, err := rpcpacket.Parse(u.Payload); err == nil && m.Type == rpcpacket.Call {
					sent.Store(int64(m.Flags))
				}
			},
		})
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(err)
		defer func() { must(r.Close()) }()
		export(t, ctx, r, "s1")
		join := func(blade string) *rpc.Node {
			n, err := r.Join(ctx, blade, "client")
			must(err)
			return n
		}
		pings := func(when string, n *rpc.Node, want rpc.Policy) {
			t.Helper()
			must(arrays.NewPingClient(n.Client("Ping", rpc.WithPolicy(rpc.PolicyNone))).Ping(ctx))
			if got := rpcpacket.Flags(sent.Load()); got.Policy() != want {
				t.Errorf("%s: sent as %s, flags %x", when, got.Policy(), got)
			}
		}
		heartbeat := func() { <-time.After(2 * time.Second) } // of the rack's time
		old := join("c1")
		pings("before", old, rpc.PolicyNone)
		must(r.Gatekeeper().SetPolicy(ctx, "Ping", "ping", resources.Word{Policy: "tainted"}))
		pings("of a node that joins then", join("s2"), rpc.PolicyTainted)
		heartbeat()
		pings("of a node that was there", old, rpc.PolicyTainted)
		must(r.Gatekeeper().SetPolicy(ctx, "Ping", "", resources.Word{Policy: "recover"}))
		heartbeat()
		pings("with a word on the service", old, rpc.PolicyTainted)
		r.CrashGatekeeper()
		must(r.RestartGatekeeper(ctx))
		heartbeat()
		pings("after a crash of the Gatekeeper", old, rpc.PolicyTainted)
		pings("and of a new node", join("c1"), rpc.PolicyTainted)
		must(r.Gatekeeper().SetPolicy(ctx, "Ping", "ping", resources.Word{}))
		heartbeat()
		pings("with a word on the service only", old, rpc.PolicyRecover)
		must(r.Gatekeeper().SetPolicy(ctx, "Ping", "", resources.Word{}))
		heartbeat()
		pings("undone", old, rpc.PolicyNone)
	})
}
