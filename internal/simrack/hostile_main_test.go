package simrack_test

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
)

// TestHostile_Main is row 10 for durable mains. A program knows the id of a
// main, as all do whom the main has called. It asks for what the main has allocated, after the main's node
// was forgotten and before its next run. The next run allocates as the first one did.
func TestHostile_Main(t *testing.T) {
	cfg, _ := watched("c1", "s1")
	var asked, answered atomic.Pointer[dsmpacket.Header]
	cfg.OnFrame = func(f wire.Frame) {
		u, err := frame.ParseUDP6(f.Data)
		if err != nil || u.Dst.Port() != rackaddr.PortDSM || f.Stage != wire.Arrived {
			return
		}
		m, _, err := dsmpacket.Parse(u.Payload)
		switch {
		case err != nil:
		case m.Kind == dsmpacket.Request && m.Execution != [16]byte{} && f.ToSwitch && f.Host == "c1":
			asked.Store(&m)
		case m.Kind != dsmpacket.Request && m.Request == 1000 && !f.ToSwitch: // the switch's refusal, too
			answered.Store(&m)
		}
	}
	inVirtualTimeWith(t, cfg, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		h := &hostile{r, t, ctx, "s1"}
		stranger := joinAll(t, ctx, r, "s1")[0]
		run := func(last error) (p dsm.Pointer) {
			ended := make(chan error, 1)
			_, err := r.Run("c1", "job", func(ctx context.Context, j join.Joiner, _ control.Start) error {
				node, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName("job"), rpc.WithLogger(slog.New(slog.DiscardHandler)))
				if err == nil {
					err = rpc.Main(ctx, node, "job", func(ctx context.Context, _ []byte) (err error) {
						if p, err = rpc.Memory(ctx).Alloc(ctx, 64); err == nil {
							err = last
						}
						return err
					})
				}
				ended <- err
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := <-ended; rpc.CodeOf(err) != rpc.CodeOf(last) {
				t.Errorf("the main ends: %v", err)
			}
			return p
		}
		first := run(errors.New("a crash"))
		h.until("the main's node is awaited", func(s *gatekeeper.Snapshot) bool { return len(s.Nodes) == 2 && !s.Nodes[1].Awaited.IsZero() })
		s, err := r.Gatekeeper().Snapshot(ctx)
		if err == nil {
			err = r.Gatekeeper().ForgetNode(ctx, s.Nodes[1].Address)
		}
		if err != nil {
			t.Fatal(err)
		}
		h.until("the main's node is gone", func(s *gatekeeper.Snapshot) bool { return len(s.Nodes) == 1 && len(s.Regions) == 0 })
		m := *asked.Load()
		m.Request, m.Floor, m.Incarnation, m.Execution = 1000, 0, incarnationOf(t, r, stranger.Address()), endpoint.MainID("job")
		r.Host("s1").SendRaw(netip.AddrPortFrom(stranger.Address(), rackaddr.PortDSM),
			netip.AddrPortFrom(first.With(dsmpacket.OpAlloc).Addr(), rackaddr.PortDSM), m.Append(nil))
		<-time.After(time.Second) // virtual: it has arrived
		if answered.Load() == nil {
			t.Error("nobody has answered the stranger")
		}
		if second := run(nil); first.IsNil() || second.IsNil() {
			t.Errorf("the main has got %s in its first run, %s in the second", first, second)
		}
	})
}
