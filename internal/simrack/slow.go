package simrack

import (
	"context"
	"time"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// RefuseWrites makes the switch refuse all requests to write, or no longer. Of those that it
// refuses it carries out every other one all the same: their answers are lost.
func (r *Rack) RefuseWrites(on bool) { r.refuses.Store(on) }

// hesitant is a Gatekeeper's connection to a switch that refuses writes (RefuseWrites), does not
// hear of anything (Config.Sends), or takes its time (Config.Pause): for Writes, for their answers, and for what it says on
// the stream. (What it is told there goes at once: the Gatekeeper sends while it has its
// turn, and must not wait.)
type hesitant struct{ rack *Rack }

// Invoke implements grpc.ClientConnInterface.
func (h hesitant) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	changes := method == p4v1.P4Runtime_Write_FullMethodName || method == p4v1.P4Runtime_SetForwardingPipelineConfig_FullMethodName
	switch sw := h.rack.Switch(); {
	case changes && !h.sends():
		return errUnsent
	case method == p4v1.P4Runtime_SetForwardingPipelineConfig_FullMethodName && sw != nil && !h.rack.line.isStalled():
		said, _ := metadata.FromOutgoingContext(ctx)
		ctx = metadata.NewIncomingContext(ctx, said)
		_, err := sw.Server().SetForwardingPipelineConfig(ctx, args.(*p4v1.SetForwardingPipelineConfigRequest)) // gRPC would copy the program, which is long
		return err
	case method != p4v1.P4Runtime_Write_FullMethodName:
		return h.rack.conn.Invoke(ctx, method, args, reply, opts...)
	}
	if err := h.wait(ctx); err != nil {
		return err
	}
	refused := h.rack.refuses.Load()
	if refused && h.rack.refused.Add(1)%2 == 1 {
		return errRefused
	}
	err := h.rack.conn.Invoke(ctx, method, args, reply, opts...)
	if e := h.wait(ctx); err == nil {
		err = e
	}
	if refused {
		return errRefused
	}
	return err
}

var errUnsent = status.Error(codes.Unavailable, "simrack: the Gatekeeper sends nothing")

// sends reports whether what the Gatekeeper says reaches the switch.
func (h hesitant) sends() bool { return h.rack.cfg.Sends == nil || h.rack.cfg.Sends() }

var errRefused = status.Error(codes.Unavailable, "simrack: the switch refuses to write")

// wait waits for a pause, or until ctx ends.
func (h hesitant) wait(ctx context.Context) error {
	if h.rack.cfg.Pause == nil {
		return nil
	}
	select {
	case <-time.After(h.rack.cfg.Pause()):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// NewStream implements grpc.ClientConnInterface.
func (h hesitant) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := h.rack.conn.NewStream(ctx, desc, method, opts...)
	if err == nil && desc.ClientStreams && (h.rack.cfg.Pause != nil || h.rack.cfg.Sends != nil) {
		stream = slowStream{stream, h}
	}
	return stream, err
}

// slowStream is the stream of packets.
type slowStream struct {
	grpc.ClientStream
	slow hesitant
}

// SendMsg implements grpc.ClientStream.
func (s slowStream) SendMsg(m any) error {
	if !s.slow.sends() {
		return errUnsent
	}
	return s.ClientStream.SendMsg(m)
}

// RecvMsg implements grpc.ClientStream. What has come while a message took its time comes with it: the stream is late, not narrow.
func (s slowStream) RecvMsg(m any) error {
	asked := time.Now()
	if err := s.ClientStream.RecvMsg(m); err != nil {
		return err
	}
	if time.Now().Equal(asked) {
		return nil
	}
	return s.slow.wait(s.Context())
}
