package p4rt

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/shared/outstream"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// StreamChannel implements the RPC of that name: it serves one controller until
// its stream ends. PacketOuts run through the data plane on this goroutine, each
// before the next message is read.
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
		s.other(c, u.Other)
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

// experimental is what Capabilities announces beside the version: a google.protobuf.Struct
// with a field for each of our extensions.
func experimental() (*anypb.Any, error) {
	return anypb.New(&structpb.Struct{Fields: map[string]*structpb.Value{PortStatus: structpb.NewBoolValue(true)}})
}

// other handles an architecture-specific message.
func (s *Server) other(c *client, m *anypb.Any) {
	if asksPortStatus(m) {
		s.askPorts(c)
		return
	}
	s.streamError(c, status.Error(codes.Unimplemented, "no architecture-specific messages of this type are supported"),
		&p4v1.StreamError{Details: &p4v1.StreamError_Other{Other: &p4v1.StreamOtherError{Other: m}}})
}
