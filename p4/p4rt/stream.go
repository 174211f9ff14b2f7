package p4rt

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/bifrost-rack/bifrost/internal/outstream"
	"github.com/bifrost-rack/bifrost/p4/datapath"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// StreamChannel implements the RPC of that name: it serves one controller until
// its stream ends. PacketOuts run through the data plane, and stream writes are
// made, on this goroutine, each before the next message is read.
func (s *Server) StreamChannel(stream p4v1.P4Runtime_StreamChannelServer) error {
	c := &client{out: outstream.New(func(m *outstream.Message) error { return stream.SendMsg(m) }, &s.stats.packetInDrops)}
	ctx, cancel := context.WithCancel(stream.Context())
	var drainer sync.WaitGroup
	drainer.Go(func() { c.out.Drain(ctx) })
	defer func() {
		s.depart(c)
		cancel()
		drainer.Wait()
	}()
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := s.message(c, m); err != nil {
			return err
		}
	}
}

// message handles one message; an error ends the stream.
func (s *Server) message(c *client, m *p4v1.StreamMessageRequest) error {
	switch u := m.GetUpdate().(type) {
	case *p4v1.StreamMessageRequest_Arbitration:
		return s.arbitrate(c, u.Arbitration)
	case *p4v1.StreamMessageRequest_Packet:
		s.packetOut(c, u.Packet)
	case *p4v1.StreamMessageRequest_DigestAck:
		s.digestAck(c, u.DigestAck)
	case *p4v1.StreamMessageRequest_Other:
		return s.other(c, u.Other)
	default:
		s.streamError(c, status.Error(codes.InvalidArgument, "empty stream message"),
			&p4v1.StreamError{Details: &p4v1.StreamError_Other{Other: &p4v1.StreamOtherError{}}})
	}
	return nil
}

// arbitrate runs one transition of section "Rules for Handling
// MasterArbitrationUpdate Messages" to its end.
func (s *Server) arbitrate(c *client, m *p4v1.MasterArbitrationUpdate) error {
	s.turn.Lock()
	defer s.turn.Unlock()
	first, promote, err := s.arb.update(c, m)
	if err != nil {
		return err
	}
	deliver(first)
	if promote {
		// Writes of the previous primary that have begun hold the lock; those
		// behind us find that nobody, or somebody else, is primary.
		s.mu.Lock()
		then := s.arb.promote(c)
		s.elected(c.role.name, m.GetElectionId())
		if p := s.live.Load(); p != nil {
			// What the previous primary did not acknowledge, this one wants to hear.
			for _, d := range p.digests {
				d.forgetAll()
			}
		}
		// What the new primary asks for waits for the lock, so no packet that it can have caused comes before it is known.
		deliver(then)
		s.arb.publish()
		s.mu.Unlock()
		s.replay(c)
		s.log.Info("controller is primary", "role", c.role.name, "election", m.GetElectionId())
	}
	return nil
}

// replay gives a new primary the packets that came while the switch was away.
func (s *Server) replay(c *client) {
	p := s.live.Load()
	if p == nil {
		return
	}
	r, keeps := p.dp.(datapath.Replayer)
	if sc := s.arb.primaryScope(c); keeps && sc != nil && sc.packetIn {
		r.Replay()
	}
}

func (s *Server) depart(c *client) {
	s.forgetPorts(c)
	s.turn.Lock()
	defer s.turn.Unlock()
	deliver(s.arb.leave(c))
}

// packetOut injects a controller's packet (section "Packet I/O").
func (s *Server) packetOut(c *client, m *p4v1.PacketOut) {
	if err := s.inject(c, m); err != nil {
		s.stats.packetOutDrops.Add(1)
		s.streamError(c, err, &p4v1.StreamError{Details: &p4v1.StreamError_PacketOut{PacketOut: &p4v1.PacketOutError{PacketOut: m}}})
		return
	}
	s.stats.packetOuts.Add(1)
}

func (s *Server) inject(c *client, m *p4v1.PacketOut) error {
	sc, p := s.arb.primaryScope(c), s.live.Load()
	switch {
	case sc == nil:
		return status.Error(codes.PermissionDenied, "only the primary may send packets")
	case !sc.packetOut:
		return status.Error(codes.PermissionDenied, "the role may not send packets")
	case p == nil:
		return errNoPipeline
	}
	frame, err := p.info.PacketOut.Encode(m.GetMetadata(), m.GetPayload())
	if err != nil {
		return err
	}
	return datapathError(p.dp.PacketOut(frame))
}

func (s *Server) digestAck(c *client, m *p4v1.DigestListAck) {
	var err error
	sc, p := s.arb.primaryScope(c), s.live.Load()
	switch {
	case sc == nil:
		err = status.Error(codes.PermissionDenied, "only the primary may acknowledge digests")
	case p == nil || p.info.Digests[m.GetDigestId()] == nil:
		err = status.Errorf(codes.InvalidArgument, "no digest has the id %#x", m.GetDigestId())
	case !sc.object(p.info.Name(m.GetDigestId())):
		err = status.Error(codes.PermissionDenied, "the role has no part in this digest")
	default:
		p.digests[m.GetDigestId()].ack(m.GetListId())
		return
	}
	s.streamError(c, err, &p4v1.StreamError{Details: &p4v1.StreamError_DigestListAck{DigestListAck: &p4v1.DigestListAckError{DigestListAck: m}}})
}

// streamError reports an error that does not end the stream (section "Stream
// Error Reporting"). It gives way when the controller does not keep up.
func (s *Server) streamError(c *client, err error, m *p4v1.StreamError) {
	st := status.Convert(err)
	m.CanonicalCode, m.Message = int32(st.Code()), st.Message()
	s.log.Debug("stream error", "code", st.Code(), "error", st.Message())
	c.out.Offer(outstream.NoFlow, &p4v1.StreamMessageResponse{Update: &p4v1.StreamMessageResponse_Error{Error: m}}, proto.Size(m))
}

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
	if !c.out.Offer(outstream.NoFlow, m, len(a.GetTypeUrl())) {
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
			p.dp.Synchronize()
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
