package softswitch

import (
	"net"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/gnmi"
	"github.com/vishvananda/netlink"
)

// TestGNMI_Interfaces: of a port on an interface gNMI has what the kernel says of that; a port that is disabled is down, and so is one whose other end is, which
// is enabled still. Who waits is told of each change.
func TestGNMI_Interfaces(t *testing.T) {
	t.Run("Go", func(t *testing.T) {
		s, a, _ := joined(t, 1500)
		interfaces(t, s, a)
	})
	t.Run("kernel", func(t *testing.T) {
		r, a, _ := newKernelRack(t, 1500)
		interfaces(t, r.sw, a)
	})
}

func interfaces(t *testing.T, s *Switch, a *lab) {
	t.Helper()
	until := func(what string, is func(gnmi.Port) bool) gnmi.Port {
		t.Helper()
		end := time.After(patience)
		for {
			changed := s.PortsChanged()
			p := s.GNMIPorts()[0]
			if is(p) {
				return p
			}
			select {
			case <-changed:
			case <-end:
				t.Fatalf("not %s: %+v", what, p)
			}
		}
	}
	p := until("up", func(p gnmi.Port) bool { return p.Up })
	mac, err := net.ParseMAC(p.MAC)
	if err != nil || len(mac) != 6 || p.Name != a.iface || p.Number != 1 || p.MTU != 1500 || p.Index == 0 || !p.Enabled {
		t.Errorf("%+v, %v", p, err)
	}
	changeHost(t, a.ns, netlink.LinkSetDown)
	until("down, and enabled", func(p gnmi.Port) bool { return !p.Up && p.Enabled })
	changeHost(t, a.ns, netlink.LinkSetUp)
	until("up again", func(p gnmi.Port) bool { return p.Up })
	for _, enable := range []bool{false, true} {
		if err := s.EnablePort(1, enable); err != nil {
			t.Fatal(err)
		}
		until("as it was set", func(p gnmi.Port) bool { return p.Enabled == enable && p.Up == enable })
	}
	if err := s.EnablePort(9, true); err == nil {
		t.Error("a port that is not there was enabled")
	}
}
