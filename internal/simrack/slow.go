package simrack

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc"
)

// slowSwitch is a connection to a switch that takes its time: for Writes, for their
// answers, and for what it says on the stream. (What it is told there goes at once: the
// Gatekeeper sends while it has its turn, and must not wait.)
type slowSwitch struct {
	grpc.ClientConnInterface
	pause func() time.Duration
}

// Invoke implements grpc.ClientConnInterface.
func (s slowSwitch) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if !strings.HasSuffix(method, "/Write") {
		return s.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
	}
	if err := s.wait(ctx); err != nil {
		return err
	}
	err := s.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
	if e := s.wait(ctx); err == nil {
		err = e
	}
	return err
}

// wait waits for a pause, or until ctx ends.
func (s slowSwitch) wait(ctx context.Context) error {
	select {
	case <-time.After(s.pause()):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// NewStream implements grpc.ClientConnInterface.
func (s slowSwitch) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := s.ClientConnInterface.NewStream(ctx, desc, method, opts...)
	if err == nil && desc.ClientStreams {
		stream = slowStream{stream, s}
	}
	return stream, err
}

// slowStream is the stream of packets.
type slowStream struct {
	grpc.ClientStream
	slow slowSwitch
}

// RecvMsg implements grpc.ClientStream.
func (s slowStream) RecvMsg(m any) error {
	if err := s.ClientStream.RecvMsg(m); err != nil {
		return err
	}
	return s.slow.wait(s.Context())
}
