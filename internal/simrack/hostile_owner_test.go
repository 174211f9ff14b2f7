package simrack_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/rpc"
)

// TestHostile_Owners: one program with many nodes writes all it can into the ledger of each of them. Calls of others go on,
// and one that has begun before has the last eighth of its ledger.
func TestHostile_Owners(t *testing.T) {
	cfg, _ := watched("c1", "s1", "s2")
	cfg.LedgerSpace = 64 << 10
	inVirtualTimeWith(t, cfg, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		nodes := joinAll(t, ctx, r, "c1", "s2")
		caller, callee := nodes[0], nodes[1]
		if err := callee.Export(ctx, "Arrays", arrays.NewArraysProcessor(service.Arrays{})); err != nil {
			t.Fatal(err)
		}
		echo := func(what string) {
			t.Helper()
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			if _, err := arrays.NewArraysClient(caller.Client("Arrays", rpc.WithPolicy(rpc.PolicyRecover))).Echo(ctx, []byte("kept")); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		echo("before")
		server := r.MemoryServer("m1")
		const greedy = 24
		blades := make([]string, greedy)
		for i := range blades {
			blades[i] = "s1"
		}
		hostile := joinAll(t, ctx, r, blades...)
		<-time.After(time.Second) // virtual: all have their ledgers
		for i, n := range hostile {
			name := control.LedgerOf(n.Address())
			is, ok := server.LedgerState(name)
			if !ok {
				t.Fatalf("node %d has no ledger", i)
			}
			send := func(q dsmpacket.LedgerRequest) {
				q.Ledger, q.Run, q.Incarnation = n.Address().As16(), 1, 1
				r.Host("s1").SendRaw(netip.AddrPortFrom(n.Address(), rackaddr.PortDSM),
					netip.AddrPortFrom(dsmpacket.LedgerAddress(rackaddr.DefaultDSMPrefix, 1, q.Op).Addr(), rackaddr.PortDSM), q.Append(nil))
			}
			send(dsmpacket.LedgerRequest{Op: dsmpacket.LedgerOpen})
			for number := is.Next; number < is.Next+70; number++ {
				send(dsmpacket.LedgerRequest{Op: dsmpacket.LedgerAppend, Chunk: dsmpacket.Chunk{Number: number, Data: make([]byte, 1000)}})
				if number%16 == 0 {
					<-time.After(10 * time.Millisecond) // virtual: they have arrived
				}
			}
		}
		<-time.After(time.Second) // virtual: all have arrived
		space := server.Ledgers()
		if space.Used < space.Total/3 {
			t.Errorf("the ledgers of %d nodes take %d of %d bytes: that is no attack; %v", greedy, space.Used, space.Total, server.Metrics().RefusedLedgers)
		}
		for i := range 100 {
			echo(fmt.Sprint("call ", i))
		}
		for o, n := range server.RefusedOwners() {
			if o.Port == 0 || n == 0 {
				t.Errorf("refused to %v: %d", o, n)
			}
		}
		if len(server.RefusedOwners()) != 1 {
			t.Errorf("refused: %v", server.RefusedOwners())
		}
	})
}
