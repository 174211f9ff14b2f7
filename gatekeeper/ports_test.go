package gatekeeper

import (
	"testing"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// What a port is bound to is all that its blade may be; at a port that is bound to
// nothing an open rack admits what no other port is bound to.
func TestPorts_Bound(t *testing.T) {
	ports := map[uint16]Port{1: {Blade: "c1", Kind: control.Compute, Capacity: 4}, 2: {Blade: "m1", Kind: control.Memory, Machine: 7, Capacity: 1 << 20}}
	for _, c := range []struct {
		port  uint16
		open  bool
		hello control.Hello
		want  fault.Code
	}{
		{1, false, control.Hello{Blade: "c1", Kind: control.Compute, Capacity: 4}, fault.OK},
		{1, true, control.Hello{Blade: "c2", Kind: control.Compute}, fault.PermissionDenied},
		{1, true, control.Hello{Blade: "c1", Kind: control.Memory}, fault.PermissionDenied},
		{1, false, control.Hello{Blade: "c1", Kind: control.Compute, Capacity: 5}, fault.PermissionDenied},
		{2, false, control.Hello{Blade: "m1", Kind: control.Memory, Capacity: 1 << 20}, fault.OK},
		{2, false, control.Hello{Blade: "m1", Kind: control.Memory, Machine: 7}, fault.OK},
		{2, false, control.Hello{Blade: "m1", Kind: control.Memory, Machine: 8}, fault.PermissionDenied},
		{3, false, control.Hello{Blade: "c3", Kind: control.Compute}, fault.PermissionDenied},
		{3, true, control.Hello{Blade: "c3", Kind: control.Compute}, fault.OK},
		{3, true, control.Hello{Blade: "c1", Kind: control.Compute}, fault.PermissionDenied},
		{3, true, control.Hello{Blade: "m3", Kind: control.Memory, Machine: 7}, fault.PermissionDenied},
		{3, true, control.Hello{Blade: "m3", Kind: control.Memory, Machine: 8}, fault.OK},
	} {
		cfg := Config{Ports: ports, Open: c.open}
		h := c.hello
		if err := cfg.bound(c.port, &h); fault.CodeOf(err) != c.want {
			t.Errorf("port %d, open %v, %+v: %v, want %v", c.port, c.open, c.hello, err, c.want)
		}
		if c.port == 2 && c.want == fault.OK && h.Machine != 7 {
			t.Errorf("the blade at port 2 has machine id %d", h.Machine)
		}
	}
	for _, p := range ports {
		if got, err := ParsePort(p.String()); err != nil || got != p {
			t.Errorf("%s is read as %+v, %v", p, got, err)
		}
	}
}

// A Gatekeeper that begins with a log takes the blades out of service whose ports are
// bound to others by now.
func TestPorts_Rebound(t *testing.T) {
	inLogged(t, func(s *small) {
		s.stopGatekeeper()
		s.start(Config{Ports: map[uint16]Port{
			s.a.port:  {Blade: s.a.name, Kind: control.Compute},
			s.b.port:  {Blade: "another", Kind: control.Compute},
			s.m1.port: {Blade: s.m1.name, Kind: control.Memory},
		}, Open: true})
		s.settle()
		for _, b := range s.snapshot().Blades {
			if failed := b.Status == StatusFailed; failed != (b.Name == s.b.name) {
				t.Errorf("blade %s is %s: %s", b.Name, b.Status, b.Cause)
			}
		}
	})
}
