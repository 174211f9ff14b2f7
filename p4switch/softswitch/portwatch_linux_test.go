package softswitch

import (
	"context"
	"net"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/p4rt"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"github.com/vishvananda/netlink"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// portStream is a controller's stream that has asked for the status of ports.
type portStream struct {
	t      *testing.T
	stream p4v1.P4Runtime_StreamChannelClient
}

func watchPorts(t *testing.T, s *Switch) *portStream {
	t.Helper()
	l, err := net.Listen("unix", t.TempDir()+"/p4rt")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	conn, err := grpc.NewClient("unix:"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(func() {
		cancel()
		_ = conn.Close()
		_ = s.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	p := &portStream{t: t}
	if p.stream, err = p4v1.NewP4RuntimeClient(conn).StreamChannel(ctx); err != nil {
		t.Fatal(err)
	}
	ask, err := p4rt.AskPortStatus()
	if err == nil {
		err = p.stream.Send(ask)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// expect takes messages up to the one that tells a port's state.
func (p *portStream) expect(want p4rt.Port) {
	p.t.Helper()
	for {
		m, err := p.stream.Recv()
		if err != nil {
			p.t.Fatalf("waiting for %+v: %v", want, err)
		}
		if got, ok := p4rt.ParsePortStatus(m.GetOther()); ok && got == want {
			return
		}
	}
}

// A controller hears that a cable's other end goes down and comes up, that the
// interface is removed and comes back, and that the port is detached.
func TestPortStatus(t *testing.T) {
	s, a, b := joined(t, 1500)
	p := watchPorts(t, s)
	p.expect(p4rt.Port{Number: 1, Name: a.iface, Up: true})
	p.expect(p4rt.Port{Number: 2, Name: b.iface, Up: true})
	changeHost(t, b.ns, netlink.LinkSetDown)
	p.expect(p4rt.Port{Number: 2, Name: b.iface})
	changeHost(t, b.ns, netlink.LinkSetUp)
	p.expect(p4rt.Port{Number: 2, Name: b.iface, Up: true})
	b.unplug()
	p.expect(p4rt.Port{Number: 2, Name: b.iface})
	b.plug(1500)
	p.expect(p4rt.Port{Number: 2, Name: b.iface, Up: true})
	if err := s.Detach(1); err != nil {
		t.Fatal(err)
	}
	p.expect(p4rt.Port{Number: 1, Name: a.iface})
}

// Of ports in the same process, who has them tells.
func TestPortStatus_SameProcess(t *testing.T) {
	s, err := New(Config{DeviceID: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Attach(1, func([]byte) {}); err != nil {
		t.Fatal(err)
	}
	p := watchPorts(t, s)
	p.expect(p4rt.Port{Number: 1, Up: true})
	if err := s.SetUp(1, false); err != nil {
		t.Fatal(err)
	}
	p.expect(p4rt.Port{Number: 1})
	if s.Ports()[0].Up {
		t.Error("the port's counters say that it is up")
	}
	if err := s.SetUp(2, true); err == nil {
		t.Error("no such port, and no error")
	}
}
