package softswitch

import (
	"testing"

	pb "github.com/openconfig/gnmi/proto/gnmi"
)

// TestGNMI: a switch's ports are told by gNMI at its P4Runtime address: counters, and the state as it changes. A port can be disabled.
func TestGNMI(t *testing.T) {
	s, conn := tracedSwitch(t, false)
	s.Input(1, datagram(7, "x"))
	c := pb.NewGNMIClient(conn)
	path := func(names ...string) *pb.Path {
		p := &pb.Path{Elem: []*pb.PathElem{{Name: "interfaces"}, {Name: "interface", Key: map[string]string{"name": "port1"}}}}
		for _, n := range names {
			p.Elem = append(p.Elem, &pb.PathElem{Name: n})
		}
		return p
	}
	r, err := c.Get(t.Context(), &pb.GetRequest{Path: []*pb.Path{path("state", "counters", "in-pkts")}, Encoding: pb.Encoding_PROTO})
	if err != nil || r.GetNotification()[0].GetUpdate()[0].GetVal().GetUintVal() != 1 {
		t.Fatalf("%v, %v", r, err)
	}
	stream, err := c.Subscribe(t.Context())
	if err == nil {
		err = stream.Send(&pb.SubscribeRequest{Request: &pb.SubscribeRequest_Subscribe{Subscribe: &pb.SubscriptionList{
			Encoding: pb.Encoding_PROTO, Subscription: []*pb.Subscription{{Path: path("state", "oper-status"), Mode: pb.SubscriptionMode_ON_CHANGE}},
		}}})
	}
	if err != nil {
		t.Fatal(err)
	}
	next := func() string {
		t.Helper()
		r, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if r.GetSyncResponse() {
			return "sync"
		}
		return r.GetUpdate().GetUpdate()[0].GetVal().GetStringVal()
	}
	if a, b := next(), next(); a != "UP" || b != "sync" {
		t.Errorf("told %s, %s", a, b)
	}
	off := &pb.TypedValue{Value: &pb.TypedValue_BoolVal{}}
	if _, err := c.Set(t.Context(), &pb.SetRequest{Update: []*pb.Update{{Path: path("config", "enabled"), Val: off}}}); err != nil {
		t.Fatal(err)
	}
	if got := next(); got != "DOWN" {
		t.Errorf("told %s", got)
	}
	if s.Ports()[0].Up {
		t.Error("the port is up")
	}
}
