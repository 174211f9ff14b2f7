package softswitch

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/internal/sample"
	"github.com/bifrost-rack/bifrost/p4switch/trace"
	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// tracedSwitch is a switch that serves, with the sample program unless empty.
func tracedSwitch(t *testing.T, empty bool) (*Switch, *grpc.ClientConn) {
	t.Helper()
	s, err := New(Config{DeviceID: 1, CPUPort: sample.CPUPort})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if !empty {
		info := &configv1.P4Info{}
		if err := prototext.Unmarshal(sample.Info, info); err != nil {
			t.Fatal(err)
		}
		if err := s.Server().LoadConfig(&p4v1.ForwardingPipelineConfig{P4Info: info, P4DeviceConfig: sample.JSON}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Attach(1, func([]byte) {}); err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", at)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.Serve(l) }()
	conn, err := grpc.NewClient("unix:"+at, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return s, conn
}

// TestWatchTraces: a client is told what becomes of packets from when it has begun, and what was counted when it ends.
func TestWatchTraces(t *testing.T) {
	s, conn := tracedSwitch(t, false)
	enough := errors.New("enough")
	var told *trace.Packet
	counts, err := WatchTraces(t.Context(), conn, trace.Spec{Filter: []string{"port=1"}}, func() { s.Input(1, datagram(7, "x")) }, func(p *trace.Packet) error {
		told = p
		return enough
	})
	if !errors.Is(err, enough) || counts.Matched != 1 {
		t.Fatalf("%+v, %v", counts, err)
	}
	if text := told.String(); !strings.Contains(text, "SampleIngress.identity") || !strings.HasPrefix(text, "packet 1: port 1") {
		t.Errorf("told %s", text)
	}
}

// TestWatchTraces_Refused: errors reach the client with a code and a remedy.
func TestWatchTraces_Refused(t *testing.T) {
	_, conn := tracedSwitch(t, false)
	_, empty := tracedSwitch(t, true)
	never := func() { t.Error("it has begun") }
	for _, tc := range []struct {
		conn *grpc.ClientConn
		spec trace.Spec
		code codes.Code
		says string
	}{
		{conn, trace.Spec{Filter: []string{"nothing=1"}}, codes.InvalidArgument, "choose one of"},
		{empty, trace.Spec{}, codes.FailedPrecondition, "no program yet"},
	} {
		_, err := WatchTraces(t.Context(), tc.conn, tc.spec, never, func(*trace.Packet) error { return nil })
		if st, _ := status.FromError(err); st.Code() != tc.code || !strings.Contains(st.Message(), tc.says) {
			t.Errorf("%+v: %v", tc.spec, err)
		}
	}
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, traceMethod)
	if err == nil {
		err = errors.Join(stream.SendMsg(wrapperspb.String("{")), stream.CloseSend(), stream.RecvMsg(&wrapperspb.BytesValue{}))
	}
	if status.Code(errors.Unwrap(err)) != codes.InvalidArgument && !strings.Contains(err.Error(), "no trace.Spec") {
		t.Errorf("no JSON: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	second := error(nil)
	_, err = WatchTraces(ctx, conn, trace.Spec{}, func() {
		_, second = WatchTraces(t.Context(), conn, trace.Spec{}, never, func(*trace.Packet) error { return nil })
		cancel()
	}, func(*trace.Packet) error { return nil })
	if err != nil || status.Code(second) != codes.FailedPrecondition {
		t.Errorf("first %v, second %v", err, second)
	}
}

// TestWatchTraces_Ends: a trace ends with the program.
func TestWatchTraces_Ends(t *testing.T) {
	s, conn := tracedSwitch(t, false)
	_, err := WatchTraces(t.Context(), conn, trace.Spec{}, func() {
		if err := s.Server().LoadConfig(&p4v1.ForwardingPipelineConfig{P4Info: &configv1.P4Info{}, P4DeviceConfig: sample.JSON}); err != nil {
			t.Error(err)
		}
	}, func(*trace.Packet) error { return nil })
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "another program") {
		t.Errorf("%v", err)
	}
}
