package p4rtclient

import (
	"context"
	"fmt"

	"github.com/bifrost-rack/bifrost/p4/p4rt"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// streamWrites is the experimental capability of a switch that takes WriteRequests on
// the stream (package p4rt), which makes them and PacketOuts one sequence.
const streamWrites = "stream_writes"

// writeRequest names the type of what a stream write carries.
const writeRequest = "type.googleapis.com/p4.v1.WriteRequest"

// capabilities is what a switch can do that not every one can.
type capabilities struct {
	tells bool // it takes stream writes
	ports bool // it tells the status of ports
}

// askCapabilities asks the switch what it can do. One that does not know the question can
// do nothing special.
func (c *Client) askCapabilities(ctx context.Context) (can capabilities, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	r, err := c.rpc.Capabilities(ctx, &p4v1.CapabilitiesRequest{})
	if status.Code(err) == codes.Unimplemented {
		return can, nil
	}
	if err != nil {
		return can, fmt.Errorf("ask for capabilities: %w", err)
	}
	var s structpb.Struct
	if r.GetExperimental() == nil || r.GetExperimental().UnmarshalTo(&s) != nil {
		return can, nil
	}
	return capabilities{tells: s.GetFields()[streamWrites].GetBoolValue(), ports: s.GetFields()[p4rt.PortStatus].GetBoolValue()}, nil
}

// MayTell reports whether Tell can be used.
func (s *Session) MayTell() bool { return s.tells }

// Tell has updates made before the switch looks at anything that is sent later on
// this session: what it deletes is in force for every packet before it inserts
// anything. It does not block and gets no answer. If the switch refuses an update, the
// session ends, nothing later is carried out, and the Client's next sessions
// may not tell. An error means that nothing was sent; ErrBusy, that it would
// have had to wait.
func (s *Session) Tell(updates []Update) error {
	if !s.tells {
		return fmt.Errorf("tell: the switch takes no writes on the stream")
	}
	r, err := s.client.request(updates)
	if err != nil {
		return err
	}
	m, err := onStream(r)
	if err != nil {
		return err
	}
	select {
	case <-s.done:
		return ErrClosed
	default:
	}
	if !s.out.Try(m) {
		return s.noRoom()
	}
	return nil
}

// onStream makes a stream write of a request. (anypb.New would sort, which takes
// longer than all the rest.)
func onStream(r *p4v1.WriteRequest) (*p4v1.StreamMessageRequest, error) {
	b, err := proto.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("tell: %w", err)
	}
	return &p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Other{Other: &anypb.Any{TypeUrl: writeRequest, Value: b}}}, nil
}

// Barrier returns when the switch has carried out all that was sent before.
func (s *Session) Barrier(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	passed := make(chan struct{})
	s.barriers.Lock()
	r, _ := s.client.request(nil)
	m, err := onStream(r)
	if err == nil {
		s.waiting = append(s.waiting, passed)
		err = s.offer(m, proto.Size(m))
	}
	s.barriers.Unlock()
	if err != nil {
		s.end(err) // or a later answer would be taken for this one's
		return err
	}
	select {
	case <-passed:
		return nil
	case <-s.done:
		return ErrClosed
	case <-ctx.Done():
		s.end(ctx.Err())
		return ctx.Err()
	}
}

// Echo returns when the switch has answered. On a switch that takes stream writes the
// answer comes behind all packets that it has sent before, and they have been
// received.
func (s *Session) Echo(ctx context.Context) error {
	if s.tells {
		return s.Barrier(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	_, err := s.client.askCapabilities(ctx)
	return err
}

// passed takes the answer to the oldest barrier.
func (s *Session) passed() {
	s.barriers.Lock()
	defer s.barriers.Unlock()
	if len(s.waiting) > 0 {
		close(s.waiting[0])
		s.waiting = s.waiting[1:]
	}
}

// refused reports whether the end of a stream may be the switch's answer to what it
// was told, and not that of a lost connection.
func refused(err error) bool {
	switch status.Code(err) {
	case codes.OK, codes.Unavailable, codes.Canceled, codes.DeadlineExceeded:
		return false
	}
	return true
}
