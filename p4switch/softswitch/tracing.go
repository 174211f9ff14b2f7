package softswitch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/gnmi"
	"github.com/bifrost-rack/bifrost/p4switch/trace"
	pb "github.com/openconfig/gnmi/proto/gnmi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Trace traces packets from now on, until the session is stopped or another program is committed. There is one trace at a time; another one is
// datapath.ErrExists. Without a program it is datapath.ErrNotFound. An error of the filter is a *trace.FilterError.
func (s *Switch) Trace(spec trace.Spec) (*trace.Session, error) {
	e := s.exec.Load()
	if e == nil {
		return nil, fmt.Errorf("%w: the switch has no program yet", datapath.ErrNotFound)
	}
	x, ok := (*e).(interface {
		Trace(spec trace.Spec) (*trace.Session, error)
	})
	if !ok {
		return nil, fmt.Errorf("%w: this executor traces nothing", datapath.ErrUnsupported)
	}
	return x.Trace(spec)
}

// A switch tells traces at the address of its P4Runtime server, to whoever may write to it: a stream of the service's only method. The request is a
// trace.Spec and each answer a traceMessage, in JSON, so that the service needs no code that is generated.
const (
	traceServiceName = "bifrost.p4.Trace"
	traceMethod      = "/" + traceServiceName + "/Watch"
	// countsEvery is how often counts are told while no packet is.
	countsEvery = time.Second
)

type traceMessage struct {
	Packet *trace.Packet `json:"packet,omitempty"`
	Counts trace.Counts  `json:"counts"`
}

// services adds to a server what it tells beside P4Runtime.
func (s *Switch) services(r grpc.ServiceRegistrar) {
	s.serveTraces(r)
	s.serveState(r)
	pb.RegisterGNMIServer(r, gnmi.New(s))
}

// serveTraces adds the service to a server.
func (s *Switch) serveTraces(r grpc.ServiceRegistrar) {
	r.RegisterService(&grpc.ServiceDesc{
		ServiceName: traceServiceName, HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: "Watch", ServerStreams: true, Handler: func(_ any, stream grpc.ServerStream) error { return s.tellTraces(stream) }}},
	}, s)
}

// tellTraces tells a client traces until it goes.
func (s *Switch) tellTraces(stream grpc.ServerStream) error {
	var in wrapperspb.BytesValue
	if err := stream.RecvMsg(&in); err != nil {
		return err
	}
	var spec trace.Spec
	if err := json.Unmarshal(in.Value, &spec); err != nil {
		return status.Errorf(codes.InvalidArgument, "no trace.Spec: %v", err)
	}
	session, err := s.Trace(spec)
	if err != nil {
		return traceStatus(err)
	}
	defer session.Stop()
	tick := time.NewTicker(countsEvery)
	defer tick.Stop()
	send := func(p *trace.Packet) error {
		b, err := json.Marshal(traceMessage{p, session.Counts()})
		if err != nil {
			return err
		}
		return stream.SendMsg(wrapperspb.Bytes(b))
	}
	if err := send(nil); err != nil { // it has begun
		return err
	}
	for {
		var p *trace.Packet
		select {
		case p = <-session.Packets():
		case <-tick.C:
		case <-session.Ended():
			return status.Error(codes.Unavailable, "the switch runs another program now, or ends")
		case <-stream.Context().Done():
			return nil
		}
		if err := send(p); err != nil {
			return err
		}
	}
}

func traceStatus(err error) error {
	var filter *trace.FilterError
	code := codes.Internal
	switch {
	case errors.As(err, &filter):
		code = codes.InvalidArgument
	case errors.Is(err, datapath.ErrExists), errors.Is(err, datapath.ErrNotFound):
		code = codes.FailedPrecondition
	case errors.Is(err, datapath.ErrUnsupported):
		code = codes.Unimplemented
	}
	return status.Error(code, err.Error())
}

// WatchTraces asks a switch for traces, and gives them to a function until that, the switch or ctx ends it. began is called when the switch traces. It
// returns what was counted, and the function's error; none if ctx has ended.
func WatchTraces(ctx context.Context, conn grpc.ClientConnInterface, spec trace.Spec, began func(), each func(*trace.Packet) error) (counts trace.Counts, err error) {
	b, err := json.Marshal(spec)
	if err != nil {
		return counts, err
	}
	// A deadline is not the switch's to keep: it would end the stream before this side's clock says so.
	streamCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	stream, err := conn.NewStream(streamCtx, &grpc.StreamDesc{ServerStreams: true}, traceMethod)
	if err != nil {
		return counts, err
	}
	if err := errors.Join(stream.SendMsg(wrapperspb.Bytes(b)), stream.CloseSend()); err != nil && !errors.Is(err, io.EOF) {
		return counts, err
	}
	for first := true; ; first = false {
		var in wrapperspb.BytesValue
		if err := stream.RecvMsg(&in); err != nil {
			if ctx.Err() != nil {
				return counts, nil
			}
			return counts, err
		}
		var m traceMessage
		if err := json.Unmarshal(in.Value, &m); err != nil {
			return counts, fmt.Errorf("the switch tells something else than a trace: %w", err)
		}
		counts = m.Counts
		if first {
			began()
		}
		if m.Packet != nil {
			if err := each(m.Packet); err != nil {
				return counts, err
			}
		}
	}
}
