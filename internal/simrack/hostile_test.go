package simrack_test

import (
	"context"
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
)

// The tests of docs/security.md's table: each is a hole that was found, tried through the
// switch.

// hostile is a program with raw sockets on a blade.
type hostile struct {
	*simrack.Rack
	t     *testing.T
	ctx   context.Context
	blade string
}

// control sends a control request from the blade's port, as its daemon would.
func (h *hostile) control(from netip.Addr, boot uint64, kind control.Kind, body any) {
	h.t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		h.t.Fatal(err)
	}
	p := control.NewPeer(control.PeerConfig{Boot: boot})
	if _, err := p.Ask(time.Now(), kind, b); err != nil {
		h.t.Fatal(err)
	}
	for _, b := range p.Ready().Send {
		h.Host(h.blade).SendRaw(netip.AddrPortFrom(from, rackaddr.PortControl), netip.AddrPortFrom(rackaddr.Gatekeeper, rackaddr.PortControl), b)
	}
}

// until waits until the Gatekeeper's state is as wanted, or fails the test.
func (h *hostile) until(what string, good func(*gatekeeper.Snapshot) bool) gatekeeper.Snapshot {
	h.t.Helper()
	for range 1000 {
		s, err := h.Gatekeeper().Snapshot(h.ctx)
		if err != nil {
			h.t.Fatal(err)
		}
		if good(&s) {
			return s
		}
		<-time.After(100 * time.Millisecond) // virtual
	}
	h.t.Fatalf("%s: not within 100 s", what)
	return gatekeeper.Snapshot{}
}

// status is what the Gatekeeper says of a blade, "" if it knows none of that name.
func status(s *gatekeeper.Snapshot, blade string) string {
	for _, b := range s.Blades {
		if b.Name == blade {
			return b.Status
		}
	}
	return ""
}

// TestHostile_Ports is row 4: a port's program registers neither as a memory blade nor
// under another blade's name or machine id, also when that blade is away.
func TestHostile_Ports(t *testing.T) {
	inVirtualTime(t, 1, wire.Impairment{}, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		h := &hostile{r, t, ctx, "s1"}
		for _, b := range []string{"s1", "m1"} {
			if err := r.CrashBlade(b); err != nil {
				t.Fatal(err)
			}
			h.until(b+" fails", func(s *gatekeeper.Snapshot) bool { return status(s, b) == "failed" })
		}
		r.Host("s1").SetLink(true)
		mac := r.Host("s1").MAC().String()
		up := func(status string) bool { return status != "" && status != "failed" }
		for i, hello := range []control.Hello{
			{Blade: "evil", Kind: control.Memory, Capacity: 1 << 40},
			{Blade: "evil", Kind: control.Compute, Capacity: 1},
			{Blade: "m1", Kind: control.Memory, Machine: 1, Capacity: 256 << 20},
			{Blade: "s1", Kind: control.Memory, Machine: 1, Capacity: 256 << 20},
		} {
			hello.MAC, hello.Boot = mac, uint64(1000+i)
			before := h.until("", func(*gatekeeper.Snapshot) bool { return true })
			h.control(netip.MustParseAddr("fe80::666"), hello.Boot, control.KindHello, hello)
			s := h.until("an answer", func(s *gatekeeper.Snapshot) bool {
				return s.Counters.Refused > before.Counters.Refused || up(status(s, hello.Blade))
			})
			if s.Counters.Refused == before.Counters.Refused || status(&s, "evil") != "" {
				t.Errorf("the program at the port of s1 is %s blade %s now", hello.Kind, hello.Blade)
			}
		}
	})
}
