package simrack_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// lingering is a service whose calls last, or have large answers.
type lingering struct{ service.Arrays }

// Echo implements arrays.Arrays.
func (lingering) Echo(ctx context.Context, b []byte) ([]byte, error) {
	switch {
	case bytes.HasPrefix(b, []byte("linger")):
		<-ctx.Done()
		return nil, ctx.Err()
	case bytes.HasPrefix(b, []byte("large")):
		return make([]byte, 20<<10), nil
	}
	return b, nil
}

// TestHostile_CalleeOwners: one program with 64 nodes calls a service from each of them, in as many slots as it likes, with calls that do
// not end, with large answers, or with answers that it does not forget. The call of another owner is run all the same.
func TestHostile_CalleeOwners(t *testing.T) {
	for name, data := range map[string]string{"calls that run": "linger", "large answers": "large", "calls that have run": "kept"} {
		t.Run(name, func(t *testing.T) {
			const crowd, slots = 64, 12
			cfg, _ := watched("c1", "s1", "s2")
			cfg.LedgerSpace = 512 << 10
			inVirtualTimeWith(t, cfg, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
				nodes := joinAll(t, ctx, r, "c1", "s2")
				caller, callee := nodes[0], nodes[1]
				if err := callee.Export(ctx, "Arrays", arrays.NewArraysProcessor(lingering{}), rpc.WithWorkers(1000)); err != nil {
					t.Fatal(err)
				}
				if err := callee.Export(ctx, "Ping", arrays.NewPingProcessor(service.Ping{})); err != nil {
					t.Fatal(err)
				}
				method, err := rpcpacket.MethodOf("echo")
				if err != nil {
					t.Fatal(err)
				}
				var hostile []*rpc.Node
				incarnations := map[*rpc.Node]uint32{}
				for range crowd {
					n := joinAll(t, ctx, r, "s1")[0]
					hostile = append(hostile, n)
					incarnations[n] = incarnationOf(t, r, n.Address())
				}
				payload, service := arguments(t, ctx, []byte(data+string(make([]byte, 100)))), rackaddr.Service("Arrays").As16()
				id := uint32(0)
				for slot := range uint32(slots) {
					for _, n := range hostile {
						m := rpcpacket.Message{Header: rpcpacket.Header{
							Type: rpcpacket.Call, Flags: rpcpacket.Flags(0).WithPolicy(rpcpacket.PolicyRecover), NameLength: 4, Method: method,
							Service: binary.BigEndian.Uint64(service[8:]),
						}, Payload: payload}
						binary.BigEndian.PutUint32(m.Call[:], id+1)
						m.Call.Derive()
						place(t, r, &m.Header, n.Address(), incarnations[n], slot, 1)
						id++
						r.Host("s1").SendRaw(netip.AddrPortFrom(n.Address(), rackaddr.PortDirect), netip.AddrPortFrom(callee.Address(), rackaddr.PortDirect), m.Append(nil))
						if id%8 == 0 {
							<-time.After(time.Millisecond) // virtual
						}
					}
				}
				served := callee.Stats()
				if served.NoRoom == 0 || served.Accepted < 10 {
					t.Errorf("of %d calls of one owner %d were dropped, %d served: that is no attack", id, served.NoRoom, served.Accepted)
				}
				for i := range 10 {
					began := time.Now()
					within, cancel := context.WithTimeout(ctx, 5*time.Second)
					if err := ping(within, caller, "Ping"); err != nil || time.Since(began) > 100*time.Millisecond {
						t.Errorf("call %d of another owner: %v after %s", i, err, time.Since(began))
					}
					cancel()
				}
			})
		})
	}
}
