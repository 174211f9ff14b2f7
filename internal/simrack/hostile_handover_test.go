package simrack_test

import (
	"context"
	"encoding/binary"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// TestHostile_HandOver is rows 1 and 2 for direct calls. A
// callee knows the ids of the executions that wait for it. It hands over their calls as its own, and
// its callers' next ones, and answers them. All true calls run, and only true answers count.
func TestHostile_HandOver(t *testing.T) {
	for name, fronted := range map[string]bool{"a session's call": false, "an execution's call": true} {
		t.Run(name, func(t *testing.T) {
			cfg, seen := watched("c1", "c2", "s1", "s2")
			inVirtualTimeWith(t, cfg, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
				nodes := joinAll(t, ctx, r, "c1", "c2", "s1", "s2")
				caller, front, evil, callee := nodes[0], nodes[1], nodes[2], nodes[3]
				a := &handing{first: arrays.NewPingClient(callee.Client("Evil", rpc.WithPolicy(rpc.PolicyRecover)))}
				e := &thief{t: t, ctx: ctx, rack: r, seen: seen, evil: evil.Address(), caller: caller.Address()}
				if fronted {
					e.caller = front.Address()
				}
				echo := func(n *rpc.Node) *arrays.ArraysClient {
					return arrays.NewArraysClient(n.Client("Arrays", rpc.WithPolicy(rpc.PolicyRecover)))
				}
				for _, x := range []struct {
					node *rpc.Node
					name string
					what any
				}{
					{callee, "Arrays", a}, {evil, "Evil", e}, {front, "Front", fronting{echo(front), func() {}}},
				} {
					var err error
					if s, ok := x.what.(arrays.Arrays); ok {
						err = x.node.Export(ctx, x.name, arrays.NewArraysProcessor(s))
					} else {
						err = x.node.Export(ctx, x.name, arrays.NewPingProcessor(x.what.(arrays.Ping)))
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				ctx, cancel := context.WithTimeout(ctx, time.Minute)
				defer cancel()
				if fronted {
					if err := arrays.NewPingClient(caller.Client("Front", rpc.WithPolicy(rpc.PolicyRecover))).Ping(ctx); err != nil {
						t.Errorf("a call on behalf of another one: %v", err)
					}
				} else if got, err := echo(caller).Echo(ctx, []byte("true")); err != nil || string(got) != "true" {
					t.Errorf("a call: %q, %v", got, err)
				}
				for range 4 {
					if got, err := echo(caller).Echo(ctx, []byte("next")); err != nil || string(got) != "next" {
						t.Errorf("a next call: %q, %v", got, err)
					}
				}
				s, err := r.Gatekeeper().Snapshot(ctx)
				if err != nil || s.Counters.Unproven != uint64(e.tried.Load()) || e.tried.Load() == 0 {
					t.Errorf("%d of %d attempts are counted as unproven, %v", s.Counters.Unproven, e.tried.Load(), err)
				}
			})
		})
	}
}

// handing is a service that calls another one first.
type handing struct {
	service.Arrays
	first *arrays.PingClient
}

// Echo implements arrays.Arrays.
func (h *handing) Echo(ctx context.Context, b []byte) ([]byte, error) {
	if err := h.first.Ping(ctx); err != nil {
		return nil, err
	}
	return b, nil
}

// thief is a service that tries to take the call of whoever has called it.
type thief struct {
	t            *testing.T
	ctx          context.Context
	rack         *simrack.Rack
	seen         *atomic.Pointer[rpcpacket.Message]
	evil, caller netip.Addr
	number       uint64
	tried        atomic.Int64
}

// Ping implements arrays.Ping.
func (h *thief) Ping(ctx context.Context) error {
	got := *h.seen.Load()
	if h.number > 0 || !got.Flags.Direct() {
		return nil
	}
	stolen := got.Parent // the call that waits for this one
	ids := []rpcpacket.ID{stolen}
	if rpcpacket.Owns(h.caller, stolen.Session()) {
		for ahead := range uint64(4) {
			ids = append(ids, rpcpacket.SessionID(stolen.Session(), stolen.Sequence()+1+ahead))
		}
	}
	own := got.Trailer[:24] // what proves that the call is for us
	for _, id := range ids {
		for _, origin := range [][]byte{make([]byte, 24), own} {
			h.take(id, origin)
		}
	}
	select {
	case <-time.After(time.Second): // virtual: all have arrived
	case <-ctx.Done():
	}
	return nil
}

// take hands a call over, and answers it.
func (h *thief) take(id rpcpacket.ID, origin []byte) {
	h.number++
	h.tried.Add(1)
	s := rackaddr.Service("Evil").As16()
	method, err := rpcpacket.MethodOf("ping")
	if err != nil {
		h.t.Error(err)
	}
	inner := rpcpacket.Message{Header: rpcpacket.Header{
		Type: rpcpacket.Call, Flags: (rpcpacket.FlagHeld | rpcpacket.FlagEnlist).WithPolicy(rpcpacket.PolicyRecover),
		Call: id, Method: method, NameLength: 4, Service: binary.BigEndian.Uint64(s[8:]), CallerIncarnation: 1,
	}}
	if !id.Derived() {
		inner.Flags |= rpcpacket.FlagSession
	}
	from := h.caller.As16()
	m := rpcpacket.Message{Header: rpcpacket.Header{
		Type: rpcpacket.Call, Flags: (rpcpacket.FlagHeld | rpcpacket.FlagEnlist).WithPolicy(rpcpacket.PolicyRecover), CallerIncarnation: 1,
		Call: endpoint.ChildID(nil, id, 1, uint32(h.number)), Service: inner.Service, Order: h.number,
	}, Payload: inner.Append(append(append(from[:], 1), origin...))}
	send := func(to netip.Addr, m *rpcpacket.Message) {
		h.rack.Host("s1").SendRaw(netip.AddrPortFrom(h.evil, rackaddr.PortRPC), netip.AddrPortFrom(to, rackaddr.PortRPC), m.Append(nil))
	}
	send(rackaddr.Gatekeeper, &m)
	out := arrays.ArraysEchoResult{Success: []byte("forged")}
	answer := inner
	answer.Type, answer.CalleeIncarnation, answer.Payload = rpcpacket.Reply, 1, encode(h.t, h.ctx, &out)
	answer.Flags &^= rpcpacket.FlagEnlist
	send(h.caller, &answer)
}
