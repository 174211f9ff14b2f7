package p4rt

import (
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// StreamWrites is the field of CapabilitiesResponse.experimental, which is a
// google.protobuf.Struct, that is true where stream writes are understood (see
// the package comment).
const StreamWrites = "stream_writes"

// experimental is what Capabilities announces beside the version.
func (s *Server) experimental() (*anypb.Any, error) {
	fields := map[string]*structpb.Value{PortStatus: structpb.NewBoolValue(true)}
	if !s.cfg.NoStreamWrites {
		fields[StreamWrites] = structpb.NewBoolValue(true)
	}
	return anypb.New(&structpb.Struct{Fields: fields})
}

// other handles an architecture-specific message; an error ends the stream.
func (s *Server) other(c *client, m *anypb.Any) error {
	switch {
	case !s.cfg.NoStreamWrites && m.MessageIs((*p4v1.WriteRequest)(nil)):
		return s.streamWrite(c, m.GetValue())
	case asksPortStatus(m):
		s.askPorts(c)
		return nil
	}
	s.streamError(c, status.Error(codes.Unimplemented, "no architecture-specific messages of this type are supported"),
		&p4v1.StreamError{Details: &p4v1.StreamError_Other{Other: &p4v1.StreamOtherError{Other: m}}})
	return nil
}

// streamWrite carries out a WriteRequest that came on c's stream, before the
// stream's next message is looked at.
func (s *Server) streamWrite(c *client, b []byte) error {
	r := &p4v1.WriteRequest{}
	if err := proto.Unmarshal(b, r); err != nil {
		return status.Errorf(codes.InvalidArgument, "stream write: %v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sc, err := s.mayChange(r)
	switch {
	case err != nil:
		return err
	case !s.arb.leads(c, r.GetRole()):
		return status.Errorf(codes.PermissionDenied, "another stream is the primary's of role %q", r.GetRole())
	case r.GetAtomicity() != p4v1.WriteRequest_CONTINUE_ON_ERROR:
		return status.Errorf(codes.Unimplemented, "stream write: atomicity %v", r.GetAtomicity())
	case s.pipe == nil:
		return errNoPipeline
	case len(r.GetUpdates()) == 0:
		return answerBarrier(c)
	}
	defer s.keep()
	return s.pipe.inOrder(sc, r.GetUpdates())
}

// answerBarrier tells a controller that all it has sent before is carried out.
func answerBarrier(c *client) error {
	a, err := anypb.New(&p4v1.WriteResponse{})
	if err != nil {
		return err
	}
	m := &p4v1.StreamMessageResponse{Update: &p4v1.StreamMessageResponse_Other{Other: a}}
	if !c.out.Offer(m, len(a.GetTypeUrl())) {
		return status.Error(codes.ResourceExhausted, "the controller does not read its stream: no room for the answer to a barrier")
	}
	return nil
}

// inOrder applies updates one after the other, up to the first that fails. What a
// deletion or modification has taken away is gone for every packet, those in
// flight too, before the next update gives anything, and when inOrder returns.
// What was given at the end is there for all that a later packet-out brings about.
func (p *pipeline) inOrder(sc *scope, updates []*p4v1.Update) error {
	taken := false // something has been taken away, which packets in flight may still have
	settle := func() {
		if taken {
			p.dp.Settle()
			taken = false
		}
	}
	defer settle()
	for i, u := range updates {
		if u.GetType() != p4v1.Update_DELETE {
			settle()
		}
		taken = taken || u.GetType() != p4v1.Update_INSERT
		if err := p.permitted(sc, u); err != nil {
			return batchError("updates", stoppedAt(i, err, len(updates)))
		}
	}
	return nil
}

// stoppedAt are the errors of n updates of which number i has failed.
func stoppedAt(i int, err error, n int) []error {
	errs := make([]error, n)
	for j := i + 1; j < n; j++ {
		errs[j] = status.Errorf(codes.Aborted, "not attempted, because update %d failed", i)
	}
	errs[i] = err
	return errs
}
