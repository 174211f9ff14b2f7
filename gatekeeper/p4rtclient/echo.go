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

// capabilities is what a switch can do that not every one can.
type capabilities struct {
	ordered bool // it takes stream writes
	ports   bool // it tells the status of ports
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
	return capabilities{ordered: s.GetFields()[p4rt.StreamWrites].GetBoolValue(), ports: s.GetFields()[p4rt.PortStatus].GetBoolValue()}, nil
}

// Echo returns when the switch has answered. On a switch that takes stream writes the
// answer comes behind all packets that it has sent before, and they have been
// received: it is that to a write without updates.
func (s *Session) Echo(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	if !s.ordered {
		_, err := s.client.askCapabilities(ctx)
		return err
	}
	r, err := s.client.request(nil)
	if err != nil {
		return err
	}
	a, err := anypb.New(r)
	if err != nil {
		return err
	}
	answered := make(chan struct{})
	s.echoes.Lock()
	s.waiting = append(s.waiting, answered)
	err = s.offer(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Other{Other: a}}, proto.Size(a))
	s.echoes.Unlock()
	if err != nil {
		s.end(err) // or a later answer would be taken for this one's
		return err
	}
	select {
	case <-answered:
		return nil
	case <-s.done:
		return ErrClosed
	case <-ctx.Done():
		s.end(ctx.Err())
		return ctx.Err()
	}
}

// answered takes the answer to the oldest Echo.
func (s *Session) answered() {
	s.echoes.Lock()
	defer s.echoes.Unlock()
	if len(s.waiting) > 0 {
		close(s.waiting[0])
		s.waiting = s.waiting[1:]
	}
}
