package p4rt

import (
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// notice is an arbitration update for one client.
type notice struct {
	to  *client
	msg *p4v1.MasterArbitrationUpdate
}

func deliver(ns []notice) {
	for _, n := range ns {
		n.to.out.Replace(&p4v1.StreamMessageResponse{Update: &p4v1.StreamMessageResponse_Arbitration{Arbitration: n.msg}}, isNotice)
	}
}

// isNotice finds older notices: a newer one tells all that they do.
func isNotice(m proto.Message) bool {
	r, ok := m.(*p4v1.StreamMessageResponse)
	return ok && r.GetArbitration() != nil
}

// notices builds the updates for the clients of r that the filter lets through
// (section "Client Arbitration Notifications").
func (a *arbiter) notices(r *role, havePrimary bool, to func(*client) bool) []notice {
	var ns []notice
	for _, c := range r.clients {
		if to != nil && !to(c) {
			continue
		}
		m := &p4v1.MasterArbitrationUpdate{DeviceId: a.device, ElectionId: r.highest, Status: &spb.Status{}}
		if r.name != "" {
			m.Role = &p4v1.Role{Name: r.name, Config: r.config}
		}
		switch {
		case r.primary == c:
			m.Status.Message = "you are primary"
		case havePrimary:
			m.Status.Code, m.Status.Message = int32(codes.AlreadyExists), "there is another primary"
		default:
			m.Status.Code, m.Status.Message = int32(codes.NotFound), "there is no primary"
		}
		ns = append(ns, notice{c, m})
	}
	return ns
}
