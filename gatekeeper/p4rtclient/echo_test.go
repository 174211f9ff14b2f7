package p4rtclient

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/bifrost-rack/bifrost/p4/p4rt"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// When the switch has answered, all packets have been received that it had held before.
func TestEcho_BehindPackets(t *testing.T) {
	virtual(t, func(b *bench) {
		_, s := b.primary(1)
		defer s.Close()
		if err := b.sw.Attach(2, func([]byte) {}); err != nil {
			t.Fatal(err)
		}
		got := 0
		s.Receive(func(PacketIn) { got++ }, func(Digest) {}, func(p4rt.Port) {})
		held := datagram(netip.MustParseAddr("fe80::1"), netip.MustParseAddr("fd00:b1f0::1"), 45102, []byte("hello"))
		for n := 1; n <= 100; n++ {
			b.sw.Input(2, bytes.Clone(held))
			if err := s.Echo(b.ctx); err != nil || got != n {
				t.Fatalf("%d packets were received, want %d; %v", got, n, err)
			}
		}
	})
}

// A session that has ended has no echo.
func TestEcho_ConnectionLost(t *testing.T) {
	virtual(t, func(b *bench) {
		_, s := b.primary(1)
		receive(s)
		b.stop()
		<-s.Done()
		if err := s.Echo(b.ctx); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		s.Close()
	})
}

// A switch that does not announce stream writes, or does not know the question, answers that question.
func TestEcho_Asked(t *testing.T) {
	for what, answer := range map[string]error{
		"an answer without it": nil, "no such question": status.Error(codes.Unimplemented, "what?"),
	} {
		t.Run(what, func(t *testing.T) {
			virtual(t, func(b *bench) {
				asked := 0
				c, err := New(Config{Conn: answering{b.conn, answer, &asked}, Program: program(t), DeviceID: 1, Election: Election{Low: 1}})
				if err != nil {
					t.Fatal(err)
				}
				s, err := c.Open(b.ctx)
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				receive(s)
				before := asked
				if err := s.Echo(b.ctx); err != nil || asked != before+1 {
					t.Errorf("%v, asked %d times", err, asked-before)
				}
			})
		})
	}
}

// answering answers the question for capabilities itself: with none, or an error.
type answering struct {
	grpc.ClientConnInterface
	err   error
	asked *int
}

func (a answering) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if method == "/p4.v1.P4Runtime/Capabilities" {
		*a.asked++
		return a.err
	}
	return a.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}
