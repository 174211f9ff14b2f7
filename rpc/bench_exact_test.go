package rpc_test

import (
	"testing"

	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/internal/model"
	"github.com/bifrost-rack/bifrost/rpc/internal/testrack"
	"github.com/bifrost-rack/bifrost/rpc/internal/testsvc"
)

// BenchmarkExactly is what the runtime's share of exactly-once costs: a ping on a
// wire in memory, with a Gatekeeper that logs in memory, against policy none.
func BenchmarkExactly(b *testing.B) {
	for name, policy := range map[string]rpc.Policy{"none": rpc.PolicyNone, "recover": rpc.PolicyRecover} {
		b.Run(name, func(b *testing.B) {
			gk := model.New(testrack.New(wire.Config{}))
			join := func(name string, number uint64) *rpc.Node {
				s, _, err := gk.Session(name, rackaddr.Node(number))
				if err != nil {
					b.Fatal(err)
				}
				n, err := rpc.Join(join.NewContext(b.Context(), testrack.Fixed(s)), rpc.WithName(name))
				if err != nil {
					b.Fatal(err)
				}
				return n
			}
			server, client := join("server", 1), join("client", 2)
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
			closeNode(b, client)
			closeNode(b, server)
		})
	}
}
