package rpc_test

import (
	"testing"

	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/internal/testrack"
	"github.com/bifrost-rack/bifrost/rpc/internal/testsvc"
)

// BenchmarkExactly is what the runtime's share of exactly-once costs: a ping on a
// wire in memory, with a ledger at a memory server there, against policy none.
func BenchmarkExactly(b *testing.B) {
	for name, policy := range map[string]rpc.Policy{"none": rpc.PolicyNone, "recover": rpc.PolicyRecover} {
		b.Run(name, func(b *testing.B) {
			r := testrack.New(b, wire.Config{})
			server, client := joinNode(b, r, "server"), joinNode(b, r, "client")
			if err := server.Export(b.Context(), "Test", testsvc.NewTestProcessor(&testsvc.Handler{})); err != nil {
				b.Fatal(err)
			}
			c := testsvc.NewTestClient(client.Client("Test", rpc.WithPolicy(policy)))
			b.ReportAllocs()
			for b.Loop() {
				if err := c.Ping(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
