package p4rt

import (
	"testing"
	"testing/synctest"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// asksPorts asks for the status of ports.
func (c *controller) asksPorts() {
	c.t.Helper()
	m, err := AskPortStatus()
	if err != nil {
		c.t.Fatal(err)
	}
	c.send(m)
}

// expectPort takes the next message, which tells a port's status.
func (c *controller) expectPort(want Port) {
	c.t.Helper()
	m := c.next()
	if got, ok := ParsePortStatus(m.GetOther()); !ok || got != want {
		c.t.Fatalf("got %v, want %+v", m, want)
	}
}

func TestPortStatus(t *testing.T) {
	virtual(t, func(b *bench) {
		b.srv.SetPort(Port{2, "eth2", false})
		b.srv.SetPort(Port{1, "eth1", true})
		asks, other := b.dial(), b.dial()
		asks.mustBePrimary(1)
		other.arbitrate(2)
		other.expectArbitration(codes.OK, 2)
		asks.expectArbitration(codes.AlreadyExists, 2) // not the primary any more, and told nevertheless
		asks.asksPorts()
		asks.expectPort(Port{1, "eth1", true})
		asks.expectPort(Port{2, "eth2", false})
		b.srv.SetPort(Port{2, "eth2", true})
		asks.expectPort(Port{2, "eth2", true})
		b.srv.SetPort(Port{2, "eth2", true}) // nothing new
		asks.silent()
		b.srv.RemovePort(1)
		asks.expectPort(Port{1, "eth1", false})
		b.srv.RemovePort(1)
		asks.asksPorts()
		asks.expectPort(Port{2, "eth2", true})
		asks.silent()
		other.silent() // did not ask
	})
}

// Of a port that changes while its controller does not read, the controller hears the
// last status.
func TestPortStatus_SlowController(t *testing.T) {
	virtual(t, func(b *bench) {
		c := b.dial()
		c.mustBePrimary(1)
		c.asksPorts()
		c.pause()
		const changes = 100_001
		for n := range changes {
			b.srv.SetPort(Port{1, "eth1", n%2 == 0})
			b.srv.SetPort(Port{2, "eth2", n%2 == 1})
		}
		c.resume()
		last := map[Port]bool{}
		seen := 0
		for len(last) < 2 {
			p, ok := ParsePortStatus(c.next().GetOther())
			if !ok {
				t.Fatal("not a port's status")
			}
			if seen++; seen > changes {
				t.Fatal("every change has waited")
			}
			if p == (Port{1, "eth1", true}) || p == (Port{2, "eth2", false}) {
				last[p] = true
			} else {
				delete(last, Port{p.Number, p.Name, !p.Up})
			}
		}
		synctest.Wait()
	})
}

func TestParsePortStatus_Malformed(t *testing.T) {
	number, truth := structpb.NewNumberValue, structpb.NewBoolValue
	for name, fields := range map[string]map[string]*structpb.Value{
		"empty": {}, "no port": {"up": truth(true)}, "no status": {"port": number(1)}, "negative": {"port": number(-1), "up": truth(true)},
		"not whole": {"port": number(1.5), "up": truth(true)}, "too large": {"port": number(1 << 40), "up": truth(true)},
		"a word": {"port": structpb.NewStringValue("1"), "up": truth(true)},
	} {
		a, err := anypb.New(&structpb.Struct{Fields: fields})
		if err != nil {
			t.Fatal(err)
		}
		if p, ok := ParsePortStatus(a); ok {
			t.Errorf("%s: %+v", name, p)
		}
	}
	for name, a := range map[string]*anypb.Any{
		"nothing": nil, "no struct": {TypeUrl: "type.googleapis.com/p4.v1.WriteRequest"}, "cut off": {TypeUrl: "type.googleapis.com/google.protobuf.Struct", Value: []byte{0x0a, 5}},
	} {
		if p, ok := ParsePortStatus(a); ok {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

// What does not ask for ports is refused, and the stream goes on.
func TestPortStatus_NotAsked(t *testing.T) {
	virtual(t, func(b *bench) {
		c := b.dial()
		c.mustBePrimary(1)
		for name, m := range map[string]proto.Message{
			"no": &structpb.Struct{Fields: map[string]*structpb.Value{PortStatus: structpb.NewBoolValue(false)}}, "another struct": &structpb.Struct{},
			"another type": &p4v1.WriteRequest{DeviceId: device, ElectionId: c.election},
		} {
			a, err := anypb.New(m)
			if err != nil {
				t.Fatal(err)
			}
			c.send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Other{Other: a}})
			if e := c.next().GetError(); e.GetCanonicalCode() != int32(codes.Unimplemented) || !proto.Equal(e.GetOther().GetOther(), a) {
				t.Fatalf("%s: %v", name, e)
			}
		}
		b.srv.SetPort(Port{1, "eth1", true})
		c.silent()
		ctx, cancel := limited()
		defer cancel()
		r, err := c.Capabilities(ctx, &p4v1.CapabilitiesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		var s structpb.Struct
		if err := r.GetExperimental().UnmarshalTo(&s); err != nil || !s.GetFields()[PortStatus].GetBoolValue() {
			t.Fatalf("got %v, %v", r, err)
		}
	})
}
